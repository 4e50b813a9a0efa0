// Checks that all ranks name the same coordinator for a call. Ranks that disagree would send their
// Joins to different coordinators, and wait until the join deadline. So every rank also sends its
// Join to rank kRegistrar, which detects the disagreement when the first differing Join arrives.
//
// Handling a Join does not scan the ranks; only a disagreement does, once. Memory is
// bounded: the register holds the latest call of each rank, and the last disagreements, for ranks
// that join late.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <cairn/messages/control.hpp>

namespace cairn::protocol {

// The rank that compares the Joins of all calls.
inline constexpr int kRegistrar = 0;

class CallRegister {
 public:
  CallRegister(int world_size, unsigned disagreements_kept) : world_size_(world_size), kept_max_(disagreements_kept) {}

  struct Disagreement {
    std::shared_ptr<const Ending> ending;
    std::map<int, std::uint64_t> tickets;  // the ranks to notify now, with their tickets
  };
  // Records the Join of rank `from`. Returns a disagreement if this Join reveals one, or if an
  // earlier Join of the same call has revealed one.
  std::optional<Disagreement> add(int from, const Join& join);

 private:
  using Key = std::tuple<Operation, std::string, std::uint64_t>;  // with checkpoint id and ordinal
  struct Call {
    int coordinator_rank = 0;              // the rank that all callers so far have named
    int callers = 0;                       // the number of ranks whose latest call is this one
    std::shared_ptr<const Ending> ending;  // how the call ends if the ranks disagree; null: they agree so far
  };
  using Calls = std::map<Key, Call>;
  struct Last {
    std::uint64_t ticket = 0;
    Calls::value_type* call = nullptr;  // null: no call, or one whose ranks disagreed
  };

  void leave(Last& last);
  Disagreement disagree(Calls::value_type& call, int from, const Join& join);

  const int world_size_;
  const unsigned kept_max_;
  Calls calls_;
  std::vector<Last> last_;     // by rank
  std::deque<Key> disagreed_;  // oldest first
};

inline bool is_same_call(const NamedCall& a, const NamedCall& b) {
  return a.operation == b.operation && a.checkpoint_id == b.checkpoint_id && a.ordinal == b.ordinal;
}
// Returns a text such as `save of "step_1"`. Leaves out the middle of a long checkpoint id, so that
// a message which quotes the text is not longer than kFailureTextMax.
std::string describe_call(Operation operation, const std::string& checkpoint_id);
// Returns a text such as `save of "step_1" (its call 3)`.
std::string describe_call(const Join& join);

}  // namespace cairn::protocol
