#include <cairn/state/leaf_reader.hpp>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include <cairn/base/error.hpp>
#include <cairn/formats/torch_archive.hpp>
#include <cairn/formats/unicode.hpp>
#include <cairn/formats/unpickler.hpp>
#include <cairn/state/tensor_types.hpp>

namespace cairn {
namespace {

// Everything that the reader below understands. A value of any other class is opaque.
const std::vector<PickleGlobal>& leaf_globals() {
  static const auto globals = [] {
    std::vector<PickleGlobal> result = tensor_globals();  // includes OrderedDict
    result.insert(result.end(), {{"builtins", "complex"},
                                 {"builtins", "bytes"},
                                 {"builtins", "bytearray"},
                                 {"_codecs", "encode"},
                                 {"_io", "BytesIO"},
                                 {"torch", "device"}});
    return result;
  }();
  return globals;
}

}  // namespace

struct SavedPickle {
  SavedPickle(const TorchArchive& from, std::uint64_t bytes_max)
      : pickle(from.pickle(bytes_max)), tree(unpickle(pickle, from.what(), leaf_globals(), {}, OpaqueValues::kKept)) {}

  const Bytes pickle;
  const PickleTree tree;
  Bytes leaf;  // a copy of the archive, if the value is all of it
};

namespace {

// Returns bytes, a bytearray or a BytesIO; nothing for other values. Protocol 2 writes bytes as a
// call of _codecs.encode, and empty ones as a call of their class.
std::optional<Blob> blob_of(const PickleValue& value) {
  if (value.is(PickleKind::kBytes)) return Blob{Bytes(value.as_bytes()), BytesType::kBytes};
  const bool is_encoded = value.is_object_of("_codecs", "encode"), is_array = value.is_object_of("builtins", "bytearray");
  if (is_encoded || is_array || value.is_object_of("builtins", "bytes")) {
    const auto arguments = value.arguments();
    Blob blob{{}, is_array ? BytesType::kByteArray : BytesType::kBytes};
    if (is_encoded || arguments.size() == 2) {  // before Python 3.8 bytearrays, too
      const auto encoding = arguments[1].as_text();
      if ((encoding != "latin1" && encoding != "latin-1") || !latin1_of_utf8(arguments[0].as_text(), blob.bytes))
        unsupported(value, "bytes that are spelled as text, but not in Latin-1");
    } else if (arguments.size() != 0) {
      auto inner = blob_of(arguments[0]);
      if (!inner) return std::nullopt;
      blob.bytes = std::move(inner->bytes);
    }
    return blob;
  }
  if (value.is_object_of("_io", "BytesIO")) {
    const auto state = value.state();
    auto blob = state ? blob_of((*state)[0]) : Blob{};
    if (!blob || !state) corrupt(value, "a BytesIO without bytes");
    blob->type = BytesType::kBytesIO;
    return blob;
  }
  return std::nullopt;
}

// Returns the pairs of a dict or of an OrderedDict; nothing for other values.
std::optional<PickleValue> pairs_of(const PickleValue& value) {
  if (value.is(PickleKind::kDict)) return value;
  if (value.is_object_of("collections", "OrderedDict")) {
    if (value.arguments().size() != 0) unsupported(value, "an OrderedDict of a Python older than 3");
    return value.items();
  }
  return std::nullopt;
}

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

// Converts a tree of Python values. The input is not trusted: `spend` bounds the memory that it
// takes beyond the archive's own size.
class LeafReader {
 public:
  // Without `carried`, refuses tensors of types that LibTorch lacks, and reads the saved value as
  // one leaf: `leaf` is its archive.
  LeafReader(std::shared_ptr<SavedPickle> saved, const TorchArchive& archive, ByteSpan leaf, const LoadStorage& load_storage,
             CarriedTypes* carried)
      : saved_(std::move(saved)),
        archive_(archive),
        leaf_(leaf),
        load_storage_(load_storage),
        carried_(carried),
        budget_bytes_(kHeldFree + kHeldPerByte * saved_->pickle.size()) {}

