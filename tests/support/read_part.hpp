// Reads a part of a tensor through a reader, outside of a load.
#pragma once

#include <string>

#include <cairn/tests/support/torch.hpp>

#include <cairn/planning/resharding.hpp>
#include <cairn/state/ready_plan.hpp>
#include <cairn/state/storage.hpp>
#include <cairn/state/tensor_types.hpp>

namespace cairn::testing {

class OneTensor : public ReadyPlan {
 public:
  explicit OneTensor(torch::Tensor tensor) : tensor_(std::move(tensor)) {}
  torch::Tensor resolve_tensor(const LoadPlan&, const ReadItem& item) override {
    return part_of(tensor_, item.dest_offsets, item.lengths);
  }

 private:
  const torch::Tensor tensor_;
};

// Returns the elements of `box` in host memory, in the carrier type of their dtype.
inline torch::Tensor read_part(StorageReader& reader, const std::string& name, const TensorStorageMetadata& stored,
                               const Box& box) {
  torch::Tensor part = torch::empty(array_of(box.sizes), *carrier_type_of(stored.properties.dtype));
  OneTensor planner(part);
  LoadPlan plan;
  const NameId id = plan.names.intern(name);
  append_reads(stored, ChunkIndex(stored.chunks), id, id, box, plan);
  reader.read_data(plan, planner).get();
  return part;
}

}  // namespace cairn::testing
