#include <cairn/tests/support/plain.hpp>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <cairn/base/error.hpp>
#include <cairn/base/random.hpp>
#include <cairn/planning/global_plan.hpp>
#include <cairn/tests/support/layouts.hpp>

namespace cairn {
namespace {

using testing::all_layouts;
using testing::for_each_element;

WriteItem tensor_item(SavePlan& plan, const std::string& name, const Extents& size, DType dtype = DType::kFloat32) {
  WriteItem item;
  item.name = plan.names.intern(name);
  item.type = WriteItemType::kTensor;
  item.properties.dtype = dtype;
  item.size = size;
  item.chunk = Box::whole(size);
  return item;
}

void add_tensor(SavePlan& plan, const std::string& name, const Extents& size, DType dtype = DType::kFloat32) {
  plan.items.push_back(tensor_item(plan, name, size, dtype));
}

void add_shard(SavePlan& plan, const std::string& name, const Extents& size, const Box& chunk) {
  WriteItem item = tensor_item(plan, name, size);
  item.type = WriteItemType::kShard;
  item.chunk = chunk;
  plan.items.push_back(item);
}

void add_bytes(SavePlan& plan, const std::string& name, std::uint64_t hash = 1, std::uint64_t bytes = 10) {
  WriteItem item;
  item.name = plan.names.intern(name);
  item.content_hash = hash;
  item.content_bytes = bytes;
  plan.items.push_back(item);
}

template <class Fill>
std::vector<SavePlan> plans_of(int ranks, Fill fill) {
  std::vector<SavePlan> plans(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) fill(plans[static_cast<std::size_t>(rank)], rank);
  return plans;
}

std::string mismatch_of(const std::vector<SavePlan>& plans, const GlobalPlanOptions& options = {}) {
  std::string texts[2];
  for (const bool in_parallel : {false, true}) {
    try {
      create_global_save_plan(plans, options, in_parallel ? 4 : 1);
      FAIL("the plans were joined");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kMismatch);
      texts[in_parallel] = error.what();
    }
  }
  CHECK(texts[0] == texts[1]);
  return texts[0];
}

bool mentions(const std::string& text, const std::string& part) {
  const bool found = text.find(part) != std::string::npos;
  if (!found) MESSAGE("'", text, "' lacks '", part, "'");
  return found;
}

std::vector<std::string> names_written(const SavePlan& plan) {
  std::vector<std::string> names;
  for (const WriteItem& item : plan.items) names.push_back(plan.names[item.name]);
  return names;
}

const TensorStorageMetadata& tensor_of(const Metadata& metadata, const std::string& fqn) {
  const auto* entry = metadata.find(fqn);
  REQUIRE(entry);
  return std::get<TensorStorageMetadata>(*entry);
}

std::uint64_t bytes_of(const SavePlan& plan) {
  std::uint64_t bytes = 0;
  for (const WriteItem& item : plan.items)
    if (item.type != WriteItemType::kByteIO) bytes += item.payload_bytes();
  return bytes;
}

// Checks the invariants of every global plan.
void check_invariants(const std::vector<SavePlan>& locals, const GlobalSavePlan& global) {
  REQUIRE(global.plans.size() == locals.size());
  std::map<std::string, std::vector<Box>> written;
  std::map<std::string, int> bytes_written;
  for (std::size_t rank = 0; rank < locals.size(); ++rank) {
    const SavePlan& local = locals[rank];
    const SavePlan& plan = global.plans[rank];
    CHECK(plan.mappings->empty());
    CHECK(plan.planner_data == local.planner_data);
    CHECK(plan.storage_data == local.storage_data);
    std::size_t next_tensor = 0;
    std::size_t next_bytes = 0;
    bool bytes_began = false;
    for (const WriteItem& item : plan.items) {
      REQUIRE(item.name < plan.names.size());
      const std::string& name = plan.names[item.name];
      const bool is_bytes = item.type == WriteItemType::kByteIO;
      CHECK((is_bytes || !bytes_began));
      bytes_began = bytes_began || is_bytes;
      // The local plan contains the item, or one that contains it, in the same order.
      std::size_t& next = is_bytes ? next_bytes : next_tensor;
      while (next < local.items.size() &&
             !(local.names[local.items[next].name] == name && local.items[next].type == item.type &&
               (is_bytes || (contains(local.items[next].chunk, item.chunk) && local.items[next].size == item.size))))
        ++next;
      CHECK(next < local.items.size());
      ++next;
      if (is_bytes) {
        ++bytes_written[name];
      } else {
        written[name].push_back(item.chunk);
      }
    }
  }
  std::set<std::string> names;
  for (const auto& [fqn, entry] : global.metadata.state_dict_metadata) {
    CHECK(names.insert(fqn).second);
    if (std::holds_alternative<BytesStorageMetadata>(entry)) {
      CHECK(bytes_written[fqn] == 1);
      bytes_written.erase(fqn);
      continue;
    }
    std::vector<Box> chunks = std::get<TensorStorageMetadata>(entry).chunks;
    std::set<Extents> offsets;
    for (const Box& chunk : chunks) CHECK(offsets.insert(chunk.offsets).second);
    std::sort(chunks.begin(), chunks.end());
    std::sort(written[fqn].begin(), written[fqn].end());
    CHECK(chunks == written[fqn]);
    written.erase(fqn);
  }
  for (const auto& [fqn, chunks] : written) CHECK(chunks.empty());
  CHECK(bytes_written.empty());
  CHECK(check_coverage(global.metadata).empty());
}

void check_equal_plans(const GlobalSavePlan& a, const GlobalSavePlan& b) {
  REQUIRE(a.plans.size() == b.plans.size());
  for (std::size_t rank = 0; rank < a.plans.size(); ++rank) CHECK(plan_digest(a.plans[rank]) == plan_digest(b.plans[rank]));
  CHECK(a.differing_replicas == b.differing_replicas);
  CHECK(a.metadata.planner_data == b.metadata.planner_data);
  REQUIRE(a.metadata.names().all() == b.metadata.names().all());
  for (const auto& [fqn, entry] : a.metadata.state_dict_metadata) {
    const auto* tensor = std::get_if<TensorStorageMetadata>(&entry);
    const auto* other = std::get_if<TensorStorageMetadata>(b.metadata.find(fqn));
    REQUIRE((tensor == nullptr) == (other == nullptr));
    if (tensor) CHECK(tensor->chunks == other->chunks);
  }
}

// Joins the plans of ranks that hold whole tensors, on one thread and on several.
GlobalSavePlan checked_plan(const std::vector<SavePlan>& plans, const GlobalPlanOptions& options = {}) {
  GlobalSavePlan global = create_global_save_plan(plans, options, 1);
  check_invariants(plans, global);
  check_equal_plans(create_global_save_plan(plans, options, 3), global);
  return global;
}

// --- rejected plans -----------------------------------------------------------------------------

TEST_CASE("ranks that disagree on size or dtype are named with the key") {
  const std::string size = mismatch_of(plans_of(4, [](SavePlan& plan, int rank) { add_tensor(plan, "w", {rank == 2 ? 3 : 4}); }));
  CHECK(mentions(size, "'w' is a float32 tensor of size [4] on ranks 0, 1, 3, a float32 tensor of size [3] on rank 2"));
  const std::string dtype = mismatch_of(
      plans_of(3, [](SavePlan& plan, int rank) { add_tensor(plan, "w", {4}, rank == 0 ? DType::kFloat16 : DType::kFloat32); }));
  CHECK(mentions(dtype, "'w' is a float16 tensor of size [4] on rank 0, a float32 tensor of size [4] on ranks 1, 2"));
}

TEST_CASE("a tensor on one rank and bytes on another is refused, as are values that differ") {
  const std::string kind = mismatch_of(plans_of(2, [](SavePlan& plan, int rank) {
    if (rank == 0) add_tensor(plan, "x", {4});
    if (rank == 1) add_bytes(plan, "x");
  }));
  CHECK(mentions(kind, "'x' is a float32 tensor of size [4] on rank 0, a value of 10 bytes on rank 1"));
  const std::string value = mismatch_of(plans_of(4, [](SavePlan& plan, int rank) { add_bytes(plan, "lr", rank == 3 ? 2u : 1u); }));
  CHECK(mentions(value, "'lr' is a value of 10 bytes on ranks 0-2, another such on rank 3"));
  CHECK(mentions(value, "per_rank"));
}

TEST_CASE("short values that differ are shown") {
  const std::string text = mismatch_of(plans_of(3, [](SavePlan& plan, int rank) {
    add_bytes(plan, "lr", hash_of_short_text(rank == 1 ? "0.01" : "0.001"));
    add_bytes(plan, "name", rank == 1 ? hash_of_short_text("'adam'") : std::uint64_t{1} << 63);
  }));
  CHECK(mentions(text, "'lr' is 0.001 on ranks 0, 2, 0.01 on rank 1"));
  CHECK(mentions(text, "'name' is a value of 10 bytes on ranks 0, 2, 'adam' on rank 1"));
}

TEST_CASE("the hash of a short text holds it") {
  for (const std::string text : {"0", "-1e-300", "'a b'"}) CHECK(short_text_in(hash_of_short_text(text)) == text);
  for (const std::string text : {"", "12345678", "'\n'", "'\xc3\xa4'"}) CHECK(hash_of_short_text(text) == 0);
  for (const std::uint64_t hash : {std::uint64_t{0}, std::uint64_t{10}, ~std::uint64_t{0}}) CHECK(short_text_in(hash).empty());
}

TEST_CASE("every key that ranks disagree on is told, up to a bound") {
  const std::string text = mismatch_of(plans_of(2, [](SavePlan& plan, int rank) {
    for (int key = 0; key < 50; ++key) add_bytes(plan, "key" + std::to_string(key), static_cast<std::uint64_t>(rank));
  }));
  CHECK(mentions(text, "'key0'"));
  CHECK(mentions(text, "'key19'"));
  CHECK(mentions(text, "and 30 more"));
}

TEST_CASE("a thousand ranks with a thousand values have a readable error") {
  const std::string text =
      mismatch_of(plans_of(1000, [](SavePlan& plan, int rank) { add_bytes(plan, "seed", static_cast<std::uint64_t>(rank)); }));
  CHECK(mentions(text, "992 more"));
  CHECK(text.size() < 1000);
}

TEST_CASE("values marked per rank need names of their own") {
  const std::string text = mismatch_of(plans_of(3, [](SavePlan& plan, int) {
    add_bytes(plan, "rng");
    plan.items.back().per_rank = true;
  }));
  CHECK(mentions(text, "'rng' is marked as each rank's own, yet ranks 0-2 save it under one name"));
}

TEST_CASE("ranks that nest a name differently are refused") {
  const std::string text = mismatch_of(plans_of(2, [](SavePlan& plan, int rank) {
    add_tensor(plan, "a.0", {4});
    plan.mappings.edit().push_back({0, rank == 0 ? Path{"a", std::int64_t{0}} : Path{"a", "0"}});
  }));
  CHECK(mentions(text, "'a.0' lies at ('a', 0) on rank 0 and at ('a', '0') on rank 1"));
}

TEST_CASE("plans that contradict themselves are refused, naming the rank") {
  const auto refused = [](auto spoil) {
    auto plans = plans_of(2, [](SavePlan& plan, int) {
      add_tensor(plan, "w", {4, 4});
      plan.mappings.edit().push_back({0, {"w"}});
    });
    spoil(plans[1]);
    try {
      create_global_save_plan(std::move(plans));
    } catch (const Error& error) {
      return error.code() == ErrorCode::kInvalidArgument && mentions(error.what(), "rank 1");
    }
    return false;
  };
  CHECK(refused([](SavePlan& plan) { plan.items[0].name = 1; }));
  CHECK(refused([](SavePlan& plan) { plan.items[0].chunk.offsets = {0}; }));
  CHECK(refused([](SavePlan& plan) { plan.items[0].chunk.sizes = {4, 4, 4}; }));
  CHECK(refused([](SavePlan& plan) { plan.items[0].chunk.sizes = {4, -4}; }));
  CHECK(refused([](SavePlan& plan) { plan.items[0].chunk.offsets = {-1, 0}; }));
  CHECK(refused([](SavePlan& plan) { plan.mappings.edit()[0].first = 1; }));
}

TEST_CASE("missing and overlapping chunks are left to the coverage check") {
  const auto plans = plans_of(2, [](SavePlan& plan, int rank) { add_shard(plan, "w", {10}, {{rank * 4}, {5}}); });
  const auto faults = check_coverage(create_global_save_plan(plans).metadata);
  CHECK(faults.size() == 2);
  const auto none = plans_of(2, [](SavePlan& plan, int) { add_shard(plan, "w", {10}, {{0}, {0}}); });
  const GlobalSavePlan global = create_global_save_plan(none);
  CHECK(tensor_of(global.metadata, "w").chunks.empty());
  CHECK(check_coverage(global.metadata).size() == 1);
}

// --- lowest rank wins ----------------------------------------------------------------------------

TEST_CASE("when the lowest rank wins, its values are written by it, whole") {
  GlobalPlanOptions options;
  options.rank_values = RankValues::kLowestRankWins;
  options.split_above_bytes = 1;
  const auto plans = plans_of(4, [](SavePlan& plan, int rank) {
    if (rank > 0) {
      add_bytes(plan, "lr", static_cast<std::uint64_t>(rank));
      add_tensor(plan, "w", {rank == 1 ? 8 : 4});
      add_tensor(plan, "same", {100});
    }
    if (rank == 2) add_bytes(plan, "mixed");
    if (rank == 3) add_tensor(plan, "mixed", {2});
  });
  const GlobalSavePlan global = checked_plan(plans, options);
  CHECK(global.plans[0].items.empty());
  CHECK(names_written(global.plans[1]) == std::vector<std::string>{"w", "same", "lr"});
  CHECK(names_written(global.plans[2]) == std::vector<std::string>{"mixed"});
  CHECK(global.plans[3].items.empty());
  CHECK(tensor_of(global.metadata, "w").size == Extents{8});
  CHECK(global.plans[1].items[2].content_hash == 1);
}

TEST_CASE("parts of a tensor must agree even when the lowest rank wins") {
  GlobalPlanOptions options;
  options.rank_values = RankValues::kLowestRankWins;
  const auto plans = plans_of(2, [](SavePlan& plan, int rank) { add_shard(plan, "w", {10 + rank}, {{rank * 5}, {5}}); });
  CHECK(mentions(mismatch_of(plans, options), "'w'"));
}

// --- replicas that differ ------------------------------------------------------------------------

void add_hashed(SavePlan& plan, const std::string& name, std::uint64_t hash) {
  add_tensor(plan, name, {64, 4});
  plan.items.back().content_hash = hash;
}

GlobalPlanOptions splitting() {
  GlobalPlanOptions options;
  options.split_above_bytes = 1;
  return options;
}

TEST_CASE("a replica that differs is written whole by the lowest rank, and named") {
  for (const Dedup dedup : {Dedup::kBalanced, Dedup::kLowestRank}) {
    GlobalPlanOptions options = splitting();
    options.dedup = dedup;
    const auto plans = plans_of(16, [](SavePlan& plan, int rank) {
      add_hashed(plan, "same", 5);
      if (rank > 1) add_hashed(plan, "w", rank == 3 ? 7 : 5);
      add_hashed(plan, "b", rank == 3 ? 7 : 5);
    });
    const GlobalSavePlan global = checked_plan(plans, options);
    CHECK(global.differing_replicas ==
          "'b' differs between ranks: ranks 0-2, 4-15 have one value, rank 3 another; and 1 other tensor");
    CHECK(tensor_of(global.metadata, "same").chunks.size() == (dedup == Dedup::kBalanced ? 16 : 1));
    for (const auto& [name, writer] : {std::pair<std::string, std::size_t>{"b", 0}, {"w", 2}}) {
      CHECK(tensor_of(global.metadata, name).chunks == std::vector<Box>{Box::whole({64, 4})});
      const auto written = names_written(global.plans[writer]);
      CHECK(std::count(written.begin(), written.end(), name) == 1);
    }
  }
}

TEST_CASE("a part of a sharded tensor that differs comes from one rank, the others from several") {
  const auto plans = plans_of(4, [](SavePlan& plan, int rank) {
    add_shard(plan, "w", {64}, {{rank % 2 * 32}, {32}});
    plan.items.back().content_hash = rank == 2 ? 7 : 5 + static_cast<std::uint64_t>(rank % 2);
  });
  const GlobalSavePlan global = checked_plan(plans, splitting());
  CHECK(global.differing_replicas == "'w' differs between ranks: rank 0 has one value, rank 2 another");
  CHECK(global.plans[0].items.at(0).chunk == Box{{0}, {32}});
  CHECK(global.plans[2].items.empty());
  CHECK(tensor_of(global.metadata, "w").chunks.size() == 3);
}

TEST_CASE("replicas are compared only where their hashes are known") {
  const auto plans = plans_of(3, [](SavePlan& plan, int rank) {
    add_hashed(plan, "w", rank == 1 ? 7 : 0);
    add_hashed(plan, "own." + std::to_string(rank), static_cast<std::uint64_t>(rank));
  });
  const GlobalSavePlan global = checked_plan(plans, splitting());
  CHECK(global.differing_replicas.empty());
  CHECK(tensor_of(global.metadata, "w").chunks.size() > 1);
}

TEST_CASE("a thousand ranks with a thousand values of a replica have a readable text") {
  const GlobalSavePlan global = create_global_save_plan(
      plans_of(1000, [](SavePlan& plan, int rank) { add_hashed(plan, "w", 1 + static_cast<std::uint64_t>(rank)); }));
  CHECK(mentions(global.differing_replicas, "rank 0 has one value, rank 1 another, rank 2 yet another"));
  CHECK(mentions(global.differing_replicas, "992 more"));
  CHECK(global.differing_replicas.size() < 300);
}

// --- dedup ---------------------------------------------------------------------------------------

TEST_CASE("every element of every layout is written exactly once") {
  const auto random = seeded_random(41);
  for (const int ranks : {1, 2, 3, 4, 8}) {
    for (const Extents& size : {Extents{12, 9}, Extents{5}, Extents{}, Extents{1, 40}, Extents{3, 4, 5}}) {
      for (const Dedup dedup : {Dedup::kBalanced, Dedup::kLowestRank}) {
        for (const std::uint64_t split : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{100}}) {
          GlobalPlanOptions options;
          options.dedup = dedup;
          options.split_above_bytes = split;
          std::vector<SavePlan> plans(static_cast<std::size_t>(ranks));
          int tensor = 0;
          for (const auto& layout : all_layouts(size, ranks, *random)) {
            const std::string name = layout.name + std::to_string(tensor++);
            for (std::size_t rank = 0; rank < plans.size(); ++rank) {
              for (const Box& box : layout.boxes[rank]) add_shard(plans[rank], name, size, box);
              add_bytes(plans[rank], name + ".step");
              plans[rank].planner_data = "planner " + std::to_string(rank);
              plans[rank].storage_data = "storage " + std::to_string(rank);
            }
          }
          checked_plan(plans, options);
        }
      }
    }
  }
}

