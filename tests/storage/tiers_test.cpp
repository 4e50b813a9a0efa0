// Checkpoints in two tiers: copies to the far tier, reads from both, loss of either, removal,
// eviction and restarts. Two pairs of one near and one far tier stand for two processes.
#include <cairn/tests/support/torch.hpp>
// The suite uses doctest, which the line above brings.
#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include <pthread.h>

#include <cairn/state/hugging_face.hpp>
#include <cairn/storage/format/commit_head.hpp>
#include <cairn/storage/format/commit_record.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/format/trailer.hpp>
#include <cairn/storage/publication.hpp>
#include <cairn/storage/runs/run_directory.hpp>
#include <cairn/storage/stores/memory_store.hpp>
#include <cairn/storage/stores/tier_copier.hpp>
#include <cairn/storage/tiers.hpp>
#include <cairn/storage/verify_checkpoint.hpp>
#include <cairn/tests/storage/store_conformance.hpp>
#include <cairn/tests/storage/two_tiers.hpp>
#include <cairn/tests/support/captured_log.hpp>
#include <cairn/tests/support/environment.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tests/support/thrown.hpp>

using namespace cairn;
using namespace cairn::testing;
using namespace cairn::testing::two_tiers;
using std::chrono::milliseconds;

TEST_CASE("two directories keep the store's contract as tiers") {
  TemporaryDirectory directory;
  static std::atomic<int> count{0};
  const std::string name = "conformance" + std::to_string(count++);
  TierOptions options;
  options.near_url = directory.path() + "/near";
  options.far_url = directory.path() + "/far";
  register_tier(name, options);
  check_store_conformance([&] { return open_store("tiered://" + name + "/run/step"); });
  forget_tier(name);
}

TEST_CASE("tiers that are not defined are refused, and the environment can define them") {
  TemporaryDirectory directory;
  const Thrown unknown = thrown_by([] { open_store("tiered://nobody/run"); });
  CHECK(unknown.code == ErrorCode::kInvalidArgument);
  CHECK(unknown.says("register_tier"));
  CHECK(unknown.says("CAIRN_TIERS"));
  const Environment environment({{"CAIRN_TIERS", "other=/x|/y;from_env=" + directory.path() + "/n|" + directory.path() + "/f"}});
  const auto place = open_store("tiered://from_env/run/step_1");
  place->create_root();
  put_object(*place, "object", "content");
  REQUIRE(wait_for_copies("tiered://from_env"));
  CHECK(get_object(*open_store(directory.path() + "/f/run/step_1"), "object") == "content");
  forget_tier("from_env");
  TierOptions options;
  options.near_url = "/x";
  CHECK(thrown_by([&] { register_tier("half", options); }).says("both tiers need a URL"));
  options.far_url = "tiered://from_env/run";
  CHECK(thrown_by([&] { register_tier("nested", options); }).code == ErrorCode::kInvalidArgument);
}

TEST_CASE_FIXTURE(Tiers, "a save is copied to the far tier, whole, with what lies beside it") {
  save_value("tiered://first/run/step_1", 1, 2);
  RunDirectory("tiered://first/run").pin("step_1");
  REQUIRE(wait_for_copies("tiered://first/run"));
  CHECK(loaded_value(far("/run/step_1")) == 1);
  CHECK(verify_checkpoint(*open_store(far("/run/step_1"))).empty());
  CHECK(names_of(open_store(far("/run/step_1"))->list()) == names_of(open_store(near("/run/step_1"))->list()));
  CHECK(open_store(far("/run/step_1"))->open_attempts().empty());
  CHECK(open_store(far("/run/step_1"))->fenced_attempts().empty());
  const TierProgress progress = tier_progress("first");
  CHECK(progress.objects_waiting == 0);
  CHECK(progress.bytes_waiting == 0);
  CHECK(progress.objects_copied >= 3);
  CHECK(progress.bytes_copied > 8 * kElements);
  CHECK(progress.checkpoints_waiting.empty());
}

