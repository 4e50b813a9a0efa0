// Leaves of a state dict as torch.save writes them.
#include <cairn/state/leaf_bytes.hpp>

#include <algorithm>
#include <cstring>
#include <memory>
#include <unordered_map>
#include <vector>

#include <cairn/base/error.hpp>
#include <cairn/formats/saved_value.hpp>
#include <cairn/formats/tensor_pickle.hpp>
#include <cairn/formats/torch_archive.hpp>
#include <cairn/formats/unicode.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/state/tensor_types.hpp>

namespace cairn {
namespace {

// Returns the element type that LibTorch gives an IValue list of such values. Long tuples, and
// tuples within tuples, become AnyType: a tuple may appear in many places, and expanding its type
// in each could take exponential time.
c10::TypePtr type_of(const c10::IValue& value, bool within_tuple = false) {
  if (value.isBool()) return c10::BoolType::get();
  if (value.isInt()) return c10::IntType::get();
  if (value.isDouble()) return c10::FloatType::get();
  if (value.isComplexDouble()) return c10::ComplexType::get();
  if (value.isString()) return c10::StringType::get();
  if (value.isTensor()) return c10::TensorType::get();
  if (value.isDevice()) return c10::DeviceObjType::get();
  if (value.isList()) return c10::ListType::create(value.toList().elementType());
  if (!value.isTuple() || within_tuple) return c10::AnyType::get();
  constexpr std::size_t kTypedTupleMax = 16;
  const auto& elements = value.toTupleRef().elements();
  if (elements.size() > kTypedTupleMax) return c10::AnyType::get();
  std::vector<c10::TypePtr> types;
  for (const auto& element : elements) {
    types.push_back(type_of(element, true));
    if (types.back()->kind() == c10::TypeKind::AnyType) return c10::AnyType::get();
  }
  return c10::TupleType::create(std::move(types));
}

// Converts a tree of Python values. The input is not trusted: `rules_` bounds the memory.
class LeafReader {
 public:
  LeafReader(const SavedPickle& saved, const TorchArchive& archive) : archive_(archive), rules_(saved, archive.what()) {}

  Value held(const PickleValue& from) {
    rules_.spend(from, sizeof(Value));
    if (is_tensor(from)) return tensor(from);
    if (auto blob = blob_of(from)) {
      rules_.spend(from, blob->bytes.size());
      return std::move(*blob);
    }
    if (const auto pairs = pairs_of(from)) {
      rules_.spend(from, SavedRules::kContainerBytes);
      Dict result;
      std::vector<std::string> keys = rules_.keys_of(*pairs);
      for (std::size_t i = 0; i < keys.size(); ++i) result[std::move(keys[i])] = held(pairs->mapped(i));
      return result;
    }
    if (from.is(PickleKind::kList) && (from.size() == 0 || rules_.nesting(from) != SavedRules::Nesting::kNone)) {
      rules_.spend(from, SavedRules::kContainerBytes);
      List list;
      list.reserve(from.size());
      for (std::size_t i = 0; i < from.size(); ++i) list.push_back(held(from[i]));
      return list;
    }
    return Value(plain(from));
  }
  bool is_spent() const { return rules_.is_spent(); }

 private:
  // Texts, lists, dicts and tuples in IValues are handles, so each node is made once and shared as
  // in Python.
  c10::IValue plain(const PickleValue& from) {
    switch (from.kind()) {
      case PickleKind::kNone:
        return {};
      case PickleKind::kBool:
        return from.as_bool();
      case PickleKind::kInt:
        return from.as_int();
      case PickleKind::kFloat:
        return from.as_float();
      case PickleKind::kGlobal:
        return dtype_value(dtype_name_of(from));
      case PickleKind::kOpaque:
        unsupported(from, from.why_opaque());
      case PickleKind::kPersistentId:
        unsupported(from, "a storage that belongs to no tensor");
      default:
        break;
    }
    // Python shares objects by identity, so ids are enough to find the ones that were made.
    if (const auto known = made_.find(from.id()); known != made_.end()) return known->second;
    rules_.spend(from, SavedRules::kContainerBytes);
    auto made = from.is(PickleKind::kText) ? c10::IValue(std::string(from.as_text())) : container_or_object(from);
    made_.emplace(from.id(), made);
    return made;
  }

