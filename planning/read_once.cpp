#include <cairn/planning/read_once.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace cairn {
namespace {

using Ranks = std::vector<std::uint32_t>;

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
    if (active.size() > 1 && since < edge.at) shared[Ranks(active.begin(), active.end())].push_back({edge.file, since, edge.at});
    since = edge.at;
    if (edge.is_begin)
      active.insert(edge.rank);
    else
      active.erase(edge.rank);
  }
  return shared;
}

// Gives each rank that needs the ranges an equal part of their blocks, in one piece as far as
// possible. The ranks that read least so far come first, because the first get what is left over.
void divide(const Ranks& ranks, const std::vector<FileRange>& ranges, std::uint64_t block_bytes,
            std::vector<std::uint64_t>& blocks_read, std::vector<SharedReads>& parts) {
  const auto blocks_of = [&](const FileRange& range) { return (range.end - range.begin + block_bytes - 1) / block_bytes; };
  Ranks readers = ranks;
  std::stable_sort(readers.begin(), readers.end(), [&](auto a, auto b) { return blocks_read[a] < blocks_read[b]; });
  std::uint64_t blocks = 0;
  for (const FileRange& range : ranges) blocks += blocks_of(range);
  std::size_t next = 0;
  std::uint64_t quota = 0;  // blocks that the current reader still gets
  for (FileRange left : ranges)
    while (left.begin < left.end) {
      if (quota == 0) {
        quota = blocks / readers.size() + (next < blocks % readers.size() ? 1 : 0);
        ++next;
      }
      const std::uint32_t reader = readers[next - 1];
      const std::uint64_t taken = std::min(blocks_of(left), quota);
      SharedRange piece{{left.file, left.begin, std::min(left.end, left.begin + taken * block_bytes)}, reader, {}};
      for (const std::uint32_t rank : ranks)
        if (rank != reader) parts[rank].ranges.push_back(piece);
      for (const std::uint32_t rank : ranks)
        if (rank != reader) piece.receivers.push_back(rank);
      left.begin = piece.bytes.end;
      parts[reader].ranges.push_back(std::move(piece));
      blocks_read[reader] += taken;
      quota -= taken;
    }
}

}  // namespace

std::vector<SharedReads> plan_read_once(const std::vector<ReadOffer>& offers, std::uint64_t block_bytes) {
  std::vector<SharedReads> parts(offers.size());
  auto mode = ReadOnce::kWorld;
  for (const ReadOffer& offer : offers) mode = std::min(mode, offer.mode);
  if (mode <= ReadOnce::kOff) return parts;
  const bool by_host = offers.size() > kWorldRanksMax || mode == ReadOnce::kHost;
  std::map<std::string, Ranks> groups;
  for (std::uint32_t rank = 0; rank < offers.size(); ++rank) groups[by_host ? offers[rank].host : ""].push_back(rank);
  std::vector<std::uint64_t> blocks_read(offers.size());  // by rank; of shared ranges
  for (const auto& [host, group] : groups)
    for (const auto& [ranks, ranges] : needed_by_several(offers, group)) divide(ranks, ranges, block_bytes, blocks_read, parts);
  for (SharedReads& part : parts) {
    std::sort(part.ranges.begin(), part.ranges.end(), [](const SharedRange& a, const SharedRange& b) {
      return std::tie(a.bytes.file, a.bytes.begin) < std::tie(b.bytes.file, b.bytes.begin);
    });
    std::set<std::uint32_t> receivers;
    for (const SharedRange& range : part.ranges) receivers.insert(range.receivers.begin(), range.receivers.end());
    for (const std::uint32_t rank : receivers) part.addresses.emplace_back(rank, offers[rank].address);
  }
  return parts;
}

}  // namespace cairn
