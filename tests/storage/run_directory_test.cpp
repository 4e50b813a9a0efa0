// Lists the checkpoints of a run, and removes them.
#include <cairn/tests/support/memory_store.hpp>
#include <cairn/tests/support/plain.hpp>
// The suite uses doctest, which the line above brings.
#include <filesystem>

#include <cairn/base/save_id.hpp>
#include <cairn/storage/format/commit_record.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/format/trailer.hpp>
#include <cairn/storage/presence.hpp>
#include <cairn/storage/publication.hpp>
#include <cairn/storage/runs/run_directory.hpp>
#include <cairn/storage/stores/file_store.hpp>
#include <cairn/tests/storage/store_tools.hpp>
#include <cairn/tests/support/simulated_file_system.hpp>
#include <cairn/tests/support/temporary_directory.hpp>

using namespace cairn;
using namespace cairn::testing;

namespace {

std::string run_save_id(std::uint64_t counter) { return make_save_id(std::string(32, 'b'), "run", counter); }

// Returns the metadata that a save of one rank with two data files publishes.
Metadata run_metadata(std::uint64_t sequence) {
  Metadata metadata;
  metadata.save_id = run_save_id(sequence);
  metadata.commit = CommitInfo{};
  metadata.commit->sequence = sequence;
  metadata.commit->world_size = 1;
  metadata.commit->step = 7;
  metadata.commit->user_metadata["git"] = "abc";
  for (int i = 0; i < 2; ++i) metadata.files.push_back({data_file_name(0, i, metadata.save_id), 4, 0, 0});
  return metadata;
}

void begin_in_run(Store& place, std::uint64_t sequence) {
  place.create_root();
  place.begin_attempt(run_save_id(sequence));
  for (const FileInfo& file : run_metadata(sequence).files) put_object(place, file.name, "data");
}

void publish_in_run(Store& place, std::uint64_t sequence) {
  Metadata metadata = run_metadata(sequence);
  metadata.commit->retired = retired_generations(place, generation_to_replace(place).generation, 1);
  place.publish(run_save_id(sequence), encode_commit_record(metadata), Overwrite::kAllowed);
}

void save_in_run(Store& place, std::uint64_t sequence) {
  begin_in_run(place, sequence);
  publish_in_run(place, sequence);
}

Names checkpoint_names(const RunDirectory& run) {
  Names names;
  for (const auto& checkpoint : run.list().checkpoints) names.push_back(checkpoint.name);
  return names;
}

RunCheckpoint checkpoint_called(const RunDirectory& run, const std::string& name) {
  for (const auto& checkpoint : run.list().checkpoints)
    if (checkpoint.name == name) return checkpoint;
  throw std::runtime_error("there is no " + name);
}

struct RunInMemory {
  ~RunInMemory() { forget_memory("run_directory"); }
  const RunDirectory run{"mem://run_directory/run"};
  const std::shared_ptr<Store> store = open_store("mem://run_directory/run");
};

}  // namespace

TEST_CASE("names that Cairn did not give are not taken for its checkpoints") {
  for (const char* name : {"", "step_", "step", "step_x", "step_-5", "step_05", "step_5.", "step_5.0", "step_5.1", "step_5.02",
                           "step_5.2.2", "step_5 ", "Step_5", "xstep_5", "step_5_old", "step_12345678901234567890",
                           "step_9223372036854775808", "step_9999999999999999999", "step_5.9999999999999999999", "step_5.-2",
                           "step_+5"}) {
    CAPTURE(name);
    CHECK_FALSE(is_checkpoint_name(name));
  }
  for (const char* name : {"step_0", "step_100", "step_9223372036854775807", "step_5.2", "step_5.10"}) {
    CAPTURE(name);
    CHECK(is_checkpoint_name(name));
  }
  CHECK(checkpoint_name(100) == "step_100");
  CHECK(checkpoint_name(100, 2) == "step_100.2");
  CHECK(step_of_name("step_9223372036854775807.2") == 9223372036854775807);
}