  c10::IValue container_or_object(const PickleValue& from) {
    if (from.is(PickleKind::kList)) return list(from);
    if (from.is(PickleKind::kTuple)) return c10::ivalue::Tuple::create(elements_of(from));
    if (const auto pairs = pairs_of(from)) return plain_dict(*pairs);
    if (is_tensor(from)) return tensor(from);
    if (auto blob = blob_of(from)) {
      rules_.spend(from, blob->bytes.size());
      return plain_value_of(std::move(*blob));
    }
    const auto arguments = from.arguments();
    if (from.is_object_of("builtins", "complex")) {
      const bool is_sound = arguments.size() == 2;
      if (!is_sound) corrupt(from, "a complex number without two parts");
      return c10::complex<double>(arguments[0].as_float(), arguments[1].as_float());
    }
    if (from.is_object_of("torch", "Size")) {
      std::vector<c10::IValue> sizes;
      for (const auto size : extents_of(from)) sizes.emplace_back(size);
      return torch_size_value(std::move(sizes));
    }
    if (from.is_object_of("torch", "device")) return device(from);
    unsupported(from, "an object of " + to_string(from.callee().as_global()) + ", which cannot be held here");
  }

  std::vector<c10::IValue> elements_of(const PickleValue& from) {
    rules_.spend(from, from.size() * sizeof(c10::IValue));
    std::vector<c10::IValue> elements;
    elements.reserve(from.size());
    for (std::size_t i = 0; i < from.size(); ++i) elements.push_back(plain(from[i]));
    return elements;
  }

  c10::IValue list(const PickleValue& from) {
    auto elements = elements_of(from);
    // LibTorch distinguishes a list of numbers from a list of anything, even in comparisons. Use
    // the narrowest type.
    auto type = elements.empty() ? c10::TypePtr(c10::AnyType::get()) : type_of(elements.front());
    for (const auto& element : elements) {
      if (type->kind() == c10::TypeKind::AnyType) break;
      if (*type_of(element) != *type) type = c10::AnyType::get();
    }
    c10::impl::GenericList result(type);
    result.reserve(elements.size());
    for (auto& element : elements) result.push_back(std::move(element));
    return result;
  }

  // LibTorch's dicts have keys of one type.
  c10::IValue plain_dict(const PickleValue& pairs) {
    rules_.spend(pairs, pairs.size() * SavedRules::kKeyBytes);
    const auto key_kind = pairs.size() == 0 ? PickleKind::kText : pairs.key(0).kind();
    if (key_kind != PickleKind::kText && key_kind != PickleKind::kInt)
      unsupported(pairs, std::string("a dict with ") + to_string(key_kind) + " as a key; use text");
    c10::impl::GenericDict result(
        key_kind == PickleKind::kText ? c10::TypePtr(c10::StringType::get()) : c10::TypePtr(c10::IntType::get()),
        c10::AnyType::get());
    result.reserve(pairs.size());
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      if (pairs.key(i).kind() != key_kind) unsupported(pairs, "a dict with keys of several types inside a tuple");
      result.insert_or_assign(plain(pairs.key(i)), plain(pairs.mapped(i)));
    }
    return result;
  }

  static c10::IValue device(const PickleValue& from) {
    const std::string name = device_name_of(from);
    try {
      return c10::Device(name);
    } catch (const c10::Error&) {
      unsupported(from, "the device \"" + printable(name) + "\", which this LibTorch does not know");
    }
  }

