// Saves that take unchanged data over from the checkpoint before them.
#include <cairn/tests/support/torch.hpp>

#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <cairn/base/error.hpp>
#include <cairn/state/checkpoint_writer.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/format/zstd_item.hpp>
#include <cairn/storage/read_metadata.hpp>
#include <cairn/storage/stores/file_store.hpp>
#include <cairn/storage/stores/tier_copier.hpp>
#include <cairn/storage/stores/url.hpp>
#include <cairn/storage/tiers.hpp>
#include <cairn/storage/verify_checkpoint.hpp>
#include <cairn/tests/support/captured_log.hpp>
#include <cairn/tests/support/local_protocol.hpp>
#include <cairn/tests/support/simulated_file_system.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tests/support/thrown.hpp>
#include <cairn/tests/support/wrapped_store.hpp>

namespace cairn::testing {
namespace {

// "reusing:<path>" is a directory whose written bytes are counted and whose links may fail.
std::atomic<std::uint64_t> bytes_written{0};
std::function<void()> before_link;
bool has_links = true;

void register_reusing() {
  static const bool once = [] {
    register_around(
        "reusing", "file",
        [](Store&, const DecoratedOperation& operation, const std::function<void()>& act) {
          const std::string name = operation.name;
          if (name == "write_at" || name == "publish") bytes_written += operation.bytes;
          if (name == "link" && before_link) before_link();
          act();
        },
        [](StoreTraits& traits) { traits.has_links = traits.has_links && has_links; });
    return true;
  }();
  (void)once;
  before_link = nullptr;
  has_links = true;
}

// Tensors that do not change, of 2 MiB and a little, and some that do, of 12 KiB.
constexpr std::int64_t kRows = 520;

StateDict state_at(double step, double base = 7) {
  const auto steady = [&](double value) { return torch::arange(kRows * 1024, torch::kFloat32).mul_(value).view({kRows, 1024}); };
  StateDict state{{"steady", frozen(Dict{{"a", steady(base)}, {"b", torch::full({3}, base)}})},
                  {"trained", torch::full({1024, 3}, step)},
                  {"step", static_cast<std::int64_t>(step)}};
  return state;
}

// Does not mark anything.
StateDict unmarked(double step, double base = 7) {
  StateDict state = state_at(step, base);
  Dict steady;
  for (const auto& [key, value] : state["steady"].dict()) steady[key] = value.tensor();
  state["steady"] = Value(steady);
  return state;
}

CheckpointWriterOptions reusing(Reuse reuse, std::uint32_t generations_max = 10) {
  CheckpointWriterOptions options;
  options.reuse = reuse;
  options.reuse_generations_max = generations_max;
  options.sync_files = false;
  return options;
}

// Writers and planners of all ranks, which stay from save to save.
class Savers {
 public:
  explicit Savers(int ranks, const CheckpointWriterOptions& options, std::string run = "") : run_(std::move(run)) {
    register_reusing();
    if (run_.empty()) run_ = "reusing:" + directory_.path() + "/run";
    for (int rank = 0; rank < ranks; ++rank) {
      planners_.push_back(std::make_unique<DefaultSavePlanner>());
      writers_.push_back(std::make_unique<CheckpointWriter>(options));
    }
  }

  std::string url(int step) const { return run_ + "/step_" + std::to_string(step); }
  void move_to(std::string run) { run_ = std::move(run); }
  std::string id(int step) const { return local_save_id(static_cast<std::uint64_t>(step)); }
  std::filesystem::path path(int step) const { return run_.substr(run_.find(':') + 1) + "/step_" + std::to_string(step); }

  // Saves as the save of number `counter`, by default `step`, and returns the bytes written.
  std::uint64_t save(int step, const std::vector<const StateDict*>& states, int counter = 0) {
    bytes_written = 0;
    std::vector<LocalSaver> ranks;
    for (std::size_t rank = 0; rank < states.size(); ++rank)
      ranks.push_back({states[rank], planners_[rank].get(), writers_[rank].get()});
    save_locally({url(step), id(counter > 0 ? counter : step)}, ranks);
    return bytes_written;
  }
  std::uint64_t save(int step, const StateDict& state) {
    return save(step, std::vector<const StateDict*>(writers_.size(), &state));
  }

