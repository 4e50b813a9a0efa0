#include <cairn/actors/protocol/coordinator_machine.hpp>

#include <algorithm>
#include <limits>
#include <utility>

#include <cairn/base/call_phase.hpp>
#include <cairn/base/rank_text.hpp>
#include <cairn/base/save_id.hpp>

namespace cairn::protocol {
namespace {

// Ranks rarely call at the same moment. Ranks that have not joined after this long are probed.
constexpr Duration kAskAfter = std::chrono::seconds(1);

// Returns the fraction done by a rank that has not ended its phase; 0 if the rank does not know its
// total yet.
double part_done(const Moved& moved) {
  if (moved.bytes != 0) return static_cast<double>(moved.bytes_done) / static_cast<double>(moved.bytes);
  return moved.items == 0 ? 0 : static_cast<double>(moved.items_done) / static_cast<double>(moved.items);
}

}  // namespace

CoordinatorMachine::CoordinatorMachine(Identity identity, const RuntimeOptions& options)
    : identity_(std::move(identity)),
      options_(options),
      counter_seen_(identity_.counter_floor),
      register_(identity_.world_size, options.outcomes_kept),
      succession_(identity_, options) {}

Effects CoordinatorMachine::step(const Event& event) {
  effects_.clear();
  std::visit([this](const auto& it) { on(it); }, event);
  return std::exchange(effects_, {});
}

void CoordinatorMachine::on(const TaskEnded& task) {
  if (succession_.awaits(task)) return append(succession_.on(task));
  if (outstanding_ == 0 || task.sequence != outstanding_) return ignore("end of a task that is not running");
  outstanding_ = 0;
  std::visit([this](const auto& result) { ended(result); }, task.result);
}

// --- cached plans --------------------------------------------------------------------------------

void CoordinatorMachine::receive(int from, const SameSavePlan& message) {
  if (state_ != State::kLocalPlans || answered_.count(from) != 0 || operation() != Operation::kSave)
    return ignore("SameSavePlan out of turn");
  auto plan = kept_[from].local_plan.find(message.digest);
  if (plan) plan = refreshed(std::move(plan), message.content_hashes, message.content_bytes);
  if (!plan) return send(from, NeedLocalPlan{message.digest});
  kept_[from].local_plan.plan = plan;
  take_local_plan(from, std::move(plan));
}

// --- calls that end on one rank ------------------------------------------------------------------

void CoordinatorMachine::receive(int from, const Cancel& message) {
  if (message.awaits_outcome) return cancel_call(from, message);
  const bool has_ended = message.ticket <= kept_[from].ended_ticket;
  kept_[from].ended_ticket = std::max(kept_[from].ended_ticket, message.ticket);
  Failure failure = message.failure;
  failure.rank = from;
  const auto next = next_joins_.find(from);
  if (next != next_joins_.end() && next->second.ticket <= message.ticket) {
    next_joins_.erase(next);
    return;
  }
  const auto member = joins_.find(from);
  if (member == joins_.end() && !has_ended && !is_attempt()) return skip_call(from, std::move(failure));
  if (member == joins_.end() || member->second.ticket != message.ticket) return ignore("Cancel of another call");
  if (!is_attempt() && skipped_.count(from) != 0) {
    forget_join(from);
    return skip_call(from, std::move(failure));
  }
  gone_.insert(from);
  left_.insert(from);
  if (is_attempt()) return fail(from, std::move(failure));
  end(FailureMap{{from, std::move(failure)}}, Committed::kNo);
}

// --- waits: absent ranks are probed, and warned of -----------------------------------------------

void CoordinatorMachine::wait_for_ranks(Duration deadline) {
  if (identity_.world_size > 1) {
    notices_ = WaitNotices();
    wait_limit_ = deadline;
    effects_.emplace_back(StartTimer{Timer::kWaiting, notices_.next()});
  }
  start_timer(deadline);
}

void CoordinatorMachine::warn_of_waiting() {
  const Duration waited = notices_.next();
  notices_.is_due(waited);
  effects_.emplace_back(StartTimer{Timer::kWaiting, notices_.next() - waited});
  // Do not warn of a phase that no rank has ended: the phase is just long.
  const std::vector<int> missing = missing_ranks();
  if (missing.empty() || (collects() && missing.size() == joins_.size())) return;
  effects_.emplace_back(Warn{"waiting for " + name_ranks(missing) + " to " +
                             (collects() ? std::string("end the ") + to_string(phase()) + " phase of" : std::string("join")) +
                             " the " + describe_call(joins_.begin()->second) + " by checkpointer \"" + identity_.checkpointer +
                             "\": " + in_whole_seconds(waited, wait_limit_)});
}

// Returns the ranks that the running phase waits for.
std::vector<int> CoordinatorMachine::missing_ranks() const {
  std::vector<int> missing;
  const bool joining = state_ == State::kJoining;
  for (int rank = 0; rank < identity_.world_size; ++rank)
    if (joining ? joins_.count(rank) == 0 : answered_.count(rank) == 0) missing.push_back(rank);
  return missing;
}

// Returns a text that names them.
std::string CoordinatorMachine::awaited() const {
  if (decides()) return "its own " + own_hook();
  return name_ranks(missing_ranks()) +
         (state_ == State::kJoining ? " to join it" : std::string(" to end the ") + to_string(phase()) + " phase");
}

// Links are opened by the first message. Without a link nothing reports that a rank has ended, so
// absent ranks are sent a message.
void CoordinatorMachine::ask_later() {
  if (joins_.size() < static_cast<std::size_t>(identity_.world_size)) effects_.emplace_back(StartTimer{Timer::kProbe, kAskAfter});
}

void CoordinatorMachine::ask_absent_ranks() {
  if (joins_.count(identity_.rank) == 0) return;
  for (int rank = 0; rank < identity_.world_size; ++rank)
    if (joins_.count(rank) == 0 && down_.count(rank) == 0) request_status(rank);
}

// --- progress ------------------------------------------------------------------------------------

// Progress numbers arrive in order over a link. Repeated and late ones are not answered.
void CoordinatorMachine::receive(int from, const Progress& progress) {
  Progress& latest = progress_[static_cast<std::size_t>(from)];
  if (progress.number <= latest.number) return ignore("Progress that is out of date");
  latest = progress;
  JobProgress job = job_progress();
  job.number = progress.number;
  send(from, std::move(job));
}

// A rank that has ended its part may have last reported less.
Moved CoordinatorMachine::moved_by(int rank, bool has_ended) const {
  Moved moved = progress_[static_cast<std::size_t>(rank)].moved;
  const bool data_moved = state_ == State::kFinishing || state_ == State::kSettling;
  if (data_moved || (state_ == State::kMoving && has_ended && outcome_.failures.count(rank) == 0)) {
    moved.items_done = moved.items;
    moved.bytes_done = moved.bytes;
  }
  return moved;
}

// Adds up all ranks for each answer: that takes some microseconds for a thousand, and the reports
// of all ranks together are limited to 500 per second.
JobProgress CoordinatorMachine::job_progress() const {
  JobProgress job;
  job.phase = phase();
  const auto add = [](std::uint64_t& sum, std::uint64_t more) {
    sum += std::min(more, std::numeric_limits<std::uint64_t>::max() - sum);
  };
  double least = std::numeric_limits<double>::max();
  auto ended = collects() ? answered_.begin() : answered_.end();
  for (int rank = 0; rank < identity_.world_size; ++rank) {
    const bool has_ended = ended != answered_.end() && *ended == rank;
    if (has_ended) ++ended;
    const Moved moved = moved_by(rank, has_ended);
    add(job.moved.items, moved.items);
    add(job.moved.items_done, moved.items_done);
    add(job.moved.bytes, moved.bytes);
    add(job.moved.bytes_done, moved.bytes_done);
    job.ranks_done += has_ended;
    // All ranks wait for the coordinator's own hook if it collects no answers.
    if (has_ended || (!collects() && rank != identity_.rank)) continue;
    if (const double done = part_done(moved); done < least) {
      least = done;
      job.slowest_rank = rank;
      job.slowest = moved;
    }
  }
  return job;
}

// --- helpers -------------------------------------------------------------------------------------

const Join& CoordinatorMachine::own_join() const {
  const auto own = joins_.find(identity_.rank);
  check_invariant(own != joins_.end(), "a coordinator's own rank has not joined the attempt");
  return own->second;
}

Failure CoordinatorMachine::failure_of(int rank, FailureKind kind, ErrorCode code, const char* actor,
                                       const std::string& what) const {
  return make_failure(rank, phase(), kind, code, actor, what);
}

Phase CoordinatorMachine::phase() const {
  // Before the phase in which operations differ, this rank may not have joined.
  return phase_of(state_, state_ == State::kMoving ? operation() : Operation::kSave).value_or(Phase::kJoin);
}

std::string CoordinatorMachine::save_id_of(std::uint64_t counter) const {
  return counter == 0 ? "" : make_save_id(identity_.incarnation, identity_.checkpointer, counter);
}

void CoordinatorMachine::run(Task task) {
  hook_ = main_hook_of(task);
  RunTask effect;
  effect.task = std::move(task);
  effect.operation = operation();
  effect.phase = phase();
  effect.sequence = outstanding_ = ++sequence_;
  effect.counter = counter_;
  effect.save_id = save_id_of(counter_);
  effect.is_coordinator = true;
  effects_.emplace_back(std::move(effect));
}

void CoordinatorMachine::become(State state) {
  const bool waited = state_ == State::kJoining || collects();
  state_ = state;
  if (waited && state != State::kJoining && !collects() && identity_.world_size > 1)
    effects_.emplace_back(StopTimer{Timer::kWaiting});
  effects_.emplace_back(StateChanged{state});
}

void CoordinatorMachine::append(Effects effects) {
  for (auto& effect : effects) effects_.emplace_back(std::move(effect));
}

void CoordinatorMachine::send(int to, Message body) { effects_.emplace_back(Send{to, counter_, std::move(body)}); }

void CoordinatorMachine::ignore(const char* why) { effects_.emplace_back(InputIgnored{Ignored::kInput, why}); }

}  // namespace cairn::protocol