  // Returns an opaque value if no other kind can hold `from`.
  Value value(const PickleValue& from) {
    try {
      return held(from, carried_ == nullptr);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnsupported || is_spent_) throw;
      return opaque(from, error.what());
    }
  }

  // `pairs` are the content of `from`. `whole`: throws kUnsupported for an opaque value.
  Dict dict(const PickleValue& from, const PickleValue& pairs, bool whole = false) {
    spend(from, kContainerBytes);
    Dict result;
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      auto key = key_text(pairs.key(i));
      spend(from, kKeyBytes + 2 * key.size());
      // Keys become texts: 1 and "1" would be one.
      if (result.contains(key))
        throw Error(ErrorCode::kUnsupported, archive_.what() + " holds a dict with two keys \"" + printable(key) + "\"");
      result[key] = whole ? held(pairs.mapped(i), true) : value(pairs.mapped(i));
    }
    return result;
  }

 private:
  // A text takes about as much as a container here. The smallest container that Python writes in
  // earnest, a tuple of two small ints, has 6 bytes of pickle.
  static constexpr std::uint64_t kHeldFree = 64 << 20;
  static constexpr std::uint64_t kHeldPerByte = 48;
  static constexpr std::uint64_t kContainerBytes = 192;  // estimated: LibTorch's list, and its entries in the tables below
  static constexpr std::uint64_t kKeyBytes = 96;
  static constexpr std::uint64_t kPartBytes = 16;  // of an opaque value, for the time that it takes to look there

  Value held(const PickleValue& from, bool whole) {
    spend(from, sizeof(Value));
    if (is_tensor(from)) return tensor(from);
    if (auto blob = blob_of(from)) {
      spend(from, blob->bytes.size());
      return std::move(*blob);
    }
    if (const auto pairs = pairs_of(from)) return dict(from, *pairs, whole);
    if (from.is(PickleKind::kList) && (from.size() == 0 || nesting(from) != Nesting::kNone)) {
      spend(from, kContainerBytes);
      List list;
      list.reserve(from.size());
      // A list that `flatten` does not split is one leaf.
      const bool is_leaf = whole || nesting(from) != Nesting::kSplit;
      for (std::size_t i = 0; i < from.size(); ++i) list.push_back(is_leaf ? held(from[i], true) : value(from[i]));
      return list;
    }
    return Value(plain(from));
  }

  Value opaque(const PickleValue& from, const std::string& why) {
    Search search;
    if (!leaf_.empty()) saved_->leaf = Bytes(leaf_.view());
    look_into(from, search, search.tensors);
    if (search.name.empty()) search.name = to_string(from.kind());
    std::optional<SavedPart> part;
    std::string reason = why;
    if (const auto found = distributed_part(from)) {
      if (carried_ != nullptr) part = SavedPart{tensor(found->local), found->size, found->box};
      search.name = "torch.distributed.tensor.DTensor";
      reason = "this is the part " + to_string(found->box) + " of a DTensor of size " + to_string(found->size) +
               ", and the files of other ranks, beside this one and with names that differ in one number, do not complete it";
    }
    return Value(std::make_shared<const SavedOpaque>(saved_, from, std::move(search.name), reason, std::move(search.tensors),
                                                     std::move(part)));
  }

  // The search for what makes a value opaque, and for the tensors in it.
  struct Search {
    std::string name;
    Dict tensors;
    std::unordered_set<std::uint32_t> seen;
  };

