// The process whose requests tests/s3/fault_matrix.py disturbs. It reads lines from standard input,
// "<operation> <run in the bucket>", and answers each with one line:
//
//   done <step>       of the latest checkpoint that is committed, or was restored as it was saved
//   nothing           there is no checkpoint
//   wrong <text>      a checkpoint was restored with other values, or has a fault
//   failed <text>     the operation has thrown an error
//
// "again <operation> <run>" is answered by "child <process id>", then by the answers of a child
// process that does the operation until it fails or is killed, and then by "ended". The child
// starts faster than a new worker would. Only other "again" lines may come before this one.
//
// `prepare`, `follow`, `save<step>`, `marks<count>`, `resume_tiers` and `check` reach the server
// directly, the others at CAIRN_TEST_S3_PROXY.
#include <cairn/tests/support/torch.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <sstream>

#include <cairn/runtime/cairn.hpp>
#include <cairn/runtime/runs/checkpoint_manager.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/runs/retention.hpp>
#include <cairn/storage/runs/run_directory.hpp>
#include <cairn/storage/stores/s3_store.hpp>
#include <cairn/storage/stores/url.hpp>
#include <cairn/storage/tiers.hpp>
#include <cairn/storage/verify_checkpoint.hpp>
#include <cairn/tests/s3/s3_place.hpp>
#include <cairn/tests/support/temporary_directory.hpp>

using namespace cairn;
using namespace cairn::testing;

