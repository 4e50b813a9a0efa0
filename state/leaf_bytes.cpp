// Writes leaves of a state dict as torch.save does. state/leaf_reader.cpp reads them.
#include <vector>

#include <cairn/base/error.hpp>
#include <cairn/formats/saved_value.hpp>
#include <cairn/formats/tensor_pickle.hpp>
#include <cairn/formats/torch_archive.hpp>
#include <cairn/state/leaf_reader.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/state/tensor_types.hpp>

namespace cairn {
namespace {

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
  explicit LeafPickler(const Value& value) : out_(holds_blob(value) ? 4 : 2) { add(value, 0); }

  Bytes finish() && {
    const Bytes pickle = std::move(out_).finish();
    std::vector<ByteSpan> storages;
    storages.reserve(tensors_.size());
    for (const auto& tensor : tensors_) storages.emplace_back(tensor.data_ptr(), tensor.nbytes());
    return write_torch_archive(pickle, storages);
  }

 private:
  void add(const Value& value, int depth) {
    check_nesting(depth);
    if (value.is_ivalue()) return add(value.ivalue(), depth);
    if (value.is_tensor()) return add_tensor(value.tensor());
    if (value.is_blob()) return put_blob(out_, value.blob(), BlobsAs::kOwnType);
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
    check_nesting(depth);
    if (value.isNone()) return out_.none();
    if (value.isBool()) return out_.boolean(value.toBool());
    if (value.isInt()) return out_.integer(value.toInt());
    if (value.isDouble()) return out_.real(value.toDouble());
    if (value.isString()) return void(out_.text(value.toStringRef()));
    if (value.isComplexDouble()) return put_complex(out_, value.toComplexDouble().real(), value.toComplexDouble().imag());
    if (value.isTensor()) return add_tensor(value.toTensor());
    if (value.isDevice()) return put_device(out_, value.toDevice().str());
    if (const auto dtype = dtype_name_in(value)) return out_.global("torch", *dtype);
    if (const auto blob = blob_in(value)) return put_blob(out_, *blob, BlobsAs::kOwnType);
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

  void add_tensor(const torch::Tensor& tensor) {
    if (const auto reason = why_not_storable(tensor); !reason.empty()) fail_unsupported("a tensor in it " + reason);
    const auto dense = with_torch("copy a tensor out of a plain value",
                                  [&] { return tensor.detach().resolve_conj().resolve_neg().to(at::kCPU).contiguous(); });
    // Each tensor gets a storage of its own. Tensors that share memory are separate ones after a
    // load.
    put_tensor(out_, std::to_string(tensors_.size()), *dtype_of(tensor.scalar_type()), extents_of(dense.sizes()),
               tensor.requires_grad());
    tensors_.push_back(dense);
  }

  Pickler out_;
  std::vector<torch::Tensor> tensors_;            // contiguous, on the CPU; index = storage key
  c10::IValue::HashAliasedIValueMap containers_;  // containers already written, with their memo slots
  c10::IValue::HashAliasedIValues open_;          // containers being written
};

}  // namespace

Bytes serialize_leaf(const Value& value) {
  if (value.is_opaque()) {
    Bytes archive = value.opaque().archive();
    if (archive.empty()) fail_unsupported(value.opaque().why());
    return archive;
  }
  return LeafPickler(value).finish();
}

Value deserialize_leaf(ByteSpan bytes) {
  Value value = read_leaf(bytes);
  if (value.is_opaque()) fail_unsupported(value.opaque().why());
  return value;
}

}  // namespace cairn
