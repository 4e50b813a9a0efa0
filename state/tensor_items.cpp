#include <cairn/state/tensor_items.hpp>

#include <algorithm>
#include <string>
#include <utility>

#include <torch/torch.h>

#include <cairn/base/error.hpp>
#include <cairn/state/tensor_memory.hpp>
#include <cairn/state/tensor_types.hpp>

namespace cairn {
namespace {

// Up to this many elements, LibTorch copies on the calling thread.
constexpr std::int64_t kTorchSerialElements = 32 * 1024 - 1;

// Calls `visit(part)` for boxes of `tensor` that together are the elements [first, first + count),
// in order.
template <class Visit>
void visit_boxes(const torch::Tensor& tensor, std::int64_t first, std::int64_t count, const Visit& visit) {
  if (count == 0) return;
  // A range of elements is a box only if it is made of whole rows. Otherwise it is split at row
  // boundaries, one dimension after another.
  if (tensor.dim() == 0 || (first == 0 && count == tensor.numel())) return visit(tensor);
  const std::int64_t row = tensor.numel() / tensor.size(0);
  std::int64_t index = first / row;
  if (const std::int64_t begin = first % row; begin != 0) {
    const std::int64_t part = std::min(count, row - begin);
    visit_boxes(tensor.select(0, index), begin, part, visit);
    count -= part;
    ++index;
  }
  if (const std::int64_t rows = count / row; rows > 0) {
    visit(tensor.narrow(0, index, rows));
    count -= rows * row;
    index += rows;
  }
  if (count > 0) visit_boxes(tensor.select(0, index), 0, count, visit);
}

template <bool kRead>
void copy_in_steps(const torch::Tensor& tensor, torch::ScalarType dtype, std::int64_t first, char* bytes, std::int64_t count) {
  torch::NoGradGuard no_grad;
  // In small steps on the CPU: LibTorch would otherwise use its thread pool, which the trainer
  // needs. On a device, one large copy is best.
  const std::int64_t step = tensor.device().is_cpu() ? kTorchSerialElements : count;
  const auto element_bytes = static_cast<std::int64_t>(c10::elementSize(dtype));
  while (count > 0) {
    const std::int64_t part = std::min(count, step);
    visit_boxes(tensor, first, part, [&](const torch::Tensor& box) {
      const auto dense = torch::from_blob(bytes, box.sizes(), torch::TensorOptions().dtype(dtype));
      if constexpr (kRead) {
        dense.copy_(box);
      } else {
        box.copy_(dense);
      }
      bytes += box.numel() * element_bytes;
    });
    first += part;
    count -= part;
  }
}

}  // namespace

TensorBytes::TensorBytes(const torch::Tensor& tensor)
    : TensorBytes(tensor, tensor.defined() ? tensor.scalar_type() : torch::kFloat32) {}

TensorBytes::TensorBytes(const torch::Tensor& tensor, torch::ScalarType dtype)
    : tensor_(tensor), dtype_(dtype), element_bytes_(c10::elementSize(dtype)) {
  if (const std::string reason = why_not_storable(tensor); !reason.empty())
    throw Error(ErrorCode::kUnsupported, "a tensor that " + reason + " has no plain bytes: convert it to a dense one");
  size_bytes_ = static_cast<std::uint64_t>(tensor.numel()) * element_bytes_;
  // Only plain memory can be copied byte by byte. LibTorch copies everything else.
  is_plain_ = tensor.device().is_cpu() && tensor.scalar_type() == dtype && !tensor.is_conj() && !tensor.is_neg();
  if (is_plain_ && size_bytes_ > 0)
    plain_ = StridedBytes(static_cast<char*>(tensor.data_ptr()), extents_of(tensor.sizes()), extents_of(tensor.strides()),
                          element_bytes_);
}

template <bool kRead>
void TensorBytes::copy_by_torch(std::uint64_t first, char* bytes, std::uint64_t length) const {
  check_invariant(first <= size_bytes_ && length <= size_bytes_ - first, "a copy must stay within its tensor");
  check_invariant(first % element_bytes_ == 0 && length % element_bytes_ == 0, "a copy must not split an element");
  if (length == 0) return;
  with_torch(kRead ? "copy out of a tensor" : "copy into a tensor", [&] {
    OwnStream stream(tensor_.device());
    copy_in_steps<kRead>(tensor_.detach(), dtype_, static_cast<std::int64_t>(first / element_bytes_), bytes,
                         static_cast<std::int64_t>(length / element_bytes_));
    stream.wait();  // the last step of a copy into strided memory has only been queued
  });
}

void TensorBytes::read(std::uint64_t first, MutableByteSpan destination) const {
  if (is_plain_) return plain_.read(first, destination);
  copy_by_torch<true>(first, destination.data(), destination.size());
}

void TensorBytes::write(std::uint64_t first, ByteSpan source) const {
  if (is_plain_) return plain_.write(first, source);
  copy_by_torch<false>(first, const_cast<char*>(source.data()), source.size());  // never written to when copying in this direction
}

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