TEST_CASE_FIXTURE(RunInMemory, "what is pinned, saved to or replaced stays") {
  const auto place = run.open("step_1");
  CHECK(code_of([&] { run.pin("step_1"); }) == ErrorCode::kNotFound);
  save_in_run(*place, 1);
  const RunCheckpoint checkpoint = checkpoint_called(run, "step_1");
  run.pin("step_1");
  run.pin("step_1");
  CHECK(run.is_pinned("step_1"));
  CHECK(run.remove(checkpoint) == "it is pinned");
  run.unpin("step_1");
  run.unpin("step_1");
  begin_in_run(*place, 2);
  CHECK(run.remove(checkpoint).has_value());
  publish_in_run(*place, 2);
  CHECK(run.remove(checkpoint) == "it was replaced or removed meanwhile");
  CHECK(run.fault_of("step_1").empty());
  CHECK_FALSE(run.remove(checkpoint_called(run, "step_1")).has_value());
  CHECK(place->list().empty());
}

TEST_CASE_FIXTURE(RunInMemory, "remains of dead saves and removals go, others' files and running saves do not") {
  begin_in_run(*run.open("step_1"), 1);  // in flight, or died
  begin_in_run(*run.open("step_2"), 2);
  run.open("step_2")->fence(run_save_id(2));  // was fenced
  save_in_run(*run.open("step_3"), 3);
  put_object(*run.open("step_3"), removal_mark_name(run_save_id(3)), "");
  run.open("step_3")->retract();  // half removed
  save_in_run(*run.open("step_4"), 4);
  put_object(*store, "step_5/mine.distcp", "x");
  begin_in_run(*run.open("somewhere"), 6);
  begin_in_run(*run.open("step_7"), 7);

  CHECK(run.remove_remains({"step_7"}, false).empty());
  CHECK(store->children() == Names{"somewhere", "step_1", "step_4", "step_5", "step_7"});
  CHECK(run.remove_remains({"step_7"}, true).empty());
  CHECK(store->children() == Names{"somewhere", "step_4", "step_5", "step_7"});
  CHECK(code_of([&] { run.open("step_1")->publish(run_save_id(1), "x", Overwrite::kAllowed); }) == ErrorCode::kFenced);
  run.open("step_7")->publish(run_save_id(7), encode_commit_record(run_metadata(7)), Overwrite::kAllowed);
  CHECK(checkpoint_names(run) == Names{"step_7", "step_4"});
}

namespace {

// A run with links at every level that lead to `outside`, which holds files like the remains of
// dead saves.
struct LinkedRun {
  LinkedRun() {
    FileStore other(outside);
    begin_in_run(other, 1);
    begin_in_run(other, 2);
    other.fence(run_save_id(2));
    for (const char* mark : {"/.attempt-", "/.fenced-"})
      put_object(*open_store(outside + mark + run_save_id(mark[2] == 'a' ? 1 : 2)), "commit", "x");
    put_object(other, ".pinned", "");
    before = listing();

    save_in_run(*run.open("step_1"), 3);
    std::filesystem::create_directory_symlink(outside, root + "/step_2");
    // A dead save among links.
    begin_in_run(*run.open("step_3"), 4);
    const std::string place = root + "/step_3/";
    std::filesystem::create_symlink(outside + "/" + data_file_name(0, 0, run_save_id(1)),
                                    place + data_file_name(7, 0, run_save_id(4)));
    std::filesystem::create_directory_symlink(outside, place + "__links");
    std::filesystem::create_directory_symlink(outside + "/.attempt-" + run_save_id(1), place + ".attempt-" + run_save_id(1));
    std::filesystem::create_directory_symlink(outside + "/.fenced-" + run_save_id(2), place + ".fenced-" + run_save_id(2));
  }
  Names listing() const {
    Names names;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(outside)) names.push_back(entry.path().string());
    std::sort(names.begin(), names.end());
    return names;
  }

  const TemporaryDirectory directory;
  const std::string root = directory.path() + "/run";
  const std::string outside = directory.path() + "/outside";
  const RunDirectory run{root};
  Names before;
};

}  // namespace

TEST_CASE("a name is free if a clean-up removes its place while the name is examined") {
  struct Vanishing : FileStore {
    explicit Vanishing(const std::string& path) : FileStore(path), place(path + "/step_4") {}
    std::vector<ObjectName> children() override {
      std::filesystem::remove_all(place);
      return FileStore::children();
    }
    const std::string place;
  };
  const TemporaryDirectory directory;
  std::filesystem::create_directory(directory.path() + "/step_4");
  const RunDirectory run(std::make_shared<Vanishing>(directory.path()),
                         [&](const ObjectName& name) { return open_store(directory.path() + "/" + name); });
  CHECK(run.why_occupied("step_4").empty());
  CHECK_FALSE(std::filesystem::exists(directory.path() + "/step_4"));
}

