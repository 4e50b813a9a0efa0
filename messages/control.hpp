// The messages of a save, a load or an agreement, as plain structs. State machines exchange them,
// and the codec encodes them.
//
//   rank -> coordinator:  Join, LocalSavePlan | SameSavePlan | LocalLoadPlan,
//                         Written | ReadDone, PhaseFailed, PhaseStopped, Cancel, Withdraw, Progress
//   coordinator -> rank:  Begin, NeedLocalPlan, GlobalSavePlan | GlobalLoadPlan,
//                         StopPhase, Outcome, CoordinatorDown, Unreadable, JobProgress
//   when the coordinator is lost:
//   rank -> successor:    StatusReply
//   successor -> rank:    StatusRequest, FollowOther, StopPhase, Outcome
//
// The .proto files of this folder specify when each message is sent, and its fields. Comments here
// add only what is particular to the records. Large parts are shared and immutable, so that copying
// a message is cheap.
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

// One save, load or agreement of one checkpointer.
struct Attempt {
  std::string incarnation;
  std::string checkpointer;
  std::uint64_t counter = 0;
};

// Names a call on all ranks: two calls are the same if these members are equal. `ordinal` is the
// number of the call among those of its checkpointer on its rank.
struct NamedCall {
  std::uint64_t ordinal = 0;
  Operation operation = Operation::kSave;
  std::string checkpoint_id;
};

struct Join : NamedCall {
  std::uint64_t ticket = 0;
  Digest options_digest{};
  std::vector<std::string> stateful_keys;
  std::uint64_t counter_seen = 0;
  std::uint32_t world_size = 1;
  int coordinator_rank = 0;  // possibly not a valid rank
  std::string text{};
};

struct Begin {
  std::uint64_t ticket = 0;
  std::vector<std::string> key_order;
};

struct LocalSavePlan {
  std::shared_ptr<const SavePlan> plan;
  Digest digest{};
};

struct SameSavePlan {
  Digest digest{};
  std::vector<std::uint64_t> content_hashes;
  std::vector<std::uint64_t> content_bytes;
};

struct NeedLocalPlan {
  Digest digest{};
};

// One of the members is null.
struct GlobalSavePlan {
  std::shared_ptr<const SavePlan> plan;
  std::shared_ptr<const PlanPart> part;
};

struct Written {
  std::shared_ptr<const WriteResults> results;
};

struct LocalLoadPlan {
  std::shared_ptr<const LoadPlan> plan;  // null: the rank keeps it
  std::string metadata_save_id;
};

struct GlobalLoadPlan {
  std::shared_ptr<const LoadPlan> plan;  // null: the one that the rank keeps
};

struct ReadDone {};

struct PhaseFailed {
  Failure failure;
};

struct StopPhase {};
struct PhaseStopped {};

// The end of a call. All ranks of the call get the same Ending. Within a process, all messages that
// carry it share one immutable object.
struct Ending {
  std::vector<FailureGroup> failures;  // empty: success
  Committed committed = Committed::kNo;
  std::string save_id;
  std::string answer{};
};
std::shared_ptr<const Ending> make_ending(const FailureMap& failures, Committed committed, std::string save_id,
                                          std::string answer = {});
CallResult result_of(const Ending& ending);  // without exceptions

struct Outcome {
  std::uint64_t ticket = 0;
  std::shared_ptr<const Ending> ending;    // never null
  std::exception_ptr exception = nullptr;  // the receiver's own exception; set only in messages from a rank to itself
};

struct Cancel {
  std::uint64_t ticket = 0;
  Failure failure;
  bool awaits_outcome = false;
};

struct Withdraw {
  std::uint64_t ticket = 0;
};

struct CoordinatorDown {
  Failure failure;
  std::uint64_t ticket = 0;  // 0: all calls of the coordinator, because its actor died
};

// `failure` is the failure that the sender has noted for the receiver, so that both report the same
// text.
struct Unreadable {
  Failure failure;
};

// A rank's relation to a call whose coordinator is lost.
enum class RankStatus : std::uint8_t {
  kAbsent = 1,  // the call is not running on this rank, and the rank does not have its outcome
  kEnded,       // the rank has the outcome of the call
  kAttached,    // still follows the coordinator
  kPromised,    // follows another successor than the receiver
  kOrphaned,    // has lost the coordinator, and follows the receiver or asks to follow it
};

// The envelope's counter identifies the call. If the sender never got a counter (0), the fields of
// its Join identify the call.
struct StatusReply : NamedCall {
  std::uint64_t inquiry = 0;  // 0: the sender asks the receiver to end the call
  RankStatus kind = RankStatus::kAbsent;
  int coordinator_rank = 0;
  std::uint64_t ticket = 0;
  bool busy = false;
  bool delivered = false;
  bool cannot_join = false;
  int leader = -1;
  std::optional<Failure> lost{};  // set for kOrphaned only
  std::optional<Failure> failure{};
  std::shared_ptr<const Ending> ending{};  // set for kEnded only
};

struct StatusRequest : NamedCall {
  std::uint64_t inquiry = 0;
  int coordinator_rank = 0;
};

struct FollowOther {
  int leader = -1;
};

struct Moved {
  std::uint64_t items = 0;
  std::uint64_t items_done = 0;
  std::uint64_t bytes = 0;
  std::uint64_t bytes_done = 0;

  bool operator==(const Moved& other) const {
    return items == other.items && items_done == other.items_done && bytes == other.bytes && bytes_done == other.bytes_done;
  }
};

struct Progress {
  std::uint64_t number = 0;
  Moved moved{};
};

struct JobProgress {
  std::uint64_t number = 0;
  Phase phase = Phase::kLocalPlan;
  int ranks_done = 0;
  Moved moved{};
  int slowest_rank = -1;
  Moved slowest{};
};

using Message = std::variant<Join, Begin, LocalSavePlan, SameSavePlan, NeedLocalPlan, GlobalSavePlan, Written, LocalLoadPlan,
                             GlobalLoadPlan, ReadDone, PhaseFailed, Outcome, Cancel, CoordinatorDown, StopPhase, PhaseStopped,
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