TEST_CASE("replicated tensors go to the ranks that have little to write anyway") {
  const auto plans = plans_of(4, [](SavePlan& plan, int rank) {
    if (rank == 0) add_shard(plan, "big", {1000000}, {{0}, {1000000}});
    for (int i = 0; i < 30; ++i) add_tensor(plan, "t" + std::to_string(i), {1000});
  });
  const GlobalSavePlan global = checked_plan(plans);
  CHECK(names_written(global.plans[0]) == std::vector<std::string>{"big"});
  for (std::size_t rank = 1; rank < 4; ++rank) CHECK(global.plans[rank].items.size() == 10);
}

TEST_CASE("many scalars and values do not pile up on one rank") {
  const auto plans = plans_of(4, [](SavePlan& plan, int) {
    for (int i = 0; i < 40; ++i) add_tensor(plan, "step" + std::to_string(i), {});
    for (int i = 0; i < 40; ++i) add_bytes(plan, "value" + std::to_string(i));
  });
  for (const SavePlan& plan : create_global_save_plan(plans).plans) CHECK(plan.items.size() == 20);
}

TEST_CASE("to the lowest rank: the lowest holder writes each replicated chunk, unsplit") {
  GlobalPlanOptions options;
  options.dedup = Dedup::kLowestRank;
  options.split_above_bytes = 1;
  const auto plans = plans_of(4, [](SavePlan& plan, int rank) {
    if (rank > 0) add_tensor(plan, "a", {1000});
    add_tensor(plan, "b", {1000});
    add_shard(plan, "c", {8}, {{rank / 2 * 4}, {4}});
  });
  const GlobalSavePlan global = checked_plan(plans, options);
  CHECK(names_written(global.plans[0]) == std::vector<std::string>{"b", "c"});
  CHECK(names_written(global.plans[1]) == std::vector<std::string>{"a"});
  CHECK(names_written(global.plans[2]) == std::vector<std::string>{"c"});
  CHECK(global.plans[3].items.empty());
}

