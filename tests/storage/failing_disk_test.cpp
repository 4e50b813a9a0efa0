// Saves to a disk that is full, read-only, failing or removed. The error says what failed and
// where, the previous checkpoint stays whole, nothing is left open, and the next save works and
// cleans up.
#include <cairn/tests/support/torch.hpp>

#include <cerrno>
#include <cstring>
#include <set>
#include <stdexcept>

#include <cairn/state/checkpoint_writer.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/stores/file_store.hpp>
#include <cairn/storage/stores/url.hpp>
#include <cairn/storage/verify_checkpoint.hpp>
#include <cairn/tests/support/leak_check.hpp>
#include <cairn/tests/support/local_protocol.hpp>
#include <cairn/tests/support/simulated_file_system.hpp>
#include <cairn/tests/support/small_mount.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tests/support/thrown.hpp>

using namespace cairn;
using namespace cairn::testing;

namespace {

// The store of "simulated:/path" is on the current simulated disk.
std::shared_ptr<SimulatedFileSystem> disk;
const std::string kDiskRoot = "/runs/run/step";
const std::string kDiskUrl = "simulated:" + kDiskRoot;

void insert_new_disk() {
  static const bool once = [] {
    register_store("simulated", [](const std::string& url) { return std::make_shared<FileStore>(split_url(url).path, *disk); });
    return true;
  }();
  (void)once;
  disk = std::make_shared<SimulatedFileSystem>();
}

StateDict state_for(double value, std::int64_t rows = 200) {
  StateDict state{{"weight", torch::full({rows, 33}, value)}, {"step", static_cast<std::int64_t>(value)}};
  return state;
}

// Saves from `ranks` ranks, which share the writing of the replicated state.
void save(const std::string& url, double value, int ranks = 2, CheckpointWriterOptions options = {}, std::int64_t rows = 200) {
  LocalSave how{url, local_save_id(static_cast<std::uint64_t>(value))};
  const StateDict state = state_for(value, rows);
  const std::vector<const StateDict*> states(static_cast<std::size_t>(ranks), &state);
  save_locally(how, states, [&] { return std::make_unique<CheckpointWriter>(options); });
}

// Returns the value of `state_for` that the checkpoint holds. Throws unless the whole checkpoint
// has that value and passes verification.
double loaded(const std::string& url) {
  StateDict state = state_for(-1);
  load_locally(url, {&state}, [] { return std::make_unique<CheckpointReader>(); });
  const double value = state["weight"].tensor()[0][0].item<double>();
  const bool is_whole =
      state["weight"].tensor().eq(value).all().item<bool>() && state["step"].to_int() == static_cast<std::int64_t>(value);
  if (!is_whole || !verify_checkpoint(*open_store(url), 1).empty()) throw std::runtime_error("the checkpoint is not whole");
  return value;
}

// Returns the ids of saves that have files, and "attempt <id>" for those with an attempt.
std::set<std::string> ids_present(const std::string& url) {
  std::set<std::string> ids;
  const auto store = open_store(url);
  for (const ObjectInfo& object : store->list()) {
    if (object.name == kCommitRecordName) continue;
    const auto id = save_id_of_file(object.name);
    ids.insert(id ? *id : object.name);
  }
  for (const auto& attempts : {store->open_attempts(), store->fenced_attempts()})
    for (const std::string& id : attempts) ids.insert("attempt " + id);
  return ids;
}

std::string id_for(double value) { return local_save_id(static_cast<std::uint64_t>(value)); }

}  // namespace

TEST_CASE_FIXTURE(LeakCheck, "failing disk: any failing operation leaves the earlier checkpoint whole") {
  struct Way {
    int number;
    ErrorCode code;
    std::string advice;
  };
  const Way ways[] = {{ENOSPC, ErrorCode::kNoSpace, "free space"},
                      {EDQUOT, ErrorCode::kNoSpace, "quota"},
                      {EIO, ErrorCode::kUnavailable, "trying again"},
                      {EROFS, ErrorCode::kPermission, "read-only"}};
  for (const bool single_file : {true, false}) {
    CheckpointWriterOptions options;
    options.single_file_per_rank = single_file;
    std::set<std::string> failed_operations;
    for (const Way& way : ways) {
      std::uint64_t failing = 0;
      for (bool reached = true; reached; ++failing) {
        insert_new_disk();
        save(kDiskUrl, 1, 2, options);
        const std::uint64_t first = disk->operations();
        std::string operation;
        disk->before_operation = [&](std::uint64_t index, const std::string& what) {
          if (index == first + failing) operation = what;
        };
        disk->fail_operation(first + failing, way.number);
        const Thrown thrown = thrown_by([&] { save(kDiskUrl, 2, 2, options); });
        disk->before_operation = nullptr;
        reached = disk->operations() > first + failing;
        if (!reached) break;
        INFO(std::string(strerrorname_np(way.number)), " at operation ", failing, " (", operation, "): ", thrown.what);
        CHECK(disk->open_handles() == 0);
        const double now = loaded(kDiskUrl);
        if (thrown.is_error) {
          failed_operations.insert(operation.substr(0, operation.find(' ')));
          // A record that was renamed but not synced is visible, and the error says so.
          const bool is_published = thrown.says("was published");
          CHECK(now == (is_published ? 2 : 1));
          CHECK(thrown.code == (is_published ? ErrorCode::kUnavailable : way.code));
          CHECK(thrown.says("/runs/run"));
          CHECK(thrown.says(strerrorname_np(way.number)));
          CHECK(thrown.says(way.advice));
        } else {
          CHECK(now == 2);
        }
        save(kDiskUrl, 3, 2, options);
        CHECK(loaded(kDiskUrl) == 3);
        CHECK(ids_present(kDiskUrl) == std::set<std::string>{id_for(now), id_for(3)});
        CHECK(disk->open_handles() == 0);
      }
      CHECK(failing > 15);
    }
    // Each kind of operation made a save fail, including those that run only at its end.
    for (const char* const operation : {"create", "allocate", "write", "truncate", "sync", "close", "make", "rename"})
      CHECK_MESSAGE(failed_operations.count(operation) == 1, operation);
  }
  disk.reset();
}

