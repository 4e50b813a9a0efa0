// Loads of ranks that divide the reading, and pass on what they read through the trainer's group.
#include <cairn/tests/support/torch.hpp>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <cairn/base/error.hpp>
#include <cairn/runtime/cairn.hpp>
#include <cairn/tests/support/counted_reads.hpp>
#include <cairn/tests/support/on_ranks.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/training/process_group.hpp>

using namespace cairn;
using namespace cairn::testing;
using training::ProcessGroup;

namespace {

bool are_processes() { return std::getenv("RANK") != nullptr; }

// The numbers of ranks with which a case runs.
std::vector<int> sizes() { return are_processes() ? std::vector<int>{world().size()} : std::vector<int>{2, 3}; }

// Runs `body` on ranks that have a world, a group and a place that all of them share.
struct Rank {
  World& world;
  ProcessGroup group;
  std::string place;
};
void on_grouped_ranks(int size, const std::function<void(const Rank&)>& body) {
  if (are_processes() && world().size() != size) return;  // needs a launch of that many
  static int runs = 0;
  const TemporaryDirectory directory;
  const std::string place = counted((are_processes() ? shared_directory() : directory.path()) + "/step" + std::to_string(runs++));
  std::vector<World> worlds;
  if (!are_processes()) worlds = World::in_process(size);
  on_ranks(size, [&](const ProcessGroup& group) {
    World& own = are_processes() ? world() : worlds[static_cast<std::size_t>(group.rank())];
    body({own, group, place});
  });
}

// Returns the bytes that all ranks have read since the last call.
std::int64_t bytes_of_all(const ProcessGroup& group) {
  group.barrier();
  torch::Tensor sum = here(torch::full({1}, static_cast<std::int64_t>(reads().bytes), torch::kInt64));
  if (are_processes()) group.all_reduce(sum);
  group.barrier();
  reads().bytes = 0;
  group.barrier();
  return sum.cpu().item<std::int64_t>();
}

// Large tensors: some are cut into several pieces, of equal and unequal length.
StateDict large(bool filled) {
  const auto make = [&](at::IntArrayRef sizes, at::ScalarType type) {
    const std::int64_t count = c10::multiply_integers(sizes);
    return here((filled ? torch::arange(count, torch::kInt64) % 30011 : torch::zeros({count}, torch::kInt64)).to(type).view(sizes));
  };
  return {{"even", make({6144, 1024}, torch::kFloat32)},
          {"odd", make({517, 640}, torch::kFloat32)},
          {"one_row", make({1, 400000}, torch::kFloat32)},
          {"two_rows", make({2, 200000}, torch::kInt64)},
          {"halves", make({600001}, torch::kFloat16)}};
}

// Values that each rank reads whole.
StateDict others(bool filled) {
  const auto base = filled ? torch::arange(1 << 19, torch::kFloat32) : torch::zeros({1 << 19});
  const auto tied = here(filled ? torch::arange(1 << 18, torch::kFloat64) : torch::zeros({1 << 18}, torch::kFloat64));
  return {{"columns", here(base.view({512, 1024})).t()},
          {"small", here(filled ? torch::arange(100) : torch::zeros({100}, torch::kInt64))},
          {"scalar", here(filled ? torch::full({}, 2.5) : torch::zeros({}))},
          {"tied", Dict{{"a", tied}, {"b", tied.view({512, 512})}}},
          {"step", filled ? 41 : 0},
          {"text", filled ? "abc" : ""}};
}

bool equal(const Value& a, const Value& b) {
  if (a.is_tensor()) return is_here(a) && a.tensor().equal(b.tensor());
  if (!a.is_dict()) return a.ivalue() == b.ivalue();
  bool all = a.dict().size() == b.dict().size();
  for (const auto& [key, value] : a.dict()) all = all && equal(value, b.dict().at(key));
  return all;
}

FailureMap failures_of(const std::function<void()>& load) {
  try {
    load();
  } catch (const CheckpointException& failed) {
    return failed.failures();
  }
  FAIL("the load has succeeded");
  return {};
}

// Counts the calls of a group. Its barrier can fail after it.
class WatchedGroup final : public Collective {
 public:
  explicit WatchedGroup(const ProcessGroup& group) : list(group.ranks()), group_(group) {}
  int rank() const override { return group_.rank(); }
  const std::vector<int>& ranks() const override { return list; }
  void broadcast(const torch::Tensor& tensor, int root) const override {
    ++calls;
    roots.insert(root);
    group_.broadcast(tensor, root);
  }
  void barrier() const override {
    ++calls;
    group_.barrier();
    if (fails) throw Error(ErrorCode::kUnavailable, "the switch is gone");
  }