TEST_CASE("a chunk that a rank lists twice is written once") {
  const auto plans = plans_of(2, [](SavePlan& plan, int rank) {
    add_shard(plan, "w", {4}, {{rank * 2}, {2}});
    add_shard(plan, "w", {4}, {{rank * 2}, {2}});
  });
  const GlobalSavePlan global = checked_plan(plans);
  for (const SavePlan& plan : global.plans) CHECK(plan.items.size() == 1);
}

// --- splitting -----------------------------------------------------------------------------------

TEST_CASE("splitting levels what ranks write in all") {
  // Rank 0 alone holds 32 MiB; 64 MiB are shared.
  const auto plans = plans_of(4, [](SavePlan& plan, int rank) {
    if (rank == 0) add_shard(plan, "own", {8192, 1024}, {{0, 0}, {8192, 1024}});
    add_tensor(plan, "w", {16384, 1024});
  });
  const GlobalSavePlan global = checked_plan(plans);
  CHECK(bytes_of(global.plans[0]) == 32u << 20);
  for (std::size_t rank = 1; rank < 4; ++rank) {
    CHECK(bytes_of(global.plans[rank]) > 21u << 20);
    CHECK(bytes_of(global.plans[rank]) < 22u << 20);
    for (const WriteItem& item : global.plans[rank].items) CHECK(item.size == Extents{16384, 1024});
  }
}