TEST_CASE_FIXTURE(Tiers, "a load takes from the far tier what the near one has damaged") {
  const std::string url = "tiered://first/run/step_1";
  save_value(url, 7);
  REQUIRE(wait_for_copies(url));
  const std::string file = near("/run/step_1/") + files_at(near("/run/step_1")).front();
  CapturedLog log;
  SUBCASE("a flipped bit in three blocks") {
    for (const int block : {1, 3, 5}) flip_byte(file, block * static_cast<std::streamoff>(kChecksumBlockBytes) + 17);
    CHECK(loaded_value(url) == 7);
    CHECK(times_in(log.text(), "is read instead") == 1);
  }
  SUBCASE("a damaged trailer") {
    flip_byte(file, static_cast<std::streamoff>(std::filesystem::file_size(file)) - 40);
    CHECK(loaded_value(url) == 7);
    CHECK(times_in(log.text(), "is read instead") == 1);
  }
  SUBCASE("a file that was cut short") {
    std::filesystem::resize_file(file, 1000);
    CHECK(loaded_value(url) == 7);
    CHECK(RunDirectory("tiered://first/run").fault_of("step_1").empty());
  }
  SUBCASE("a file that is gone") {
    std::filesystem::remove(file);
    CHECK(loaded_value(url) == 7);
  }
  SUBCASE("everything") {
    lose_near();
    CHECK(loaded_value(url) == 7);
    CHECK(RunDirectory("tiered://first/run").list().checkpoints.size() == 1);
  }
  SUBCASE("but not if the far tier has damaged it too") {
    flip_byte(file, 3 * static_cast<std::streamoff>(kChecksumBlockBytes));
    flip_byte(far("/run/step_1/") + files_at(far("/run/step_1")).front(), 3 * static_cast<std::streamoff>(kChecksumBlockBytes));
    CHECK(thrown_by([&] { loaded_value(url); }).code == ErrorCode::kCorrupt);
  }
}

TEST_CASE_FIXTURE(Tiers, "what is damaged before it is copied is not published in the far tier") {
  const CapturedLog log;
  const std::string url = "tiered://first/run/step_1";
  resume_copies("tiered://first/run");
  watch().set(be_down);
  save_value(url, 1);
  flip_byte(near("/run/step_1/") + files_at(near("/run/step_1")).front(), 2 * static_cast<std::streamoff>(kChecksumBlockBytes));
  watch().set(nullptr);
  CHECK_FALSE(wait_for_copies(url));
  CHECK_FALSE(has_checkpoint(far("/run/step_1")));
  CHECK(tier_progress("first").last_error.find("is damaged at offset") != std::string::npos);
  CHECK(tier_progress("first").checkpoints_waiting == Names{url});
  CHECK(log.text().find("is not copied to the far tier") != std::string::npos);
}

TEST_CASE_FIXTURE(Tiers, "of saves to one place that overtake their copies, the last is copied") {
  const std::string url = "tiered://first/run/latest";
  resume_copies("tiered://first/run");
  watch().set(take_no_objects);
  for (int value = 1; value <= 3; ++value) {
    save_value(url, value);
    ends_or_fails("first", url);
  }
  CHECK(loaded_value(url) == 3);
  watch().set(nullptr);
  REQUIRE(wait_for_copies(url));
  CHECK(loaded_value(far("/run/latest")) == 3);
  save_value(url, 4);
  save_value(url, 5);
  REQUIRE(wait_for_copies(url));
  CHECK(loaded_value(far("/run/latest")) == 5);
  // The generation before the last stays for loads, as in the near tier.
  CHECK(files_at(far("/run/latest")) == files_at(near("/run/latest")));
  CHECK(open_store(far("/run/latest"))->open_attempts().empty());
  CHECK(open_store(far("/run/latest"))->fenced_attempts().empty());
}

