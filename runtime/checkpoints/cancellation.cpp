#include <cairn/runtime/checkpoints/cancellation.hpp>

#include <map>
#include <mutex>
#include <optional>
#include <utility>

namespace cairn {

struct Cancellation::State {
  std::mutex mutex;
  std::optional<std::string> why;
  std::map<const void*, std::function<void(const std::string&)>> watchers;  // by the address of the Watch
};

Cancellation::Cancellation() : state_(std::make_shared<State>()) {}

void Cancellation::cancel(const std::string& why) const {
  std::lock_guard lock(state_->mutex);
  if (state_->why) return;
  state_->why = why;
  for (const auto& [key, react] : std::exchange(state_->watchers, {})) react(why);
}

bool Cancellation::is_cancelled() const {
  std::lock_guard lock(state_->mutex);
  return state_->why.has_value();
}

std::shared_ptr<void> Cancellation::watch(std::function<void(const std::string& why)> react) const {
  struct Watch {
    explicit Watch(std::shared_ptr<State> of) : state(std::move(of)) {}
    ~Watch() {
      std::lock_guard lock(state->mutex);
      state->watchers.erase(this);
    }
    const std::shared_ptr<State> state;
  };
  auto entry = std::make_shared<Watch>(state_);
  std::lock_guard lock(state_->mutex);
  if (state_->why)
    react(*state_->why);
  else
    state_->watchers.emplace(entry.get(), std::move(react));
  return entry;
}

}  // namespace cairn