TEST_CASE("what is too small, too short or 0-dim stays whole") {
  const auto pieces = [](const Extents& size, std::uint64_t split_above, int ranks) {
    GlobalPlanOptions options;
    options.split_above_bytes = split_above;
    const auto plans = plans_of(ranks, [&](SavePlan& plan, int) { add_tensor(plan, "w", size); });
    const GlobalSavePlan global = checked_plan(plans, options);
    return tensor_of(global.metadata, "w").chunks;
  };
  CHECK(pieces({1000}, 4001, 4).size() == 1);
  CHECK(pieces({1000}, 4000, 4).size() == 4);
  CHECK(pieces({1000}, 0, 4).size() == 1);
  CHECK(pieces({}, 1, 4).size() == 1);
  CHECK(pieces({1, 1}, 1, 4).size() == 1);
  CHECK(pieces({1000}, 1, 1).size() == 1);
  // With too few rows, the longest dimension is split.
  const auto along = pieces({2, 3, 100}, 1, 8);
  CHECK(along.size() == 8);
  CHECK(along[0].sizes[2] < 100);
  CHECK(along[0].sizes[0] == 2);
  // There are no more parts than rows, or than parts of split_above_bytes / 4 fit into the tensor.
  CHECK(pieces({3}, 1, 8).size() == 3);
  CHECK(pieces({1000}, 4000, 100).size() == 4);
}