TEST_CASE_FIXTURE(Tiers, "the near tier keeps the newest copied checkpoints, and a run shows all") {
  const std::string run = "tiered://first/run";
  const RunDirectory checkpoints(run);
  for (int step = 1; step <= 4; ++step) {
    save_value(run + "/step_" + std::to_string(step), step);
    if (step == 1) checkpoints.pin("step_1");
    REQUIRE(wait_for_copies(run));
  }
  for (int step = 1; step <= 4; ++step) {
    CHECK(has_checkpoint(near("/run/step_" + std::to_string(step))));
    CHECK(files_at(near("/run/step_" + std::to_string(step))).empty() == (step < 3));
  }
  CHECK(open_store(far("/run"))->children() == Names{"step_1", "step_2", "step_3", "step_4"});
  CHECK(checkpoints.list().checkpoints.size() == 4);
  CHECK(checkpoints.is_pinned("step_1"));
  for (int step = 1; step <= 4; ++step) CHECK(loaded_value(run + "/step_" + std::to_string(step)) == step);
  // A checkpoint that the far tier alone has can be pinned, removed, and saved again.
  checkpoints.pin("step_2");
  CHECK(checkpoints.is_pinned("step_2"));
  checkpoints.unpin("step_2");
  for (const RunCheckpoint& checkpoint : checkpoints.list().checkpoints)
    if (checkpoint.name == "step_2") CHECK_FALSE(checkpoints.remove(checkpoint));
  CHECK_FALSE(std::filesystem::exists(far("/run/step_2")));
  CHECK_FALSE(std::filesystem::exists(near("/run/step_2")));
  save_value(run + "/step_1", 9);
  REQUIRE(wait_for_copies(run));
  CHECK(loaded_value(far("/run/step_1")) == 9);
}

TEST_CASE_FIXTURE(Tiers, "a checkpoint whose process died after it was published leaves the near tier in its turn") {
  keep_near = 1;
  restart();
  const std::string run = "tiered://first/run", id = local_save_id(1);
  save_value(run + "/step_1", 1);
  REQUIRE(wait_for_copies(run));
  open_store(near("/run/step_1"))->begin_attempt(id);  // as if the process had died before it removed this
  save_value(run + "/step_2", 2);
  REQUIRE(wait_for_copies(run));
  CHECK(files_at(near("/run/step_1")).empty());
  CHECK_FALSE(open_store(near("/run/step_1"))->has_attempt(id));
  CHECK(loaded_value(run + "/step_1") == 1);
  // The files of another save stay.
  open_store(near("/run/step_2"))->begin_attempt("other");
  save_value(run + "/step_3", 3);
  REQUIRE(wait_for_copies(run));
  CHECK_FALSE(files_at(near("/run/step_2")).empty());
}

TEST_CASE_FIXTURE(Tiers, "a checkpoint that the far tier alone has can be removed") {
  const std::string run = "tiered://first/run";
  save_value(run + "/step_1", 1);
  save_value(run + "/step_2", 2);
  REQUIRE(wait_for_copies(run));
  stop();
  lose_near();
  start();
  const RunDirectory checkpoints(run);
  CHECK_FALSE(checkpoints.remove(checkpoints.list().checkpoints.back()));
  CHECK_FALSE(std::filesystem::exists(far("/run/step_1")));
  CHECK(loaded_value(run + "/step_2") == 2);
}

TEST_CASE_FIXTURE(Tiers, "a place of its own is taken without the far tier once the near one knows the run") {
  const std::string run = "tiered://first/run";
  save_value(run + "/step_1", 1);
  REQUIRE(wait_for_copies(run));
  restart();
  resume_copies(run);
  expect_saves(run);
  watch().set(be_down);
  const auto place = open_store(run + "/step_2");
  CHECK_FALSE(place->is_taken(kCommitRecordName));
  CHECK(open_store(run)->children() == Names{"step_1"});
  place->create_root();
  place->begin_attempt("one");
  place->publish("one", "record", Overwrite::kRefused);
  CHECK(place->exists(kCommitRecordName));
}

