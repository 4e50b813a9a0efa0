#include <cairn/runtime/checkpoints/cancellation.hpp>

#include <map>
#include <optional>
#include <utility>

#include <cairn/base/mutex.hpp>

namespace cairn {

struct Cancellation::State {
  Mutex mutex;
  std::optional<std::string> why CAIRN_GUARDED_BY(mutex);
  std::map<const void*, std::function<void(const std::string&)>> watchers CAIRN_GUARDED_BY(mutex);  // by the address of the Watch
};

Cancellation::Cancellation() : state_(std::make_shared<State>()) {}

void Cancellation::cancel(const std::string& why) const {
  MutexLock lock(state_->mutex);
  if (state_->why) return;
  state_->why = why;
  // With the lock held: whoever drops a Watch at this moment waits until `react` has returned.
  for (const auto& [key, react] : std::exchange(state_->watchers, {})) react(why);
}

bool Cancellation::is_cancelled() const {
  MutexLock lock(state_->mutex);
  return state_->why.has_value();
}

std::shared_ptr<void> Cancellation::watch(std::function<void(const std::string& why)> react) const {
  struct Watch {
    explicit Watch(std::shared_ptr<State> of) : state(std::move(of)) {}
    ~Watch() {
      MutexLock lock(state->mutex);
      state->watchers.erase(this);
    }
    const std::shared_ptr<State> state;
  };
  // Made before the lock is taken, which its destructor takes as well if `react` throws.
  auto entry = std::make_shared<Watch>(state_);
  MutexLock lock(state_->mutex);
  if (state_->why)
    react(*state_->why);
  else
    state_->watchers.emplace(entry.get(), std::move(react));
  return entry;
}

}  // namespace cairn
