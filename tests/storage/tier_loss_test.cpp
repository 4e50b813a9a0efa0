// Losses between two tiers: near tiers that are lost or damaged at any step of a copy, far tiers
// that refuse, and processes that are killed. Nothing is lost or removed without a word.
#include <cairn/tests/storage/two_tiers.hpp>
// The suite uses doctest, which the line above brings.
#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include <cairn/storage/format/commit_head.hpp>
#include <cairn/storage/runs/run_directory.hpp>
#include <cairn/storage/verify_checkpoint.hpp>
#include <cairn/tests/support/captured_log.hpp>
#include <cairn/tests/support/thrown.hpp>

namespace cairn::testing::two_tiers {
namespace {

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

bool is_on_test_thread() { return std::this_thread::get_id() == test_thread(); }

}  // namespace

TEST_CASE_FIXTURE(Tiers, "loads use the far record if the near one is damaged, and verify names it") {
  const std::string run = "tiered://first/run", record = near("/run/step_2/.metadata");
  for (int step : {1, 2}) save_value(run + "/step_" + std::to_string(step), step);
  REQUIRE(wait_for_copies(run));
  const std::string sound = content_of(record);
  std::vector<std::string> damaged{"", "x", std::string(sound.size(), '\0')};
  for (const std::size_t length : {std::size_t{100}, sound.size() / 2, sound.size() - 33, sound.size() - 32, sound.size() - 1})
    damaged.push_back(sound.substr(0, length));
  for (std::size_t at = 0; at < sound.size(); at += at + 60 < sound.size() ? 37 : 1) {
    damaged.push_back(sound);
    damaged.back()[at] ^= 4;
  }
  const CapturedLog log;
  for (std::size_t i = 0; i < damaged.size(); ++i) {
    CAPTURE(i);
    std::ofstream(record, std::ios::binary) << damaged[i];
    const auto found = RunDirectory(run).list().checkpoints;
    REQUIRE(found.size() == 2);
    CHECK(found.front().name == "step_2");
    CHECK(found.front().head.sequence == 2);
    const auto faults = verify_checkpoint(*open_store(run + "/step_2"));
    REQUIRE(faults.size() == 1);
    CHECK(faults.front().object == kCommitRecordName);
    CHECK(loaded_value(run + "/step_2") == 2);
  }
  restart();
  resume_copies(run);
  save_value(run + "/step_3", 3);
  REQUIRE(wait_for_copies(run));
  for (const std::string& tier : {near("/run"), far("/run")})
    CHECK(read_commit_head(*open_store(tier), "step_3/.metadata")->sequence == 3);
  CHECK(has_checkpoint(far("/run/step_2")));
}

TEST_CASE_FIXTURE(Tiers, "a near record damaged before its copy leaves the far attempt and files alone") {
  const std::string run = "tiered://first/run", url = run + "/step_1";
  resume_copies(run);
  watch().set(take_no_objects);
  save_value(url, 1);
  wait_until_announced(far("/run/step_1"));
  std::filesystem::resize_file(near("/run/step_1/.metadata"), 100);
  const CapturedLog log;
  watch().set(nullptr);
  CHECK_FALSE(wait_for_copies(run));
  CHECK(tier_progress("first").checkpoints_waiting == std::vector<std::string>{url});
  CHECK(log.text().find("step_1 is not copied to the far tier") != std::string::npos);
  for (const bool again : {false, true}) {
    CAPTURE(again);
    CHECK_FALSE(has_checkpoint(far("/run/step_1")));
    CHECK_FALSE(open_store(far("/run/step_1"))->open_attempts().empty());
    CHECK_FALSE(files_at(far("/run/step_1")).empty());
    if (!again) restart();
    save_value(run + "/step_2", again ? 3 : 2);
    wait_for_copies(run);
  }
}

TEST_CASE_FIXTURE(Tiers, "a full far tier ends waits, causes one warning, and gets the copies later") {
  drain_patience = std::chrono::milliseconds(30);
  restart();
  for (const std::string refused : {"write_at", "sync", "create", "begin_attempt", "publish", "list"}) {
    CAPTURE(refused);
    const std::string run = "/run-" + refused, url = "tiered://first" + run;
    for (const std::string tier : {"first", "second"}) resume_copies("tiered://" + tier + run);
    watch().set([&](const DecoratedOperation& operation) {
      static thread_local int writes = 0;
      const std::string name(operation.name);
      if (name == "create") writes = 0;
      if (is_on_test_thread() || name != refused) return;
      // A full disk takes the first piece again and again.
      if (refused != "write_at" || writes++ > 0) throw Error(ErrorCode::kNoSpace, "the far tier is full");
    });
    const CapturedLog log;
    tier_elements = refused == "write_at" ? 1'000'000 : kElements;  // two pieces
    save_value(url + "/step_1", 1);
    resume_copies("tiered://second" + run);
    while (times_in(log.text(), "cannot copy to the far tier of tiered://first;") == 0)
      wait_for_copies(url, std::chrono::milliseconds(1));
    for (int i = 0; i < 3; ++i)
      for (const std::string tier : {"first", "second"}) CHECK_FALSE(wait_for_copies("tiered://" + tier + run));
    CHECK(times_in(log.text(), "cannot copy to the far tier of tiered://first;") == 1);
    CHECK(tier_progress("first").failing_since);
    CHECK_FALSE(has_checkpoint(far(run + "/step_1")));
    watch().set(nullptr);
    for (const std::string tier : {"first", "second"}) REQUIRE(wait_for_copies("tiered://" + tier + run, std::chrono::minutes(5)));
    CHECK(loaded_value(far(run + "/step_1")) == 1);
    CHECK_FALSE(tier_progress("first").failing_since);
  }
  tier_elements = kElements;
}

TEST_CASE_FIXTURE(Tiers, "an object cannot be dropped while an operation of the far tier hangs") {
  drain_patience = std::chrono::milliseconds(1);
  restart();
  std::atomic<bool> hangs{false}, is_released{false};
  watch().set([&](const DecoratedOperation& operation) {
    if (is_on_test_thread() || std::string(operation.name) != "create") return;
    hangs = true;
    while (!is_released) std::this_thread::yield();
  });
  const auto place = open_store("tiered://first/run/step_1");
  place->create_root();
  put_object(*place, "object", "content");
  while (!hangs) std::this_thread::yield();
  CHECK(code_of([&] { place->remove("object"); }) == ErrorCode::kUnavailable);
  is_released = true;
  watch().set(nullptr);
  while (thrown_by([&] { place->remove("object"); }).is_error) std::this_thread::yield();
  REQUIRE(wait_for_copies("tiered://first", std::chrono::minutes(5)));
}

TEST_CASE_FIXTURE(Tiers, "a loss of the near tier at any step of a copy names what was not copied") {
  int lost_times = 0;
  for (int index = 0;; ++index) {
    CAPTURE(index);
    const std::string run = "/run" + std::to_string(index), url = "tiered://first" + run;
    std::atomic<bool> may_copy{false};
    std::atomic<int> operations{0};
    watch().set([&](const DecoratedOperation&) {
      if (is_on_test_thread()) return;
      while (!may_copy) std::this_thread::yield();
      if (operations++ == index) lose_near();
    });
    const CapturedLog log;
    save_value(url + "/step_1", 1);
    may_copy = true;
    const bool is_copied = wait_for_copies(url);
    watch().set(nullptr);
    CHECK(is_copied == has_checkpoint(far(run + "/step_1")));
    const auto lost = resume_copies(url), shown = tier_progress("first").checkpoints_lost;
    if (is_copied) {
      CHECK(loaded_value(url + "/step_1") == 1);
      CHECK(lost.empty());
      CHECK(shown.empty());
    } else {
      ++lost_times;
      for (const auto& named : {lost, shown}) {
        REQUIRE(named.size() == 1);
        CHECK(named.front().url == url + "/step_1");
        CHECK(named.front().save_id == local_save_id(1));
      }
      CHECK(log.text().find("error rank -1: step_1 was saved to the near tier and lost before its copy") != std::string::npos);
      const bool was_announced = !open_store(far(run + "/step_1"))->open_attempts().empty();
      save_value(url + "/step_2", 2);
      REQUIRE(wait_for_copies(url));
      CHECK(resume_copies(url).empty());
      CHECK(tier_progress("first").checkpoints_lost.empty());
      CHECK(open_store(far(run + "/step_1"))->fenced_attempts().empty());
      if (was_announced) CHECK_FALSE(std::filesystem::exists(far(run + "/step_1")));
    }
    if (operations <= index) {
      CHECK(is_copied);
      break;
    }
  }
  CHECK(lost_times > 10);
}

TEST_CASE_FIXTURE(Tiers, "no data file is copied to the far tier before an attempt tells of its save") {
  const std::string run = "tiered://first/run", url = run + "/step_1", plain = directory.path() + "/plain";
  save_value(plain, 1);
  const std::string file = files_at(plain).front();
  const auto place = open_store(url);
  place->create_root();
  place->begin_attempt(local_save_id(1));
  put_object(*place, file, content_of(plain + "/" + file));
  CHECK_FALSE(wait_for_copies(url, std::chrono::milliseconds(50)));
  CHECK(files_at(far("/run/step_1")).empty());
  stop();
  lose_near();
  start();
  CHECK(resume_copies(run).empty());  // it was never published
  CHECK(RunDirectory(run).unrecorded({"step_1"}).empty());
}

TEST_CASE_FIXTURE(Tiers, "the mark of a superseded save stays while files of it are in the far tier") {
  const std::string run = "tiered://first/run", url = run + "/latest";
  resume_copies(run);
  watch().set([](const DecoratedOperation& operation) {
    if (std::string(operation.name) == "publish" && !is_on_test_thread()) fail_as_down(operation.name);
  });
  save_value(url, 1);
  ends_or_fails("first", url);
  save_value(url, 2);
  while (files_at(far("/run/latest")).size() < 2) wait_for_copies(url, std::chrono::milliseconds(1));
  for (int i = 0; i < 50; ++i) wait_for_copies(url, std::chrono::milliseconds(1));
  stop();
  lose_near();
  CHECK(RunDirectory(far("/run")).unrecorded({"latest"}).empty());
}

TEST_CASE_FIXTURE(Tiers, "a copy that ends after the removal of its checkpoint leaves no file") {
  const std::string run = "tiered://first/run", url = run + "/step_1";
  resume_copies(run);
  std::atomic<bool> is_removed{false};
  watch().set([&](const DecoratedOperation& operation) {
    if (is_on_test_thread() || std::string(operation.name) != "sync" || is_removed.exchange(true)) return;
    // The upload of a bucket, which has no name before it ends.
    std::filesystem::rename(far("/run/step_1"), far("/aside"));
    std::filesystem::remove_all(near("/run/step_1"));
    std::filesystem::create_directory(far("/run/step_1"));
    for (const auto& entry : std::filesystem::directory_iterator(far("/aside")))
      if (entry.is_regular_file()) std::filesystem::rename(entry.path(), far("/run/step_1/") + entry.path().filename().string());
  });
  save_value(url, 1);
  wait_for_copies(url);
  CHECK(is_removed);
  CHECK(files_at(far("/run/step_1")).empty());
}

TEST_CASE_FIXTURE(Tiers, "a publication keeps the far files of saves that nothing tells of") {
  const std::string url = "tiered://first/run/latest", unknown = data_file_name(0, 0, local_save_id(77));
  save_value(url, 1);
  REQUIRE(wait_for_copies(url));
  put_object(*open_store(far("/run/latest")), unknown, "of nobody");
  for (const int value : {2, 3, 4}) {
    save_value(url, value);
    REQUIRE(wait_for_copies(url));
  }
  CHECK(open_store(far("/run/latest"))->exists(unknown));
  CHECK(files_at(far("/run/latest")).size() == 3);  // and those of the last two saves
}

TEST_CASE_FIXTURE(Tiers, "a save keeps a run that was copied to the far tier without its records") {
  const std::string run = "tiered://first/run";
  save_value(run + "/step_1", 1);
  REQUIRE(wait_for_copies(run));
  stop();
  lose_near();
  std::filesystem::remove(far("/run/step_1/.metadata"));
  const auto files = files_at(far("/run/step_1"));
  start();
  save_value(run + "/step_2", 2);
  REQUIRE(wait_for_copies(run));
  CHECK(files_at(far("/run/step_1")) == files);
}

TEST_CASE_FIXTURE(Tiers, "a checkpoint is damaged if both tiers have damage") {
  const std::string run = "tiered://first/run";
  save_value(run + "/step_1", 1);
  REQUIRE(wait_for_copies(run));
  const RunDirectory directory_of_run(run);
  const RunCheckpoint checkpoint = directory_of_run.list().checkpoints.front();
  const auto finding = [&] { return directory_of_run.find_damage(checkpoint, {}, 1 << 30); };
  CHECK(finding().empty());
  for (const std::string& place : {near("/run/step_1/"), far("/run/step_1/")}) {
    CHECK(finding().empty());
    flip_byte(place + files_at(place).front(), 5);
  }
  CHECK_FALSE(finding().empty());
}

TEST_CASE_FIXTURE(Tiers, "a damaged far record does not make the near checkpoint obsolete") {
  const std::string run = "tiered://first/run", record = far("/run/step_1/.metadata");
  save_value(run + "/step_1", 1);
  REQUIRE(wait_for_copies(run));
  const std::size_t at = content_of(record).rfind(local_save_id(1));
  REQUIRE(at != std::string::npos);
  flip_byte(record, static_cast<std::streamoff>(at + local_save_id(1).size() - 1));
  REQUIRE(read_commit_head(*open_store(far("/run/step_1")))->save_id != local_save_id(1));
  restart();
  const CapturedLog log;
  resume_copies(run);
  wait_for_copies(run);
  CHECK(has_checkpoint(near("/run/step_1")));
  CHECK(loaded_value(run + "/step_1") == 1);
}

TEST_CASE("a process killed at any step of a copy or removal leaves an unambiguous state") {
  const CapturedLog log;
  tier_elements = 100;
  const std::string run = "tiered://disks/run", url = run + "/step_2", far_place = "far-disk:///far/run/step_2";
  int named = 0;
  for (const bool removes : {false, true}) {
    for (const bool far_stops : {true, false}) {
      for (const bool is_near_lost : {false, true}) {
        for (std::uint64_t index = 0;; ++index) {
          CAPTURE(removes);
          CAPTURE(far_stops);
          CAPTURE(is_near_lost);
          CAPTURE(index);
          Disks disks;
          save_value(run + "/step_1", 1);
          if (removes) save_value(url, 2);
          REQUIRE(wait_for_copies(run));
          SimulatedFileSystem& stopped = far_stops ? disks.far : *disks.near;
          const std::uint64_t first = stopped.operations();
          stopped.lose_power_at(first + index);  // all that the process does from then on fails
          bool is_saved = removes;
          const RunDirectory checkpoints(run);
          thrown_by([&] {
            if (removes) {
              checkpoints.remove(checkpoints.list().checkpoints.front());
            } else {
              save_value(url, 2);
              is_saved = true;
              ends_or_fails("disks", run);
            }
          });
          const bool was_reached = stopped.operations() > first + index;
          forget_tier("disks");
          disks.far.restart({SimulatedFileSystem::Survival::kEverything, 0});
          if (is_near_lost)
            disks.replace_near();
          else
            disks.near->restart({SimulatedFileSystem::Survival::kEverything, 0});

          const bool was_announced = !open_store(far_place)->open_attempts().empty();
          disks.start();
          const auto lost = resume_copies(run);
          REQUIRE(wait_for_copies(run));
          REQUIRE(loaded_value("far-disk:///far/run/step_1") == 1);
          const bool is_there = has_checkpoint(far_place);
          if (is_there) REQUIRE(loaded_value(far_place) == 2);
          if (!removes && is_saved && !is_near_lost) REQUIRE(is_there);
          REQUIRE(lost.size() == (is_near_lost && was_announced && !is_there ? 1 : 0));
          named += static_cast<int>(lost.size());
          save_value(run + "/step_3", 3);
          REQUIRE(wait_for_copies(run));
          checkpoints.remove_remains({}, true);
          REQUIRE(loaded_value("far-disk:///far/run/step_1") == 1);
          REQUIRE(has_checkpoint(far_place) == is_there);
          if (!is_there) REQUIRE(open_store(far_place)->list().empty());
          REQUIRE(open_store(far_place)->open_attempts().empty());
          forget_tier("disks");
          if (!was_reached) {
            REQUIRE(index > 3);
            break;
          }
        }
      }
    }
  }
  CHECK(named > 5);
  tier_elements = kElements;
}

}  // namespace cairn::testing::two_tiers