  std::vector<int> list;
  bool fails = false;
  mutable int calls = 0;
  mutable std::set<int> roots;

 private:
  const ProcessGroup group_;
};

LoadOptions dividing(const std::shared_ptr<const Collective>& group) {
  LoadOptions options;
  options.replica_group = group;
  return options;
}

}  // namespace

TEST_CASE("replica group: every byte of large tensors is read once, and every rank has every value") {
  for (const int size : sizes())
    on_grouped_ranks(size, [&](const Rank& rank) {
      Checkpointer checkpointer(rank.world);
      checkpointer.save(large(true), rank.place);
      bytes_of_all(rank.group);
      StateDict state = large(false);
      checkpointer.load(state, rank.place);
      const std::int64_t all_read = bytes_of_all(rank.group);
      CHECK(equal(state, large(true)));
      state = large(false);
      std::map<std::string, std::uint32_t> versions;
      for (const auto& [key, value] : state) versions[key] = value.tensor()._version();
      const auto group = std::make_shared<WatchedGroup>(rank.group);
      checkpointer.load(state, rank.place, dividing(group));
      const std::int64_t once = bytes_of_all(rank.group);
      CHECK(equal(state, large(true)));
      for (const auto& [key, value] : state) CHECK(value.tensor()._version() > versions.at(key));
      CHECK(group->roots.size() == static_cast<std::size_t>(size));
      CHECK(once * size <= 1.05 * static_cast<double>(all_read));
    });
}

TEST_CASE("replica group: small, strided and tied tensors, and values other than tensors, load as without a group") {
  for (const int size : sizes())
    on_grouped_ranks(size, [&](const Rank& rank) {
      Checkpointer checkpointer(rank.world);
      StateDict saved = others(true);
      saved["large"] = large(true);
      saved["own"] = per_rank(torch::full({1 << 18}, rank.world.rank(), torch::kInt64));
      checkpointer.save(saved, rank.place);
      StateDict state = others(false);
      state["large"] = large(false);
      state["own"] = per_rank(torch::full({1 << 18}, -1, torch::kInt64));
      LoadOptions options = dividing(std::make_shared<ProcessGroup>(rank.group));
      options.read_once = ReadOnce::kWorld;
      checkpointer.load(state, rank.place, options);
      CHECK(state.at("own").tensor().equal(saved.at("own").tensor()));
      state.erase("own");
      saved.erase("own");
      CHECK(equal(Value(state), Value(saved)));
    });
}

TEST_CASE("replica group: views of one memory, parameters, modules and marks stay as they are") {
  for (const int size : sizes())
    on_grouped_ranks(size, [&](const Rank& rank) {
      Checkpointer checkpointer(rank.world);
      const auto value = here(torch::arange(3 << 20, torch::kFloat32));
      torch::nn::Linear saved(600, 800), model(600, 800);
      saved->to(rank_device());
      model->to(rank_device());
      rank.group.broadcast(saved->weight.detach(), 0);
      rank.group.broadcast(saved->bias.detach(), 0);
      checkpointer.save(
          {{"a", value}, {"b", value.detach()}, {"c", value.view({3, -1})}, {"parameter", value.clone()}, {"model", saved}},
          rank.place);
      const auto memory = torch::zeros_like(value), parameter = torch::zeros_like(value).set_requires_grad(true);
      StateDict state{{"a", memory}, {"b", memory.detach()}, {"c", memory.view({3, -1})}, {"model", model}};
      state["parameter"] = parameter;
      StateDict nested{{"outer", frozen(Dict{{"inner", torch::zeros_like(value)}})}};
      const auto group = std::make_shared<WatchedGroup>(rank.group);
      checkpointer.load(state, rank.place, dividing(group));
      CHECK(memory.equal(value));
      CHECK(parameter.detach().equal(value));
      CHECK(parameter.is_leaf());
      CHECK(parameter.requires_grad());
      CHECK(model->weight.equal(saved->weight));
      CHECK(group->calls > 1);
      checkpointer.save({{"outer", Dict{{"inner", value}}}}, rank.place + "_nested");
      checkpointer.load(nested, rank.place + "_nested", dividing(group));
      CHECK(nested["outer"]["inner"].tensor().equal(value));
      CHECK(nested["outer"].is_frozen());
      CHECK_FALSE(nested["outer"]["inner"].is_frozen());
    });
}

TEST_CASE("replica group: loads that check all bytes first, or load by keys, use no group") {
  on_grouped_ranks(sizes().front(), [&](const Rank& rank) {
    Checkpointer checkpointer(rank.world);
    checkpointer.save(large(true), rank.place);
    const auto group = std::make_shared<WatchedGroup>(rank.group);
    LoadOptions options = dividing(group);
    CHECK(checkpointer.load_by_keys(rank.place, {}, options).at("even").tensor().equal(large(true).at("even").tensor().cpu()));
    options.reader.verify_first = true;
    StateDict state = large(false);
    checkpointer.load(state, rank.place, options);
    CHECK(equal(state, large(true)));
    CHECK(group->calls == 0);
  });
}