namespace {

// A store whose requests go through the proxy, and are repeated after short pauses.
class DisturbedStore : public S3Store {
 public:
  using S3Store::S3Store;
  std::string url() const override { return "disturbed" + S3Store::url().substr(2); }
};

std::shared_ptr<Store> open_disturbed(const std::string& url) {
  static const auto client = s3_client([](S3Settings& settings) {
    settings.endpoint = std::getenv("CAIRN_TEST_S3_PROXY");
    settings.pause_first = settings.refusal_pause = std::chrono::milliseconds(1);
    settings.pause_max = std::chrono::milliseconds(5);
    settings.stall_timeout = std::chrono::seconds(1);
    settings.retry_time = std::chrono::seconds(10);
  });
  const StoreUrl parts = split_url(url);
  return std::make_shared<DisturbedStore>(kS3Bucket, parts.path.substr(1), client);
}

// Two parts with `is_large`.
StateDict state_of(std::int64_t step, bool is_large) {
  return {{"values", torch::full({1000}, step)}, {"large", torch::full({is_large ? 2'200'000 : 1}, step, torch::kInt32)}};
}

std::string save(const std::string& url, std::int64_t step, bool is_large = false, std::optional<std::uint32_t> keep_last = {}) {
  CheckpointManagerOptions options;
  options.retention.keep_last = keep_last;
  options.writer.bytes_in_flight_max = 16u << 20;
  CheckpointManager(World::single(), url, options).save(step, state_of(step, is_large));
  return "done " + std::to_string(step);
}

std::string restore(const std::string& url) {
  StateDict state = state_of(0, false);
  state.erase("large");
  LoadOptions options;
  options.planning.allow_partial_load = true;
  const auto restored = CheckpointManager(World::single(), url).restore_latest(state, options);
  if (!restored) return "nothing";
  const std::int64_t step = step_of_name(restored->checkpoint.name).value_or(-1);
  if (!torch::equal(state.at("values").tensor(), torch::full({1000}, step))) return "wrong values in step " + std::to_string(step);
  return "done " + std::to_string(step);
}

// Restores the latest checkpoint, and saves once.
std::string resume(const std::string& url, std::optional<std::uint32_t> keep_last = {}) {
  CheckpointManagerOptions options;
  options.retention.keep_last = keep_last;
  CheckpointManager manager(World::single(), url, options);
  StateDict state{{"values", torch::zeros({1000}, torch::kInt64)}};
  const auto restored = manager.restore_latest(state);
  const std::int64_t step = step_of_name(restored->checkpoint.name).value() + 1;
  manager.save(step, {{"values", torch::full({1000}, step)}});
  return "done " + std::to_string(step);
}

// Does the same in tiers, from the directory CAIRN_TEST_NEAR to the place "run" below `far`. The
// first step is 1. Returns when the checkpoint has been copied.
std::string resume_tiers(const std::string& far) {
  static const bool is_registered = [&far] {
    TierOptions options;
    options.near_url = std::getenv("CAIRN_TEST_NEAR");
    options.far_url = far;
    register_tier("kept", options);
    return true;
  }();
  CheckpointManagerOptions options;
  options.retention.keep_last = is_registered ? 2 : 1;
  CheckpointManager manager(World::single(), "tiered://kept/run", options);
  StateDict state{{"values", torch::zeros({1000}, torch::kInt64)}};
  const auto restored = manager.restore_latest(state);
  const std::int64_t step = restored ? step_of_name(restored->checkpoint.name).value() : 0;
  if (!torch::equal(state.at("values").tensor(), torch::full({1000}, step))) return "wrong values in step " + std::to_string(step);
  manager.save(step + 1, {{"values", torch::full({1000}, step + 1)}});
  return "done " + std::to_string(step + 1);
}

// Leaves the marks of this many removed checkpoints.
std::string leave_marks(const std::string& url, int count) {
  for (int step = 1000; step < 1000 + count; ++step) {
    const auto place = open_store(url + "/step_" + std::to_string(step));
    const std::string id = "save-" + std::to_string(step);
    place->begin_attempt(id);
    place->publish(id, "record", Overwrite::kRefused);
    place->retract();
    place->remove_root();
  }
  return "done " + std::to_string(count);
}

std::string prune(const std::string& url) {
  const RunDirectory run(url);
  RetentionPolicy policy;
  policy.keep_last = 1;
  const Retention retention = look_at_retention(run, policy);
  for (const RunCheckpoint& checkpoint : retention.checkpoints)
    if (retention.kept.count(checkpoint.name) == 0 && checkpoint.name != retention.latest_sound) run.remove(checkpoint);
  run.remove_remains({}, true);
  return "done 2";
}

std::string copy(const std::string& far) {
  static int pairs = 0;
  const TemporaryDirectory near;
  TierOptions options;
  options.near_url = near.path();
  options.far_url = far;
  options.retry_min = options.retry_max = std::chrono::milliseconds(5);
  const std::string name = "pair" + std::to_string(++pairs);
  register_tier(name, options);
  const std::string url = "tiered://" + name;
  Checkpointer(World::single()).save(state_of(3, false), url + "/step_3");
  // If it takes longer, the copier goes on until it finds nothing near.
  return wait_for_copies(url, std::chrono::seconds(5)) ? "done 3" : "failed to copy in time";
}

// Restores, and looks for faults in all checkpoints.
std::string check(const std::string& url) {
  for (const RunCheckpoint& checkpoint : RunDirectory(url).list().checkpoints)
    for (const VerifyFault& fault : verify_checkpoint(*open_store(child_url(url, checkpoint.name))))
      return "wrong " + checkpoint.name + ": " + fault.object + " " + fault.what;
  return restore(url);
}

std::string carry_out(const std::string& operation, const std::string& run) {
  const std::string direct = std::string("s3://") + kS3Bucket + "/" + run;
  const std::string disturbed = std::string("disturbed://") + kS3Bucket + "/" + run;
  if (operation == "prepare") return save(direct, 1);
  if (operation == "follow") return save(direct, 2);
  if (operation == "list") return "done " + std::to_string(open_store(disturbed)->children().size());
  if (operation == "check") return check(direct);
  if (operation == "save") return save(disturbed, 3);
  if (operation == "save_parts") return save(disturbed, 3, true);
  if (operation == "retain") return save(disturbed, 3, false, 1);
  if (operation == "restore") return restore(disturbed);
  if (operation == "prune") return prune(disturbed);
  if (operation == "resume") return resume(disturbed);
  if (operation == "resume_keeping_one") return resume(disturbed, 1);
  if (operation == "resume_tiers") return resume_tiers(direct);
  if (operation.rfind("save", 0) == 0) return save(direct, std::stoi(operation.substr(4)));
  if (operation.rfind("marks", 0) == 0) return leave_marks(direct, std::stoi(operation.substr(5)));
  if (operation == "copy") return copy(disturbed);
  return "failed: there is no operation " + operation;
}

std::string answer_to(const std::string& operation, const std::string& run) {
  std::string answer;
  try {
    answer = carry_out(operation, run);
  } catch (const std::exception& error) {
    answer = std::string("failed: ") + error.what();
  }
  std::replace(answer.begin(), answer.end(), '\n', ' ');
  return answer;
}

void do_again(const std::string& operation, const std::string& run) {
  const pid_t child = ::fork();
  if (child == 0) {
    std::string answer = "done";
    while (answer.rfind("done", 0) == 0) std::cout << (answer = answer_to(operation, run)) << std::endl;
    ::_exit(0);
  }
  std::cout << "child " << child << std::endl;
  ::waitpid(child, nullptr, 0);
  std::cout << "ended" << std::endl;
}

}  // namespace

TEST_CASE("a worker of the fault matrix" * doctest::skip()) {
  new_s3_place();  // makes the bucket
  register_store("disturbed", open_disturbed);
  std::cout << "ready" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string operation, run, again;
    words >> operation >> run;
    if (operation == "again" && words >> again)
      do_again(run, again);
    else
      std::cout << answer_to(operation, run) << std::endl;
  }
}
