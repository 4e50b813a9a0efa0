#include <cairn/state/read_part.hpp>

#include <utility>

#include <torch/torch.h>

#include <cairn/base/error.hpp>
#include <cairn/formats/unicode.hpp>
#include <cairn/planning/resharding.hpp>
#include <cairn/state/tensor_types.hpp>

namespace cairn {
namespace {

class OneTensor : public ReadyPlan {
 public:
  explicit OneTensor(torch::Tensor tensor) : tensor_(std::move(tensor)) {}
  torch::Tensor resolve_tensor(const LoadPlan&, const ReadItem& item) override {
    return part_of(tensor_, item.dest_offsets, item.lengths);
  }

 private:
  const torch::Tensor tensor_;
};

}  // namespace

torch::Tensor read_part(StorageReader& reader, const std::string& name, const TensorStorageMetadata& stored, const Box& box) {
  const auto type = carrier_type_of(stored.properties.dtype);
  if (!type)
    throw Error(ErrorCode::kUnsupported, "the type of \"" + printable(name) + "\" is torch." + stored.unknown_dtype +
                                             ", which this version of Cairn does not know");
  torch::Tensor part = with_torch("make room for " + name, [&] { return torch::empty(array_of(box.sizes), *type); });
  OneTensor planner(part);
  LoadPlan plan;
  const NameId id = plan.names.intern(name);
  append_reads(stored, ChunkIndex(stored.chunks), id, id, box, plan);
  reader.read_data(plan, planner).get();
  return part;
}

void copy_elements(const std::string& name, DType stored, const torch::Tensor& from, const torch::Tensor& to) {
  if (!scalar_type_of(stored) && to.scalar_type() != from.scalar_type())
    throw Error(ErrorCode::kUnsupported, "\"" + printable(name) + "\" is stored as " + to_string(stored) +
                                             ", which the LibTorch in use lacks; load it into a tensor of " +
                                             c10::toString(from.scalar_type()) + " to read the bytes of its elements");
  with_torch("read " + name, [&] { to.copy_(from); });
}

}  // namespace cairn