  void look_into(const PickleValue& value, Search& search, Dict& tensors) {
    if (search.name.empty() && value.is(PickleKind::kOpaque)) search.name = value.opaque_name();
    // The others have no parts.
    const auto shape = value.shape();
    if (shape < PickleKind::kList || shape == PickleKind::kGlobal) return;
    if (!search.seen.insert(value.id()).second) return;
    std::size_t index = 0;
    for_each_part(value, [&](std::string_view given, const PickleValue& part) {
      spend(value, kPartBytes);
      const std::size_t position = index++;
      Value found;
      if (carried_ != nullptr && is_tensor(part)) {
        if (auto complete = complete_tensor(part)) found = std::move(*complete);
      } else {
        Dict below;
        look_into(part, search, below);
        if (!below.empty()) found = std::move(below);
      }
      if (found.is_none()) return;
      std::string name = given.empty() ? std::to_string(position) : std::string(given);
      spend(value, kKeyBytes + 2 * name.size());
      if (!tensors.contains(name)) tensors.insert(std::move(name), std::move(found));
    });
  }

  std::optional<torch::Tensor> complete_tensor(const PickleValue& from) {
    try {
      return tensor(from);
    } catch (const Error& error) {
      if ((error.code() != ErrorCode::kUnsupported && error.code() != ErrorCode::kCorrupt) || is_spent_) throw;
      return std::nullopt;
    }
  }

  // Limits memory: a byte of a pickle can be a list. In addition, Dicts, Lists and Blobs are
  // values, so a shared Python object is copied to each place, and nested sharing could multiply
  // the copies without limit.
  void spend(const PickleValue& on, std::uint64_t bytes) {
    is_spent_ = bytes > budget_bytes_;
    if (is_spent_)
      unsupported(on, "its values, shared ones counted in each place, take more memory than a pickle of its length may");
    budget_bytes_ -= bytes;
  }

  static std::string key_text(const PickleValue& key) {
    switch (key.kind()) {
      case PickleKind::kText:
        return std::string(key.as_text());
      case PickleKind::kInt:
        return std::to_string(key.as_int());
      case PickleKind::kBool:
        return key.as_bool() ? "True" : "False";
      default:
        unsupported(key, std::string("a dict with ") + to_string(key.kind()) + " as a key; use text");
    }
  }

  // The reason why a list becomes a List rather than an IValue.
  enum class Nesting : std::uint8_t { kNone, kBytes, kSplit };

  Nesting nesting(const PickleValue& list) {
    if (const auto known = nesting_.find(list.id()); known != nesting_.end()) return known->second;
    auto found = Nesting::kNone;
    for (std::size_t i = 0; i < list.size() && found != Nesting::kSplit; ++i) {
      const auto element = list[i];
      if (is_tensor(element) || pairs_of(element)) found = Nesting::kSplit;
      if (is_bytes(element)) found = std::max(found, Nesting::kBytes);
      if (element.is(PickleKind::kList)) found = std::max(found, nesting(element));
    }
    nesting_.emplace(list.id(), found);
    return found;
  }