TEST_CASE_FIXTURE(LinkedRun, "clean-up of a run changes nothing that a link leads to") {
  REQUIRE(before.size() == 9);
  CHECK(run.remove_remains({}, true).empty());
  CHECK(listing() == before);
  CHECK(std::filesystem::is_symlink(root + "/step_2"));
  CHECK_FALSE(std::filesystem::exists(root + "/step_3/" + data_file_name(0, 0, run_save_id(4))));
  CHECK(run.why_occupied("step_2").find("link") != std::string::npos);
  CHECK(run.is_link("step_2"));
  CHECK_FALSE(run.is_link("step_1"));
  CHECK(code_of([&] { run.unpin("step_2"); }) == ErrorCode::kPermission);
  CHECK(code_of([&] { run.pin("step_2"); }) == ErrorCode::kPermission);
  CHECK(listing() == before);
}

TEST_CASE_FIXTURE(LinkedRun, "the commit protocol goes through no link") {
  const auto place = run.open("step_3");
  for (const std::uint64_t id : {1, 2}) {
    CHECK(code_of([&] { place->fence(run_save_id(id)); }) == ErrorCode::kPermission);
    CHECK(code_of([&] { place->publish(run_save_id(id), "record", Overwrite::kAllowed); }).has_value());
  }
  CHECK(code_of([&] { place->clear_attempt(run_save_id(2)); }) == ErrorCode::kPermission);
  CHECK(code_of([&] { place->remove("__links/" + data_file_name(0, 0, run_save_id(1))); }) == ErrorCode::kPermission);
  CHECK(code_of([&] { place->create("__links/new"); }) == ErrorCode::kPermission);
  CHECK(listing() == before);
}

TEST_CASE_FIXTURE(LinkedRun, "a save to a place that is a link removes nothing there") {
  const auto place = run.open("step_2");
  save_in_run(*place, 5);
  const Names saved = listing();
  CHECK(remove_leftovers(*place, run_metadata(5), std::nullopt).empty());
  CHECK(listing() == saved);
  CHECK(saved.size() == before.size() + 3);
}

TEST_CASE("a place with a directory or link named like a record cannot be used, and stays") {
  namespace fs = std::filesystem;
  const TemporaryDirectory directory;
  const std::string root = directory.path() + "/run";
  const RunDirectory run(root);
  for (std::uint64_t step = 1; step <= 4; ++step) {
    save_in_run(*run.open(checkpoint_name(step)), step);
    if (step > 1) fs::remove(root + "/" + checkpoint_name(step) + "/.metadata");
  }
  fs::create_directory(root + "/step_2/.metadata");
  fs::create_symlink("nowhere", root + "/step_3/.metadata");
  const auto listing = run.list();
  CHECK(checkpoint_names(run) == Names{"step_1"});
  CHECK(listing.others == Names{"step_2", "step_3"});
  for (const char* name : {"step_2", "step_3"}) {
    CHECK(run.why_unreadable(name).find(".metadata") != std::string::npos);
    CHECK_FALSE(run.fault_of(name).empty());
  }
  CHECK(run.why_unreadable("step_4").empty());
  CHECK(run.remove_remains({}, true).empty());
  CHECK(open_store(root)->children() == Names{"step_1", "step_2", "step_3", "step_4"});
  CHECK(run.open("step_3")->exists(data_file_name(0, 0, run_save_id(3))));
}

namespace {

// A trailer without items, which makes a whole data file.
const std::string kWholeFile = encode_trailer({run_save_id(1), 0, kChecksumBlockBytes, {}});

// A checkpoint with all kinds of files that a removal has to find: its own, those of a retired
// generation, PyTorch's that it replaced, safetensors files, a finding, and its own open attempt.
void save_with_everything(Store& place) {
  save_in_run(place, 1);
  Metadata metadata = run_metadata(2);
  metadata.commit->retired = {run_save_id(1), "__0_0.distcp"};
  metadata.files.push_back({"model-00001-of-00001.safetensors", 4, 0, 0});
  for (const char* name : {"__0_0.distcp", "model-00001-of-00001.safetensors", "model.safetensors.index.json", ".damaged"})
    put_object(place, name, "data");
  begin_in_run(place, 2);
  place.publish(run_save_id(2), encode_commit_record(metadata), Overwrite::kAllowed);
}

}  // namespace