TEST_CASE_FIXTURE(Tiers, "a near tier without the records of the far one does not speak for the run") {
  const std::string run = "tiered://first/run";
  save_value(run + "/step_1", 1);
  REQUIRE(wait_for_copies(run));
  stop();
  lose_near();
  start();
  resume_copies(run);
  watch().set(be_down);
  CHECK(thrown_by([&] { RunDirectory(run).list(); }).code == ErrorCode::kUnavailable);
  CHECK(thrown_by([&] { open_store(run + "/step_1")->is_taken(kCommitRecordName); }).code == ErrorCode::kUnavailable);
}

TEST_CASE_FIXTURE(Tiers, "a record of another program in the far tier is not overwritten by a save that refuses to") {
  const std::string place = "/run/step_1";
  std::filesystem::create_directories(far(place));
  std::ofstream(far(place) + "/.metadata") << "not Cairn's";
  resume_copies("tiered://first/run");
  const auto store = open_store("tiered://first" + place);
  CHECK(store->is_taken(kCommitRecordName));
  store->create_root();
  store->begin_attempt("one");
  CHECK(thrown_by([&] { store->publish("one", "record", Overwrite::kRefused); }).code == ErrorCode::kAlreadyExists);
}

TEST_CASE_FIXTURE(Tiers, "a near tier that another node has overtaken does not replace what the far one has") {
  // Both nodes save the same step after the same checkpoint, so the sequences are equal.
  const std::string place = "/run/step_2";
  resume_copies("tiered://first/run");
  watch().set(take_no_objects);
  save_value("tiered://first" + place, 1);
  wait_until_announced(far(place));
  stop();
  watch().set(nullptr);
  register_tier("other-node", options("other"));
  save_value("tiered://other-node" + place, 2);
  REQUIRE(wait_for_copies("tiered://other-node"));
  forget_tier("other-node");
  SUBCASE("when it resumes") {
    start();
    open_store(near(place))->begin_attempt("of-a-dead-save");
    resume_copies("tiered://first/run");
  }
  SUBCASE("when it copies") {
    start();
    TierCopier late("late", options());
    late.add_checkpoint(place, local_save_id(1), true);
    CHECK_FALSE(late.wait(place, std::nullopt, nullptr));
  }
  wait_for_copies("tiered://first");
  CHECK(loaded_value(far(place)) == 2);
  CHECK(verify_checkpoint(*open_store(far(place))).empty());
}

TEST_CASE_FIXTURE(Tiers, "a copy goes on after another process has fenced it") {
  const std::string run = "tiered://first/run", place = "/run/step_1";
  resume_copies(run);
  watch().set(take_no_objects);
  save_value("tiered://first" + place, 1);
  wait_until_announced(far(place));
  stop();
  watch().set(nullptr);
  open_store(far(place))->fence(local_save_id(1));
  start();
  resume_copies(run);
  REQUIRE(wait_for_copies(run));
  CHECK(loaded_value(far(place)) == 1);
}

TEST_CASE_FIXTURE(Tiers, "checkpoints that are not copied stay in the near tier, and are copied when that is possible") {
  const std::string run = "tiered://first/run";
  resume_copies(run);
  watch().set(take_no_objects);
  for (int step = 1; step <= 4; ++step) {
    save_value(run + "/step_" + std::to_string(step), step);
    CHECK_FALSE(ends_or_fails("first", run));
    CHECK(loaded_value(run + "/step_" + std::to_string(step)) == step);
  }
  CHECK(tier_progress("first").checkpoints_waiting == Names{run + "/step_1", run + "/step_2", run + "/step_3", run + "/step_4"});
  CHECK(open_store(near("/run"))->children().size() == 4);
  watch().set(nullptr);
  REQUIRE(wait_for_copies(run));
  for (int step = 1; step <= 4; ++step) CHECK(loaded_value(far("/run/step_" + std::to_string(step))) == step);
}

