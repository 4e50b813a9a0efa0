// The messages of a save, a load or an agreement, as plain records: what the state machines exchange, and what the codec turns into bytes.
//
//   rank -> coordinator:  Join, LocalSavePlan | SameSavePlan | LocalLoadPlan, NeedGlobalPlan, Written | ReadDone, PhaseFailed,
//                         PhaseStopped, Cancel, Withdraw, Progress
//   coordinator -> rank:  Begin, NeedLocalPlan, GlobalSavePlan | UseCachedPlan | GlobalLoadPlan, StopPhase, Outcome,
//                         CoordinatorDown, Unreadable, JobProgress
//   when the coordinator is lost:
//   rank -> successor:    Standing
//   successor -> rank:    AskStanding, FollowOther, StopPhase, Outcome
//
// Large parts are shared and never changed once they are in a message, so that copying one is cheap.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <cairn/base/digest.hpp>
#include <cairn/base/failure.hpp>
#include <cairn/messages/failure_groups.hpp>
#include <cairn/planning/plan.hpp>

namespace cairn::protocol {

// In an agreement each rank sends a text with its Join. The coordinator's Outcome has the answer. There are no other messages.
enum class Operation : std::uint8_t { kSave = 1, kLoad, kAgree };
const char* to_string(Operation operation) noexcept;  // "save", "load", "agreement"

// One save, load or agreement of one checkpointer. The counter is given by the coordinator in Begin; before that it is 0.
struct Attempt {
  std::string incarnation;
  std::string checkpointer;
  std::uint64_t counter = 0;
};

// A call is named by its ticket: a number that its rank never gives twice in the life of its runtime, and that only grows.
struct Join {
  std::uint64_t ticket = 0;
  std::uint64_t ordinal = 0;  // of this call among the rank's calls of this checkpointer: for texts; ranks may differ
  Operation operation = Operation::kSave;
  std::string checkpoint_id;
  Digest options_digest{};
  std::vector<std::string> stateful_keys;
  std::uint64_t counter_seen = 0;  // the largest attempt counter that this rank knows of
  std::uint32_t world_size = 1;    // as this rank has it
  int coordinator_rank = 0;        // as this rank's caller gave it: may be no rank at all
  std::string text{};              // of an agreement: this rank's input
};

struct Begin {
  std::uint64_t ticket = 0;  // of the receiver's call
  std::vector<std::string> key_order;
};

struct LocalSavePlan {
  std::shared_ptr<const SavePlan> plan;
  Digest digest{};
};

// Stands for a local plan that the coordinator still has. The columns hold what a digest leaves out: one entry per bytes object of
// the plan, in its order.
struct SameSavePlan {
  Digest digest{};
  std::vector<std::uint64_t> content_hashes;
  std::vector<std::uint64_t> content_bytes;
};

struct NeedLocalPlan {
  Digest digest{};
};

struct GlobalSavePlan {
  std::shared_ptr<const SavePlan> plan;
  Digest digest{};
  bool local_plan_kept = false;  // the coordinator will recognise the local plan by its digest
};

struct UseCachedPlan {
  Digest digest{};
  bool local_plan_kept = false;
};

struct NeedGlobalPlan {
  Digest digest{};
};

struct Written {
  std::shared_ptr<const WriteResults> results;
};

struct LocalLoadPlan {
  std::shared_ptr<const LoadPlan> plan;
  std::string metadata_save_id;  // of the metadata that this rank has read; "" when it names none
};

struct GlobalLoadPlan {
  std::shared_ptr<const LoadPlan> plan;
};

struct ReadDone {};

struct PhaseFailed {
  Failure failure;
};

// After a failure: the receiver is to end its part of the phase as soon as it can.
struct StopPhase {};

// It has. What it did is of no use any more, and it has no failure of its own to report.
struct PhaseStopped {};

// How a call has ended: the same for all of its ranks. Made once, and shared by all messages and records of it.
struct Ending {
  std::vector<FailureGroup> failures;  // empty: it succeeded
  Committed committed = Committed::kNo;
  std::string save_id;
  std::string answer{};  // of an agreement that succeeded
};
std::shared_ptr<const Ending> make_ending(const FailureMap& failures, Committed committed, std::string save_id, std::string answer = {});

struct Outcome {
  std::uint64_t ticket = 0;                  // of the receiver's call
  std::shared_ptr<const Ending> ending;      // never null
  std::exception_ptr exception = nullptr;    // thrown by the receiver: not encoded, so only from a rank to itself
};

// The sender has ended the call by itself; or, where it awaits the outcome, it is to end on all ranks, unless publication has begun.
struct Cancel {
  std::uint64_t ticket = 0;
  Failure failure;
  bool awaits_outcome = false;
};

// The call has ended without the receiver: its Join is to be forgotten.
struct Withdraw {
  std::uint64_t ticket = 0;
};

struct CoordinatorDown {
  Failure failure;
};

// A message of the receiver's could not be read. `failure` is the receiver's own, in the words in which all ranks hear it.
struct Unreadable {
  Failure failure;
};

// How a rank stands to a call whose coordinator is being succeeded.
enum class StandingKind : std::uint8_t {
  kAbsent = 1,  // has no such call running, and no outcome of it
  kEnded,       // has its outcome
  kAttached,    // hears the coordinator; says more when that changes
  kPromised,    // follows another successor; says more when that changes
  kOrphaned,    // has lost the coordinator, will deliver nothing to it, and follows the receiver
};

// The call is named by the envelope's counter, or where the sender never heard one (0), by what its Join said.
struct Standing {
  std::uint64_t inquiry = 0;  // the AskStanding that it answers; 0: nobody has asked, the sender wants the receiver to succeed
  StandingKind kind = StandingKind::kAbsent;
  int coordinator_rank = 0;
  std::uint64_t ticket = 0;  // of the sender's call, if it has one
  std::uint64_t ordinal = 0;
  Operation operation = Operation::kSave;
  std::string checkpoint_id;
  bool busy = false;                     // a hook of its phase is running
  bool delivered = false;                // all that the coordinator wanted of it was sent
  int leader = -1;                       // of kPromised
  std::optional<Failure> lost;           // of kOrphaned: the coordinator's, as the sender saw it
  std::optional<Failure> failure;        // the sender's own
  std::shared_ptr<const Ending> ending;  // of kEnded, else null
};

struct AskStanding {
  std::uint64_t inquiry = 0;  // 0: from the coordinator itself, which is there
  int coordinator_rank = 0;
  std::uint64_t ordinal = 0;
  Operation operation = Operation::kSave;
  std::string checkpoint_id;
};

// The sender does not succeed the coordinator after all.
struct FollowOther {
  int leader = -1;  // who does; -1: not known
};

// What one rank has to write or read, or all of them together, and how much of it is done.
struct Moved {
  std::uint64_t items = 0;
  std::uint64_t items_done = 0;  // at most `items`
  std::uint64_t bytes = 0;       // of tensors
  std::uint64_t bytes_done = 0;  // at most `bytes`

