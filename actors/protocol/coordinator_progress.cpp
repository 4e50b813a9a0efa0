// The progress of the ranks, for display only.
#include <algorithm>
#include <limits>

#include <cairn/actors/protocol/coordinator_machine.hpp>
#include <cairn/actors/protocol/progress_sums.hpp>

namespace cairn::protocol {
namespace {

constexpr std::uint64_t Moved::*kCounts[] = {&Moved::items, &Moved::items_done, &Moved::bytes, &Moved::bytes_done};

// Returns the fraction done by a rank that has not ended its phase; 0 if the rank does not know its
// total yet.
double part_done(const Moved& moved) {
  if (moved.bytes != 0) return static_cast<double>(moved.bytes_done) / static_cast<double>(moved.bytes);
  return moved.items == 0 ? 0 : static_cast<double>(moved.items_done) / static_cast<double>(moved.items);
}

}  // namespace

void ProgressSums::reset(int ranks) {
  *this = ProgressSums();
  parts_.resize(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) behind_.emplace_hint(behind_.end(), 0.0, rank);
}

void ProgressSums::set(int rank, const Moved& moved, bool has_ended) {
  Part& part = parts_[static_cast<std::size_t>(rank)];
  if (!part.has_ended) behind_.erase({part_done(part.moved), rank});
  for (std::size_t i = 0; i < sums_.size(); ++i) sums_[i] = sums_[i] - part.moved.*kCounts[i] + moved.*kCounts[i];
  part = {moved, has_ended};
  if (!has_ended) behind_.emplace(part_done(moved), rank);
}

Moved ProgressSums::sum() const {
  Moved sum;
  for (std::size_t i = 0; i < sums_.size(); ++i)
    sum.*kCounts[i] = static_cast<std::uint64_t>(std::min<Sum>(sums_[i], std::numeric_limits<std::uint64_t>::max()));
  return sum;
}

// Progress numbers arrive in order over a link. Repeated and late ones are not answered.
void CoordinatorMachine::receive(int from, const Progress& progress) {
  Progress& latest = progress_[static_cast<std::size_t>(from)];
  if (progress.number <= latest.number) return ignore("Progress that is out of date");
  latest = progress;
  count_progress(from);
  JobProgress job = job_progress();
  job.number = progress.number;
  send(from, std::move(job));
}

// Call it after every change of a rank's progress, or of whether the rank has ended the phase.
void CoordinatorMachine::count_progress(int rank) {
  Moved moved = progress_[static_cast<std::size_t>(rank)].moved;
  // A rank that has ended its part may have last reported less.
  const bool has_ended = collects() && answered_.count(rank) != 0;
  const bool data_moved = state_ == State::kFinishing || state_ == State::kSettling;
  if (data_moved || (state_ == State::kMoving && has_ended && failures_.count(rank) == 0)) {
    moved.items_done = moved.items;
    moved.bytes_done = moved.bytes;
  }
  sums_.set(rank, moved, has_ended);
}

void CoordinatorMachine::count_progress_of_all() {
  for (int rank = 0; rank < identity_.world_size; ++rank) count_progress(rank);
}

JobProgress CoordinatorMachine::job_progress() const {
  JobProgress job;
  job.phase = phase();
  job.moved = sums_.sum();
  job.ranks_done = sums_.ranks_done();
  job.slowest_rank = collects() ? sums_.slowest_rank() : identity_.rank;  // all ranks wait for the coordinator's own hook
  if (job.slowest_rank != -1) job.slowest = sums_.of(job.slowest_rank);
  return job;
}

}  // namespace cairn::protocol