TEST_CASE("chunks that only some ranks hold are split over those") {
  GlobalPlanOptions options;
  options.split_above_bytes = 64;
  const auto plans = plans_of(4, [](SavePlan& plan, int rank) { add_shard(plan, "w", {100, 8}, {{rank % 2 * 50, 0}, {50, 8}}); });
  const GlobalSavePlan global = checked_plan(plans, options);
  CHECK(tensor_of(global.metadata, "w").chunks ==
        std::vector<Box>{{{0, 0}, {25, 8}}, {{25, 0}, {25, 8}}, {{50, 0}, {25, 8}}, {{75, 0}, {25, 8}}});
  for (const SavePlan& plan : global.plans) CHECK(bytes_of(plan) == 25 * 8 * 4);
}

// --- empty things --------------------------------------------------------------------------------

TEST_CASE("empty shards vanish, but a tensor without elements keeps one chunk") {
  const auto plans = plans_of(4, [](SavePlan& plan, int rank) {
    add_shard(plan, "uneven", {2}, {{std::min(rank, 2)}, {rank < 2 ? 1 : 0}});
    add_tensor(plan, "empty", {0, 4});
    add_shard(plan, "empty shards", {4, 0}, {{rank, 0}, {1, 0}});
    add_tensor(plan, "scalar", {});
  });
  const GlobalSavePlan global = checked_plan(plans);
  CHECK(tensor_of(global.metadata, "uneven").chunks == std::vector<Box>{{{0}, {1}}, {{1}, {1}}});
  CHECK(tensor_of(global.metadata, "empty").chunks == std::vector<Box>{{{0, 0}, {0, 4}}});
  CHECK(tensor_of(global.metadata, "empty shards").chunks.size() == 1);
  CHECK(tensor_of(global.metadata, "scalar").chunks == std::vector<Box>{Box{}});
}

