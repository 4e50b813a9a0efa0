#include <cairn/planning/read_once.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace cairn {
namespace {

using Ranks = std::vector<std::uint32_t>;

bool is_before(const FileRange& a, const FileRange& b) { return std::tie(a.file, a.begin) < std::tie(b.file, b.begin); }

// Returns the mode of all ranks: the smallest, because kOff is the smallest that is sent.
ReadOnce mode_of(const std::vector<ReadOffer>& offers) {
  auto mode = ReadOnce::kWorld;
  for (const ReadOffer& offer : offers) mode = std::min(mode, offer.mode);
  return mode;
}

// Returns the ranges that several of the ranks need, by the ranks that need them.
std::map<Ranks, std::vector<FileRange>> needed_by_several(const std::vector<ReadOffer>& offers, const Ranks& ranks) {
  struct Edge {
    std::uint32_t file = 0;
    std::uint64_t at = 0;
    std::uint32_t rank = 0;
    bool is_begin = false;
  };
  std::vector<Edge> edges;
  for (const std::uint32_t rank : ranks)
    for (const FileRange& range : offers[rank].needs) {
      edges.push_back({range.file, range.begin, rank, true});
      edges.push_back({range.file, range.end, rank, false});
    }
  // Ends come first, because a rank's next range may begin where the last one ends.
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) {
    return std::tie(a.file, a.at, a.is_begin, a.rank) < std::tie(b.file, b.at, b.is_begin, b.rank);
  });
  std::map<Ranks, std::vector<FileRange>> shared;
  std::set<std::uint32_t> active;
  std::uint64_t since = 0;
  for (const Edge& edge : edges) {
    if (active.size() > 1 && since < edge.at)
      shared[Ranks(active.begin(), active.end())].push_back({edge.file, since, edge.at});
    since = edge.at;
    if (edge.is_begin)
      active.insert(edge.rank);
    else
      active.erase(edge.rank);
  }
  return shared;
}

class Division {
 public:
  Division(std::size_t ranks, std::uint64_t block_bytes) : parts(ranks), block_bytes_(block_bytes), blocks_read_(ranks) {}

  // Gives each rank that needs the ranges an equal part of their blocks, in one piece as far as
  // possible. The ranks that read least so far come first, because the first get what is left over.
  void divide(const Ranks& ranks, const std::vector<FileRange>& ranges) {
    Ranks readers = ranks;
    std::stable_sort(readers.begin(), readers.end(), [&](auto a, auto b) { return blocks_read_[a] < blocks_read_[b]; });
    std::uint64_t blocks = 0;
    for (const FileRange& range : ranges) blocks += blocks_of(range);
    std::uint64_t done = 0;
    std::size_t who = 0;
    for (FileRange left : ranges)
      while (left.begin < left.end) {
        const std::uint64_t limit = blocks / readers.size() * (who + 1) + std::min<std::uint64_t>(blocks % readers.size(), who + 1);
        if (done == limit) {
          ++who;
          continue;
        }
        const std::uint64_t taken = std::min(blocks_of(left), limit - done);
        FileRange piece = left;
        piece.end = std::min(left.end, left.begin + taken * block_bytes_);
        give(piece, readers[who], ranks);
        done += taken;
        left.begin = piece.end;
      }
  }

  std::vector<SharedReads> parts;

 private:
  std::uint64_t blocks_of(const FileRange& range) const { return (range.end - range.begin + block_bytes_ - 1) / block_bytes_; }

  void give(const FileRange& piece, std::uint32_t reader, const Ranks& ranks) {
    blocks_read_[reader] += blocks_of(piece);
    for (const std::uint32_t rank : ranks) {
      if (rank != reader) {
        parts[rank].ranges.push_back({piece, reader, 0});
        continue;
      }
      Ranks others = ranks;
      others.erase(std::find(others.begin(), others.end(), reader));
      auto& sets = parts[reader].receivers;
      if (sets.empty() || sets.back() != others) sets.push_back(std::move(others));
      parts[reader].ranges.push_back({piece, reader, static_cast<std::uint32_t>(sets.size() - 1)});
    }
  }

  const std::uint64_t block_bytes_;
  std::vector<std::uint64_t> blocks_read_;  // by rank; of shared ranges
};

}  // namespace

std::vector<SharedReads> plan_read_once(const std::vector<ReadOffer>& offers, std::uint64_t block_bytes) {
  Division division(offers.size(), block_bytes);
  const ReadOnce mode = mode_of(offers);
  if (mode <= ReadOnce::kOff) return std::move(division.parts);
  const bool by_host = offers.size() > kWorldRanksMax || mode == ReadOnce::kHost;
  std::map<std::string, Ranks> groups;
  for (std::uint32_t rank = 0; rank < offers.size(); ++rank) groups[by_host ? offers[rank].host : ""].push_back(rank);
  for (const auto& [host, group] : groups)
    for (const auto& [ranks, ranges] : needed_by_several(offers, group)) division.divide(ranks, ranges);
  for (SharedReads& part : division.parts) {
    std::sort(part.ranges.begin(), part.ranges.end(),
              [](const SharedRange& a, const SharedRange& b) { return is_before(a.bytes, b.bytes); });
    std::set<std::uint32_t> receivers;
    for (const Ranks& ranks : part.receivers) receivers.insert(ranks.begin(), ranks.end());
    for (const std::uint32_t rank : receivers) part.addresses.emplace_back(rank, offers[rank].address);
  }
  return std::move(division.parts);
}

std::string describe(const std::vector<ReadOffer>& offers, const std::vector<SharedReads>& parts) {
  std::uint64_t needed = 0, received = 0;
  const ReadOnce mode = mode_of(offers);
  if (mode <= ReadOnce::kOff) return "read_once: off";
  for (std::uint32_t rank = 0; rank < parts.size(); ++rank) {
    for (const FileRange& range : offers[rank].needs) needed += range.end - range.begin;
    for (const SharedRange& range : parts[rank].ranges)
      if (range.reader != rank) received += range.bytes.end - range.bytes.begin;
  }
  std::string by = mode == ReadOnce::kHost ? "host" : "world";
  if (by == "world" && offers.size() > kWorldRanksMax)
    by = "host, because there are more than " + std::to_string(kWorldRanksMax) + " ranks";
  return "read_once: " + by + ", of " + std::to_string(needed) + " bytes that the ranks need, " +
         std::to_string(received) + " come from other ranks";
}

}  // namespace cairn