  bool operator==(const Moved& other) const {
    return items == other.items && items_done == other.items_done && bytes == other.bytes && bytes_done == other.bytes_done;
  }
};

// How far the sender is, for people to see; it wants to hear how far all are. Neither this nor the answer decides anything.
struct Progress {
  std::uint64_t number = 0;  // 1, 2, … within the attempt: the largest one counts
  Moved moved{};
};

struct JobProgress {
  std::uint64_t number = 0;         // of the Progress that it answers
  Phase phase = Phase::kLocalPlan;  // that the coordinator is in
  int ranks_done = 0;               // that have ended it
  Moved moved{};                    // of all ranks that have said how far they are
  int slowest_rank = -1;            // of those that have not ended the phase, the one with the smallest part done; -1: none
  Moved slowest{};                  // of that rank
};

using Message =
    std::variant<Join, Begin, LocalSavePlan, SameSavePlan, NeedLocalPlan, GlobalSavePlan, UseCachedPlan, NeedGlobalPlan, Written,
                 LocalLoadPlan, GlobalLoadPlan, ReadDone, PhaseFailed, Outcome, Cancel, CoordinatorDown, StopPhase, PhaseStopped,
                 Withdraw, Unreadable, Standing, AskStanding, FollowOther, Progress, JobProgress>;

// The message's type, for traces and texts: "Join".
const char* name_of(const Message& message) noexcept;
// Whether the receiver is the coordinator; otherwise it is the rank's own machine.
bool is_for_coordinator(const Message& message) noexcept;

// Whether it is for people to see only, and comes again and again: traces leave these out, since they would push out all else.
bool is_of_progress(const Message& message) noexcept;

// One message on its way between ranks.
struct Envelope {
  Attempt attempt;
  int sender = 0;
  std::uint64_t id = 0;     // of the event of sending in the sender's trace
  std::uint64_t cause = 0;  // of the event that led to it, there too
  Message body;
};

}  // namespace cairn::protocol
