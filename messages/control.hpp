// The messages of a save, a load or an agreement, as plain structs. State machines exchange them,
// and the codec encodes them.
//
//   rank -> coordinator:  Join, LocalSavePlan | SameSavePlan | LocalLoadPlan, NeedGlobalPlan,
//                         Written | ReadDone, PhaseFailed, PhaseStopped, Cancel, Withdraw, Progress
//   coordinator -> rank:  Begin, NeedLocalPlan, GlobalSavePlan | UseCachedPlan | GlobalLoadPlan,
//                         StopPhase, Outcome, CoordinatorDown, Unreadable, JobProgress
//   when the coordinator is lost:
//   rank -> successor:    StatusReply
//   successor -> rank:    StatusRequest, FollowOther, StopPhase, Outcome
//
// Large parts are shared and immutable, so that copying a message is cheap.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <cairn/base/call_state.hpp>
#include <cairn/base/digest.hpp>
#include <cairn/base/failure.hpp>
#include <cairn/messages/failure_groups.hpp>
#include <cairn/planning/plan.hpp>

namespace cairn::protocol {

using cairn::Operation;

// Identifies one save, load or agreement of one checkpointer. The coordinator assigns the counter.
// It is 0 in messages before Begin, or before the Outcome of an agreement.
struct Attempt {
  std::string incarnation;
  std::string checkpointer;
  std::uint64_t counter = 0;
};

// A call has started on the sender. The ticket identifies the call. A rank's tickets increase and
// are never reused during the lifetime of its RankRuntime.
struct Join {
  std::uint64_t ticket = 0;
  // The number of this call among the rank's calls of this checkpointer. Ranks that missed a call
  // send a different number.
  std::uint64_t ordinal = 0;
  Operation operation = Operation::kSave;
  std::string checkpoint_id;
  Digest options_digest{};
  std::vector<std::string> stateful_keys;
  std::uint64_t counter_seen = 0;  // the largest attempt counter known to this rank
  std::uint32_t world_size = 1;    // as configured on this rank
  int coordinator_rank = 0;        // as given by this rank's caller; possibly not a valid rank
  std::string text{};              // this rank's input to an agreement
};

struct Begin {
  std::uint64_t ticket = 0;  // from the receiver's Join
  std::vector<std::string> key_order;
};

struct LocalSavePlan {
  std::shared_ptr<const SavePlan> plan;
  Digest digest{};
};

// Sent instead of a local plan that the coordinator still has. The vectors hold the values that a
// digest does not cover: one entry per bytes object, in the order of the plan.
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
  bool local_plan_kept = false;  // the coordinator keeps the local plan: later saves may send SameSavePlan
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
  std::string metadata_save_id;  // from the metadata that this rank has read; "" if it has none
};

struct GlobalLoadPlan {
  std::shared_ptr<const LoadPlan> plan;
};

struct ReadDone {};

struct PhaseFailed {
  Failure failure;
};

// Tells the receiver, after a failure, to end its part of the phase as soon as it can.
struct StopPhase {};

// The sender has stopped. Its results are not needed any more, and it has no failure of its own to
// report.
struct PhaseStopped {};

// The end of a call. All ranks of the call get the same Ending. Within a process, all messages that
// carry it share one immutable object.
struct Ending {
  std::vector<FailureGroup> failures;  // empty: success
  Committed committed = Committed::kNo;
  std::string save_id;
  std::string answer{};  // the answer of a successful agreement
};
std::shared_ptr<const Ending> make_ending(const FailureMap& failures, Committed committed, std::string save_id,
                                          std::string answer = {});
CallResult result_of(const Ending& ending);  // without exceptions

struct Outcome {
  std::uint64_t ticket = 0;                // from the receiver's Join
  std::shared_ptr<const Ending> ending;    // never null
  std::exception_ptr exception = nullptr;  // the receiver's own exception; set only in messages from a rank to itself
};

// If `awaits_outcome` is false, the sender has already ended the call for itself. If it is true,
// the sender asks the coordinator to end the call on all ranks, unless publication has begun.
struct Cancel {
  std::uint64_t ticket = 0;
  Failure failure;
  bool awaits_outcome = false;
};

// The sender's call has ended without this coordinator, which must forget the sender's Join.
struct Withdraw {
  std::uint64_t ticket = 0;
};

struct CoordinatorDown {
  Failure failure;
  std::uint64_t ticket = 0;  // the call that the coordinator gives up; 0: all its calls, because its actor died
};

// The sender could not decode a message from the receiver. `failure` is the failure that the sender
// has noted for the receiver, so that both report the same text.
struct Unreadable {
  Failure failure;
};