TEST_CASE("replica group: its ranks may have another order than those of the world") {
  on_grouped_ranks(3, [&](const Rank& rank) {
    Checkpointer checkpointer(rank.world);
    checkpointer.save(large(true), rank.place);
    StateDict state = large(false);
    checkpointer.load(state, rank.place, dividing(std::make_shared<ProcessGroup>(rank.group.subgroup({2, 0, 1}, "turned"))));
    CHECK(equal(state, large(true)));
  });
}

TEST_CASE("replica group: a missing tensor keeps each rank's value, and dtypes are converted") {
  on_grouped_ranks(sizes().back(), [&](const Rank& rank) {
    Checkpointer checkpointer(rank.world);
    const auto whole = here(torch::arange(1 << 19, torch::kFloat32));
    checkpointer.save({{"w", whole}}, rank.place);
    const auto own = here(torch::full({1 << 19}, rank.world.rank(), torch::kFloat32));
    StateDict state{{"w", torch::zeros_like(whole, torch::kFloat64)}, {"new", own.clone()}, {"newer", if_stored(own.clone())}};
    LoadOptions options = dividing(std::make_shared<ProcessGroup>(rank.group));
    options.planning.allow_partial_load = options.planning.allow_dtype_cast = true;
    CHECK(checkpointer.load(state, rank.place, options).missing == std::vector<std::string>{"new"});
    CHECK(state["w"].tensor().equal(whole.to(torch::kFloat64)));
    CHECK(state["new"].tensor().equal(own));
    CHECK(state["newer"].tensor().equal(own));
  });
}

TEST_CASE("replica group: with hybrid sharding, the replicas of a shard divide its rows") {
  on_grouped_ranks(4, [&](const Rank& rank) {
    Checkpointer checkpointer(rank.world);
    const int own = rank.world.rank();
    const std::int64_t rows = 1201, columns = 1024;
    const auto whole = here(torch::arange(2 * rows * columns, torch::kInt64).view({2 * rows, columns}));
    checkpointer.save({{"w", whole}}, rank.place);
    const auto replicas = rank.group.subgroup({own % 2, own % 2 + 2}, "replicas" + std::to_string(own % 2));
    const auto part = here(torch::zeros({rows, columns}, torch::kInt64));
    StateDict state{{"w", ShardedTensor({2 * rows, columns}, DType::kInt64, {{part, {own % 2 * rows, 0}}})}};
    bytes_of_all(rank.group);
    checkpointer.load(state, rank.place, dividing(std::make_shared<ProcessGroup>(replicas)));
    CHECK(bytes_of_all(rank.group) <= 1.05 * static_cast<double>(whole.nbytes()));
    CHECK(part.equal(whole.narrow(0, own % 2 * rows, rows)));
    CHECK(state["w"].sharded().local_shards().size() == 1);
  });
}

TEST_CASE("replica group: a group that fails on a rank fails the load of all with one map, and the next load works") {
  std::mutex mutex;
  std::vector<FailureMap> maps;
  on_grouped_ranks(sizes().back(), [&](const Rank& rank) {
    Checkpointer checkpointer(rank.world);
    checkpointer.save(large(true), rank.place);
    const auto group = std::make_shared<WatchedGroup>(rank.group);
    group->fails = rank.world.rank() == 1;
    const LoadOptions options = dividing(group);
    StateDict state = large(false);
    const FailureMap map = failures_of([&] { checkpointer.load(state, rank.place, options); });
    REQUIRE(map.size() == 1);
    CHECK(map.begin()->first == 1);
    CHECK(map.begin()->second.code == ErrorCode::kUnavailable);
    CHECK(map.begin()->second.what == "the switch is gone");
    CHECK((map.begin()->second.exception != nullptr) == group->fails);
    {
      const std::lock_guard lock(mutex);
      maps.push_back(map);
    }
    group->fails = false;
    checkpointer.load(state, rank.place, options);
    CHECK(equal(state, large(true)));
  });
  for (const FailureMap& map : maps) CHECK((map == maps.front()));
}

