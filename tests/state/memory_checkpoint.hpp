// A checkpoint in memory: the default planners between a writer and a reader that keep everything
// in maps.
#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <cairn/state/planner.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/tests/support/thrown.hpp>
#include <cairn/tests/support/torch.hpp>

namespace cairn::test {

using testing::Saying;
using testing::Thrown;
using testing::thrown_by;

struct MemoryCheckpoint {
  Metadata metadata;
  std::map<std::pair<std::string, Box>, torch::Tensor> chunks;
  std::map<std::string, Bytes> objects;
  std::vector<SavePlan> plans;  // the plan of each rank
};

// Saves `states[r]` as rank r, with one planner per rank.
inline MemoryCheckpoint save(const std::vector<StateDict>& states, std::vector<std::unique_ptr<SavePlanner>>& planners) {
  std::vector<SavePlan> local;
  for (std::size_t rank = 0; rank < states.size(); ++rank) {
    planners[rank]->set_up_planner(states[rank], static_cast<int>(rank), rank == 0);
    local.push_back(planners[rank]->create_local_plan());
  }
  GlobalSavePlan global = planners[0]->create_global_plan(std::move(local));
  MemoryCheckpoint checkpoint;
  checkpoint.metadata = std::move(global.metadata);
  REQUIRE(global.plans.size() == states.size());
  for (std::size_t rank = 0; rank < states.size(); ++rank) {
    const SavePlan plan = planners[rank]->finish_plan(std::move(global.plans[rank]));
    for (const WriteItem& item : plan.items) {
      ResolvedData data = planners[rank]->resolve_data(plan, item);
      const std::string& name = plan.names[item.name];
      if (auto* bytes = std::get_if<Bytes>(&data)) {
        CHECK(bytes->size() == item.content_bytes);
        CHECK(checkpoint.objects.emplace(name, std::move(*bytes)).second);
      } else {
        const auto& tensor = std::get<torch::Tensor>(data);
        CHECK(extents_of(tensor.sizes()) == item.chunk.sizes);
        CHECK_FALSE(tensor.is_conj());
        CHECK_FALSE(tensor.is_neg());
        CHECK_FALSE(tensor.requires_grad());
        CHECK(checkpoint.chunks.emplace(std::make_pair(name, item.chunk), tensor.clone(at::MemoryFormat::Contiguous)).second);
      }
    }
    checkpoint.plans.push_back(plan);
  }
  CHECK(check_coverage(checkpoint.metadata).empty());
  return checkpoint;
}

inline MemoryCheckpoint save(const std::vector<StateDict>& states, SavePlannerOptions options = {}) {
  std::vector<std::unique_ptr<SavePlanner>> planners;
  for (std::size_t rank = 0; rank < states.size(); ++rank) planners.push_back(std::make_unique<DefaultSavePlanner>(options));
  return save(states, planners);
}

// Performs one read item as a reader would: copies the stored elements into the planner's target.
inline void read_item(const MemoryCheckpoint& checkpoint, LoadPlanner& planner, const LoadPlan& plan, const ReadItem& item) {
  const std::string& name = plan.names[item.storage_name];
  if (item.type == LoadItemType::kByteIO) return planner.load_bytes(plan, item, checkpoint.objects.at(name));
  const auto& stored = std::get<TensorStorageMetadata>(*checkpoint.metadata.find(name));
  const Box& box = stored.chunks.at(item.storage_chunk);
  CHECK(box.offsets == item.storage_chunk_offset);
  const torch::Tensor source = part_of(checkpoint.chunks.at({name, box}), item.storage_offsets, item.lengths).contiguous();
  torch::Tensor target = planner.resolve_tensor(plan, item);
  REQUIRE(target.defined());
  REQUIRE((target.scalar_type() == source.scalar_type()));
  REQUIRE((target.sizes() == source.sizes()));
  CHECK_FALSE(target.is_conj());
  CHECK_FALSE(target.is_neg());
  if (!target.is_contiguous()) {
    target.copy_(source);
  } else if (source.numel() != 0) {
    std::memcpy(target.data_ptr(), source.data_ptr(), source.nbytes());
  }
  planner.commit_tensor(plan, item, target);
}

inline void load(const MemoryCheckpoint& checkpoint, StateDict& state, int rank, LoadPlanner& planner) {
  planner.set_up_planner(state, checkpoint.metadata, rank, rank == 0);
  std::vector<LoadPlan> plans;
  plans.push_back(planner.create_local_plan());
  planner.compare_shared([&](const LoadPlan& reads) {
    for (const ReadItem& item : reads.items) read_item(checkpoint, planner, reads, item);
  });
  const LoadPlan plan = planner.finish_plan(planner.create_global_plan(std::move(plans)).at(0));
  for (const ReadItem& item : plan.items) read_item(checkpoint, planner, plan, item);
}

inline LoadPlannerOptions casting() {
  LoadPlannerOptions options;
  options.allow_dtype_cast = true;
  return options;
}

inline void load(const MemoryCheckpoint& checkpoint, StateDict& state, int rank = 0, LoadPlannerOptions options = {}) {
  DefaultLoadPlanner planner(options);
  load(checkpoint, state, rank, planner);
}

// Returns whether two tensors have equal type, sizes and bytes. Ignores strides.
inline bool same(const torch::Tensor& a, const torch::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const torch::Tensor x = a.detach().resolve_conj().resolve_neg().contiguous();
  const torch::Tensor y = b.detach().resolve_conj().resolve_neg().contiguous();
  return x.numel() == 0 || std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0;
}

// Returns a tensor whose elements differ from one another as far as the type allows.
inline torch::Tensor counted(at::IntArrayRef sizes, at::ScalarType type = at::kFloat) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  const torch::Tensor numbers = torch::arange(count, at::kLong).reshape(sizes);
  if (type == at::kBool) return numbers.remainder(3) == 0;
  if (c10::isComplexType(type)) return torch::complex(numbers.to(at::kFloat), numbers.to(at::kFloat) * -2 + 1).to(type);
  return (numbers + 1).to(type);
}

inline ErrorCode code_of(const std::function<void()>& work, std::string* text = nullptr) {
  try {
    work();
  } catch (const Error& error) {
    if (text != nullptr) *text = error.what();
    return error.code();
  }
  return ErrorCode{};
}

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace cairn::test