TEST_CASE("a power loss during a removal leaves the checkpoint whole or leftovers") {
  using Survival = SimulatedFileSystem::Survival;
  std::vector<Survival> survivals{{Survival::kSynced, 0}, {Survival::kEverything, 0}};
  for (std::uint64_t seed = 1; seed <= 20; ++seed) survivals.push_back({seed % 2 == 0 ? Survival::kAny : Survival::kRandom, seed});
  bool whole = false, gone = false;
  for (const Survival& survival : survivals) {
    bool reached = true;
    for (std::uint64_t index = 0; reached; ++index) {
      REQUIRE(index < 100);
      SimulatedFileSystem files;
      const auto open_place = [&files](const ObjectName& name) { return std::make_shared<FileStore>("/run/" + name, files); };
      const RunDirectory run(std::make_shared<FileStore>("/run", files), open_place);
      save_with_everything(*run.open("step_1"));
      files.make_directory("/run/step_1/.attempt-" + run_save_id(2));  // its process died before it removed this
      files.settle();
      const RunCheckpoint checkpoint = checkpoint_called(run, "step_1");
      const std::uint64_t first = files.operations();
      files.lose_power_at(first + index);
      const bool failed = code_of([&] { run.remove(checkpoint); }).has_value();
      reached = files.operations() > first + index;
      CHECK(failed == reached);
      files.restart(survival);

      CAPTURE(survival.seed);
      CAPTURE(index);
      const auto left = run.list();
      REQUIRE(left.others.empty());
      if (!left.checkpoints.empty()) {
        whole = true;
        REQUIRE(run.fault_of("step_1").empty());
        REQUIRE_FALSE(run.remove(left.checkpoints[0]).has_value());
      } else {
        gone = true;
        REQUIRE(run.unrecorded(left.without_record).empty());
        REQUIRE(run.remove_remains({}, false).empty());
      }
      REQUIRE(files.paths() == Names{"/run"});
    }
  }
  CHECK(whole);
  CHECK(gone);
}

TEST_CASE("a reader at any operation of a removal finds the checkpoint or its mark") {
  bool reached = true;
  for (std::uint64_t index = 0; reached; ++index) {
    REQUIRE(index < 100);
    SimulatedFileSystem files;
    const auto open_place = [&files](const ObjectName& name) { return std::make_shared<FileStore>("/run/" + name, files); };
    const RunDirectory run(std::make_shared<FileStore>("/run", files), open_place);
    begin_in_run(*run.open("step_1"), 1);
    replace_object(*run.open("step_1"), data_file_name(0, 0, run_save_id(1)), kWholeFile);
    run.open("step_1")->publish(run_save_id(1), encode_commit_record(run_metadata(1)), Overwrite::kAllowed);
    const RunCheckpoint checkpoint = checkpoint_called(run, "step_1");
    const std::uint64_t target = files.operations() + index;
    reached = false;
    files.before_operation = [&](std::uint64_t operation, const std::string&) {
      if (operation != target) return;
      reached = true;
      const auto listing = run.list();
      CHECK(run.is_gone(checkpoint) == listing.checkpoints.empty());
      CHECK(listing.others.empty());
      CHECK(run.unrecorded(listing.without_record).empty());
    };
    CHECK_FALSE(run.remove(checkpoint).has_value());
    CHECK(run.is_gone(checkpoint));
  }
}