TEST_CASE_FIXTURE(Tiers, "a file that another process is copying is left to it") {
  const std::string run = "tiered://first/run";
  takeover_after = std::chrono::hours(1);
  restart();
  watch().set(take_no_objects);
  save_value(run + "/step_1", 1);
  wait_until_announced(far("/run/step_1"));
  stop();
  watch().set(nullptr);
  const ObjectName name = files_at(near("/run/step_1")).front();
  const Bytes content = get_object(*open_store(near("/run/step_1")), name);
  CreateOptions create;
  create.appears_whole = true;
  const auto other = open_store(far("/run/step_1"))->create(name, create);
  other->write_at(0, ByteSpan(content).subspan(0, 1000));
  std::atomic<int> tries{0};
  watch().set([&](const DecoratedOperation& operation) { tries += std::string(operation.name) == "create" ? 1 : 0; });
  start();
  resume_copies(run);
  while (tries < 2) REQUIRE_FALSE(wait_for_copies(run, milliseconds(1)));
  other->write_at(1000, ByteSpan(content).subspan(1000, content.size() - 1000));
  other->sync(content.size());
  REQUIRE(wait_for_copies(run));
  CHECK(loaded_value(far("/run/step_1")) == 1);
}

TEST_CASE_FIXTURE(Tiers, "a lost near tier costs what was not copied, and the report names it") {
  const std::string run = "tiered://first/run";
  save_value(run + "/step_1", 1);
  REQUIRE(wait_for_copies(run));
  watch().set(take_no_objects);
  save_value(run + "/step_2", 2);
  wait_until_announced(far("/run/step_2"));
  stop();
  lose_near();
  watch().set(nullptr);
  start();
  const CapturedLog log;
  const auto lost = resume_copies(run);
  REQUIRE(lost.size() == 1);
  CHECK(lost.front().url == run + "/step_2");
  CHECK(lost.front().save_id == local_save_id(2));
  CHECK(log.text().find("step_2 was saved to the near tier and lost before its copy") != std::string::npos);
  CHECK(RunDirectory(run).list().checkpoints.front().name == "step_1");
  CHECK(loaded_value(run + "/step_1") == 1);
  CHECK(resume_copies(run).size() == 1);  // until this process saves
  save_value(run + "/step_3", 3);
  REQUIRE(wait_for_copies(run));
  CHECK(resume_copies(run).empty());
  CHECK(open_store(far("/run/step_2"))->open_attempts().empty());
  save_value(run + "/step_2", 4);
  REQUIRE(wait_for_copies(run));
  CHECK(loaded_value(far("/run/step_2")) == 4);
}

TEST_CASE_FIXTURE(Tiers, "a reader with another near tier leaves the copies of a trainer alone") {
  const std::string run = "tiered://first/run";
  std::promise<void> reached, go;
  watch().set([&](const DecoratedOperation& operation) {
    if (std::string(operation.name) != "publish") return;
    reached.set_value();
    go.get_future().wait();
  });
  save_value(run + "/step_1", 1);
  reached.get_future().wait();
  register_tier("other-node", options("other"));
  CHECK(resume_copies("tiered://other-node/run").size() == 1);  // lost, as far as it can tell
  CHECK_FALSE(has_checkpoint("tiered://other-node/run/step_1"));
  CHECK(wait_for_copies("tiered://other-node"));
  CHECK_FALSE(files_at(far("/run/step_1")).empty());
  CHECK_FALSE(open_store(far("/run/step_1"))->open_attempts().empty());
  go.set_value();
  REQUIRE(wait_for_copies(run));
  CHECK(loaded_value("tiered://other-node/run/step_1") == 1);
  forget_tier("other-node");
}

TEST_CASE_FIXTURE(Tiers, "a process that will save needs no far tier once it has looked there, and a reader does") {
  const std::string run = "tiered://first/run";
  CHECK(resume_copies(run).empty());
  watch().set(be_down);
  CHECK(code_of([&] { RunDirectory(run).list(); }) == ErrorCode::kUnavailable);
  expect_saves(run);
  CHECK(RunDirectory(run).list().checkpoints.empty());
  CHECK(RunDirectory(run).why_occupied("step_1").empty());
  save_value(run + "/step_1", 1);
  CHECK(RunDirectory(run).list().checkpoints.size() == 1);
}

