// Writes leaves of a state dict as torch.save does. state/leaf_reader.cpp reads them.
#include <vector>

#include <cairn/base/error.hpp>
#include <cairn/formats/pickler.hpp>
#include <cairn/formats/tensor_pickle.hpp>
#include <cairn/formats/torch_archive.hpp>
#include <cairn/state/leaf_reader.hpp>
#include <cairn/state/leaf_writer.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/state/tensor_types.hpp>

namespace cairn {
namespace {

// Nesting limit. It is below the reader's (PickleLimits::depth_max), because a tensor or Blob takes
// several levels there.
constexpr int kDepthMax = 100;

[[noreturn]] void fail_unsupported(const std::string& why) { throw Error(ErrorCode::kUnsupported, why); }

bool holds_blob(const Value& value) {
  if (value.is_blob()) return true;
  if (value.is_list()) {
    for (const auto& element : value.list())
      if (holds_blob(element)) return true;
  }
  if (value.is_dict()) {
    for (const auto& [key, element] : value.dict())
      if (holds_blob(element)) return true;
  }
  return false;
}

// Calls the pickler in the order in which CPython would pickle the same value.
class LeafPickler {
 public:
  // Bytes are compact only from protocol 3 on. torch.load(weights_only=True) reads neither protocol
  // 4 nor a BytesIO, so protocol 4 costs nothing here. All other leaves use protocol 2, which it
  // reads.
  LeafPickler(const Value& value, BlobsAs blobs, const CarriedTypes& carried)
      : blobs_(blobs), carried_(carried), out_(blobs == BlobsAs::kOwnType && holds_blob(value) ? 4 : 2) {
    add(value, 0);
  }

  PickledValue finish() && { return {std::move(out_).finish(), std::move(tensors_)}; }

 private:
  static void check_depth(int depth) {
    if (depth > kDepthMax) fail_unsupported("values are nested more than " + std::to_string(kDepthMax) + " deep");
  }

  void add(const Value& value, int depth) {
    check_depth(depth);
    if (value.is_ivalue()) return add(value.ivalue(), depth);
    if (value.is_tensor()) return add_tensor(value.tensor());
    if (value.is_blob()) return add_blob(value.blob());
    if (value.is_dict()) {
      out_.empty_dict();
      if (value.dict().empty()) return;
      out_.mark();
      for (const auto& [key, element] : value.dict()) {
        out_.text(key);
        add(element, depth + 1);
      }
      return out_.set_items();
    }
    if (value.is_list()) {
      out_.empty_list();
      if (value.list().empty()) return;
      out_.mark();
      for (const auto& element : value.list()) add(element, depth + 1);
      return out_.appends();
    }
    if (value.is_opaque()) fail_unsupported(value.opaque().why());
    fail_unsupported(std::string("a bytes object cannot hold ") + value.type_name());
  }

  void add(const c10::IValue& value, int depth) {
    check_depth(depth);
    if (value.isNone()) return out_.none();
    if (value.isBool()) return out_.boolean(value.toBool());
    if (value.isInt()) return out_.integer(value.toInt());
    if (value.isDouble()) return out_.real(value.toDouble());
    if (value.isString()) return out_.text(value.toStringRef());
    if (value.isComplexDouble()) return add_complex(value.toComplexDouble());
    if (value.isTensor()) return add_tensor(value.toTensor());
    if (value.isDevice()) return add_device(value.toDevice());
    if (const auto dtype = dtype_name_in(value)) return out_.global("torch", *dtype);
    if (const auto blob = blob_in(value)) return add_blob(*blob);
    if (!value.isTuple() && !value.isList() && !value.isGenericDict())
      fail_unsupported("a value of LibTorch's kind " + value.tagKind() + " cannot be saved; Python could not read it");

    // A list, dict or tuple that appears in several places becomes one object in Python, which
    // keeps the archive small.
    if (const auto known = containers_.find(value); known != containers_.end())
      return out_.recall(static_cast<Pickler::Slot>(known->second.toInt()));
    // Python can pickle such values, but loading them back would need a tree with cycles.
    if (!open_.insert(value).second) fail_unsupported("a list or dict that contains itself cannot be saved");
    if (value.isTuple()) {
      // A tuple is remembered after its elements, because Python makes it from them. A list or dict
      // is remembered first, as CPython does.
      const bool is_size = is_torch_size(value);
      if (is_size) out_.global("torch", "Size");
      add_tuple(value, depth);
      if (is_size) {
        out_.tuple(1);
        out_.reduce();
      }
      containers_.emplace(value, static_cast<std::int64_t>(out_.remember()));
    } else {
      value.isList() ? out_.empty_list() : out_.empty_dict();
      const auto slot = out_.remember();
      value.isList() ? add_elements(value.toListRef(), depth) : add_pairs(value.toGenericDict(), depth);
      containers_.emplace(value, static_cast<std::int64_t>(slot));
    }
    open_.erase(value);
  }

