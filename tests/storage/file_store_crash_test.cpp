// Power loss, failing operations and rival jobs at every operation of the file store's procedures.
#include <cairn/tests/support/plain.hpp>
// The suite uses doctest, which the line above brings.
#include <cairn/storage/stores/file_store.hpp>
#include <cairn/tests/storage/store_conformance.hpp>
#include <cairn/tests/support/simulated_file_system.hpp>

using namespace cairn;
using namespace cairn::testing;

namespace {

using Survival = SimulatedFileSystem::Survival;

const std::string kRoot = "/runs/run/step";
const std::string kOldRecord(3000, 'o');
const std::string kNewRecord(5000, 'n');
const std::string kObject(9000, 'd');

std::vector<Survival> survivals() {
  std::vector<Survival> all{{Survival::kSynced, 0}, {Survival::kEverything, 0}};
  for (std::uint64_t seed = 1; seed <= 12; ++seed) all.push_back({Survival::kRandom, seed});
  return all;
}

std::string describe(const Survival& survival) {
  if (survival.kind == Survival::kSynced) return "only what was synced survives";
  if (survival.kind == Survival::kEverything) return "everything survives";
  return "random survival, seed " + std::to_string(survival.seed);
}

std::string record_in(Store& store) { return store.exists(kCommitRecordName) ? get_object(store, kCommitRecordName) : ""; }

void put_old_checkpoint(SimulatedFileSystem& files) {
  FileStore store(kRoot, files);
  store.create_root();
  store.begin_attempt("old");
  put_object(store, "data-old", kObject);
  store.publish("old", kOldRecord, Overwrite::kAllowed);
  files.settle();
}

// Saves as the writer does. Returns whether every call succeeded.
bool save_new(SimulatedFileSystem& files, Overwrite overwrite = Overwrite::kAllowed) {
  try {
    FileStore store(kRoot, files);
    store.create_root();
    store.begin_attempt("new");
    put_object(store, "below/data-new", kObject, {kObject.size(), false});
    store.publish("new", kNewRecord, overwrite);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Calls `act(0)`, `act(1)`, ... until `act` returns false, and returns the last index. `act`
// disturbs the operation of that index and returns whether the procedure reached it.
template <class Act>
std::uint64_t at_every_operation(Act act) {
  std::uint64_t index = 0;
  while (act(index)) REQUIRE(++index < 1000);
  return index;
}

}  // namespace

TEST_CASE("a power loss during a save leaves the old or the new checkpoint whole") {
  for (const bool had_old : {true, false}) {
    for (const bool exclusive_rename : {true, false}) {
      for (const Survival& survival : survivals()) {
        const std::uint64_t operations = at_every_operation([&](std::uint64_t index) {
          SimulatedFileSystem files;
          files.features.exclusive_rename = exclusive_rename;
          files.features.write_bytes_max = 2000;
          if (had_old) put_old_checkpoint(files);
          const std::uint64_t first = files.operations();
          files.lose_power_at(first + index);
          const bool returned = save_new(files, had_old ? Overwrite::kAllowed : Overwrite::kRefused);
          const bool reached = files.operations() > first + index;
          files.restart(survival);

          INFO(describe(survival), ", power lost before operation ", index);
          FileStore store(kRoot, files);
          const std::string record = record_in(store);
          const std::string old_record = had_old ? kOldRecord : "";
          REQUIRE((record == kNewRecord || record == old_record));
          if (returned) REQUIRE((record == kNewRecord));
          if (record == kNewRecord) REQUIRE((get_object(store, "below/data-new") == kObject));
          if (had_old) REQUIRE((get_object(store, "data-old") == kObject));

          // The next user of the store can settle the attempt and save again.
          files.settle();
          const bool committed = record == kNewRecord;
          store.fence("new");
          REQUIRE(((record_in(store) == kNewRecord) == committed));
          REQUIRE(code_of([&] { store.publish("new", kNewRecord, Overwrite::kAllowed); }) == ErrorCode::kFenced);
          store.clear_attempt("new");
          REQUIRE(store.open_attempts().empty());
          store.remove("below/data-new");
          store.begin_attempt("third");
          store.publish("third", ByteSpan("third", 5), Overwrite::kAllowed);
          REQUIRE(record_in(store) == "third");
          return reached;
        });
        REQUIRE(operations > 15);  // so a whole save was covered
      }
    }
  }
}

TEST_CASE("syncing a file also syncs a parent directory that another rank has just made") {
  SimulatedFileSystem files;
  FileStore store(kRoot, files);
  store.create_root();
  const auto other_rank = store.create("below/other");
  put_object(store, "below/mine", kObject);
  files.restart({Survival::kSynced, 0});
  CHECK((get_object(store, "below/mine") == kObject));
}

TEST_CASE("a power loss during a fence leaves a fenceable attempt; a finished fence holds") {
  for (const bool with_record : {true, false}) {
    for (const Survival& survival : survivals()) {
      const std::uint64_t operations = at_every_operation([&](std::uint64_t index) {
        SimulatedFileSystem files;
        put_old_checkpoint(files);
        FileStore store(kRoot, files);
        store.begin_attempt("dead");
        // Left by a publication that stopped before its rename.
        if (with_record) files.close(files.create_exclusively(kRoot + "/.attempt-dead/commit"));
        files.settle();
        const std::uint64_t first = files.operations();
        files.lose_power_at(first + index);
        const bool returned = !code_of([&] { store.fence("dead"); });
        const bool reached = files.operations() > first + index;
        files.restart(survival);

        INFO(describe(survival), ", power lost before operation ", index);
        if (returned) {
          REQUIRE(code_of([&] { store.publish("dead", kNewRecord, Overwrite::kAllowed); }) == ErrorCode::kFenced);
          REQUIRE(store.fenced_attempts() == Names{"dead"});
        }
        const auto open = store.open_attempts();
        const auto fenced = store.fenced_attempts();
        REQUIRE(((open == Names{"dead"}) != (fenced == Names{"dead"})));
        store.fence("dead");
        REQUIRE(code_of([&] { store.publish("dead", kNewRecord, Overwrite::kAllowed); }) == ErrorCode::kFenced);
        REQUIRE((record_in(store) == kOldRecord));
        store.clear_attempt("dead");
        REQUIRE(files.paths() == Names{"/runs", "/runs/run", kRoot, kRoot + "/.metadata", kRoot + "/data-old"});
        return reached;
      });
      REQUIRE(operations >= 5);
    }
  }
}

TEST_CASE("a fence at any operation of a publication: exactly one wins, for good") {
  for (const bool within : {false, true}) {
    for (const bool replaces_directories : {true, false}) {
      for (const bool exclusive_rename : {true, false}) {
        for (const Overwrite overwrite : {Overwrite::kAllowed, Overwrite::kRefused}) {
          bool fence_won = false, publish_won = false;
          at_every_operation([&](std::uint64_t index) {
            SimulatedFileSystem files;
            files.features.replaces_directories = replaces_directories;
            files.features.exclusive_rename = exclusive_rename;
            FileStore store(kRoot, files), rival(kRoot, files);
            store.create_root();
            store.begin_attempt("save");
            const std::uint64_t target = files.operations() + index;
            bool reached = false, seen = false;
            (within ? files.after_lookup : files.before_operation) = [&](std::uint64_t operation, const std::string&) {
              if (operation < target || reached) return;
              reached = true;
              rival.fence("save");
              seen = rival.exists(kCommitRecordName);
            };
            const auto code = code_of([&] { store.publish("save", kNewRecord, overwrite); });
            files.before_operation = files.after_lookup = nullptr;
            INFO("fenced ", within ? "within" : "before", " operation ", index);
            if (!reached) {
              REQUIRE(!code);
              return false;
            }
            REQUIRE(((record_in(store) == kNewRecord) == !code));
            REQUIRE(seen == !code);
            if (code) REQUIRE(*code == ErrorCode::kFenced);
            (code ? fence_won : publish_won) = true;
            REQUIRE(store.open_attempts().empty());
            REQUIRE(store.fenced_attempts() == Names{"save"});
            REQUIRE(code_of([&] { store.publish("save", kOldRecord, Overwrite::kAllowed); }) == ErrorCode::kFenced);
            store.clear_attempt("save");
            REQUIRE(store.fenced_attempts().empty());
            REQUIRE(files.open_handles() == 0);
            return true;
          });
          CHECK(fence_won);
          CHECK((publish_won || within));
        }
      }
    }
  }
}

TEST_CASE("a fence beside a begin or another fence, in any order: nothing can be published") {
  using Act = std::function<void(Store&)>;
  const Act begin = [](Store& store) { code_of([&] { store.begin_attempt("save"); }); };
  const Act fence = [](Store& store) { store.fence("save"); };
  struct Row {
    const char* name;
    Act act, rivals;
    bool has_begun;
  };
  for (const Row& row : {Row{"begin in a fence", fence, begin, false}, Row{"fence in a begin", begin, fence, false},
                         Row{"fence in a fence", fence, fence, true}}) {
    at_every_operation([&](std::uint64_t index) {
      SimulatedFileSystem files;
      FileStore store(kRoot, files), rival(kRoot, files);
      store.create_root();
      if (row.has_begun) store.begin_attempt("save");
      const std::uint64_t target = files.operations() + index;
      bool reached = false;
      files.before_operation = [&](std::uint64_t operation, const std::string&) {
        if (operation < target || reached) return;
        reached = true;
        row.rivals(rival);
      };
      row.act(store);
      files.before_operation = nullptr;
      if (!reached && !row.has_begun) return false;
      INFO("before operation ", index, ": ", row.name);
      REQUIRE(code_of([&] { store.publish("save", kNewRecord, Overwrite::kAllowed); }) == ErrorCode::kFenced);
      REQUIRE(code_of([&] { store.begin_attempt("save"); }) == ErrorCode::kFenced);
      REQUIRE(store.open_attempts().empty());
      REQUIRE(store.fenced_attempts() == Names{"save"});
      store.clear_attempt("save");
      REQUIRE(files.paths() == Names{"/runs", "/runs/run", kRoot});
      return reached;
    });
  }
}

TEST_CASE("a fence whose operation fails says so, or has fenced nevertheless") {
  at_every_operation([&](std::uint64_t index) {
    SimulatedFileSystem files;
    FileStore store(kRoot, files);
    store.create_root();
    store.begin_attempt("save");
    const std::uint64_t first = files.operations();
    files.fail_operation(first + index, EIO);
    const auto code = code_of([&] { store.fence("save"); });
    if (files.operations() <= first + index) return false;
    INFO("operation ", index, " of fence fails");
    if (code) store.fence("save");
    REQUIRE(code_of([&] { store.publish("save", kNewRecord, Overwrite::kAllowed); }) == ErrorCode::kFenced);
    store.clear_attempt("save");
    REQUIRE(files.paths() == Names{"/runs", "/runs/run", kRoot});
    return true;
  });
}

TEST_CASE("a checkpoint survives even if others made its parent directories without a sync") {
  for (const auto& made : {Names{"/runs"}, Names{"/runs", "/runs/run"}, Names{"/runs", "/runs/run", kRoot}}) {
    INFO(made.size(), " directories were there");
    SimulatedFileSystem files;
    for (const auto& directory : made) REQUIRE(files.make_directory(directory) == 0);
    REQUIRE(save_new(files));
    files.restart({Survival::kSynced, 0});
    FileStore store(kRoot, files);
    CHECK(record_in(store) == kNewRecord);
  }
}

TEST_CASE("without an exclusive rename or link, publishing fails unless it may overwrite") {
  SimulatedFileSystem files;
  files.features.exclusive_rename = false;
  files.features.links = false;
  FileStore store(kRoot, files);
  store.create_root();
  store.begin_attempt("save");
  CHECK(code_of([&] { store.publish("save", kNewRecord, Overwrite::kRefused); }) == ErrorCode::kUnsupported);
  CHECK_FALSE(store.exists(kCommitRecordName));
  store.publish("save", kNewRecord, Overwrite::kAllowed);
  CHECK((record_in(store) == kNewRecord));
}

TEST_CASE("the store's contract holds on the simulated file system too") {
  SimulatedFileSystem files;
  check_store_conformance(
      [&] { return std::make_shared<FileStore>(kRoot, files); }, [&](Store&) { return std::make_shared<FileStore>(kRoot, files); },
      [&](Store&, const std::string& name) { return std::make_shared<FileStore>(child_url(kRoot, name), files); });
}
