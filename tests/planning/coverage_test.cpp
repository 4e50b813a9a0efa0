#include <cairn/tests/support/plain.hpp>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include <cairn/base/error.hpp>
#include <cairn/planning/global_plan.hpp>
#include <cairn/tests/support/layouts.hpp>

namespace cairn {
namespace {

using Kind = CoverageFault::Kind;
using testing::for_each_element;
using testing::random_tiling;

std::vector<CoverageFault> check(const Extents& size, const std::vector<Box>& chunks) { return check_coverage("t", size, chunks); }

void shuffle(std::vector<Box>& boxes, Random& random) {
  for (std::size_t i = boxes.size(); i > 1; --i) std::swap(boxes[i - 1], boxes[random.next() % i]);
}

TEST_CASE("a gap is told with its exact bounds") {
  const auto faults = check({10}, {{{0}, {3}}, {{7}, {3}}});
  REQUIRE(faults.size() == 1);
  CHECK(faults[0].kind == Kind::kGap);
  CHECK(faults[0].first == Box{{3}, {4}});
  CHECK(to_string(faults[0]) == "'t' lacks data in [3:7]");
  CHECK(check({4, 4}, {}).at(0).first == Box::whole({4, 4}));
  CHECK(check({}, {}).size() == 1);
}

TEST_CASE("a gap between interlocking chunks is told with their region") {
  const std::vector<Box> blades{{{0, 0}, {1, 2}}, {{0, 2}, {2, 1}}, {{2, 1}, {1, 2}}, {{1, 0}, {2, 1}}};
  const auto faults = check({3, 4}, blades);
  REQUIRE(faults.size() == 2);
  CHECK(to_string(faults[0]) == "'t' lacks data in [0:3, 0:3]");
  CHECK(to_string(faults[1]) == "'t' lacks data in [0:3, 3:4]");
}

TEST_CASE("an overlap names both chunks") {
  const auto faults = check({10}, {{{0}, {6}}, {{5}, {5}}});
  REQUIRE(faults.size() == 1);
  CHECK(faults[0].kind == Kind::kOverlap);
  CHECK(faults[0].first == Box{{0}, {6}});
  CHECK(faults[0].second == Box{{5}, {5}});
  CHECK(to_string(faults[0]) == "'t' has overlapping chunks [0:6] and [5:10]");
  CHECK(check({}, {Box{}, Box{}}).at(0).kind == Kind::kOverlap);
  CHECK(check({4, 4}, std::vector<Box>(3000, Box::whole({4, 4}))).size() <= 1024);  // the report is bounded
}

TEST_CASE("a chunk that reaches outside is told as it is, and covers what lies inside") {
  const auto faults = check({10}, {{{0}, {6}}, {{6}, {5}}});
  REQUIRE(faults.size() == 1);
  CHECK(faults[0].kind == Kind::kOutside);
  CHECK(faults[0].first == Box{{6}, {5}});
  CHECK(to_string(faults[0]) == "'t' has a chunk outside the tensor: [6:11]");
  CHECK(check({4}, {{{0}, {4}}, {{0, 0}, {2, 2}}}).size() == 1);
  CHECK(check({4}, {{{0}, {4}}, {{-1}, {1}}}).size() == 1);
  CHECK(check({4}, {{{0}, {4}}, {{2}, {-1}}}).size() == 1);
  CHECK(check({0, 4}, {{{0, 0}, {1, 4}}}).at(0).kind == Kind::kOutside);
}

TEST_CASE("sound layouts have no faults") {
  CHECK(check({}, {Box{}}).empty());
  CHECK(check({10}, {{{0}, {10}}}).empty());
  CHECK(check({10}, {{{5}, {5}}, {{0}, {5}}, {{5}, {0}}, {{10}, {0}}}).empty());
  CHECK(check({0, 4}, {}).empty());
  CHECK(check({0, 4}, {{{0, 0}, {0, 4}}, {{0, 0}, {0, 2}}}).empty());
  // No straight cut divides a pinwheel, yet it tiles the tensor.
  CHECK(check({3, 3}, {{{0, 0}, {1, 2}}, {{0, 2}, {2, 1}}, {{2, 1}, {1, 2}}, {{1, 0}, {2, 1}}, {{1, 1}, {1, 1}}}).empty());
}

// Compares the sweep with a count of marks on every element: the overlapping pairs, and the
// elements that are missing. If straight cuts separate the chunks, gaps have exact bounds.
void compare_with_marking(const Extents& size, const std::vector<Box>& chunks, bool is_straight) {
  std::vector<int> marks(static_cast<std::size_t>(volume(size)), 0);
  for (const Box& chunk : chunks) for_each_element(chunk, size, [&](const Extents&, std::size_t linear) { ++marks[linear]; });
  std::set<std::pair<Box, Box>> pairs;
  for (std::size_t i = 0; i < chunks.size(); ++i)
    for (std::size_t j = i + 1; j < chunks.size(); ++j)
      if (overlaps(chunks[i], chunks[j])) pairs.insert({std::min(chunks[i], chunks[j]), std::max(chunks[i], chunks[j])});

  std::set<std::pair<Box, Box>> found;
  std::vector<Box> gaps;
  for (const CoverageFault& fault : check(size, chunks)) {
    REQUIRE(fault.kind != Kind::kOutside);
    if (fault.kind == Kind::kOverlap) {
      found.insert({std::min(fault.first, fault.second), std::max(fault.first, fault.second)});
      continue;
    }
    gaps.push_back(fault.first);
    std::int64_t missing = 0;
    for_each_element(fault.first, size, [&](const Extents&, std::size_t linear) { missing += marks[linear] == 0 ? 1 : 0; });
    CHECK(missing >= (is_straight ? volume(fault.first.sizes) : 1));
  }
  CHECK(found == pairs);
  // Overlaps may hide a gap between interlocking chunks.
  if (!pairs.empty()) return;
  for_each_element(Box::whole(size), size, [&](const Extents& at, std::size_t linear) {
    if (marks[linear] > 0) return;
    const Box element{at, Extents::filled(size.size(), 1)};
    CHECK(std::any_of(gaps.begin(), gaps.end(), [&](const Box& gap) { return contains(gap, element); }));
  });
}

TEST_CASE("random boxes: the sweep agrees with marking every element") {
  const auto random = seeded_random(31);
  for (const Extents& size : {Extents{9}, Extents{6, 7}, Extents{4, 3, 5}}) {
    for (int round = 0; round < 300; ++round) {
      CAPTURE(round);
      std::vector<Box> chunks = random_tiling(size, static_cast<int>(random->next() % 12), *random);
      shuffle(chunks, *random);
      compare_with_marking(size, chunks, true);
      // Removes one chunk, moves one, adds one.
      const auto any = [&] { return random->next() % chunks.size(); };
      if (round % 3 == 0) chunks.erase(chunks.begin() + static_cast<std::ptrdiff_t>(any()));
      if (round % 4 == 0 && !chunks.empty()) {
        Box& box = chunks[any()];
        for (std::size_t dim = 0; dim < size.size(); ++dim)
          box.offsets[dim] = std::min(box.offsets[dim] + 1, size[dim] - box.sizes[dim]);
      }
      if (round % 5 == 0) {
        Box box = Box::whole(size);
        for (std::size_t dim = 0; dim < size.size(); ++dim) {
          box.offsets[dim] = static_cast<std::int64_t>(random->next() % static_cast<std::uint64_t>(size[dim]));
          box.sizes[dim] = static_cast<std::int64_t>(random->next() % static_cast<std::uint64_t>(size[dim] - box.offsets[dim] + 1));
        }
        chunks.push_back(box);
      }
      compare_with_marking(size, chunks, round % 4 != 0 && round % 5 != 0);
    }
  }
}

TEST_CASE("an impossible tensor is refused") { CHECK_THROWS_AS(check({-1}, {}), Error); }

}  // namespace
}  // namespace cairn
