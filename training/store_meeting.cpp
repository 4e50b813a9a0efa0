#include <cairn/training/store_meeting.hpp>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <stdexcept>
#include <thread>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cairn/base/error.hpp>
#include <cairn/base/log.hpp>
#include <cairn/base/rank_text.hpp>

namespace cairn::training {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kFarewell{2000};

// Prefixes of the texts under the key "end".
const std::string kDiffers = "=";
const std::string kAbsent = "-";

// Returns the longest pause between two requests to the store. It grows with the group, so that the
// store can serve all ranks.
milliseconds poll_max(int size) { return std::max(milliseconds(50), milliseconds(size / 20)); }

class StoreMeeting {
 public:
  StoreMeeting(c10d::Store& store, const std::string& name, int rank, const std::vector<int>& ranks, milliseconds deadline,
               Duration first_notice)
      : store_(store),
        prefix_(name + "/meeting/"),
        name_(name),
        rank_(rank),
        ranks_(ranks),
        deadline_(deadline),
        notices_(first_notice) {}

  void run() {
    number_ = store_.add(prefix_ + "arrivals", 1);
    set(card_key(number_), std::to_string(rank_) + " " + std::to_string(size()));
    await(card_key(1));
    compare_with_first();
    if (store_.add(prefix_ + "agreed", 1) == size()) set("all", "agreed");
    await("all");
  }

 private:
  int size() const { return static_cast<int>(ranks_.size()); }
  static std::string card_key(std::int64_t number) { return "card/" + std::to_string(number); }
  void set(const std::string& key, const std::string& value) {
    store_.set(prefix_ + key, std::vector<std::uint8_t>(value.begin(), value.end()));
  }
  bool has(const std::string& key) { return store_.check({prefix_ + key}); }
  std::string get(const std::string& key) {
    const auto bytes = store_.get(prefix_ + key);
    return std::string(bytes.begin(), bytes.end());
  }

  void compare_with_first() {
    const std::string card = get(card_key(1));
    const int its_size = std::atoi(card.c_str() + std::min(card.find(' '), card.size()));
    if (its_size == size()) return;
    const std::string text = "rank " + std::to_string(std::atoi(card.c_str())) + " gives the group \"" + name_ + "\" " +
                             std::to_string(its_size) + " ranks, rank " + std::to_string(rank_) + " gives it " +
                             std::to_string(size()) + ": pass the same size on all ranks (WORLD_SIZE)";
    end(kDiffers + text);
  }

  void await(const std::string& key) {
    for (auto pause = milliseconds(1); !has(key); pause = std::min(pause * 2, poll_max(size()))) {
      if (has("end")) end(get("end"));
      const Duration waited = steady_clock::now() - began_;
      if (waited >= deadline_) end(kAbsent + (number_ == 1 ? name_ranks(missing()) : "some ranks") + " did not come");
      if (number_ == 1 && notices_.is_due(waited))
        write_log(LogLevel::kWarning, ranks_[static_cast<std::size_t>(rank_)],
                  "waiting for " + name_ranks(missing()) + " to join the process group \"" + name_ +
                      "\": " + in_whole_seconds(waited, deadline_));
      std::this_thread::sleep_for(pause);
    }
  }

  // Ends the meeting for all ranks that arrived, and throws. The store may go away with this rank,
  // so the others first get time to read the reason. Only the first rank to arrive looks for
  // missing ranks, which costs a request per rank; its deadline comes first.
  [[noreturn]] void end(const std::string& why) {
    if (!has("end")) set("end", why);
    if (store_.add(prefix_ + "told", 1) >= store_.add(prefix_ + "arrivals", 0)) set("all told", "");
    const auto farewell = steady_clock::now() + kFarewell;
    for (auto pause = milliseconds(1); !has("all told") && steady_clock::now() < farewell;
         pause = std::min(pause * 2, poll_max(size())))
      std::this_thread::sleep_for(pause);
    if (why.front() == kDiffers.front()) throw Error(ErrorCode::kMismatch, why.substr(1));
    throw std::runtime_error(why.substr(1));
  }

  // Returns the missing ranks as world ranks.
  std::vector<int> missing() {
    std::set<int> left(ranks_.begin(), ranks_.end());
    const std::int64_t arrivals = store_.add(prefix_ + "arrivals", 0);
    for (std::int64_t number = 1; number <= arrivals; ++number) {
      if (!has(card_key(number))) continue;
      const auto place = static_cast<std::size_t>(std::atoi(get(card_key(number)).c_str()));
      if (place < ranks_.size()) left.erase(ranks_[place]);
    }
    if (left.empty()) return {ranks_[static_cast<std::size_t>(rank_)]};  // the last rank has just arrived
    return {left.begin(), left.end()};
  }

  c10d::Store& store_;
  const std::string prefix_;
  const std::string name_;
  const int rank_;
  const std::vector<int>& ranks_;
  const milliseconds deadline_;
  const steady_clock::time_point began_ = steady_clock::now();
  WaitNotices notices_;
  std::int64_t number_ = 0;  // of this rank in the order of arrival, from 1
};

}  // namespace

void meet_in_store(c10d::Store& store, const std::string& name, int rank, const std::vector<int>& ranks, milliseconds deadline,
                   Duration first_notice) {
  StoreMeeting(store, name, rank, ranks, deadline, first_notice).run();
}

}  // namespace cairn::training
