#include <cairn/messages/control.hpp>

#include <utility>

namespace cairn::protocol {
namespace {

// A rank runs up to two machines, its own and the coordinator's. The type of a message alone
// decides which of them gets it.
struct IsForCoordinator {
  template <class T>
  bool operator()(const T&) const {
    return std::is_same_v<T, Join> || std::is_same_v<T, LocalSavePlan> || std::is_same_v<T, SameSavePlan> ||
           std::is_same_v<T, Written> || std::is_same_v<T, LocalLoadPlan> || std::is_same_v<T, ReadDone> ||
           std::is_same_v<T, PhaseFailed> || std::is_same_v<T, Cancel> || std::is_same_v<T, PhaseStopped> ||
           std::is_same_v<T, Withdraw> || std::is_same_v<T, StatusReply> || std::is_same_v<T, Progress>;
  }
};

}  // namespace

std::shared_ptr<const Ending> make_ending(const FailureMap& failures, Committed committed, std::string save_id,
                                          std::string answer) {
  return std::make_shared<const Ending>(Ending{grouped(failures), committed, std::move(save_id), std::move(answer)});
}

CallResult result_of(const Ending& ending) { return {ungrouped(ending.failures), ending.committed, ending.save_id, ending.answer}; }

// The kinds are numbered in the order of the variant.
MessageKind kind_of(const Message& message) noexcept {
  static_assert(std::variant_size_v<Message> == static_cast<std::size_t>(MessageKind::kJobProgress));
  return static_cast<MessageKind>(message.index() + 1);
}
const char* name_of(const Message& message) noexcept { return to_string(kind_of(message)); }
bool is_for_coordinator(const Message& message) noexcept { return std::visit(IsForCoordinator{}, message); }
bool is_of_progress(const Message& message) noexcept {
  return std::holds_alternative<Progress>(message) || std::holds_alternative<JobProgress>(message);
}

}  // namespace cairn::protocol