// --- results -------------------------------------------------------------------------------------

TEST_CASE("B1.2 the metadata lists size, dtype and chunks of every tensor, in saving order") {
  const auto plans = plans_of(2, [](SavePlan& plan, int rank) {
    add_bytes(plan, "bytes");
    add_tensor(plan, "replicated", {4});
    add_shard(plan, "sharded", {10, 10}, {{rank * 5, 0}, {5, 10}});
    if (rank == 1) add_tensor(plan, "late", {1}, DType::kBFloat16);
    for (const WriteItem& item : plan.items) plan.mappings.edit().push_back({item.name, {"state", plan.names[item.name]}});
  });
  const GlobalSavePlan global = checked_plan(plans);
  std::vector<std::string> order;
  for (const auto& [fqn, entry] : global.metadata.state_dict_metadata) order.push_back(fqn);
  CHECK(order == std::vector<std::string>{"bytes", "replicated", "sharded", "late"});
  CHECK(std::holds_alternative<BytesStorageMetadata>(*global.metadata.find("bytes")));
  CHECK(tensor_of(global.metadata, "replicated").chunks.size() == 1);
  CHECK(tensor_of(global.metadata, "sharded").chunks.size() == 2);
  CHECK(tensor_of(global.metadata, "sharded").size == Extents{10, 10});
  CHECK(tensor_of(global.metadata, "late").properties.dtype == DType::kBFloat16);
  REQUIRE(global.metadata.planner_data.size() == 4);
  CHECK(global.metadata.planner_data[3].first == "late");
  CHECK(global.metadata.planner_data[3].second == Path{"state", "late"});
}

