// How a simulated rank runs its hooks, and what its disk does to them.
#include <cerrno>
#include <stdexcept>
#include <utility>

#include <cairn/base/error.hpp>
#include <cairn/storage/store.hpp>
#include <cairn/tests/simulation/simulated_rank.hpp>
#include <cairn/tests/simulation/world.hpp>

namespace cairn::simulation {
namespace {

using protocol::Hook;
using protocol::Operation;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

}  // namespace

void SimulatedRank::queue(QueuedHook hook) {
  hooks_.push_back(std::move(hook));
  start_hook();
}

void SimulatedRank::start_hook() {
  if (fiber_ || hooks_.empty() || !alive_) return;
  running_ = std::move(hooks_.front());
  hooks_.pop_front();
  fiber_ = std::make_unique<Fiber>([this] {
    pause(world_.dice.between(microseconds(10), milliseconds(2)));
    run_body(*running_, result_);
  });
  // Not from here: this may be the step of a machine, or another fiber.
  world_.time.after(Duration(0), [this] { when_awake([this] { resume_hook(); }); });
}

void SimulatedRank::run_body(QueuedHook& queued, protocol::HookDone& done) {
  protocol::RunHook& hook = queued.hook;
  done = {hook.sequence, protocol::HookValue{}};
  if (!alive_) return;
  trace(std::string("runs ") + name_of(hook.hook, hook.operation));
  hooks_run_.emplace_back(calls_, hook.hook);
  if (hook.hook == Hook::kReset && hook.operation == Operation::kSave)
    world_.ledger.saving(hook.save_id, job_.spec().program[calls_ - 1].version);
  try {
    const auto fault = troubles.hooks.find({calls_, hook.hook});
    const std::string name = name_of(hook.hook, hook.operation);
    const bool planned = fault != troubles.hooks.end();
    if (planned) {
      world_.coverage.hit("trouble in " + name);
      switch (fault->second) {
        case HookFault::kFutureFails:
          break;
        case HookFault::kThrows:
          throw std::runtime_error("planned fault in " + name);
        case HookFault::kThrowsStrangely:
          throw 42;  // NOLINT: user code may
        case HookFault::kKilled:
          kill(false);
          return;
        case HookFault::kSlow:
          ++disturbances_;
          pause(world_.dice.between(seconds(1), 2 * world_.options.phase_deadline));
          break;
      }
    }
    done.result = run_hook(hook, *queued.call);
    if (hook.hook == Hook::kAskCommitted) {
      const bool committed = std::get<Committed>(std::get<protocol::HookValue>(done.result)) == Committed::kYes;
      world_.coverage.hit(committed ? "settled: committed" : "settled: not committed");
    }
    if (planned && fault->second == HookFault::kFutureFails) throw std::runtime_error("planned fault in " + name);
  } catch (...) {
    done.result = capture_failure(rank_, hook.phase, actor_of(hook.hook), std::current_exception());
    const Failure& failure = std::get<Failure>(done.result);
    if (failure.code == ErrorCode::kFenced) world_.coverage.hit("a fence came before the publication");
    trace(std::string(name_of(hook.hook, hook.operation)) + " fails: " + failure.what);
  }
}

void SimulatedRank::resume_hook() {
  if (!fiber_) return;
  FileSystem* const disk = std::exchange(world_.disk, &client_);
  SimulatedRank* const running = std::exchange(world_.running, this);
  fiber_->resume();
  world_.running = running;
  world_.disk = disk;
  if (fiber_->ended()) end_hook();
}

void SimulatedRank::end_hook() {
  fiber_.reset();
  const QueuedHook ended = std::move(*running_);
  running_.reset();
  if (!alive_) return;
  protocol::HookDone done = std::exchange(result_, {});
  const bool failed = std::holds_alternative<Failure>(done.result);
  if (ended.coordinator == 0 && failed && outcomes_.empty()) own_hook_failed_ = true;
  if (ended.hook.hook == Hook::kMoveData && !failed) job_.moved(ended.hook.counter, rank_);
  world_.time.after(microseconds(50), [this, done = std::move(done), life = ended.coordinator] {
    when_awake([this, done, life] {
      if (life == 0) step_rank(done);
      if (life != 0 && life == coordinator_life_) step_coordinator(done);
      stop_if_idle();
    });
  });
  start_hook();
}

void SimulatedRank::pause(Duration length) {
  if (!alive_ || Fiber::current() == nullptr) return;
  world_.time.after(length, [this] { when_awake([this] { resume_hook(); }); });
  Fiber::suspend();
}

// --- the disk -----------------------------------------------------------------------------------------------------------------

Verdict SimulatedRank::before_operation(const char* operation, const std::string& path) {
  if (Fiber::current() == nullptr) return {};
  job_.on_operation(*this);
  pause(world_.dice.between(microseconds(20), microseconds(600)));
  if (!alive_) return {};
  static constexpr int kErrors[] = {EIO, ENOSPC, EACCES, ESTALE, EDQUOT};
  if (troubles.disk_slow > 0 && world_.dice.chance(troubles.disk_slow)) {
    world_.coverage.hit("disk was slow");
    ++disturbances_;
    pause(world_.dice.between(milliseconds(100), world_.options.phase_deadline * 3 / 2));
  }
  Verdict verdict;
  if (troubles.disk_fails > 0 && world_.dice.chance(troubles.disk_fails)) {
    verdict = {kErrors[world_.dice.below(5)], false};
    world_.coverage.hit("disk failed");
  } else if (troubles.disk_lies > 0 && world_.dice.chance(troubles.disk_lies)) {
    verdict = {EIO, true};
    world_.coverage.hit("disk lost an answer");
  }
  if (verdict.error != 0) trace(std::string(operation) + " " + path + " fails");
  return verdict;
}

void SimulatedRank::after_operation(const char* operation, const std::string& path) {
  trace(std::string(operation) + (path.empty() ? "" : " " + path));
  const std::string record = std::string("/") + kCommitRecordName;
  const std::string name = operation;
  if (name == "rename" && path.find("/.fenced-") != std::string::npos) world_.coverage.hit("an attempt was fenced");
  if (!ends_with(path, record)) return;
  if (name != "rename" && name != "link") return;
  FileSystem* const disk = std::exchange(world_.disk, nullptr);
  world_.ledger.published(path.substr(0, path.size() - record.size()));
  world_.disk = disk;
}

}  // namespace cairn::simulation