  static bool is_bytes(const PickleValue& value) {
    return value.is(PickleKind::kBytes) || value.is_object_of("_codecs", "encode") || value.is_object_of("builtins", "bytearray") ||
           value.is_object_of("builtins", "bytes") || value.is_object_of("_io", "BytesIO");
  }

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
        return dtype(from);
      case PickleKind::kOpaque:
        unsupported(from, from.why_opaque());
      case PickleKind::kPersistentId:
        unsupported(from, "a storage that belongs to no tensor");
      default:
        break;
    }
    // Python shares objects by identity, so ids are enough to find the ones that were made.
    if (const auto known = made_.find(from.id()); known != made_.end()) return known->second;
    spend(from, kContainerBytes);
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
    spend(pairs, pairs.size() * kKeyBytes);
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

  static c10::IValue dtype(const PickleValue& from) {
    const auto global = from.as_global();
    if (global.module != "torch" || !is_dtype_name(global.name))
      unsupported(from, to_string(global) + " itself, which cannot be held here");
    return dtype_value(std::string(global.name));
  }

  static c10::IValue device(const PickleValue& from) {
    const auto arguments = from.arguments();
    std::string name(arguments[0].as_text());
    if (arguments.size() > 1) name += ":" + std::to_string(arguments[1].as_int());
    try {
      return c10::Device(name);
    } catch (const c10::Error&) {
      unsupported(from, "the device \"" + printable(name) + "\", which this LibTorch does not know");
    }
  }

  static std::string name_of(const TensorDescription& tensor) {
    return tensor.dtype == DType::kUnknown ? tensor.unknown_dtype : to_string(tensor.dtype);
  }

  torch::Tensor tensor(const PickleValue& from) {
    if (const auto known = tensors_.find(from.id()); known != tensors_.end()) return known->second;
    const auto description = describe_tensor(from);
    const bool is_carried = !scalar_type_of(description.dtype);
    if (is_carried && carried_ == nullptr)
      unsupported(from, "a tensor of " + name_of(description) + ", which this LibTorch cannot hold");
    // Sizes and strides, 8 bytes each per dimension.
    spend(from, 16 * description.sizes.size());
    auto made = with_torch("make a tensor of a saved value", [&] {
      const auto type = carrier_type_of(description.dtype);
      // Keeps only the size of a tensor that cannot be read.
      if (!type) return torch::empty(array_of(description.sizes), torch::TensorOptions().dtype(at::kByte).device(at::kMeta));
      const auto& elements = storage(from, description, *type);
      auto result = torch::empty({0}, *type);
      result.set_(elements.storage(), static_cast<std::int64_t>(description.storage_offset), array_of(description.sizes),
                  array_of(description.strides));
      if (description.requires_grad && (result.is_floating_point() || result.is_complex())) result.requires_grad_();
      return result;
    });
    if (is_carried)
      carried_->emplace(made.unsafeGetTensorImpl(),
                        CarriedType{description.dtype, description.requires_grad, description.unknown_dtype});
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
        const bool as_stored = !is_conjugated && !description.is_negated;
        if (as_stored && load_storage_) return load_storage_(description.storage_key, type);
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

  const std::shared_ptr<SavedPickle> saved_;
  const TorchArchive& archive_;
  const ByteSpan leaf_;
  const LoadStorage& load_storage_;
  CarriedTypes* const carried_;
  std::uint64_t budget_bytes_;  // the bytes that copies may still use
  bool is_spent_ = false;       // they are used up, which is no reason to call a value opaque
  std::unordered_map<std::uint32_t, Nesting> nesting_;
  std::unordered_map<std::uint32_t, c10::IValue> made_;
  std::unordered_map<std::uint32_t, torch::Tensor> tensors_;
  std::unordered_map<std::string, torch::Tensor> storages_;
};

}  // namespace

Bytes SavedOpaque::archive() const { return saved_->leaf; }

Dict read_saved_dict(const TorchArchive& archive, const LoadStorage& load_storage, CarriedTypes& carried, const std::string& key) {
  constexpr std::uint64_t kPickleBytesMax = std::uint64_t{1} << 30;  // a sparse file may claim any size
  const auto saved = std::make_shared<SavedPickle>(archive, kPickleBytesMax);
  const auto root = saved->tree.root();
  LeafReader reader(saved, archive, {}, load_storage, &carried);
  if (!key.empty()) return {{key, reader.value(root)}};
  if (!pairs_of(root) && !root.is(PickleKind::kOpaque))
    throw Error(ErrorCode::kUnsupported, archive.what() + " holds " + to_string(root.kind()) + ", not a state dict");
  Value value = reader.value(root);
  if (value.is_dict()) return std::move(value.dict());
  std::string name = value.opaque().name();
  return {{std::move(name), std::move(value)}};
}

Value read_leaf(ByteSpan archive_bytes) {
  const TorchArchive archive(archive_bytes, "a saved value");
  const auto saved = std::make_shared<SavedPickle>(archive, std::numeric_limits<std::uint64_t>::max());
  return LeafReader(saved, archive, archive_bytes, {}, nullptr).value(saved->tree.root());
}

}  // namespace cairn