TEST_CASE("the same plans give the same result, whatever the values of bytes objects weigh") {
  const auto random = seeded_random(43);
  const auto make = [&](std::uint64_t bytes) {
    return plans_of(8, [&](SavePlan& plan, int rank) {
      for (int i = 0; i < 50; ++i) {
        add_tensor(plan, "t" + std::to_string(i), {100 + i % 7});
        add_bytes(plan, "b" + std::to_string(i), 5, bytes);
        add_shard(plan, "s" + std::to_string(i), {16}, {{rank / 2 * 4}, {4}});
      }
    });
  };
  const GlobalSavePlan first = create_global_save_plan(make(10));
  for (const std::uint64_t bytes : {10ull, 10ull, 100000000ull}) {
    const GlobalSavePlan again = create_global_save_plan(make(bytes));
    for (std::size_t rank = 0; rank < 8; ++rank) CHECK(plan_digest(again.plans[rank]) == plan_digest(first.plans[rank]));
    for (std::size_t i = 0; i < first.metadata.state_dict_metadata.size(); ++i) {
      CHECK(again.metadata.state_dict_metadata[i].first == first.metadata.state_dict_metadata[i].first);
      if (const auto* tensor = std::get_if<TensorStorageMetadata>(&first.metadata.state_dict_metadata[i].second))
        CHECK(std::get<TensorStorageMetadata>(again.metadata.state_dict_metadata[i].second).chunks == tensor->chunks);
    }
  }
}

TEST_CASE("a rank's part of the global plan follows from its local plan") {
  for (const int ranks : {1, 2, 5}) {
    const auto locals = plans_of(ranks, [&](SavePlan& plan, int rank) {
      add_bytes(plan, "step");
      add_tensor(plan, "replicated and split", {4096, 1024});
      add_tensor(plan, "replicated", {3});
      add_bytes(plan, "of rank " + std::to_string(rank), 7, 3);
      add_shard(plan, "sharded", {4 * ranks, 5}, {{4 * rank, 0}, {4, 5}});
      add_tensor(plan, "of rank " + std::to_string(rank) + " alone", {2, 2});
      plan.items.back().content_hash = 9;
      plan.mappings.edit().emplace_back(0, Path{"step"});
      plan.planner_data = "planner";
    });
    const GlobalSavePlan global = create_global_save_plan(locals);
    for (std::size_t rank = 0; rank < locals.size(); ++rank) {
      const auto part = part_of_plan(locals[rank], global.plans[rank]);
      REQUIRE(part.has_value());
      CHECK(part->runs.size() <= 5);
      const auto plan = plan_of_part(locals[rank], *part);
      REQUIRE(plan.has_value());
      CHECK(plan_digest(*plan) == plan_digest(global.plans[rank]));
      for (const WriteItem& item : plan->items)
        if (item.type == WriteItemType::kByteIO) CHECK(item.content_bytes == (plan->names[item.name] == "step" ? 10 : 3));
    }
  }
}

