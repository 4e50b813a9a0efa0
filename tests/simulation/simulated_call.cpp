#include <cairn/tests/support/torch.hpp>
// torch first
#include <algorithm>
#include <stdexcept>
#include <utility>

#include <cairn/base/error.hpp>
#include <cairn/base/save_id.hpp>
#include <cairn/messages/failure_groups.hpp>
#include <cairn/state/call_hooks.hpp>
#include <cairn/tests/simulation/simulated_call.hpp>
#include <cairn/tests/simulation/world.hpp>

namespace cairn::simulation {
namespace {

using protocol::Operation;
using std::chrono::milliseconds;
using std::chrono::seconds;

// The text that a rank contributes to an agreement.
std::string text_of(std::uint64_t call, int rank) {
  return "rank " + std::to_string(rank) + " in call " + std::to_string(call) + "; ";
}

bool is_load(const CallSpec& spec) { return spec.operation == Operation::kLoad; }

std::shared_ptr<Tools> tools_of(const CallSpec& spec, const Job& job, const SimulatedRank& rank) {
  return spec.background && job.spec().own_tools ? std::make_shared<Tools>() : rank.tools();
}

}  // namespace

SimulatedCall::SimulatedCall(World& world, Job& job, SimulatedRank& rank, std::uint64_t number, std::string checkpointer,
                             std::uint64_t ordinal)
    : world_(world),
      job_(job),
      rank_(rank),
      number_(number),
      checkpointer_(std::move(checkpointer)),
      ordinal_(ordinal),
      thread_(world, rank),
      tools_(tools_of(spec(), job, rank)),
      save_planner_(*tools_->save_planner, *this),
      load_planner_(*tools_->load_planner, *this),
      writer_(*tools_->writer, *this),
      reader_(*tools_->reader, *this),
      counting_save_planner_(save_planner_, *progress_),
      counting_load_planner_(load_planner_, *progress_),
      async_writer_(writer_, nullptr),
      async_planner_(save_planner_, *progress_, [this]() -> const StateDict& { return await_turn(); }) {}

const CallSpec& SimulatedCall::spec() const { return job_.spec().program[number_ - 1]; }

void SimulatedCall::accuse(const std::string& what) const {
  world_.ledger.accuse(rank_.where() + ", call " + std::to_string(number_) + ": " + what);
}

// --- the call ------------------------------------------------------------------------------------

void SimulatedCall::start(RankRuntime& runtime) {
  const CallSpec& call = spec();
  began_ = world_.time.now();
  rank_.trace("calls " + std::string(to_string(call.operation)) + " of " + call.place +
              (call.background ? " in the background" : ""));
  const auto ended = [this](cairn::CallResult outcome) { done(std::move(outcome)); };
  if (call.operation == Operation::kSave) {
    SaveCall save;
    fill(save);
    state_ = state_of(call.version, rank_.rank(), job_.size());
    if (rank_.troubles.differing.count(number_) != 0) {
      world_.coverage.hit("ranks hold different values");
      state_["text"] = "what rank " + std::to_string(rank_.rank()) + " alone holds";
    }
    // The step is an option of a save. Ranks at different steps must not save together.
    save.options_digest = sha256(std::to_string(call.version.content));
    save.hooks = call.background ? make_save_hooks(state_, async_planner_, async_writer_, "rules")
                                 : make_save_hooks(state_, counting_save_planner_, writer_, "rules");
    ticket_ = runtime.save(std::move(save), ended);
  } else if (call.operation == Operation::kLoad) {
    int layout = call.version.layout;  // a trainer knows the layout of the checkpoint that it loads
    if (const auto current = world_.ledger.current(call.place))
      layout = world_.ledger.version_of(*current).value_or(Version{}).layout;
    LoadCall load;
    fill(load);
    state_ = empty_state(layout, rank_.rank(), job_.size());
    load.hooks = make_load_hooks(state_, counting_load_planner_, reader_, {}, number_ % 2 == 0);
    ticket_ = runtime.load(std::move(load), ended);
  } else {
    AgreeCall agree;
    fill(agree);
    agree.checkpoint_id = "call " + std::to_string(number_);
    agree.begin = nullptr;
    agree.text = text_of(number_, rank_.rank());
    if (rank_.troubles.unsendable.count(number_) != 0) {
      world_.coverage.hit("a text cannot be sent");
      rank_.disturb();  // it ends the call alone
      agree.text.resize(kUnsendableBytes);
    }
    agree.decide = [this](const std::vector<std::string>& texts) {
      return watched(*this, Hook::kDecide, [&] {
        std::string all;
        for (const std::string& text : texts) all += text;
        return all;
      });
    };
    ticket_ = runtime.agree(std::move(agree), ended);
  }
}

void SimulatedCall::fill(Call& call) {
  call.id = {checkpointer_, ordinal_};
  call.checkpoint_id = "sim://" + spec().place;
  call.coordinator_rank = spec().coordinator;
  const auto deadline = rank_.troubles.deadlines.find(number_);
  if (deadline != rank_.troubles.deadlines.end()) call.deadline = deadline->second;
  call.executor = &thread_;
  call.progress = progress_;
  // A background save returns to its trainer when the state is staged.
  call.begin = [this](const std::vector<std::string>&) {
    const auto staged = [this] {
      if (spec().background) rank_.call_returned(number_);
    };
    try {
      watched(*this, Hook::kBegin, [] {});
    } catch (...) {
      staged();
      throw;
    }
    staged();
  };
}

void SimulatedCall::told(int from, const protocol::Outcome& outcome) { outcomes_.emplace_back(from, outcome); }

void SimulatedCall::look_at_progress() {
  if (judged_) return;
  const auto seen = progress_->seen();
  if (!seen.job || phase_shown_ == seen.job->phase) return;
  phase_shown_ = seen.job->phase;
  world_.coverage.hit(std::string("shown how far all ranks are in phase ") + cairn::to_string(seen.job->phase));
  const auto& job = *seen.job;
  const bool in_bounds =
      job.ranks_done <= job_.size() && job.slowest_rank < job_.size() && job.moved.items <= items_max(job_.size());
  if (!in_bounds)
    accuse("was shown a progress that is none of its call's: " + std::to_string(job.ranks_done) + " ranks have ended " +
           cairn::to_string(job.phase) + ", the slowest is rank " + std::to_string(job.slowest_rank) + ", and all have " +
           std::to_string(job.moved.items) + " items");
}

// --- hooks ---------------------------------------------------------------------------------------

void SimulatedCall::hook_begins(Hook hook) {
  if (!rank_.alive()) throw Error(ErrorCode::kCancelled, "the process was killed");
  const std::string name = name_of(hook, is_load(spec()));
  rank_.trace("runs " + name);
  rank_.hook_runs(number_, hook);
  if (finished_) accuse(name + " ran after the call had ended");
  if (hook == Hook::kAbandon && read_) {
    was_stopped_ = true;
    std::exchange(read_, {})->set_exception(std::make_exception_ptr(Error(ErrorCode::kCancelled, "the read was cancelled")));
  }
  const auto fault = rank_.troubles.hooks.find({number_, hook});
  if (fault == rank_.troubles.hooks.end()) return;
  world_.coverage.hit("trouble in " + name);
  switch (fault->second) {
    case HookFault::kFutureFails:
      break;
    case HookFault::kThrows:
      throw std::runtime_error("planned fault in " + name);
    case HookFault::kThrowsStrangely:
      throw 42;  // NOLINT: user code may throw anything
    case HookFault::kKilled:
      rank_.kill(false);
      throw Error(ErrorCode::kCancelled, "the process was killed");
    case HookFault::kSlow:
      rank_.disturb();
      rank_.pause(world_.dice.between(seconds(1), 2 * world_.options.phase_deadline));
      break;
  }
}

void SimulatedCall::hook_ends(Hook hook) {
  const auto fault = rank_.troubles.hooks.find({number_, hook});
  if (fault != rank_.troubles.hooks.end() && fault->second == HookFault::kFutureFails)
    throw std::runtime_error("planned fault in " + name_of(hook, is_load(spec())));
  if (hook != Hook::kMoveData || !is_load(spec()) || !job_.spec().shares_reads) return;
  for (int rank = 0; rank < job_.size(); ++rank)
    if (rank != rank_.rank())
      world_.time.after(world_.dice.between(milliseconds(0), milliseconds(2)), [this, rank] { job_.rank(rank).receive(number_); });
}

Future<bool> SimulatedCall::read_ends(Future<bool> own_read) {
  if (!job_.spec().shares_reads || senders_ + 1 == job_.size()) return own_read;
  return read_.emplace().future();
}

void SimulatedCall::receive() {
  if (++senders_ + 1 == job_.size() && read_) std::exchange(read_, {})->set_value(true);
}

void SimulatedCall::hook_fails(Hook hook, const std::exception_ptr& exception) {
  const Failure failure = capture_failure(rank_.rank(), Phase::kJoin, "", exception);
  if (failure.code == ErrorCode::kFenced) world_.coverage.hit("a fence came before the publication");
  rank_.trace(name_of(hook, is_load(spec())) + " fails: " + failure.what);
}

void SimulatedCall::save_begins(const std::string& save_id) { world_.ledger.saving(save_id, spec().version); }

void SimulatedCall::save_settles(Committed committed) {
  world_.coverage.hit(committed == Committed::kYes ? "settled: committed" : "settled: not committed");
}

// Runs on the fiber of the hook, as an asynchronous save waits on its own thread.
const StateDict& SimulatedCall::await_turn() {
  while (rank_.alive()) {
    const auto turn = rank_.turns().take(number_);
    if (turn == protocol::SaveTurn::kTaken) {
      async_writer_.begin_turn();
      if (job_.spec().own_tools || !rank_.another_has_turn(number_)) return state_;
      accuse("uses planner and writer beside another");
      throw Error(ErrorCode::kInternal, "planner and writer are in use");
    }
    if (turn == protocol::SaveTurn::kDropped) {
      world_.coverage.hit("a save is dropped before its turn");
      was_stopped_ = true;
      throw Error(ErrorCode::kCancelled, "the save was cancelled before its turn came");
    }
    world_.coverage.hit("a save waits for its turn");
    rank_.trace("call " + std::to_string(number_) + " waits for its turn");
    waits_for_turn_ = true;
    Fiber::suspend();
  }
  throw Error(ErrorCode::kCancelled, "the process was killed");
}

void SimulatedCall::look_at_turn() {
  if (!std::exchange(waits_for_turn_, false)) return;
  world_.time.after(Duration(0), [this] { rank_.when_awake([this] { thread_.resume(); }); });
}

// --- the outcome ---------------------------------------------------------------------------------

void SimulatedCall::done(cairn::CallResult outcome) {
  if (!rank_.alive()) return;
  if (finished_) return accuse("its outcome was reported twice");
  if (!thread_.is_idle() || read_) accuse("its outcome was reported before its last hook had ended");
  finished_ = {std::move(outcome.failures), outcome.committed, std::move(outcome.save_id), std::move(outcome.answer)};
  world_.time.after(Duration(0), [this] { rank_.when_awake([this] { end(); }); });
}

void SimulatedCall::end() {
  const protocol::CallResult& finished = *finished_;
  judged_ = true;
  const int teller = told_by(finished);
  const bool heard = teller >= 0;
  rank_.trace("its call " + std::to_string(number_) + " ends: " + to_string(finished));
  judge(finished, heard);
  Report report;
  report.job = job_.index();
  report.rank = rank_.rank();
  report.ordinal = number_;
  report.operation = spec().operation;
  report.heard = heard;
  report.undisturbed = job_.is_undisturbed();
  report.decided_by = job_.all_can_talk() ? -1 : teller;
  if (heard && teller != spec().coordinator) world_.coverage.hit("a successor ended the call");
  if (heard && finished.failures.count(rank_.rank()) != 0) {
    const FailureKind kind = finished.failures.at(rank_.rank()).kind;
    if (kind == FailureKind::kSilent || kind == FailureKind::kLost)
      world_.coverage.hit("a lost rank came back and heard the outcome");
  }
  report.began = began_;
  report.ended = world_.time.now();
  report.finished = finished;
  if (world_.witness != nullptr) world_.witness->reported(report);
  world_.ledger.reported(spec().place, report);
  rank_.call_returned(number_);
  if (spec().background) rank_.save_ended(number_);
}

int SimulatedCall::told_by(const protocol::CallResult& finished) const {
  for (const auto& [from, outcome] : outcomes_) {
    const protocol::Ending& ending = *outcome.ending;
    if (ungrouped(ending.failures) == finished.failures && ending.committed == finished.committed &&
        ending.save_id == finished.save_id && ending.answer == finished.answer)
      return from;
  }
  return rank_.watch().call(checkpointer_key(checkpointer_)).told_by_itself ? rank_.rank() : -1;
}

// Checks that this rank may end the call with this result.
void SimulatedCall::judge(const protocol::CallResult& finished, bool heard) const {
  const RankWatch::Call& seen = rank_.watch().call(checkpointer_key(checkpointer_));
  const bool undisturbed =
      rank_.disturbances() == 0 && !rank_.has_lost_link_to(spec().coordinator) && job_.rank(spec().coordinator).disturbances() == 0;
  world_.coverage.hit(heard ? "outcome heard" : "ended alone");
  if (!heard && undisturbed) accuse("ended alone for no reason: " + to_string(finished));
  const bool unwanted = std::all_of(finished.failures.begin(), finished.failures.end(), [&](const auto& entry) {
    return entry.second.kind == FailureKind::kCancelled && job_.rank(entry.first).has_cancelled(number_);
  });
  if (job_.spec().quiet && !unwanted) accuse("failed although nothing went wrong: " + to_string(finished));
  const bool is_unsendable = rank_.troubles.unsendable.count(number_) != 0 && rank_.rank() != spec().coordinator;
  if (is_unsendable && !rank_.is_shut_down() && !rank_.has_cancelled(number_)) {
    const auto own = finished.failures.find(rank_.rank());
    const bool is_known = own != finished.failures.end() && own->second.kind == FailureKind::kRaised;
    // A rank with which the others have lost touch may not be heard.
    const bool is_lost = own != finished.failures.end() && !rank_.is_undisturbed() &&
                         (own->second.kind == FailureKind::kSilent || own->second.kind == FailureKind::kLost);
    if (!is_known && !is_lost)
      accuse("its text cannot be sent, but that is not its failure: " + to_string(finished));
  }
  if (heard && seen.own_hook_failed && !was_stopped_ && finished.failures.count(rank_.rank()) == 0) {
    const bool cut_short = std::any_of(finished.failures.begin(), finished.failures.end(), [](const auto& entry) {
      return entry.second.kind == FailureKind::kCancelled || entry.second.kind == FailureKind::kInternal;
    });
    if (!cut_short && !job_.rank(spec().coordinator).is_shut_down())
      accuse("its own failure is not in the map: " + to_string(finished));
  }
  for (const auto& [rank, failure] : finished.failures) {
    if (failure.kind != FailureKind::kCancelled || failure.actor != "trainer") continue;
    world_.coverage.hit("its callers ended a call: " + std::string(cairn::to_string(failure.code)));
    if (!job_.rank(rank).has_cancelled(finished.save_id.empty() ? 0 : number_))
      accuse("was told that the caller of rank " + std::to_string(rank) + " had ended it: " + to_string(finished));
  }
  if (finished.failures.size() > 1 && heard) world_.coverage.hit("several failures in one map");
  if (finished.failures.empty() && job_.differ_in(number_))
    accuse("succeeded although its ranks hold different values: " + to_string(finished));
  if (spec().operation == Operation::kAgree) return judge_answer(finished);
  if (finished.failures.empty() && !job_.all_moved(checkpointer_key(checkpointer_), seen.attempt))
    accuse("succeeded, but not all ranks have moved their data: " + to_string(finished));
  if (const auto told = world_.ledger.version_of(finished.save_id)) {
    if (spec().operation != Operation::kSave || told->content != spec().version.content)
      accuse("was told how another call ended: " + to_string(finished));
  }
  if (spec().operation == Operation::kSave || !finished.failures.empty()) return;
  world_.coverage.hit("load succeeded");
  const auto version = world_.ledger.version_of(loaded_);
  if (!version || !holds(state_, *version, rank_.rank(), job_.size())) accuse("loaded other values than " + loaded_ + " saved");
}

// Expects the answer that `decide` makes from the texts of all ranks for this call only.
void SimulatedCall::judge_answer(const protocol::CallResult& finished) const {
  std::string answer;
  for (int rank = 0; rank < job_.size() && finished.failures.empty(); ++rank) answer += text_of(number_, rank);
  if (finished.failures.empty()) world_.coverage.hit("agreement succeeded");
  if (finished.answer != answer) accuse("was answered \"" + finished.answer + "\"");
}

}  // namespace cairn::simulation
