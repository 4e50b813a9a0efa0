#include <cairn/state/tensor_items.hpp>

#include <string>
#include <utility>

#include <cairn/base/error.hpp>
#include <cairn/state/tensor_bytes.hpp>
#include <cairn/state/tensor_memory.hpp>
#include <cairn/state/tensor_types.hpp>

namespace cairn {

std::shared_ptr<const ElementRun> PlannedSource::elements_of(const WriteItem& item) {
  const std::string& name = plan_.names[item.name];
  const ResolvedData resolved = planner_.resolve_data(plan_, item);
  const auto* tensor = std::get_if<torch::Tensor>(&resolved);
  if (!tensor)
    throw Error(ErrorCode::kMismatch,
                "the planner resolved \"" + name + "\" to bytes, but planned a tensor: plan it as a bytes object");
  if (const std::string reason = why_not_storable(*tensor); !reason.empty())
    throw Error(ErrorCode::kUnsupported, "cannot save \"" + name + "\": its tensor " + reason);
  // A type that LibTorch lacks is resolved to its carrier.
  if (extents_of(tensor->sizes()) != item.chunk.sizes || tensor->scalar_type() != carrier_type_of(item.properties.dtype))
    throw Error(ErrorCode::kMismatch, "the planner resolved \"" + name + "\" to a tensor of " +
                                          to_string(extents_of(tensor->sizes())) + " " + c10::toString(tensor->scalar_type()) +
                                          ", but planned " + to_string(item.chunk.sizes) + " " + to_string(item.properties.dtype));
  return std::make_shared<const TensorBytes>(*tensor);
}

Bytes PlannedSource::bytes_of(const WriteItem& item) {
  ResolvedData resolved = planner_.resolve_data(plan_, item);
  auto* bytes = std::get_if<Bytes>(&resolved);
  if (!bytes)
    throw Error(ErrorCode::kMismatch, "the planner resolved \"" + plan_.names[item.name] +
                                          "\" to a tensor, but planned a bytes object: plan it as a tensor");
  return std::move(*bytes);
}

std::shared_ptr<const ElementRun> PlannedDestination::elements_for(const ReadItem& item, DType stored) {
  const std::string& name = plan_.names[item.storage_name];
  const torch::Tensor tensor = planner_.resolve_tensor(plan_, item);
  if (!tensor.defined() || extents_of(tensor.sizes()) != item.lengths)
    throw Error(ErrorCode::kMismatch,
                "the planner resolved \"" + name + "\" to " +
                    (tensor.defined() ? "a tensor of sizes " + to_string(extents_of(tensor.sizes())) : std::string("no tensor")) +
                    ", but planned to read " + to_string(item.lengths));
  const torch::ScalarType carrier = carrier_type_of(stored).value();
  // A conversion would take the bytes of the stored elements for integers.
  if (!scalar_type_of(stored) && tensor.scalar_type() != carrier)
    throw Error(ErrorCode::kUnsupported, "\"" + name + "\" is stored as " + to_string(stored) +
                                             ", which the LibTorch in use does not have: use a newer one, or resolve it to " +
                                             c10::toString(carrier) + " to read the bytes of its elements");
  return std::make_shared<const TensorBytes>(tensor, carrier);
}

void PlannedDestination::commit(const ReadItem& item, const ElementRun& elements) {
  const torch::Tensor& tensor = static_cast<const TensorBytes&>(elements).tensor();
  count_change(tensor);  // the engine writes bytes, which autograd does not see
  planner_.commit_tensor(plan_, item, tensor);
}

void PlannedDestination::take_bytes(const ReadItem& item, Bytes bytes) { planner_.load_bytes(plan_, item, std::move(bytes)); }

}  // namespace cairn