TEST_CASE("a plan that adds to the local one is no part of it, and no part takes more than there is") {
  SavePlan local;
  add_tensor(local, "a", {2, 2});
  add_tensor(local, "b", {2, 2});
  local.mappings.edit().emplace_back(0, Path{"a"});
  CHECK(part_of_plan(local, local)->has_mappings);
  const std::function<void(SavePlan&)> additions[] = {
      [](SavePlan& plan) {
        add_tensor(plan, "c", {2, 2});
      },
      [](SavePlan& plan) { plan.items.push_back(plan.items[1]); },
      [](SavePlan& plan) {
        plan.items[0].size = {2, 3};
      },
      [](SavePlan& plan) { plan.items[0].properties.dtype = DType::kFloat64; },
      [](SavePlan& plan) { plan.items[0].frozen = true; },
      [](SavePlan& plan) { plan.items[0].type = WriteItemType::kShard; },
      [](SavePlan& plan) { plan.mappings.edit()[0].second = Path{"other"}; },
  };
  for (const auto& add : additions) {
    SavePlan plan = local;
    add(plan);
    CHECK_FALSE(part_of_plan(local, plan).has_value());
  }
  SavePlan with_box = local;  // a bytes object's box means nothing
  add_bytes(with_box, "step");
  SavePlan boxed = with_box;
  boxed.items.back().chunk = {{0}, {4}};
  CHECK(plan_of_part(with_box, *part_of_plan(with_box, boxed)).has_value());
  CHECK_FALSE(part_of_plan({}, local).has_value());
  CHECK(plan_of_part(local, *part_of_plan(local, {}))->items.empty());

  PlanPart part;
  part.runs = {{1, 1}, {0, 1}};
  part.chunks = {{1, {{1, 0}, {1, 2}}}};
  const auto plan = plan_of_part(local, part);
  REQUIRE(plan.has_value());
  CHECK(plan->names[plan->items[0].name] == "b");
  CHECK(plan->items[1].chunk == Box{{1, 0}, {1, 2}});
  for (const std::vector<PlanPart::Run>& runs :
       {std::vector<PlanPart::Run>{{2, 1}}, {{0, 3}}, {{3, 0}}, {{0, 2}, {0, 1}}, {{1, 0xffffffff}}, {{0xffffffff, 1}}}) {
    part.runs = runs;
    CHECK_FALSE(plan_of_part(local, part).has_value());
  }
  part.runs = {{0, 2}};
  part.chunks = {{2, {{1, 0}, {1, 2}}}};
  CHECK_FALSE(plan_of_part(local, part).has_value());
  part.chunks = {{0, {{1}, {1}}}};
  CHECK_FALSE(plan_of_part(local, part).has_value());
}

TEST_CASE("ranks may list names in any order") {
  const auto random = seeded_random(44);
  auto plans = plans_of(5, [&](SavePlan& plan, int rank) {
    std::vector<int> order;
    for (int i = 0; i < 40; ++i) order.push_back(i);
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random->next() % i]);
    for (const int i : order) {
      if (i % 3 == 0) add_tensor(plan, "t" + std::to_string(i), {8});
      if (i % 3 == 1) add_bytes(plan, "t" + std::to_string(i));
      if (i % 3 == 2) add_shard(plan, "t" + std::to_string(i), {5}, {{4 - rank}, {1}});
    }
  });
  const GlobalSavePlan global = checked_plan(plans);
  CHECK(tensor_of(global.metadata, "t2").chunks.front().offsets == Extents{0});
}

}  // namespace
}  // namespace cairn
