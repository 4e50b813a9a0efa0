// How far the ranks are, for people to see.
#include <limits>

#include <cairn/actors/protocol/coordinator_machine.hpp>

namespace cairn::protocol {
namespace {

std::uint64_t sum(std::uint64_t a, std::uint64_t b) {
  return a > std::numeric_limits<std::uint64_t>::max() - b ? std::numeric_limits<std::uint64_t>::max() : a + b;
}

void add(Moved& all, const Moved& part) {
  all.items = sum(all.items, part.items);
  all.items_done = sum(all.items_done, part.items_done);
  all.bytes = sum(all.bytes, part.bytes);
  all.bytes_done = sum(all.bytes_done, part.bytes_done);
}

// Of the part of a rank that has not ended its phase. Who does not know its part yet has nothing done.
double part_done(const Moved& moved) {
  if (moved.bytes != 0) return static_cast<double>(moved.bytes_done) / static_cast<double>(moved.bytes);
  return moved.items == 0 ? 0 : static_cast<double>(moved.items_done) / static_cast<double>(moved.items);
}

}  // namespace

// Numbers come in order over a link; what is repeated or late is not answered.
void CoordinatorMachine::receive(int from, const Progress& progress) {
  Progress& latest = progress_[from];
  if (progress.number <= latest.number) return ignore("Progress that is out of date");
  latest = progress;
  JobProgress job = job_progress();
  job.number = progress.number;
  send(from, std::move(job));
}

JobProgress CoordinatorMachine::job_progress() const {
  JobProgress job;
  job.phase = phase();
  const bool data_moved = state_ == State::kFinishing || state_ == State::kSettling;
  for (const auto& [rank, join] : joins_) {
    const auto told = progress_.find(rank);
    Moved moved = told == progress_.end() ? Moved{} : told->second.moved;
    // What a rank said before it had ended its part is out of date.
    const bool has_ended = collects() && answered_.count(rank) != 0;
    if (data_moved || (state_ == State::kMoving && has_ended && failures_.count(rank) == 0)) {
      moved.items_done = moved.items;
      moved.bytes_done = moved.bytes;
    }
    add(job.moved, moved);
    if (has_ended) {
      ++job.ranks_done;
      continue;
    }
    if (!collects() && rank != identity_.rank) continue;  // all wait for the coordinator's own hook
    if (job.slowest_rank != -1 && part_done(moved) >= part_done(job.slowest)) continue;
    job.slowest_rank = rank;
    job.slowest = moved;
  }
  return job;
}

}  // namespace cairn::protocol
