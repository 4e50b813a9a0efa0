#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <cairn/planning/plan.hpp>

namespace cairn {
namespace {

constexpr std::uint64_t kBlock = 128;

ReadOffer offer(std::vector<FileRange> needs, ReadOnce mode = ReadOnce::kWorld, const std::string& host = "a") {
  return {mode, host, "address on " + host, std::move(needs)};
}

std::uint64_t bytes_of(const FileRange& range) { return range.end - range.begin; }

std::map<std::uint32_t, std::uint64_t> read_by(const std::vector<SharedReads>& parts) {
  std::map<std::uint32_t, std::uint64_t> bytes;
  for (std::uint32_t rank = 0; rank < parts.size(); ++rank)
    for (const SharedRange& range : parts[rank].ranges)
      if (range.reader == rank) bytes[rank] += bytes_of(range.bytes);
  return bytes;
}

std::string described(const std::vector<ReadOffer>& offers, std::vector<SharedReads> parts) {
  LoadPlans local, global;
  for (const ReadOffer& offer : offers) {
    LoadPlan plan;
    plan.offer = offer;
    local.push_back(std::make_shared<const LoadPlan>(std::move(plan)));
  }
  for (SharedReads& part : parts) {
    LoadPlan plan;
    if (!part.ranges.empty()) plan.shared = std::make_shared<const SharedReads>(std::move(part));
    global.push_back(std::make_shared<const LoadPlan>(std::move(plan)));
  }
  return describe_read_once(local, global);
}

// Checks that each receiver finds its reader, each reader its receivers, and that nothing is read
// twice.
void check_whole(const std::vector<SharedReads>& parts) {
  std::set<std::tuple<std::uint32_t, std::uint64_t, std::uint32_t, std::uint32_t>> sent, received;
  for (std::uint32_t rank = 0; rank < parts.size(); ++rank) {
    const FileRange* last = nullptr;
    for (const SharedRange& range : parts[rank].ranges) {
      CHECK(bytes_of(range.bytes) > 0);
      if (last) CHECK((range.bytes.file > last->file || range.bytes.begin >= last->end));
      last = &range.bytes;
      if (range.reader != rank) {
        received.emplace(range.bytes.file, range.bytes.begin, range.reader, rank);
        continue;
      }
      for (const std::uint32_t to : range.receivers) {
        sent.emplace(range.bytes.file, range.bytes.begin, rank, to);
        CHECK(std::any_of(parts[rank].addresses.begin(), parts[rank].addresses.end(),
                          [&](const auto& address) { return address.first == to; }));
      }
    }
  }
  CHECK((sent == received));
}

TEST_CASE("read once: ranks that need the same bytes each read an equal part") {
  for (const std::size_t ranks : {2u, 3u, 8u, 64u}) {
    const std::vector<ReadOffer> offers(ranks, offer({{0, 0, 640 * kBlock}, {1, kBlock, 641 * kBlock}}));
    const auto parts = plan_read_once(offers, kBlock);
    check_whole(parts);
    const auto bytes = read_by(parts);
    REQUIRE(bytes.size() == ranks);
    std::uint64_t sum = 0, most = 0;
    for (const auto& [rank, read] : bytes) {
      sum += read;
      most = std::max(most, read);
    }
    CHECK(sum == 1280 * kBlock);
    CHECK(most <= (1280 / ranks + 1) * kBlock);
    for (const SharedReads& part : parts) CHECK(part.ranges.size() <= ranks + 2);
  }
}

TEST_CASE("read once: what one rank alone needs is not shared") {
  const auto parts = plan_read_once({offer({{0, 0, 4 * kBlock}}), offer({{0, 4 * kBlock, 8 * kBlock}, {2, 0, kBlock}})}, kBlock);
  for (const SharedReads& part : parts) CHECK(part.ranges.empty());
  // The bytes of rank 1 in the middle are shared by both, the rest is not.
  const auto overlap = plan_read_once({offer({{0, 0, 4 * kBlock}}), offer({{0, 2 * kBlock, 8 * kBlock}})}, kBlock);
  check_whole(overlap);
  std::uint64_t shared = 0;
  for (const auto& [rank, bytes] : read_by(overlap)) shared += bytes;
  CHECK(shared == 2 * kBlock);
}

TEST_CASE("read once: many single blocks are spread over the ranks that need them") {
  std::vector<ReadOffer> offers(4, offer({}));
  // Each block is needed by another pair of ranks.
  std::uint32_t file = 0;
  for (int round = 0; round < 2; ++round)
    for (std::size_t a = 0; a < 4; ++a)
      for (std::size_t b = a + 1; b < 4; ++b, ++file)
        for (const std::size_t rank : {a, b}) offers[rank].needs.push_back({file, 0, kBlock});
  const auto parts = plan_read_once(offers, kBlock);
  check_whole(parts);
  for (const auto& [rank, bytes] : read_by(parts)) CHECK(bytes == 3 * kBlock);
}

TEST_CASE("read once: the ranks of each host share among themselves") {
  const std::vector<FileRange> needs{{0, 0, 8 * kBlock}};
  std::vector<ReadOffer> offers{offer(needs, ReadOnce::kHost, "a"), offer(needs, ReadOnce::kHost, "b"),
                                offer(needs, ReadOnce::kHost, "a"), offer(needs, ReadOnce::kHost, "b")};
  const auto parts = plan_read_once(offers, kBlock);
  check_whole(parts);
  std::uint64_t sum = 0;
  for (const auto& [rank, bytes] : read_by(parts)) sum += bytes;
  CHECK(sum == 16 * kBlock);
  for (const auto& [rank, address] : parts[0].addresses) CHECK(rank == 2);
  CHECK(described(offers, parts) == "read_once: host, of 4096 bytes that the ranks need, 2048 come from other ranks");
}

TEST_CASE("read once: above 64 ranks each host shares among its own ranks, even if the world was asked for") {
  const std::vector<FileRange> needs{{0, 0, 8 * kBlock}};
  std::vector<ReadOffer> offers(kWorldRanksMax, offer(needs, ReadOnce::kWorld, "b"));
  offers.resize(kWorldRanksMax + 1, offer(needs, ReadOnce::kWorld, "a"));
  const auto parts = plan_read_once(offers, kBlock);
  check_whole(parts);
  CHECK(parts.back().ranges.empty());
  CHECK(described(offers, parts) ==
        "read_once: host, because there are more than 64 ranks, of 66560 bytes that the ranks need, "
        "64512 come from other ranks");
}

TEST_CASE("read once: one rank that takes no part stops all, and so does a world of one or none") {
  const std::vector<FileRange> needs{{0, 0, 8 * kBlock}};
  std::vector<ReadOffer> offers(3, offer(needs));
  offers[1].mode = ReadOnce::kOff;
  for (const SharedReads& part : plan_read_once(offers, kBlock)) CHECK(part.ranges.empty());
  CHECK(described(offers, plan_read_once(offers, kBlock)) == "read_once: off");
  CHECK(plan_read_once({offer(needs)}, kBlock).at(0).ranges.empty());
  CHECK(plan_read_once({}, kBlock).empty());
  CHECK(plan_read_once({offer({}), offer({})}, kBlock).at(1).ranges.empty());
}

}  // namespace
}  // namespace cairn
