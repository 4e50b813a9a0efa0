// The clock and the dice of a simulated world. Time passes only from one event to the next; the seed decides everything that is
// open.
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
  // 0 … count - 1.
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

  // Events of one moment happen in the order in which they were asked for.
  void after(Duration delay, std::function<void()> event) {
    queue_.emplace(std::make_pair(now_ + delay, ++last_), std::move(event));
  }

  // Lets the next event happen; false if there is none.
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