TEST_CASE_FIXTURE(Tiers, "safetensors files are not saved to tiers") {
  const StateDict state{{"model", torch::ones({4})}};
  LocalSave save;
  save.checkpoint_id = "tiered://first/model";
  save.save_id = local_save_id(1);
  const Thrown error =
      thrown_by([&] { save_locally(save, {&state}, [] { return std::make_unique<HuggingFaceStorageWriter>(); }); });
  CAPTURE(error.what);
  CHECK(error.code == ErrorCode::kUnsupported);
  CHECK(error.says("Save to a directory"));
  CHECK(open_store(near("/model"))->list().empty());
}

TEST_CASE_FIXTURE(Tiers, "parts of ranks stay in the near tier") {
  keep_near = 1;
  restart();
  const std::string step = "tiered://first/run/step_1";
  for (int rank = 0; rank < 2; ++rank) save_value(step + "/" + part_name(rank, 3), rank);
  REQUIRE(wait_for_copies(step));
  save_value("tiered://second/run/step_1/" + part_name(2, 3), 2);  // the rank of another process
  REQUIRE(wait_for_copies("tiered://second"));
  for (int rank = 0; rank < 3; ++rank) CHECK_FALSE(files_at(near("/run/step_1/" + part_name(rank, 3))).empty());
}

TEST_CASE_FIXTURE(Tiers, "a node whose near tier is older than the far one takes the newer checkpoint") {
  const std::string place = "/run/latest";
  save_value("tiered://first" + place, 1);
  REQUIRE(wait_for_copies("tiered://first"));
  register_tier("other-node", options("other"));
  save_value("tiered://other-node" + place, 2);
  REQUIRE(wait_for_copies("tiered://other-node"));
  forget_tier("other-node");
  restart();
  CHECK(resume_copies("tiered://first/run").empty());
  CHECK(loaded_value("tiered://first" + place) == 2);
  CHECK(files_at(near(place)).empty());
}

TEST_CASE_FIXTURE(Tiers, "a removed checkpoint does not come back, whatever copies it at that moment") {
  // Another process removes it before the i-th operation of the copy in the far tier.
  int reached = 0;
  for (int index = 0;; ++index) {
    CAPTURE(index);
    const std::string place = "/run" + std::to_string(index) + "/step_1";
    const std::string run = parent_url("tiered://first" + place);
    resume_copies(run);
    resume_copies(parent_url("tiered://second" + place));
    std::atomic<int> operations{0};
    std::atomic<bool> is_removing{false}, is_removed{false};
    std::optional<std::string> refused;
    std::string problem;
    watch().set([&](const DecoratedOperation&) {
      if (is_removing || operations++ != index) return;
      is_removing = true;
      try {
        const RunDirectory other("tiered://second" + run.substr(run.rfind('/')));
        const auto found = other.list().checkpoints;
        if (found.size() == 1) {
          refused = other.remove(found.front());
          is_removed = true;
        }
      } catch (const std::exception& error) {
        problem = error.what();
      }
      is_removing = false;
    });
    save_value("tiered://first" + place, 1);
    wait_for_copies(run);
    watch().set(nullptr);
    wait_for_copies(run);
    CHECK(problem.empty());
    CHECK_FALSE(refused);
    if (operations <= index) {
      CHECK(has_checkpoint(far(place)));
      break;
    }
    if (!is_removed) continue;  // the save had not published yet
    ++reached;
    CHECK_FALSE(has_checkpoint(near(place)));
    CHECK_FALSE(has_checkpoint(far(place)));
    restart();
    CHECK(resume_copies(run).empty());
    REQUIRE(wait_for_copies(run));
    CHECK_FALSE(has_checkpoint("tiered://first" + place));
  }
  CHECK(reached > 5);
}

