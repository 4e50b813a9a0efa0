// The number and order of the system calls that saves and loads of many ranks make.
#include <cairn/tests/support/memory_store.hpp>
#include <cairn/tests/support/torch.hpp>

#include <cerrno>
#include <condition_variable>
#include <memory>
#include <mutex>

#include <cairn/state/checkpoint_writer.hpp>
#include <cairn/storage/publication.hpp>
#include <cairn/storage/stores/file_store.hpp>
#include <cairn/storage/stores/url.hpp>
#include <cairn/tests/support/captured_log.hpp>
#include <cairn/tests/support/local_protocol.hpp>
#include <cairn/tests/support/sample_state.hpp>
#include <cairn/tests/support/simulated_file_system.hpp>
#include <cairn/tests/support/thrown.hpp>

using namespace cairn;
using namespace cairn::testing;

namespace {

constexpr int kCountedRanks = 16;
const std::string kCountedRun = "/home/runs/run";

// The store of "counted:/path" is on the current simulated disk.
std::shared_ptr<SimulatedFileSystem> counted_disk;

void insert_counted_disk() {
  static const bool once = [] {
    register_store("counted",
                   [](const std::string& url) { return std::make_shared<FileStore>(split_url(url).path, *counted_disk); });
    return true;
  }();
  (void)once;
  counted_disk = std::make_shared<SimulatedFileSystem>();
}

// Ranks of one process that save repeatedly. Each holds one part of a tensor that is sharded over
// `layout_ranks` ranks.
struct SavingRanks {
  explicit SavingRanks(int layout_ranks = kCountedRanks, const CheckpointWriterOptions& options = {}) {
    for (int rank = 0; rank < kCountedRanks; ++rank) {
      states.push_back({{"sharded", ShardedTensor::distribute(counting({layout_ranks, 8}), over_all_ranks(layout_ranks), rank)}});
      planners.push_back(std::make_unique<DefaultSavePlanner>());
      writers.push_back(std::make_unique<CheckpointWriter>(options));
    }
  }
  void save(const std::string& name, bool one_process = true) {
    LocalSave how;
    how.one_process = one_process;
    how.checkpoint_id = "counted:" + kCountedRun + "/" + name;
    how.save_id = local_save_id(++saves);
    std::vector<LocalSaver> ranks;
    for (std::size_t rank = 0; rank < states.size(); ++rank)
      ranks.push_back({&states[rank], planners[rank].get(), writers[rank].get()});
    save_locally(how, ranks);
  }
  std::vector<StateDict> states;
  std::vector<std::unique_ptr<DefaultSavePlanner>> planners;
  std::vector<std::unique_ptr<CheckpointWriter>> writers;
  std::uint64_t saves = 0;
};

std::uint64_t counted_sequence(const std::string& name) {
  return read_metadata(*open_store("counted:" + kCountedRun + "/" + name)).commit->sequence;
}

}  // namespace

TEST_CASE("the coordinator syncs the directories above a checkpoint, once in a process") {
  insert_counted_disk();
  SavingRanks ranks;
  ranks.save("step_1");
  counted_disk->record_calls();
  ranks.save("step_2");
  // The attempt syncs its directory's name, its record's name, and the record's rename. Another
  // sync covers the checkpoint directory's name, and one sync each rank's file.
  CHECK(counted_disk->calls_that_begin("sync directory") == 3 + 1 + kCountedRanks);
  CHECK(counted_disk->calls_that_begin("sync directory " + kCountedRun + "/step_2") == 3 + kCountedRanks);
  counted_disk->record_calls();
  ranks.save("step_2");
  CHECK(counted_disk->calls_that_begin("sync directory") == 3 + kCountedRanks);
  CHECK(counted_disk->calls_that_begin("make directory") == 1);  // the attempt's directory
}

TEST_CASE("directories above a checkpoint are synced again if they were replaced") {
  insert_counted_disk();
  { SavingRanks().save("step_1"); }
  counted_disk->rename(kCountedRun, "/home/runs/old");
  counted_disk->make_directory(kCountedRun);
  counted_disk->record_calls();
  { SavingRanks().save("step_1"); }
  CHECK(counted_disk->calls_that_begin("sync directory /home/runs") == 1 + 1 + 3 + kCountedRanks);
}