  void add_elements(c10::ArrayRef<c10::IValue> elements, int depth) {
    if (elements.empty()) return;
    out_.mark();
    for (const auto& element : elements) add(element, depth + 1);
    out_.appends();
  }

  void add_pairs(const c10::impl::GenericDict& dict, int depth) {
    if (dict.empty()) return;
    out_.mark();
    for (const auto& item : dict) {
      add(item.key(), depth + 1);
      add(item.value(), depth + 1);
    }
    out_.set_items();
  }

  void add_tuple(const c10::IValue& value, int depth) {
    const auto& elements = value.toTupleRef().elements();
    if (elements.size() > 3) out_.mark();
    for (const auto& element : elements) add(element, depth + 1);
    out_.tuple(elements.size());
  }

  void add_complex(c10::complex<double> value) {
    out_.global("builtins", "complex");
    out_.real(value.real());
    out_.real(value.imag());
    out_.tuple(2);
    out_.reduce();
  }

  void add_device(const c10::Device& device) {
    out_.global("torch", "device");
    out_.text(c10::DeviceTypeName(device.type(), /*lower_case=*/true));
    if (device.has_index()) out_.integer(device.index());
    out_.tuple(device.has_index() ? 2 : 1);
    out_.reduce();
  }

  void add_blob(const Blob& blob) {
    if (blobs_ == BlobsAs::kBytes || blob.type == BytesType::kBytes) return out_.bytes(blob.bytes);
    if (blob.type == BytesType::kByteArray) {
      out_.global("builtins", "bytearray");
      out_.bytes(blob.bytes);
      out_.tuple(1);
      return out_.reduce();
    }
    // As Python pickles a BytesIO: the class, and a state of content, position and attributes.
    out_.global("_io", "BytesIO");
    out_.tuple(0);
    out_.new_object();
    out_.bytes(blob.bytes);
    out_.integer(0);  // the read position
    out_.none();
    out_.tuple(3);
    out_.build();
  }

  void add_tensor(const torch::Tensor& tensor) {
    if (const auto found = carried_.find(tensor.unsafeGetTensorImpl()); found != carried_.end())
      return add_dense(tensor, found->second.dtype, found->second.requires_grad);
    const auto dtype = dtype_of(tensor.scalar_type());
    // Only size and type are written here. The caller has the elements.
    if (tensor.is_meta() && dtype) return add_dense(tensor, *dtype, tensor.requires_grad());
    if (const auto reason = why_not_storable(tensor); !reason.empty()) fail_unsupported("a tensor in it " + reason);
    const auto dense = with_torch("copy a tensor out of a plain value",
                                  [&] { return tensor.detach().resolve_conj().resolve_neg().to(at::kCPU).contiguous(); });
    add_dense(dense, *dtype, tensor.requires_grad());
  }

  // Each tensor gets a storage of its own. Tensors that share memory are separate ones after a
  // load.
  void add_dense(const torch::Tensor& dense, DType dtype, bool requires_grad) {
    put_tensor(out_, std::to_string(tensors_.size()), dtype, extents_of(dense.sizes()), requires_grad);
    tensors_.push_back(dense);
  }

  const BlobsAs blobs_;
  const CarriedTypes& carried_;
  Pickler out_;
  std::vector<torch::Tensor> tensors_;            // contiguous, on the CPU or meta device; index = storage key
  c10::IValue::HashAliasedIValueMap containers_;  // containers already written, with their memo slots
  c10::IValue::HashAliasedIValues open_;          // containers being written
};

}  // namespace

PickledValue pickle_value(const Value& value, BlobsAs blobs, const CarriedTypes& carried) {
  return LeafPickler(value, blobs, carried).finish();
}

Bytes serialize_leaf(const Value& value) {
  if (value.is_opaque()) {
    Bytes archive = value.opaque().archive();
    if (archive.empty()) fail_unsupported(value.opaque().why());
    return archive;
  }
  const PickledValue pickled = pickle_value(value, BlobsAs::kOwnType);
  std::vector<ByteSpan> storages;
  storages.reserve(pickled.tensors.size());
  for (const auto& tensor : pickled.tensors) storages.emplace_back(tensor.data_ptr(), tensor.nbytes());
  return write_torch_archive(pickled.pickle, storages);
}

Value deserialize_leaf(ByteSpan bytes) {
  Value value = read_leaf(bytes);
  if (value.is_opaque()) fail_unsupported(value.opaque().why());
  return value;
}

}  // namespace cairn