TEST_CASE_FIXTURE(Tiers, "a removed checkpoint does not come back, wherever a copy overtakes the removal") {
  watches_near = true;
  restart();
  for (int index = 0;; ++index) {
    CAPTURE(index);
    const std::string run = "/run" + std::to_string(index), place = run + "/step_1";
    resume_copies("tiered://first" + run);
    resume_copies("tiered://second" + run);
    std::atomic<bool> may_copy{false};
    bool removes = false;
    int operations = 0;
    // All of the copy happens before the i-th operation of the removal by another process.
    watch().set([&](const DecoratedOperation& operation) {
      if (std::this_thread::get_id() != test_thread()) {
        if (!may_copy) take_no_objects(operation);
      } else if (removes && operations++ == index) {
        removes = false;
        may_copy = true;
        wait_for_copies("tiered://first" + run);
        removes = true;
      }
    });
    save_value("tiered://first" + place, 1);
    const RunDirectory other("tiered://second" + run);
    const auto found = other.list().checkpoints;
    REQUIRE(found.size() == 1);
    removes = true;
    CHECK_FALSE(other.remove(found.front()));
    removes = false;
    may_copy = true;
    wait_for_copies("tiered://first" + run);
    watch().set(nullptr);
    CHECK_FALSE(has_checkpoint(near(place)));
    CHECK_FALSE(has_checkpoint(far(place)));
    restart();
    CHECK(resume_copies("tiered://first" + run).empty());
    REQUIRE(wait_for_copies("tiered://first" + run));
    CHECK_FALSE(has_checkpoint("tiered://first" + place));
    if (operations <= index) {
      CHECK(index > 10);
      break;
    }
  }
}

TEST_CASE_FIXTURE(Tiers, "while the far tier fails, nobody is told that a checkpoint is not copied") {
  const std::string run = "tiered://first/run";
  save_value(run + "/step_1", 1);
  REQUIRE(wait_for_copies(run));
  CHECK(is_copied(run + "/step_1", local_save_id(1)));
  CHECK_FALSE(is_copied(run + "/step_1", local_save_id(2)));
  watch().set(be_down);
  save_value(run + "/step_2", 2);
  CHECK_FALSE(ends_or_fails("first", run));
  CHECK(thrown_by([&] { is_copied(run + "/step_1", local_save_id(1)); }).code == ErrorCode::kUnavailable);
  CHECK_FALSE(is_copied(run + "/step_2", local_save_id(2)));  // it is in the queue
}

TEST_CASE_FIXTURE(Tiers, "a removal while the far tier is down fails, and the checkpoint stays whole") {
  const std::string run = "tiered://first/run";
  save_value(run + "/step_1", 1);
  save_value(run + "/step_2", 2);
  REQUIRE(wait_for_copies(run));
  const RunDirectory checkpoints(run);
  const auto found = checkpoints.list().checkpoints;
  watch().set(be_down);
  CHECK(thrown_by([&] { checkpoints.remove(found.back()); }).code == ErrorCode::kUnavailable);
  watch().set(nullptr);
  CHECK(loaded_value(run + "/step_1") == 1);
  CHECK(loaded_value(far("/run/step_1")) == 1);
  REQUIRE(wait_for_copies(run, std::chrono::minutes(5)));  // the copier may have met the failure, too
  CHECK_FALSE(checkpoints.remove(found.back()));
  CHECK_FALSE(std::filesystem::exists(far("/run/step_1")));
}

TEST_CASE("an interrupted removal leaves a mark in a near tier in memory, whatever mark the far one has") {
  TierOptions options;
  options.near_url = "mem://near-of-marks";
  options.far_url = "mem://far-of-marks";
  register_tier("marks", options);
  const std::string place = "/run/step_1";
  save_value("tiered://marks" + place, 1);
  REQUIRE(wait_for_copies("tiered://marks/run"));
  const ObjectName mark = removal_mark_name(local_save_id(1));
  create_whole(*open_store(options.far_url + place), mark, "\n");
  const RunDirectory run("tiered://marks/run");
  const auto found = run.list().checkpoints;
  int asked = 0;
  run.remove(found.front(), [&](const ObjectName&) { return ++asked == 1; });
  CHECK(asked > 1);
  CHECK_FALSE(has_checkpoint(options.near_url + place));
  CHECK_FALSE(files_at(options.near_url + place).empty());
  CHECK(open_store(options.near_url + place)->exists(mark));
  CHECK(run.remove_remains({}, false).empty());
  CHECK(open_store(options.near_url + place)->list().empty());
  CHECK(open_store(options.far_url + place)->list().empty());
  forget_tier("marks");
  forget_memory("near-of-marks");
  forget_memory("far-of-marks");
}

