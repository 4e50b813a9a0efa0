// The clock and the dice of a simulated world. Time advances only from one event to the next. The
// seed makes every random choice.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include <cairn/base/clock.hpp>
#include <cairn/base/random.hpp>

namespace cairn::simulation {

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seeded_random(seed)) {}

  std::uint64_t next() { return random_->next(); }
  // Returns a number from 0 to count - 1.
  std::uint64_t below(std::uint64_t count) { return random_->next() % count; }
  int below(int count) { return static_cast<int>(below(static_cast<std::uint64_t>(count))); }
  bool chance(int percent) { return below(std::uint64_t{100}) < static_cast<std::uint64_t>(percent); }
  Duration between(Duration from, Duration to) {
    return from + Duration(static_cast<Duration::rep>(below(static_cast<std::uint64_t>((to - from).count()) + 1)));
  }

 private:
  std::unique_ptr<Random> random_;
};

class VirtualTime {
 public:
  Duration now() const { return now_; }
  std::uint64_t events() const { return events_; }

  // Schedules `event`. Events due at the same moment happen in the order of scheduling.
  void after(Duration delay, std::function<void()> event) {
    queue_.emplace(std::make_pair(now_ + delay, ++last_), std::move(event));
  }

  // Runs the next event. Returns false if there is none.
  bool advance() {
    if (queue_.empty()) return false;
    auto next = queue_.extract(queue_.begin());
    now_ = next.key().first;
    ++events_;
    next.mapped()();
    return true;
  }

 private:
  Duration now_{0};
  std::uint64_t events_ = 0;
  std::uint64_t last_ = 0;
  std::map<std::pair<Duration, std::uint64_t>, std::function<void()>> queue_;
};

}  // namespace cairn::simulation
