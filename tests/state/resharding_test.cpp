// Loads from every layout into every layout, through memory.
#include <cairn/base/error.hpp>
#include <cairn/tests/state/memory_checkpoint.hpp>

using namespace cairn;
using namespace cairn::test;

namespace {

// A layout of a matrix over `world` ranks. `part` returns the value that `rank` holds.
struct Layout {
  std::string name;
  int world;
  std::function<Value(const torch::Tensor& whole, int rank)> part;
};

Layout by_mesh(std::string name, const DeviceMesh& mesh, std::vector<Placement> placements, int world) {
  return {std::move(name), world,
          [=](const torch::Tensor& whole, int rank) { return Value(ShardedTensor::distribute(whole, mesh, placements, rank)); }};
}

std::vector<Layout> layouts() {
  std::vector<Layout> all;
  for (const int world : {1, 2, 3, 4}) {
    const std::string of = " of " + std::to_string(world);
    all.push_back({"replicated" + of, world, [](const torch::Tensor& whole, int) { return Value(whole.clone()); }});
    all.push_back(by_mesh("rows" + of, DeviceMesh({world}), {Shard{0}}, world));
    all.push_back(by_mesh("columns" + of, DeviceMesh({world}), {Shard{1}}, world));
    all.push_back({"last rank only" + of, world, [world](const torch::Tensor& whole, int rank) {
                     return Value(ShardedTensor::distribute(whole, {0, {world - 1}}, rank));
                   }});
  }
  all.push_back(by_mesh("grid", DeviceMesh({2, 2}), {Shard{0}, Shard{1}}, 4));
  all.push_back(by_mesh("rows twice", DeviceMesh({2, 2}), {Shard{0}, Shard{0}}, 4));
  all.push_back(by_mesh("hybrid", DeviceMesh({2, 2}), {Replicate{}, Shard{0}}, 4));
  all.push_back({"many parts a rank", 2, [](const torch::Tensor& whole, int rank) {
                   return Value(ShardedTensor::distribute(whole, {0, {0, 1, 0, 1, 1}}, rank));
                 }});
  all.push_back({"by hand", 2, [](const torch::Tensor& whole, int rank) {
                   const Extents size = extents_of(whole.sizes());
                   const std::int64_t columns = whole.size(1), cut = columns / 3;
                   const auto shard = [&](std::int64_t begin, std::int64_t end) {
                     return LocalShard{whole.slice(1, begin, end).clone().t().contiguous().t(), {0, begin}};
                   };
                   return Value(
                       ShardedTensor(size, *dtype_of(whole.scalar_type()), {rank == 0 ? shard(0, cut) : shard(cut, columns)}));
                 }});
  return all;
}

std::vector<StateDict> states(const Layout& layout, const torch::Tensor& whole) {
  std::vector<StateDict> result;
  for (int rank = 0; rank < layout.world; ++rank) result.push_back({{"m", Dict{{"w", layout.part(whole, rank)}}}});
  return result;
}

void check_filled(const Value& filled, const Value& expected) {
  if (filled.is_tensor()) {
    CHECK(same(filled.tensor(), expected.tensor()));
    return;
  }
  REQUIRE(filled.sharded().local_shards().size() == expected.sharded().local_shards().size());
  for (std::size_t i = 0; i < filled.sharded().local_shards().size(); ++i) {
    CHECK(same(filled.sharded().local_shards()[i].tensor, expected.sharded().local_shards()[i].tensor));
  }
}

}  // namespace

TEST_CASE("what any layout saves, any layout loads") {
  for (const auto& size : std::vector<std::vector<std::int64_t>>{{7, 5}, {2, 9}, {0, 4}}) {
    const torch::Tensor whole = counted(size);
    for (const Layout& from : layouts()) {
      const MemoryCheckpoint checkpoint = save(states(from, whole));
      for (const Layout& to : layouts()) {
        CAPTURE(from.name);
        CAPTURE(to.name);
        std::vector<StateDict> targets = states(to, torch::zeros_like(whole));
        const std::vector<StateDict> expected = states(to, whole);
        for (int rank = 0; rank < to.world; ++rank) {
          const auto position = static_cast<std::size_t>(rank);
          load(checkpoint, targets[position], rank);
          check_filled(targets[position]["m"]["w"], expected[position].at("m")["w"]);
        }
      }
    }
  }
}

TEST_CASE("ranks whose dicts are empty do not hide what others have in them") {
  const MemoryCheckpoint checkpoint = save({{{"state", Dict{}}}, {{"state", Dict{{"w", counted({2})}, {"n", 4}}}}});
  const auto planner = make_key_load_planner({});
  StateDict state;
  load(checkpoint, state, 0, *planner);
  CHECK(same(state["state"]["w"].tensor(), counted({2})));
  CHECK(state["state"]["n"].to_int() == 4);
}
