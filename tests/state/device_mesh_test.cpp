// The expected boxes were recorded from PyTorch 2.14's _compute_local_shape_and_global_offset.
#include <cairn/base/error.hpp>
#include <cairn/planning/device_mesh.hpp>
#include <cairn/tests/state/memory_checkpoint.hpp>

using namespace cairn;
using namespace cairn::test;

namespace {

using Boxes = std::vector<Box>;

Boxes boxes(const Extents& size, const DeviceMesh& mesh, const std::vector<Placement>& placements) {
  Boxes result;
  for (const int rank : mesh.ranks()) {
    const auto box = local_box(size, mesh, placements, rank);
    REQUIRE(box.has_value());
    CHECK(fits(*box, size));
    result.push_back(*box);
  }
  return result;
}

Box line(std::int64_t offset, std::int64_t size) { return {{offset}, {size}}; }

}  // namespace

TEST_CASE("a mesh that cannot be is refused") {
  const auto refused = [](auto make) { return code_of([&] { make(); }) == ErrorCode::kInvalidArgument; };
  CHECK(refused([] { DeviceMesh(std::vector<std::int64_t>{}); }));
  CHECK(refused([] { DeviceMesh({2, 0}); }));
  CHECK(refused([] { DeviceMesh({-1}); }));
  CHECK(refused([] { DeviceMesh({std::int64_t{1} << 40, std::int64_t{1} << 40}); }));
  CHECK(refused([] { DeviceMesh({2, 2}, {"dp"}); }));
  CHECK(refused([] { DeviceMesh({2, 2}, {"dp", "dp"}); }));
  CHECK(refused([] { DeviceMesh({2}, {0, 1, 2}); }));
  CHECK(refused([] { DeviceMesh({2}, {1, 1}); }));
  CHECK(refused([] { DeviceMesh({2}, {0, -1}); }));
}

TEST_CASE("coordinates are row-major, and a mesh may leave ranks out") {
  const DeviceMesh mesh({2, 3}, {"dp", "tp"});
  CHECK(mesh.axis_names() == std::vector<std::string>{"dp", "tp"});
  CHECK(*mesh.coordinate(0) == std::vector<std::int64_t>{0, 0});
  CHECK(*mesh.coordinate(5) == std::vector<std::int64_t>{1, 2});
  CHECK_FALSE(mesh.coordinate(6).has_value());
  CHECK_FALSE(mesh.coordinate(-1).has_value());
  const DeviceMesh some({2, 2}, {7, 1, 3, 0}, {"a", "b"});
  CHECK(*some.coordinate(7) == std::vector<std::int64_t>{0, 0});
  CHECK(*some.coordinate(1) == std::vector<std::int64_t>{0, 1});
  CHECK(*some.coordinate(0) == std::vector<std::int64_t>{1, 1});
  CHECK_FALSE(some.coordinate(2).has_value());
  CHECK_FALSE(local_box({8}, some, {Shard{0}, Replicate{}}, 2).has_value());
}

TEST_CASE("placements that do not fit are refused") {
  const DeviceMesh mesh({2, 2});
  CHECK(code_of([&] { local_box({4, 4}, mesh, {Shard{0}}, 0); }) == ErrorCode::kInvalidArgument);
  CHECK(thrown_by([&] { local_box({4, 4}, mesh, {Shard{2}, Replicate{}}, 0); }) == Saying{ErrorCode::kInvalidArgument, "Shard(2)"});
  CHECK(code_of([&] { local_box({4, 4}, mesh, {Shard{-3}, Replicate{}}, 0); }) == ErrorCode::kInvalidArgument);
  CHECK(code_of([&] { local_box({}, mesh, {Shard{0}, Replicate{}}, 0); }) == ErrorCode::kInvalidArgument);
}

TEST_CASE("one axis cuts as PyTorch does: even, uneven, empty") {
  CHECK((boxes({10}, DeviceMesh({4}), {Shard{0}}) == Boxes{line(0, 3), line(3, 3), line(6, 3), line(9, 1)}));
  CHECK((boxes({5}, DeviceMesh({4}), {Shard{0}}) == Boxes{line(0, 2), line(2, 2), line(4, 1), line(5, 0)}));
  CHECK((boxes({3}, DeviceMesh({4}), {Shard{0}}) == Boxes{line(0, 1), line(1, 1), line(2, 1), line(3, 0)}));
  CHECK((boxes({1}, DeviceMesh({3}), {Shard{0}}) == Boxes{line(0, 1), line(1, 0), line(1, 0)}));
  CHECK((boxes({0}, DeviceMesh({2}), {Shard{0}}) == Boxes{line(0, 0), line(0, 0)}));
  CHECK((boxes({4, 4}, DeviceMesh({3}), {Shard{-1}}) == Boxes{{{0, 0}, {4, 2}}, {{0, 2}, {4, 2}}, {{0, 4}, {4, 0}}}));
  CHECK((boxes({}, DeviceMesh({2}), {Replicate{}}) == Boxes{Box{}, Box{}}));
}

TEST_CASE("several axes cut from left to right") {
  CHECK((boxes({10, 7}, DeviceMesh({2, 2}), {Shard{0}, Shard{0}}) ==
         Boxes{{{0, 0}, {3, 7}}, {{3, 0}, {2, 7}}, {{5, 0}, {3, 7}}, {{8, 0}, {2, 7}}}));
  CHECK((boxes({10, 7}, DeviceMesh({2, 3}), {Shard{0}, Shard{1}}) ==
         Boxes{{{0, 0}, {5, 3}}, {{0, 3}, {5, 3}}, {{0, 6}, {5, 1}}, {{5, 0}, {5, 3}}, {{5, 3}, {5, 3}}, {{5, 6}, {5, 1}}}));
  CHECK(
      ((boxes({10, 7}, DeviceMesh({2, 3}), {Shard{1}, Shard{1}}) ==
        Boxes{{{0, 0}, {10, 2}}, {{0, 2}, {10, 2}}, {{0, 7}, {10, 0}}, {{0, 4}, {10, 1}}, {{0, 5}, {10, 1}}, {{0, 6}, {10, 1}}})));
  CHECK((boxes({9, 4}, DeviceMesh({2, 2}), {Replicate{}, Shard{0}}) ==
         Boxes{{{0, 0}, {5, 4}}, {{5, 0}, {4, 4}}, {{0, 0}, {5, 4}}, {{5, 0}, {4, 4}}}));
}

TEST_CASE("placements print as PyTorch's") {
  CHECK(to_string(Placement{Shard{1}}) == "Shard(1)");
  CHECK(to_string(Placement{Replicate{}}) == "Replicate()");
}