// A rank's relation to a call whose coordinator is lost. The rank reports it to a successor, and
// reports it again when it changes.
enum class RankStatus : std::uint8_t {
  kAbsent = 1,  // the call is not running on this rank, and the rank does not have its outcome
  kEnded,       // the rank has the outcome of the call
  kAttached,    // still follows the coordinator
  kPromised,    // follows another successor than the receiver
  kOrphaned,    // has lost the coordinator, and follows the receiver or asks to follow it
};

// The envelope's counter identifies the call. If the sender never got a counter (0), the fields of
// its Join identify the call.
struct StatusReply {
  // The number of the StatusRequest. 0: there was none, and the sender asks the receiver to end the
  // call.
  std::uint64_t inquiry = 0;
  RankStatus kind = RankStatus::kAbsent;
  int coordinator_rank = 0;
  std::uint64_t ticket = 0;  // the ticket of the sender's call, if any
  std::uint64_t ordinal = 0;
  Operation operation = Operation::kSave;
  std::string checkpoint_id;
  bool busy = false;                     // a task of the sender is running
  bool delivered = false;                // the sender has sent its results to the coordinator
  bool cannot_join = false;              // kOrphaned only: the call has not begun, and no connection to the coordinator can be made
  int leader = -1;                       // kPromised only: the successor that the sender follows
  std::optional<Failure> lost;           // kOrphaned only: the loss of the coordinator, as the sender saw it
  std::optional<Failure> failure;        // the sender's own failure
  std::shared_ptr<const Ending> ending;  // kEnded only, otherwise null
};

struct StatusRequest {
  std::uint64_t inquiry = 0;  // 0: not a request; the coordinator says that it is alive
  int coordinator_rank = 0;
  std::uint64_t ordinal = 0;
  Operation operation = Operation::kSave;
  std::string checkpoint_id;
};

// The sender is not the coordinator's successor after all, or does not know the attempt.
struct FollowOther {
  int leader = -1;  // the rank that succeeds the coordinator; -1: unknown
};

// The amount of data to write or read, for one rank or for all ranks together, and the amount
// already written or read.
struct Moved {
  std::uint64_t items = 0;
  std::uint64_t items_done = 0;  // at most `items`
  std::uint64_t bytes = 0;       // the bytes of tensors
  std::uint64_t bytes_done = 0;  // at most `bytes`

  bool operator==(const Moved& other) const {
    return items == other.items && items_done == other.items_done && bytes == other.bytes && bytes_done == other.bytes_done;
  }
};

// Reports the sender's progress and asks for the progress of all ranks. For display only: neither
// report nor answer affects a decision.
struct Progress {
  std::uint64_t number = 0;  // 1, 2, … within the attempt; the receiver uses the report with the largest
  Moved moved{};
};

struct JobProgress {
  std::uint64_t number = 0;         // from the Progress that this answers
  Phase phase = Phase::kLocalPlan;  // the coordinator's phase
  int ranks_done = 0;               // the number of ranks that have ended the phase
  Moved moved{};                    // sum over all ranks that have reported progress
  // The rank with the smallest fraction done among those that have not ended the phase; -1: no such
  // rank. While all ranks wait for a hook of the coordinator, the coordinator's rank.
  int slowest_rank = -1;
  Moved slowest{};  // progress of that rank
};

using Message =
    std::variant<Join, Begin, LocalSavePlan, SameSavePlan, NeedLocalPlan, GlobalSavePlan, UseCachedPlan, NeedGlobalPlan, Written,
                 LocalLoadPlan, GlobalLoadPlan, ReadDone, PhaseFailed, Outcome, Cancel, CoordinatorDown, StopPhase, PhaseStopped,
                 Withdraw, Unreadable, StatusReply, StatusRequest, FollowOther, Progress, JobProgress>;

MessageKind kind_of(const Message& message) noexcept;
// Returns the name of a message's type, such as "Join".
const char* name_of(const Message& message) noexcept;
// Returns true if the receiver's CoordinatorMachine handles the message, and false if its
// RankMachine does.
bool is_for_coordinator(const Message& message) noexcept;

// Returns whether a message only reports progress. Traces omit these messages: they are so frequent
// that they would displace everything else.
bool is_of_progress(const Message& message) noexcept;

// One message between ranks.
struct Envelope {
  Attempt attempt;
  int sender = 0;
  std::uint64_t id = 0;     // the id of the send event, in the sender's trace
  std::uint64_t cause = 0;  // the id of the event that caused the send, in the same trace
  Message body;
};

}  // namespace cairn::protocol