TEST_CASE("without sync_files only the record is synced, and the checkpoint loads") {
  const auto files_synced = [](bool sync) {
    insert_counted_disk();
    CheckpointWriterOptions options;
    options.sync_files = sync;
    SavingRanks ranks(kCountedRanks, options);
    ranks.save("step_1");
    counted_disk->record_calls();
    ranks.save("step_2");
    const std::size_t synced = counted_disk->calls_that_begin("sync file");
    StateDict loaded{{"sharded", torch::zeros({kCountedRanks, 8})}};
    load_locally("counted:" + kCountedRun + "/step_2", {&loaded}, [] { return std::make_unique<CheckpointReader>(); });
    CHECK(torch::equal(loaded.at("sharded").tensor(), counting({kCountedRanks, 8})));
    return synced;
  };
  const std::size_t without_data = files_synced(false);
  CHECK(without_data > 0);
  CHECK(files_synced(true) == without_data + kCountedRanks);
}

TEST_CASE("shards with a hole are refused when they are planned, before anything is written") {
  insert_counted_disk();
  counted_disk->record_calls();
  CHECK(thrown_by([] { SavingRanks(kCountedRanks + 1).save("step_1"); }) ==
        Saying{ErrorCode::kMismatch, "'sharded' lacks data in [16:17, 0:8]"});
  CHECK(counted_disk->calls_that_begin("create") == 0);
}

TEST_CASE("a foreign directory that cannot be read fails no save, and is asked once") {
  for (const int error_number : {EIO, ENOTCONN, ESTALE, ETIMEDOUT}) {
    CAPTURE(error_number);
    insert_counted_disk();
    FileStore(kCountedRun + "/broken", *counted_disk).create_root();
    counted_disk->fail_looks_at(kCountedRun + "/broken", error_number);
    const CapturedLog log;
    SavingRanks ranks;
    ranks.save("step_1");
    CHECK(log.text().find("this place is ignored from now on: " + kCountedRun + "/broken\n") != std::string::npos);
    counted_disk->record_calls();
    ranks.save("step_2");
    CHECK(counted_disk->calls_that_begin("look at " + kCountedRun + "/broken") == 0);
    CHECK(counted_disk->calls_that_begin("open " + kCountedRun + "/broken") == 0);
    CHECK(counted_sequence("step_2") == 2);
  }
}

TEST_CASE("a foreign directory that does not answer delays a save once, for a short time") {
  // Blocks lookups in "hung" until `release` is called.
  struct HungStore : MemoryStore {
    using MemoryStore::MemoryStore;
    std::vector<ObjectName> children() override { return {"hung", "other", "step_3"}; }
    bool exists(const ObjectName& name) override {
      std::unique_lock lock(mutex);
      ++looks[name];
      if (name == "hung/.metadata") released.wait(lock, [this] { return is_released; });
      return false;
    }
    void release() {
      std::lock_guard lock(mutex);
      is_released = true;
      released.notify_all();
    }
    std::mutex mutex;
    std::condition_variable released;
    bool is_released = false;
    std::map<ObjectName, int> looks;
  };
  const auto run = std::make_shared<HungStore>("system_calls", "run");
  const CapturedLog log;
  CommitSequence sequence(std::chrono::milliseconds(500));  // the others answer by then, however busy the machine is
  CHECK(sequence.next(run) == 1);
  const std::string expected =
      "cannot tell whether there is a checkpoint (it did not answer in time); this place is ignored from now on: " +
      child_url(run->url(), "hung");
  CHECK(log.text().find(expected) != std::string::npos);
  CHECK(sequence.next(run) == 1);
  CHECK(run->looks["hung/.metadata"] == 1);
  CHECK(run->looks["step_3/.metadata"] == 2);
  run->release();
  forget_memory("system_calls");
}

TEST_CASE("a load that finds no record opens the directory and retries") {
  insert_counted_disk();
  FileStore store(kCountedRun, *counted_disk);
  store.create_root();
  counted_disk->record_calls();
  CHECK(thrown_by([&] { read_metadata(store); }).code == ErrorCode::kNotFound);
  const auto calls = counted_disk->calls();
  REQUIRE(calls.size() >= 3);
  CHECK(calls[0] == "look at " + kCountedRun + "/.metadata");
  CHECK(calls[1] == "list directory " + kCountedRun);
  CHECK(calls[2] == "look at " + kCountedRun + "/.metadata");
}