TEST_CASE("replica group: if the load of a rank fails, nothing is passed on") {
  if (are_processes()) return;
  std::atomic<int> left{0};
  reads().before = [&](const DecoratedOperation&) {
    if (left-- == 1) throw Error(ErrorCode::kUnavailable, "the disk is gone");
  };
  on_grouped_ranks(3, [&](const Rank& rank) {
    Checkpointer checkpointer(rank.world);
    checkpointer.save(large(true), rank.place);
    const auto group = std::make_shared<WatchedGroup>(rank.group);
    const LoadOptions options = dividing(group);
    StateDict state = large(false);
    rank.group.barrier();
    if (rank.world.rank() == 0) left = 3;
    rank.group.barrier();
    const FailureMap map = failures_of([&] { checkpointer.load(state, rank.place, options); });
    REQUIRE(map.size() == 1);
    CHECK(map.begin()->second.what.find("the disk is gone") != std::string::npos);
    CHECK(group->calls == 0);
    checkpointer.load(state, rank.place, options);
    CHECK(equal(state, large(true)));
    CHECK(group->calls > 0);
  });
  reads().before = nullptr;
}

TEST_CASE("replica group: ranks that load into different tensors, or give a group of others or none, fail together") {
  on_grouped_ranks(sizes().back(), [&](const Rank& rank) {
    Checkpointer checkpointer(rank.world);
    StateDict saved = large(true);
    saved["other"] = saved.at("even").tensor().clone();
    checkpointer.save(saved, rank.place);
    const bool differs = rank.world.rank() == 1;
    const auto group = std::make_shared<WatchedGroup>(rank.group);
    LoadOptions options = dividing(group);
    StateDict state = large(false);
    if (differs) state["other"] = torch::zeros_like(saved.at("other").tensor());
    FailureMap map = failures_of([&] { checkpointer.load(state, rank.place, options); });
    CHECK(map.begin()->second.code == ErrorCode::kMismatch);
    CHECK(map.begin()->second.what.find("ranks 0 and 1 load into different tensors") != std::string::npos);
    state.erase("other");
    const std::vector<int> all = group->list;
    if (differs) std::swap(group->list[0], group->list[1]);
    map = failures_of([&] { checkpointer.load(state, rank.place, options); });
    REQUIRE(map.size() == 1);
    CHECK(map.at(1).code == ErrorCode::kInvalidArgument);
    group->list = all;
    if (differs) group->list.push_back(99);
    map = failures_of([&] { checkpointer.load(state, rank.place, options); });
    CHECK(map.begin()->second.code == ErrorCode::kMismatch);
    CHECK(map.begin()->second.what.find("ranks that have another one") != std::string::npos);
    group->list = all;
    if (differs) options.replica_group = nullptr;
    map = failures_of([&] { checkpointer.load(state, rank.place, options); });
    CHECK(map.at(1).what.find("replica_group") != std::string::npos);
    CHECK(group->calls == 0);
  });
}

TEST_CASE("replica group: tied tensors need equal values in the checkpoint, as without a group") {
  for (const int size : sizes())
    on_grouped_ranks(size, [&](const Rank& rank) {
      Checkpointer checkpointer(rank.world);
      // Each is one piece, and the ranks read the pieces in turn.
      const auto value = here(torch::arange(1 << 19, torch::kFloat32));
      auto other = value.clone();
      other[77] = -1;
      checkpointer.save({{"a", value.clone()}, {"b", value}, {"c", value.clone()}, {"d", other}}, rank.place);
      const auto tied = torch::zeros_like(value), apart = torch::zeros_like(value);
      StateDict state{{"a", apart}, {"b", tied}, {"c", tied}};
      checkpointer.load(state, rank.place, dividing(std::make_shared<ProcessGroup>(rank.group)));
      CHECK(tied.equal(value));
      CHECK(apart.equal(value));
      state = {{"a", apart}, {"b", tied}, {"d", tied}};
      const FailureMap map =
          failures_of([&] { checkpointer.load(state, rank.place, dividing(std::make_shared<ProcessGroup>(rank.group))); });
      CHECK(map.begin()->second.code == ErrorCode::kMismatch);
      CHECK(tied.equal(value));
    });
}

TEST_CASE("replica group: tensors that share some of their memory are refused, as without a group") {
  on_grouped_ranks(sizes().front(), [&](const Rank& rank) {
    Checkpointer checkpointer(rank.world);
    const auto whole = here(torch::arange(1 << 20, torch::kFloat32));
    checkpointer.save({{"a", whole.narrow(0, 0, 600000)}, {"b", whole.narrow(0, 400000, 600000)}}, rank.place);
    const auto memory = torch::zeros_like(whole);
    StateDict state{{"a", memory.narrow(0, 0, 600000)}, {"b", memory.narrow(0, 400000, 600000)}};
    const FailureMap map =
        failures_of([&] { checkpointer.load(state, rank.place, dividing(std::make_shared<ProcessGroup>(rank.group))); });
    CHECK(map.begin()->second.code == ErrorCode::kMismatch);
    CHECK(memory.eq(0).all().item<bool>());
  });
}
