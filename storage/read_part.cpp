#include <cairn/storage/read_part.hpp>

#include <utility>

#include <torch/torch.h>

#include <cairn/planning/resharding.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/state/tensor_types.hpp>

namespace cairn {
namespace {

// A planner for a ready-made plan with one destination.
class OneTensor : public LoadPlanner {
 public:
  explicit OneTensor(torch::Tensor tensor) : tensor_(std::move(tensor)) {}
  void set_up_planner(StateDict&, const Metadata&, int, bool) override {}
  LoadPlan create_local_plan() override { return {}; }
  std::vector<LoadPlan> create_global_plan(std::vector<LoadPlan> all_plans) override { return all_plans; }
  LoadPlan finish_plan(LoadPlan central_plan) override { return central_plan; }
  void load_bytes(const LoadPlan&, const ReadItem&, Bytes) override {}
  torch::Tensor resolve_tensor(const LoadPlan&, const ReadItem& item) override {
    return part_of(tensor_, item.dest_offsets, item.lengths);
  }
  void commit_tensor(const LoadPlan&, const ReadItem&, torch::Tensor) override {}

 private:
  const torch::Tensor tensor_;
};

}  // namespace

torch::Tensor read_part(StorageReader& reader, const std::string& name, const TensorStorageMetadata& stored, const Box& box) {
  torch::Tensor part = with_torch("make room for " + name,
                                  [&] { return torch::empty(array_of(box.sizes), *carrier_type_of(stored.properties.dtype)); });
  OneTensor planner(part);
  LoadPlan plan;
  const NameId id = plan.names.intern(name);
  append_reads(stored, ChunkIndex(stored.chunks), id, id, box, plan);
  reader.read_data(plan, planner).get();
  return part;
}

}  // namespace cairn