TEST_CASE_FIXTURE(RunInMemory, "complete data without a record is named, keeps its place, and is never removed") {
  const auto put = [&](const std::string& place, const ObjectName& name, const std::string& content = kWholeFile) {
    put_object(*store, place + "/" + name, content);
  };
  const auto data = [](std::uint64_t id) { return data_file_name(0, 0, run_save_id(id)); };
  put("step_1", data(1));
  put("step_2", "__0_0.distcp");  // PyTorch's
  put("step_3", "model-00001-of-00002.safetensors");
  put("step_4", "shard-00001-model-00001-of-00001.safetensors");
  put("step_5", "rank_1_of_2/" + data(5));
  put("own name", data(6));
  run.open("step_7")->begin_attempt(run_save_id(70));
  put("step_7", data(70));
  put("step_7", data(7));  // beside that of a dead save
  const Names places{"own name", "step_1", "step_2", "step_3", "step_4", "step_5", "step_7"};
  // None of these counts.
  run.open("step_11")->begin_attempt(run_save_id(11));
  put("step_11", data(11));
  run.open("step_12")->fence(run_save_id(12));
  put("step_12", data(12));
  put("step_13", removal_mark_name(run_save_id(13)), "__0_0.distcp\nmodel-00001-of-00001.safetensors\nnotes.txt\n");
  for (const ObjectName& name : {data(13), ObjectName("__0_0.distcp"), ObjectName("model-00001-of-00001.safetensors")})
    put("step_13", name);
  put("step_14", data(14), "of a process that was killed while it wrote");
  put("step_15", "__0_0.distcp");
  put("step_15", "__0.metadata");  // PyTorch's record of one rank: a checkpoint
  put("somewhere", "__0_0.distcp");
  put("step_16", "notes.txt");
  save_in_run(*run.open("step_17"), 17);

  CHECK(run.list().others == Names{"step_15"});
  const auto unrecorded = [&] { return run.unrecorded(run.list().without_record); };
  CHECK(unrecorded() == places);
  CHECK(run.why_occupied("step_12").empty());
  for (const ObjectName& place : places) CHECK_FALSE(run.why_occupied(place).empty());
  std::vector<ObjectInfo> before;
  for (const ObjectName& place : places) {
    if (place != "step_7")
      for (const ObjectInfo& object : run.open(place)->list()) before.push_back(object);
  }
  for (int tries = 0; tries < 2; ++tries) CHECK(run.remove_remains({}, true).empty());
  std::vector<ObjectInfo> after;
  for (const ObjectName& place : places) {
    if (place != "step_7")
      for (const ObjectInfo& object : run.open(place)->list()) after.push_back(object);
  }
  CHECK(names_of(after) == names_of(before));
  CHECK(unrecorded() == places);
  CHECK(names_of(run.open("step_7")->list()) == Names{data(7)});
  CHECK(names_of(store->list("step_11")).empty());
  CHECK(names_of(store->list("step_12")).empty());
  CHECK(names_of(store->list("step_13")).empty());
  CHECK_FALSE(store->list("step_14").empty());
}

TEST_CASE_FIXTURE(RunInMemory, "nothing is removed from a place whose record is listed but denied") {
  struct Denying : MemoryStore {
    using MemoryStore::MemoryStore;
    bool is_taken(const ObjectName& name) override {
      return name.find(kCommitRecordName) == std::string::npos && MemoryStore::is_taken(name);
    }
  };
  save_in_run(*run.open("step_1"), 1);
  run.open("step_1")->fence(run_save_id(1));
  const auto open_place = [](const ObjectName& name) { return std::make_shared<Denying>("run_directory", "run/" + name); };
  const RunDirectory denying(std::make_shared<Denying>("run_directory", "run"), open_place);
  const auto faults = denying.remove_remains({}, true);
  REQUIRE(faults.size() == 1);
  CHECK(faults[0].second.find("cannot tell whether") != std::string::npos);
  CHECK(run.fault_of("step_1").empty());
}

TEST_CASE_FIXTURE(RunInMemory, "a refusal says nothing about a checkpoint, an absent file does") {
  struct Refusing : MemoryStore {
    Refusing(ErrorCode with, const std::string& place) : MemoryStore("run_directory", place), code(with) {}
    std::uint64_t size_bytes(const ObjectName& name) override {
      if (name.find("__") != std::string::npos) throw Error(code, "as the test says");
      return MemoryStore::size_bytes(name);
    }
    std::vector<ObjectInfo> list(const ObjectName& /*prefix*/) override { return {}; }
    ErrorCode code;
  };
  save_in_run(*run.open("step_1"), 1);
  for (const ErrorCode code :
       {ErrorCode::kPermission, ErrorCode::kUnavailable, ErrorCode::kDeadline, ErrorCode::kNotFound, ErrorCode::kCorrupt}) {
    CAPTURE(to_string(code));
    const RunDirectory refusing(store, [&](const ObjectName& name) { return std::make_shared<Refusing>(code, "run/" + name); });
    std::string fault;
    const auto thrown = code_of([&] { fault = refusing.fault_of("step_1"); });
    const bool tells = code == ErrorCode::kNotFound || code == ErrorCode::kCorrupt;
    CHECK(thrown == (tells ? std::nullopt : std::optional(code)));
    CHECK(fault.empty() != tells);
  }
}
