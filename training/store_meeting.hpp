// Checks that all ranks of a process group have joined, each once, and that they agree on the
// group's size. Runs before any backend is made. Internal.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include <cairn/base/error.hpp>
#include <cairn/base/wait_notices.hpp>
#include <cairn/runtime/launch/meeting_store.hpp>

namespace cairn::training {

// Ranks meet in the store before they connect, because a connection to a rank that never comes
// fails late and names nobody.
class StoreMeeting {
 public:
  StoreMeeting(c10d::Store& store, const std::string& name, int rank, const std::vector<int>& ranks,
               std::chrono::milliseconds deadline, Duration first_notice)
      : name_(name),
        rank_(rank),
        ranks_(ranks),
        store_(store, name + "/meeting/", "the process group \"" + name + "\"", ranks[place(rank)], size(), deadline,
               first_notice) {}

  void run() {
    is_first_ = store_.arrive(std::to_string(rank_) + " " + std::to_string(size())) == 1;
    // Two processes with one rank would make the count complete without the rank that is missing.
    if (store_.add("came/" + std::to_string(rank_), 1) > 1)
      end(std::string(1, kMismatch) + "rank " + std::to_string(ranks_[place(rank_)]) + " came twice to the group \"" + name_ +
          "\": give each process a RANK of its own, and each group of a store a name of its own");
    await(MeetingStore::card_key(1));
    compare_with_first();
    // The last rank opens the door for all.
    if (store_.add("agreed", 1) == size()) store_.set("all", "agreed");
    await("all");
    if (store_.add("left", 1) == size()) store_.set("all left", "");
    // The store may go away with this rank.
    if (ranks_[place(rank_)] == 0) store_.stay_until([this] { return store_.has("all left"); });
  }

 private:
  // Prefixes of the texts under the key "end": the ranks contradict each other; or some did not
  // come.
  static constexpr char kMismatch = '=';
  static constexpr char kAbsent = '-';

  int size() const { return static_cast<int>(ranks_.size()); }
  static std::size_t place(int rank) { return static_cast<std::size_t>(rank); }

  void compare_with_first() {
    const std::string card = store_.get(MeetingStore::card_key(1));
    const int its_size = std::atoi(card.c_str() + std::min(card.find(' '), card.size()));
    if (its_size == size()) return;
    const std::string text = "rank " + std::to_string(std::atoi(card.c_str())) + " gives the group \"" + name_ + "\" " +
                             std::to_string(its_size) + " ranks, rank " + std::to_string(rank_) + " gives it " +
                             std::to_string(size()) + ": pass the same size on all ranks (WORLD_SIZE)";
    end(kMismatch + text);
  }

  // Only the first rank to arrive looks for missing ranks, which costs a request per rank.
  void await(const std::string& key) {
    const auto has_come = [&] {
      if (store_.has(key)) return true;
      if (store_.has("end")) end(store_.get("end"));
      return false;
    };
    const bool in_time = is_first_ ? store_.poll(has_come, [this] { return missing(); }) : store_.poll(has_come);
    if (!in_time) end(std::string(1, kAbsent) + (is_first_ ? name_ranks(missing()) : "some ranks") + " did not come");
  }

  // Ends the meeting for all ranks that arrived, and throws. The store may go away with this rank,
  // so the others first get time to read the reason. The reason is mostly that of the first rank to
  // arrive, as its deadline comes first.
  [[noreturn]] void end(const std::string& why) {
    if (!store_.has("end")) store_.set("end", why);
    if (store_.add("told", 1) >= store_.arrivals()) store_.set("all told", "");
    store_.stay_until([this] { return store_.has("all told"); });
    if (why.front() == kMismatch) throw Error(ErrorCode::kMismatch, why.substr(1));
    throw std::runtime_error(why.substr(1));
  }

  // Returns the missing ranks as world ranks.
  std::vector<int> missing() {
    store_.read_cards([this](const std::string& card) {
      const auto rank = place(std::atoi(card.c_str()));
      if (rank < has_arrived_.size()) has_arrived_[rank] = true;
    });
    std::vector<int> left;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
      if (!has_arrived_[rank]) left.push_back(ranks_[rank]);
    if (left.empty()) return {ranks_[place(rank_)]};  // the last rank has just arrived
    std::sort(left.begin(), left.end());
    return left;
  }

  const std::string name_;
  const int rank_;
  const std::vector<int>& ranks_;
  MeetingStore store_;
  bool is_first_ = false;
  std::vector<bool> has_arrived_ = std::vector<bool>(ranks_.size());  // whether this rank has read the card, by rank in the group
};

// Blocks until `ranks.size()` ranks have called this for the group `name`. `ranks` lists the
// group's ranks as world ranks, for messages; `rank` is this rank's index in the list. The first
// rank to arrive logs warnings that name the missing ranks. Throws kMismatch on all ranks if two
// ranks differ in the group's size, or if a rank called this twice; the error names them. Throws
// std::runtime_error after `deadline`, naming the ranks that did not arrive. Apart from polling,
// each rank sends the store a constant number of requests; after a timeout, the first rank also
// asks about every other rank.
inline void meet_in_store(c10d::Store& store, const std::string& name, int rank, const std::vector<int>& ranks,
                          std::chrono::milliseconds deadline, Duration first_notice = WaitNotices::kFirst) {
  StoreMeeting(store, name, rank, ranks, deadline, first_notice).run();
}

}  // namespace cairn::training