  torch::Tensor tensor(const PickleValue& from) {
    if (const auto known = tensors_.find(from.id()); known != tensors_.end()) return known->second;
    const auto description = described_tensor(from);
    const auto type = scalar_type_of(description.dtype);
    if (!type)
      unsupported(from, "a tensor of " +
                            (description.dtype == DType::kUnknown ? description.unknown_dtype : to_string(description.dtype)) +
                            ", which this LibTorch cannot hold");
    // Sizes and strides, 8 bytes each per dimension.
    rules_.spend(from, 16 * description.sizes.size());
    auto made = with_torch("make a tensor of a saved value", [&] {
      const auto& elements = storage(from, description, *type);
      auto result = torch::empty({0}, *type);
      result.set_(elements.storage(), static_cast<std::int64_t>(description.storage_offset), array_of(description.sizes),
                  array_of(description.strides));
      if (description.requires_grad) result.requires_grad_();
      return result;
    });
    tensors_.emplace(from.id(), made);
    return made;
  }

  // Returns the elements of a storage, read once: tensors that share it in Python share it here.
  // Conjugated or negated elements are resolved for the whole storage, because a view may claim any
  // number of elements.
  const torch::Tensor& storage(const PickleValue& from, const TensorDescription& description, at::ScalarType type) {
    const bool is_conjugated = description.is_conjugated && c10::isComplexType(type);
    // One storage may be needed as stored and resolved. The dtype counts too, because the resolving
    // operations depend on it.
    const auto key = description.storage_key + (is_conjugated ? " conj " : " ") + (description.is_negated ? "neg " : "") +
                     (is_conjugated || description.is_negated ? to_string(description.dtype) : "");
    auto found = storages_.find(key);
    if (found == storages_.end()) {
      auto elements = with_torch("hold a saved tensor", [&] {
        auto memory = read_storage(description, type);
        if (is_conjugated) memory.conj_physical_();
        if (description.is_negated) memory.neg_();
        return memory;
      });
      found = storages_.emplace(key, std::move(elements)).first;
    }
    // Views were checked against the described size, so the memory must have at least that.
    if (const std::string why = archive_.shortage(description); !why.empty()) corrupt(from, why);
    return found->second;
  }

  torch::Tensor read_storage(const TensorDescription& description, at::ScalarType type) const {
    const auto bytes = archive_.read_storage(description.storage_key);
    const auto count = static_cast<std::int64_t>(bytes.size() / element_size(description.dtype));
    auto memory = torch::empty({count}, type);
    if (count > 0) std::memcpy(memory.data_ptr(), bytes.data(), memory.nbytes());
    return memory;
  }

  const TorchArchive& archive_;
  SavedRules rules_;
  std::unordered_map<std::uint32_t, c10::IValue> made_;
  std::unordered_map<std::uint32_t, torch::Tensor> tensors_;
  std::unordered_map<std::string, torch::Tensor> storages_;
};

[[noreturn]] void fail_unsupported(const std::string& why) { throw Error(ErrorCode::kUnsupported, why); }

bool holds_blob(const Value& value) {
  const auto entry_holds_blob = [](const auto& entry) { return holds_blob(entry.second); };
  if (value.is_list()) return std::any_of(value.list().begin(), value.list().end(), holds_blob);
  if (value.is_dict()) return std::any_of(value.dict().begin(), value.dict().end(), entry_holds_blob);
  return value.is_blob();
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
      return add_elements(value.list(), depth);
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

  template <class Elements>
  void add_elements(const Elements& elements, int depth) {
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

Value read_leaf(ByteSpan bytes) {
  const TorchArchive archive(bytes, "a saved value");
  const auto saved = std::make_shared<const SavedPickle>(archive);
  const PickleValue root = saved->tree.root();
  LeafReader reader(*saved, archive);
  try {
    return reader.held(root);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnsupported || reader.is_spent()) throw;
    const SavedValue value = opaque_value(saved, archive, error.what());
    return Value(std::make_shared<const Opaque>(value.opaque, value.why, Bytes(bytes.view())));
  }
}

Bytes serialize_leaf(const Value& value) {
  if (value.is_opaque()) return value.opaque().archive();
  return LeafPickler(value).finish();
}

Value deserialize_leaf(ByteSpan bytes) {
  Value value = read_leaf(bytes);
  if (value.is_opaque()) fail_unsupported(value.opaque().why());
  return value;
}

}  // namespace cairn