  // Checks that the checkpoint has the state, alone.
  void check(int step, double trained, double base = 7) const {
    CAPTURE(step);
    StateDict state = state_at(-1, -1);
    load_locally(url(step), {&state}, [] { return std::make_unique<CheckpointReader>(); });
    const StateDict expected = state_at(trained, base);
    for (const char* name : {"a", "b"})
      CHECK(torch::equal(state["steady"][name].tensor(), expected.at("steady")[name].tensor()));
    CHECK(torch::equal(state["trained"].tensor(), expected.at("trained").tensor()));
    CHECK(state["step"].to_int() == static_cast<std::int64_t>(trained));
    for (const auto& fault : verify_checkpoint(*open_store(url(step)))) FAIL_CHECK(fault.what);
  }

  // The files of a checkpoint, on the disk.
  std::set<ino_t> inodes(int step) const {
    std::set<ino_t> found;
    for (const auto& entry : std::filesystem::directory_iterator(path(step))) {
      if (!is_cairns_file(entry.path().filename().string())) continue;
      struct stat status {};
      REQUIRE(::stat(entry.path().c_str(), &status) == 0);
      found.insert(status.st_ino);
    }
    return found;
  }
  std::size_t shared(int step, int other) const {
    const auto mine = inodes(step), others = inodes(other);
    return static_cast<std::size_t>(std::count_if(mine.begin(), mine.end(), [&](ino_t node) { return others.count(node) > 0; }));
  }
  // The largest file, which has the steady tensors.
  std::filesystem::path steady_file(int step) const {
    std::filesystem::path largest;
    for (const auto& entry : std::filesystem::directory_iterator(path(step)))
      if (largest.empty() || entry.file_size() > std::filesystem::file_size(largest)) largest = entry.path();
    return largest;
  }