TEST_CASE_FIXTURE(LeakCheck, "failing disk: writes that end short give the same checkpoint") {
  for (const bool direct : {true, false})
    for (const std::size_t most : {std::size_t{1000}, std::size_t{4096}, std::size_t{5000}}) {
      insert_new_disk();
      disk->features.direct = direct;
      disk->features.write_bytes_max = most;
      save(kDiskUrl, 1);
      CHECK(loaded(kDiskUrl) == 1);
    }
  disk.reset();
}

TEST_CASE_FIXTURE(LeakCheck, "failing disk: a checkpoint whose directory is taken away during the save") {
  // Only one thread writes, so that `before_operation` is called for every operation.
  CheckpointWriterOptions options;
  options.threads = 1;
  std::uint64_t at = 0;
  std::size_t refused = 0;
  for (bool reached = true; reached; ++at) {
    insert_new_disk();
    save(kDiskUrl, 1, 1, options);
    const std::uint64_t first = disk->operations();
    reached = false;
    disk->before_operation = [&](std::uint64_t index, const std::string&) {
      if (index != first + at) return;
      reached = true;
      const std::vector<std::string> all = disk->paths();
      for (auto path = all.rbegin(); path != all.rend(); ++path) {  // children come before their directories
        if (path->compare(0, kDiskRoot.size(), kDiskRoot) != 0) continue;
        if (disk->remove_file(*path) < 0) disk->remove_directory(*path);
      }
    };
    const Thrown thrown = thrown_by([&] { save(kDiskUrl, 2, 1, options); });
    disk->before_operation = nullptr;
    INFO("before operation ", at, ": ", thrown.what);
    CHECK(disk->open_handles() == 0);
    if (thrown.is_error) {
      const bool is_fit =
          thrown.code == ErrorCode::kNotFound || thrown.code == ErrorCode::kFenced || thrown.code == ErrorCode::kUnavailable;
      CHECK(is_fit);
      CHECK(thrown.says(kDiskRoot));
      ++refused;
    }
    save(kDiskUrl, 3, 1, options);
    CHECK(loaded(kDiskUrl) == 3);
  }
  CHECK(refused > 8);
  disk.reset();
}

namespace {

// The descriptors and threads that saves on a real, small file system leave open. LibTorch keeps
// some of its own: CUDA's, which the first save opens, so this is made after it; and threads for
// operators, which this does without.
class Remains {
 public:
  Remains() {
    at::set_num_threads(1);
    descriptors_ = open_descriptors();
    threads_ = running_threads();
  }

  std::string found() const { return difference(descriptors_, open_descriptors()) + difference(threads_, running_threads()); }

 private:
  Inventory descriptors_;
  Inventory threads_;
};

}  // namespace

TEST_CASE("failing disk: a real disk that fills up") {
  const TemporaryDirectory directory;
  const std::string url = directory.path() + "/run/step";
  on_small_mount(directory.path(), "size=1m", 0, [&]() -> std::string {
    save(url, 1);
    const Remains remains;
    const Thrown thrown = thrown_by([&] { save(url, 2, 2, {}, 20'000); });  // 2.6 MB
    if (thrown.code != ErrorCode::kNoSpace || !thrown.says("reserve") || !thrown.says(url)) return "found as: " + thrown.what;
    if (loaded(url) != 1) return "the checkpoint before is not whole";
    std::set<std::string> left = ids_present(url);
    left.erase("attempt " + id_for(2));  // it says that these files are dead, until the next save
    if (left != std::set<std::string>{id_for(1)}) return "files of the failed save are left";
    save(url, 3);
    if (loaded(url) != 3 || ids_present(url) != std::set<std::string>{id_for(1), id_for(3)}) return "the next save does not work";
    return remains.found();
  });
}

TEST_CASE("failing disk: a real disk that turns read-only") {
  const TemporaryDirectory directory;
  const std::string url = directory.path() + "/run/step";
  on_small_mount(directory.path(), "size=4m", 0, [&]() -> std::string {
    save(url, 1);
    const Remains remains;
    if (::mount("tmpfs", directory.path().c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, "size=4m") != 0) return "cannot remount";
    const Thrown thrown = thrown_by([&] { save(url, 2); });
    if (thrown.code != ErrorCode::kPermission || !thrown.says("read-only") || !thrown.says(url)) return "found as: " + thrown.what;
    if (loaded(url) != 1) return "the checkpoint before is not whole";
    const Thrown elsewhere = thrown_by([&] { save(directory.path() + "/other/step", 2); });
    if (elsewhere.code != ErrorCode::kPermission) return "another place, found as: " + elsewhere.what;
    if (::mount("tmpfs", directory.path().c_str(), "tmpfs", MS_REMOUNT, "size=4m") != 0) return "cannot remount";
    save(url, 3);
    if (loaded(url) != 3 || ids_present(url) != std::set<std::string>{id_for(1), id_for(3)}) return "the next save does not work";
    return remains.found();
  });
}