TEST_CASE_FIXTURE(Tiers, "nothing is copied while a writer of the process is open") {
  const auto place = open_store("tiered://first/run/step_1");
  place->create_root();
  std::atomic<int> created{0};
  watch().set([&](const DecoratedOperation& operation) { created += std::string(operation.name) == "create" ? 1 : 0; });
  auto writer = place->create("open");
  put_object(*place, "object", "content");
  CHECK_FALSE(wait_for_copies("tiered://first", milliseconds(20)));
  CHECK(created == 0);
  writer->discard();
  REQUIRE(wait_for_copies("tiered://first"));
  CHECK(get_object(*open_store(far("/run/step_1")), "object") == "content");
  CHECK_FALSE(open_store(far("/run/step_1"))->exists("open"));
}

using Survival = SimulatedFileSystem::Survival;

TEST_CASE("a power loss in either tier leaves the old or the new checkpoint whole in both") {
  const CapturedLog log;
  tier_elements = 100;
  for (const bool at_one_place : {true, false}) {
    for (const bool near_loses : {true, false}) {
      for (const Survival survival :
           {Survival{Survival::kSynced, 0}, Survival{Survival::kEverything, 0}, Survival{Survival::kRandom, 1}}) {
        const std::string old_url = "tiered://disks/run/step_1", new_url = at_one_place ? old_url : "tiered://disks/run/step_2";
        const auto path = [](const std::string& url) { return url.substr(std::string("tiered://disks").size()); };
        for (std::uint64_t index = 0;; ++index) {
          CAPTURE(at_one_place);
          CAPTURE(near_loses);
          CAPTURE(index);
          Disks disks;
          save_value(old_url, 1);
          REQUIRE(wait_for_copies(old_url));
          disks.near->settle();
          disks.far.settle();
          SimulatedFileSystem& loser = near_loses ? *disks.near : disks.far;
          const std::uint64_t first = loser.operations();
          loser.lose_power_at(first + index);
          const bool is_saved = !thrown_by([&] { save_value(new_url, 2); }).is_error;
          if (is_saved) ends_or_fails("disks", "tiered://disks");
          const bool was_reached = loser.operations() > first + index;
          forget_tier("disks");
          disks.near->restart(survival);
          disks.far.restart(survival);

          // Before anything is copied again: the far tier alone has the old one or the new one.
          const std::string far_old = "far-disk:///far" + path(old_url), far_new = "far-disk:///far" + path(new_url);
          REQUIRE(loaded_value(far_old) == (at_one_place && loaded_value(far_old) == 2 ? 2 : 1));
          if (has_checkpoint(far_new)) REQUIRE(loaded_value(far_new) == (at_one_place ? loaded_value(far_old) : 2));
          disks.start();
          resume_copies("tiered://disks/run");
          REQUIRE(wait_for_copies("tiered://disks/run"));
          const bool is_new = has_checkpoint(new_url) && loaded_value(new_url) == 2;
          if (is_saved) REQUIRE(is_new);
          REQUIRE(loaded_value(old_url) == (at_one_place && is_new ? 2 : 1));
          REQUIRE(loaded_value(far_old) == loaded_value(old_url));
          REQUIRE((has_checkpoint(far_new) && loaded_value(far_new) == 2) == is_new);
          forget_tier("disks");
          if (!was_reached) {
            REQUIRE(index > 15);
            break;
          }
        }
      }
    }
  }
  tier_elements = kElements;
}