 private:
  const TemporaryDirectory directory_;
  std::string run_;
  std::vector<std::unique_ptr<DefaultSavePlanner>> planners_;
  std::vector<std::unique_ptr<CheckpointWriter>> writers_;
};

// Saves as steps 1, 2, … until the last save has written at most a twentieth of the first one.
// Returns the step of that save.
int save_until_reused(Savers& savers, const std::function<StateDict(double)>& state) {
  const std::uint64_t whole = savers.save(1, state(1));
  for (int step = 2; step < 10; ++step)
    if (savers.save(step, state(step)) * 20 <= whole) return step;
  FAIL("nothing was reused");
  return 0;
}

TEST_CASE("reuse: a save writes what has changed, and each checkpoint is whole alone") {
  struct Row {
    Reuse reuse;
    bool single_file;
    int zstd_level;
    int ranks;
    int reused_at;  // the first save that writes little
  };
  std::vector<Row> rows{{Reuse::kDeclared, true, 0, 1, 2}, {Reuse::kDeclared, false, 0, 1, 2}, {Reuse::kDeclared, true, 0, 3, 2},
                        {Reuse::kDigest, true, 0, 1, 2},   {Reuse::kDigest, true, 0, 3, 2}};
  if (why_not_undone({kZstdTransform}).empty()) rows.push_back({Reuse::kDeclared, true, 1, 2, 2});
  for (const Row& row : rows) {
    CAPTURE(static_cast<int>(row.reuse));
    CAPTURE(row.single_file);
    CAPTURE(row.zstd_level);
    CAPTURE(row.ranks);
    CheckpointWriterOptions options = reusing(row.reuse);
    options.single_file_per_rank = row.single_file;
    options.zstd_level = row.zstd_level;
    Savers savers(row.ranks, options);
    const int step = save_until_reused(savers, [](double at) { return state_at(at); });
    CHECK(step == row.reused_at);
    savers.save(step + 1, state_at(step + 1));
    for (int saved = 1; saved <= step + 1; ++saved) savers.check(saved, saved);
    CHECK(savers.shared(step + 1, 1) > 0);
    const Metadata metadata = read_metadata(*open_store(savers.url(step + 1)));
    for (const FileInfo& file : metadata.files) {
      CHECK(save_id_of_file(file.name) == savers.id(step + 1));
      CHECK((file.written_by.empty() || file.written_by == savers.id(1)));
    }
    for (int saved = 1; saved <= step; ++saved) std::filesystem::remove_all(savers.path(saved));
    savers.check(step + 1, step + 1);
  }
}

TEST_CASE("reuse: tensors that nobody has marked are found by their digests") {
  for (const int ranks : {1, 2}) {
    Savers savers(ranks, reusing(Reuse::kDigest));
    // The second save sees that they are the same, the third gives them a file of their own. The
    // larger one of two ranks has a file of its own at once.
    CHECK(save_until_reused(savers, [](double at) { return unmarked(at); }) == (ranks == 1 ? 4 : 2));
    for (int step = 3; step <= 6; ++step) {
      savers.save(step + 10, unmarked(step));
      savers.check(step + 10, step);
    }
    CHECK(savers.shared(16, 15) == static_cast<std::size_t>(ranks));
  }
  Savers declared(1, reusing(Reuse::kDeclared));
  declared.save(1, unmarked(1));
  declared.save(2, unmarked(2));
  CHECK(declared.shared(1, 2) == 0);
}

TEST_CASE("reuse: a marked tensor that has changed is saved as it is") {
  for (const Reuse reuse : {Reuse::kDeclared, Reuse::kDigest}) {
    Savers savers(2, reusing(reuse));
    double base = 7;
    for (int step = 1; step <= 8; ++step) {
      if (step == 3 || step == 4 || step == 7) base += 1;
      savers.save(step, state_at(step, base));
      savers.check(step, step, base);
    }
    CHECK(savers.shared(1, 2) > 0);
    CHECK(savers.shared(2, 3) == 0);
    CHECK(savers.shared(5, 6) > 0);
  }
}

TEST_CASE("reuse: tensors that change after the first block are saved as they are") {
  Savers savers(1, [] {
    CheckpointWriterOptions options = reusing(Reuse::kDeclared);
    options.block_bytes = 1u << 18;
    return options;
  }());
  StateDict state = state_at(1);
  savers.save(1, state);
  int step = 1;
  for (const std::int64_t at : {std::int64_t{0}, std::int64_t{40000}, std::int64_t{65536}, kRows * 1024 - 1}) {
    savers.save(++step, state);
    CHECK(savers.shared(step - 1, step) == 1);
    state["steady"]["a"].tensor().view({-1})[at] += 1;
    savers.save(++step, state);
    CHECK(savers.shared(step - 1, step) == 0);
    StateDict loaded = state_at(-1);
    load_locally(savers.url(step), {&loaded}, [] { return std::make_unique<CheckpointReader>(); });
    CHECK(torch::equal(loaded["steady"]["a"].tensor(), state["steady"]["a"].tensor()));
  }
}

TEST_CASE("reuse: so many checkpoints share a file, and then all ranks write anew at once") {
  Savers savers(2, reusing(Reuse::kDeclared, 3));
  // One rank's file is younger than the other's from the second save on.
  for (int step = 1; step <= 8; ++step) {
    StateDict first = state_at(step), second = state_at(step);
    first["mine"] = per_rank(frozen(Value(torch::full({512}, step < 2 ? 1 : 2))));
    second["mine"] = per_rank(frozen(Value(torch::full({512}, 1))));
    savers.save(step, {&first, &second});
    savers.check(step, step);
  }
  for (const auto& [one, other, share] : {std::tuple{1, 2, true}, {2, 3, true}, {3, 4, false}, {4, 6, true}, {6, 7, false}}) {
    const int shown = one;
    CAPTURE(shown);
    CHECK((savers.shared(one, other) > 0) == share);
  }
  const Thrown thrown = thrown_by([] { CheckpointWriter writer(reusing(Reuse::kDigest, 0)); });
  CHECK(thrown.code == ErrorCode::kInvalidArgument);
  CHECK(thrown.says("reuse_generations_max"));
}

TEST_CASE("reuse: a donor that cannot be linked, for whatever reason, is written instead") {
  struct Row {
    std::string why;  // in the log
    std::function<void(Savers&)> act;
  };
  const auto failing = [](ErrorCode code) {
    return [code](Savers&) { before_link = [code] { throw Error(code, "planned"); }; };
  };
  const std::vector<Row> rows = {
      {"ENOENT", [](Savers& savers) { std::filesystem::remove_all(savers.path(1)); }},
      // During the save.
      {"ENOENT", [](Savers& savers) { before_link = [&savers] { std::filesystem::remove_all(savers.path(1)); }; }},
      {"were written", [](Savers& savers) { std::filesystem::resize_file(savers.steady_file(1), 1000); }},
      {"were written", [](Savers& savers) { std::ofstream(savers.steady_file(1), std::ios::app) << "more"; }},
      {"regular file",
       [](Savers& savers) {
         const auto file = savers.steady_file(1);
         std::filesystem::rename(file, savers.path(1) / "elsewhere");
         std::filesystem::create_symlink("elsewhere", file);
       }},
      {"EMLINK", [](Savers&) { before_link = [] { throw system_error("link to", "it", EMLINK); }; }},
      {"planned", failing(ErrorCode::kUnsupported)},
      {"planned", failing(ErrorCode::kPermission)},
      {"planned", failing(ErrorCode::kUnavailable)},
      {"planned", [](Savers&) { before_link = [] { throw std::runtime_error("planned"); }; }},
      {"", [](Savers&) { has_links = false; }},
      // Found by a restore. The record of the finding names a file, but all of them are in doubt.
      {"", [](Savers& savers) { std::ofstream(savers.path(1) / kFindingName) << savers.id(1) << "\n__0_0 is damaged\n"; }},
  };
  for (const Row& row : rows) {
    CAPTURE(row.why);
    Savers savers(2, reusing(Reuse::kDeclared));
    savers.save(1, state_at(1));
    row.act(savers);
    const CapturedLog log;
    CHECK(savers.save(2, state_at(2)) > kRows * 1024 * sizeof(float));
    savers.check(2, 2);
    CHECK((log.text().find(row.why) != std::string::npos));
    CHECK(log.text().empty() == row.why.empty());
    before_link = nullptr;
    const bool has_linked = std::exchange(has_links, true);
    savers.save(3, state_at(3));
    savers.check(3, 3);
    CHECK(savers.shared(has_linked ? 2 : 1, 3) > 0);
  }
}

TEST_CASE("reuse: a finding about any checkpoint that shares the files counts") {
  Savers savers(2, reusing(Reuse::kDeclared));
  for (int step = 1; step <= 3; ++step) savers.save(step, state_at(step));
  CHECK(savers.shared(1, 3) > 0);
  std::ofstream(savers.path(2) / kFindingName) << savers.id(2) << "\n__0_0 is damaged\n";
  for (int step = 4; step <= 5; ++step) savers.save(step, state_at(step));
  CHECK(savers.shared(3, 4) == 0);
  CHECK(savers.shared(4, 5) > 0);
}

TEST_CASE("reuse: new keys, other shapes and other worlds are written, and come back") {
  Savers savers(2, reusing(Reuse::kDigest));
  for (int step = 1; step <= 4; ++step) savers.save(step, unmarked(step));
  StateDict more = state_at(5);
  more["added"] = torch::full({400, 100}, 5);
  savers.save(5, more);
  savers.check(5, 5);
  StateDict halves = state_at(6);
  const torch::Tensor whole = halves["steady"]["a"].tensor();
  halves["steady"]["a"] = frozen(Value(whole.slice(0, 0, kRows / 2).clone()));
  savers.save(6, halves);
  StateDict loaded = state_at(-1);
  loaded["steady"]["a"] = torch::zeros({kRows / 2, 1024});
  load_locally(savers.url(6), {&loaded}, [] { return std::make_unique<CheckpointReader>(); });
  CHECK(torch::equal(loaded["steady"]["a"].tensor(), whole.slice(0, 0, kRows / 2)));
  // The world shrinks. Its writers are new.
  Savers alone(1, reusing(Reuse::kDigest), savers.url(0).substr(0, savers.url(0).rfind('/')));
  alone.save(7, state_at(7));
  alone.check(7, 7);
  for (const int step : {1, 4, 5, 6}) CHECK(alone.shared(7, step) == 0);
}

TEST_CASE("reuse: a failed save leaves no link, and the next one links to the last good one") {
  Savers savers(2, reusing(Reuse::kDeclared));
  savers.save(1, state_at(1));
  // The record cannot be published: something is in its place.
  std::filesystem::create_directories(savers.path(2) / kCommitRecordName / "in the way");
  CHECK(thrown_by([&] { savers.save(2, state_at(2)); }).is_error);
  CHECK(savers.inodes(2).empty());
  savers.save(3, state_at(3));
  savers.check(3, 3);
  savers.check(1, 1);
  CHECK(savers.shared(1, 3) > 0);
}

TEST_CASE("reuse: each tier links to its own object, and each checkpoint is whole there alone") {
  const TemporaryDirectory directory;
  TierOptions tiers;
  tiers.near_url = directory.path() + "/near";
  tiers.far_url = directory.path() + "/far";
  register_tier("reusing", tiers);
  Savers savers(1, reusing(Reuse::kDeclared), "tiered://reusing/run");
  for (int step = 1; step <= 2; ++step) {
    savers.save(step, state_at(step));
    REQUIRE(wait_for_copies("tiered://reusing/run"));
  }
  for (const std::string& tier : {tiers.near_url, tiers.far_url}) {
    CAPTURE(tier);
    const Savers alone(1, {}, tier + "/run");
    CHECK(alone.shared(2, 1) == 1);
    std::filesystem::remove_all(alone.path(1));
    alone.check(2, 2);
  }
  forget_tier("reusing");
}

TEST_CASE("reuse: a donor in another pair of tiers, outside of tiers, or lost from the near tier, is written instead") {
  const TemporaryDirectory directory;
  const std::string plain = directory.path() + "/plain/run";
  for (const std::string name : {"pair", "other"}) {
    TierOptions tiers;
    tiers.near_url = directory.path() + "/" + name + "_near";
    tiers.far_url = directory.path() + "/" + name + "_far";
    register_tier(name, tiers);
  }
  const auto check_alone = [&](const std::string& run, int step) {
    CAPTURE(run);
    Savers(1, {}, run).check(step, step);
  };
  Savers savers(1, reusing(Reuse::kDeclared), "tiered://pair/run");
  const auto save_anew = [&](const std::string& run, int step) {
    CAPTURE(run);
    savers.move_to(run);
    const CapturedLog log;
    savers.save(step, state_at(step));
    REQUIRE(wait_for_copies(run));
    CHECK((log.text().find("because it cannot be linked: ") != std::string::npos));
  };
  savers.save(1, state_at(1));
  REQUIRE(wait_for_copies("tiered://pair/run"));
  save_anew("tiered://other/run", 2);
  save_anew(plain, 3);
  save_anew("tiered://pair/run", 4);
  std::filesystem::remove_all(directory.path() + "/pair_near/run/step_4");
  save_anew("tiered://pair/run", 5);
  for (const auto& [name, steps] : {std::pair("pair", std::pair(1, 5)), {"other", {2, 2}}})
    for (const char* tier : {"_near/run", "_far/run"})
      for (const int step : {steps.first, steps.second}) check_alone(directory.path() + "/" + name + tier, step);
  check_alone(plain, 3);
  for (const std::string name : {"pair", "other"}) forget_tier(name);
}

TEST_CASE("reuse: a power loss at any operation leaves both checkpoints whole, or the first one") {
  static std::shared_ptr<SimulatedFileSystem> disk;
  register_store("linking", [](const std::string& url) { return std::make_shared<FileStore>(split_url(url).path, *disk); });
  using Survival = SimulatedFileSystem::Survival;
  CheckpointWriterOptions options = reusing(Reuse::kDeclared);
  options.sync_files = true;
  options.threads = 0;
  const auto small_state = [](double step) {
    StateDict state{{"steady", frozen(Value(torch::full({3000}, 7)))}, {"trained", torch::full({8}, step)}};
    return state;
  };
  const auto is_whole = [&](const std::string& url, double step) {
    StateDict state = small_state(-1);
    load_locally(url, {&state}, [] { return std::make_unique<CheckpointReader>(); });
    return state["trained"].tensor().eq(step).all().item<bool>() && state["steady"].tensor().eq(7).all().item<bool>() &&
           verify_checkpoint(*open_store(url), 1).empty();
  };
  const StateDict last = small_state(3);
  const Survival survivals[] = {{Survival::kSynced, 0}, {Survival::kRandom, 3}, {Survival::kAny, 1}, {Survival::kAny, 2}};
  for (const auto& survival : survivals) {
    bool reached = true;
    std::uint64_t index = 0;
    for (; reached; ++index) {
      CAPTURE(index);
      disk = std::make_shared<SimulatedFileSystem>();
      Savers savers(2, options, "linking:/runs/run");
      savers.save(1, small_state(1));
      const std::uint64_t first = disk->operations();
      disk->lose_power_at(first + index);
      const CapturedLog log;
      const bool returned = !thrown_by([&] { savers.save(2, small_state(2)); }).is_error;
      reached = disk->operations() > first + index;
      disk->restart(survival);
      disk->settle();
      CHECK(is_whole(savers.url(1), 1));
      const bool exists = open_store(savers.url(2))->exists(kCommitRecordName);
      if (returned) CHECK(exists);
      if (exists) CHECK(is_whole(savers.url(2), 2));
      // The donor may go, and a dead attempt's links with it.
      if (exists && index % 3 == 0) {
        const auto place = open_store(savers.url(1));
        for (const auto& object : place->list()) place->remove(object.name);
        CHECK(is_whole(savers.url(2), 2));
      }
      Savers next(2, options, "linking:/runs/run");
      next.save(2, {&last, &last}, 3);
      CHECK(is_whole(next.url(2), 3));
      // Nothing of the save that was cut off is left, but its checkpoint if it was published.
      std::set<std::string> ids;
      for (const auto& object : open_store(next.url(2))->list())
        if (const auto id = save_id_of_file(object.name)) ids.insert(*id);
      CHECK(ids == (exists ? std::set<std::string>{next.id(2), next.id(3)} : std::set<std::string>{next.id(3)}));
    }
    CHECK(index > 15);
  }
}

}  // namespace
}  // namespace cairn::testing
