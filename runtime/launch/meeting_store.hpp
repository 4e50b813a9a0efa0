// A c10d store in which ranks meet: each publishes a text, its card, and polls for the other ranks'
// cards. Internal.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cairn/base/log.hpp>
#include <cairn/base/rank_text.hpp>
#include <cairn/base/wait.hpp>
#include <cairn/base/wait_notices.hpp>

namespace cairn {

// One rank's side of one meeting. Polls the store and never calls its `wait`: a wait that times out
// leaves TCPStore's connection out of step, and the store may be the trainer's.
class MeetingStore {
 public:
  // How long a rank waits, before it leaves, for ranks that have not yet read the result.
  static constexpr std::chrono::milliseconds kFarewell{2000};

  // `prefix` comes before all keys. `name`, such as "the world of 4 ranks", and `rank`, this rank
  // in the world, are used in warnings. Pauses between requests grow with `size`, the number of
  // ranks, so that the store can answer all of them.
  MeetingStore(c10d::Store& store, std::string prefix, std::string name, int rank, int size, const Deadline& deadline,
               Duration first_notice)
      : store_(store),
        prefix_(std::move(prefix)),
        name_(std::move(name)),
        rank_(rank),
        size_(size),
        pause_max_(std::max(50, size / 20)),
        deadline_(deadline),
        notices_(first_notice) {}

  const std::string& prefix() const { return prefix_; }
  const Deadline& deadline() const { return deadline_; }

  void set(const std::string& key, const std::string& value) {
    store_.set(prefix_ + key, std::vector<std::uint8_t>(value.begin(), value.end()));
  }
  bool has(const std::string& key) { return store_.check({prefix_ + key}); }
  std::string get(const std::string& key) {
    const auto bytes = store_.get(prefix_ + key);
    return std::string(bytes.begin(), bytes.end());
  }
  std::int64_t add(const std::string& key, std::int64_t amount) { return store_.add(prefix_ + key, amount); }

  // Publishes this rank's card, which begins with its rank. Returns the rank's number in the order
  // of arrival, from 1.
  std::int64_t arrive(const std::string& card) {
    number_ = add("arrivals", 1);
    set(card_key(number_), card);
    return number_;
  }
  static std::string card_key(std::int64_t number) { return "arrival/" + std::to_string(number); }
  std::int64_t arrivals() { return add("arrivals", 0); }

  // Calls `visit` with each card published since the last call. Reads each card once, and does not
  // ask for cards of absent ranks.
  template <class Visit>
  void read_cards(const Visit& visit) {
    for (const std::int64_t last = arrivals(); arrivals_ < last;) unread_.push_back(++arrivals_);
    std::vector<std::int64_t> not_there;  // a rank that has drawn a number may not have written its card yet
    for (const std::int64_t number : unread_) {
      if (!has(card_key(number))) {
        not_there.push_back(number);
        continue;
      }
      const std::string card = get(card_key(number));
      lowest_ = std::min(lowest_, std::atoi(card.c_str()));
      visit(card);
    }
    unread_ = std::move(not_there);
  }
  // Returns whether this rank is to say for whom all ranks wait: the lowest whose card has been
  // read. In worlds of more than kReadByAllMax ranks, whose ranks do not all read all cards, it is
  // the first that arrived.
  bool speaks() const { return is_large() ? number_ == 1 : lowest_ == rank_; }
  bool is_large() const { return size_ > kReadByAllMax; }

  // Waits until `done` returns true. Returns false if the deadline passes first. If `missing` is
  // given, logs warnings that name the ranks that `missing` returns, if any.
  bool poll(const std::function<bool()>& done, const std::function<std::vector<int>()>& missing = nullptr) {
    return poll_until(deadline_.end(), done, missing);
  }
  // Waits for `done`, at most kFarewell: this rank may host the store, and may exit soon.
  void stay_until(const std::function<bool()>& done) { poll_until(std::chrono::steady_clock::now() + kFarewell, done, nullptr); }

 private:
  static constexpr int kReadByAllMax = 64;

  bool poll_until(std::chrono::steady_clock::time_point end, const std::function<bool()>& done,
                  const std::function<std::vector<int>()>& missing) {
    for (auto pause = std::chrono::milliseconds(1); !done(); pause = std::min(pause * 2, pause_max_)) {
      const auto now = std::chrono::steady_clock::now();
      if (missing && notices_.is_due(now - began_)) {
        if (const std::vector<int> ranks = missing(); !ranks.empty())
          write_log(LogLevel::kWarning, rank_,
                    "waiting for " + name_ranks(ranks) + " to join " + name_ + ": " +
                        in_whole_seconds(deadline_.whole() - deadline_.left(), deadline_.whole()));
      }
      if (now >= end) return false;
      std::this_thread::sleep_for(pause);
    }
    return true;
  }

  c10d::Store& store_;
  const std::string prefix_;
  const std::string name_;
  const int rank_;
  const int size_;
  const std::chrono::milliseconds pause_max_;
  const Deadline deadline_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  WaitNotices notices_;
  std::int64_t number_ = 0;           // of this rank in the order of arrival
  int lowest_ = rank_;                // among the ranks whose cards have been read
  std::int64_t arrivals_ = 0;         // known to this rank
  std::vector<std::int64_t> unread_;  // numbers of cards that were not there yet
};

}  // namespace cairn
