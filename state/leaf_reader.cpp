#include <cairn/state/leaf_reader.hpp>

#include <algorithm>
#include <cstring>
#include <memory>
#include <unordered_map>

#include <cairn/base/error.hpp>
#include <cairn/formats/saved_entries.hpp>
#include <cairn/formats/unicode.hpp>
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
    spend(from, sizeof(Value));
    if (is_tensor(from)) return tensor(from);
    if (auto blob = blob_of(from)) {
      spend(from, blob->bytes.size());
      return std::move(*blob);
    }
    if (const auto pairs = pairs_of(from)) {
      spend(from, SavedRules::kContainerBytes);
      Dict result;
      std::vector<std::string> keys = rules_.keys_of(*pairs);
      for (std::size_t i = 0; i < keys.size(); ++i) result[std::move(keys[i])] = held(pairs->mapped(i));
      return result;
    }
    if (from.is(PickleKind::kList) && (from.size() == 0 || rules_.nesting(from) != SavedRules::Nesting::kNone)) {
      spend(from, SavedRules::kContainerBytes);
      List list;
      list.reserve(from.size());
      for (std::size_t i = 0; i < from.size(); ++i) list.push_back(held(from[i]));
      return list;
    }
    return Value(plain(from));
  }
  bool is_spent() const { return rules_.is_spent(); }

 private:
  void spend(const PickleValue& on, std::uint64_t bytes) { rules_.spend(on, bytes); }

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
    spend(from, SavedRules::kContainerBytes);
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
      spend(from, blob->bytes.size());
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
    spend(from, from.size() * sizeof(c10::IValue));
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
    spend(pairs, pairs.size() * SavedRules::kKeyBytes);
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
    const auto description = describe_tensor(from);
    const auto type = scalar_type_of(description.dtype);
    if (!type)
      unsupported(from, "a tensor of " +
                            (description.dtype == DType::kUnknown ? description.unknown_dtype : to_string(description.dtype)) +
                            ", which this LibTorch cannot hold");
    // Sizes and strides, 8 bytes each per dimension.
    spend(from, 16 * description.sizes.size());
    auto made = with_torch("make a tensor of a saved value", [&] {
      const auto& elements = storage(from, description, *type);
      auto result = torch::empty({0}, *type);
      result.set_(elements.storage(), static_cast<std::int64_t>(description.storage_offset), array_of(description.sizes),
                  array_of(description.strides));
      if (description.requires_grad && (result.is_floating_point() || result.is_complex())) result.requires_grad_();
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
    if (found->second.nbytes() < description.storage_bytes)
      corrupt(from, "a storage of " + std::to_string(found->second.nbytes()) + " bytes, where " +
                        std::to_string(description.storage_bytes) + " are described");
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

// Has a copy of the archive.
class SavedOpaque final : public Opaque {
 public:
  SavedOpaque(std::string name, std::string why, ByteSpan archive)
      : name_(std::move(name)), why_(std::move(why)), archive_(archive.view()) {}
  const std::string& name() const override { return name_; }
  const std::string& why() const override { return why_; }
  Bytes archive() const override { return archive_; }

 private:
  const std::string name_;
  const std::string why_;
  const Bytes archive_;
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
    return Value(std::make_shared<const SavedOpaque>(value.opaque, value.why, bytes));
  }
}

}  // namespace cairn
