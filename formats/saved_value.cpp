#include <cairn/formats/saved_value.hpp>

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_set>
#include <utility>

#include <cairn/base/error.hpp>
#include <cairn/formats/tensor_pickle.hpp>
#include <cairn/formats/unicode.hpp>
#include <cairn/planning/elements.hpp>

namespace cairn {
namespace {

// A value of any other class is opaque.
const std::vector<PickleGlobal>& saved_globals() {
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

// Returns whether `blob_of` would find bytes, without a copy of them.
bool is_blob(const PickleValue& value) {
  return value.is(PickleKind::kBytes) || value.is_object_of("_codecs", "encode") || value.is_object_of("builtins", "bytearray") ||
         value.is_object_of("builtins", "bytes") || value.is_object_of("_io", "BytesIO");
}

// Returns a key as the text that stands for it in names of a state.
std::string key_text(const PickleValue& key) {
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

// Puts a value that is not split, in the order in which CPython would pickle it.
class ValueWriter {
 public:
  using Slots = std::unordered_map<std::uint32_t, Pickler::Slot>;  // by id
  ValueWriter(SavedRules& rules, Pickler& out, BlobsAs blobs, Slots& slots, std::vector<TensorDescription>& tensors)
      : rules_(rules), out_(out), blobs_(blobs), slots_(slots), tensors_(tensors) {}

  // `is_shared`: the value is in a tuple, or in a list that is neither split nor has bytes.
  // Containers there are shared as in Python, and dicts keep whole numbers as keys.
  void put(const PickleValue& from, int depth = 0, bool is_shared = false) {
    check_nesting(depth);
    if (is_tensor(from)) return put_tensor_of(from);
    if (const auto blob = blob_of(from)) {
      rules_.spend(from, blob->bytes.size());
      return put_blob(out_, *blob, blobs_);
    }
    switch (from.kind()) {
      case PickleKind::kNone:
        return out_.none();
      case PickleKind::kBool:
        return out_.boolean(from.as_bool());
      case PickleKind::kInt:
        return out_.integer(from.as_int());
      case PickleKind::kFloat:
        return out_.real(from.as_float());
      case PickleKind::kText: {
        // By id first: a long text may be in very many places.
        if (const auto known = slots_.find(from.id()); known != slots_.end()) return out_.recall(known->second);
        slots_.emplace(from.id(), out_.text(from.as_text()));
        return;
      }
      case PickleKind::kGlobal:
        return out_.global("torch", dtype_name_of(from));
      case PickleKind::kOpaque:
        unsupported(from, from.why_opaque());
      case PickleKind::kPersistentId:
        unsupported(from, "a storage that belongs to no tensor");
      default:
        return put_container(from, depth + 1, is_shared);
    }
  }

 private:
  void put_container(const PickleValue& from, int depth, bool is_shared) {
    const auto pairs = pairs_of(from);
    const bool is_list = from.is(PickleKind::kList);
    is_shared |= !pairs && !(is_list && (from.size() == 0 || rules_.nesting(from) != SavedRules::Nesting::kNone));
    if (const auto known = slots_.find(from.id()); is_shared && known != slots_.end()) return out_.recall(known->second);
    rules_.spend(from, SavedRules::kContainerBytes);
    const auto remember = [&] {
      if (is_shared) slots_.emplace(from.id(), out_.remember());
    };
    if (is_list) {
      out_.empty_list();
      remember();
      if (from.size() == 0) return;
      out_.mark();
      for (std::size_t i = 0; i < from.size(); ++i) put(from[i], depth, is_shared);
      return out_.appends();
    }
    if (pairs) {
      out_.empty_dict();
      remember();
      return is_shared ? put_pairs(*pairs, depth) : put_named(*pairs, depth);
    }
    if (from.is(PickleKind::kTuple)) {
      if (from.size() > 3) out_.mark();
      for (std::size_t i = 0; i < from.size(); ++i) put(from[i], depth, true);
      out_.tuple(from.size());
    } else if (from.is_object_of("torch", "Size")) {
      const Extents sizes = extents_of(from);
      out_.global("torch", "Size");
      if (sizes.size() > 3) out_.mark();
      for (const std::int64_t size : sizes) out_.integer(size);
      out_.tuple(sizes.size());
      out_.tuple(1);
      out_.reduce();
    } else {
      return put_object(from);
    }
    remember();  // after its elements, because Python makes it from them
  }

  // A dict outside of tuples: its keys become texts, as in a state dict.
  void put_named(const PickleValue& pairs, int depth) {
    const std::vector<std::string> keys = rules_.keys_of(pairs);
    if (keys.empty()) return;
    out_.mark();
    for (std::size_t i = 0; i < keys.size(); ++i) {
      out_.text(keys[i]);
      put(pairs.mapped(i), depth);
    }
    out_.set_items();
  }

  // The keys are of one kind. A key that was set twice has the last value.
  void put_pairs(const PickleValue& pairs, int depth) {
    if (pairs.size() == 0) return;
    rules_.spend(pairs, pairs.size() * SavedRules::kKeyBytes);
    const PickleKind kind = pairs.key(0).kind();
    if (kind != PickleKind::kText && kind != PickleKind::kInt)
      unsupported(pairs, std::string("a dict with ") + to_string(kind) + " as a key; use text");
    std::vector<std::size_t> chosen;  // indices of values, in the order of their keys
    std::unordered_map<std::string, std::size_t> positions;
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      if (pairs.key(i).kind() != kind) unsupported(pairs, "a dict with keys of several types inside a tuple");
      const auto [known, is_new] = positions.emplace(key_text(pairs.key(i)), chosen.size());
      is_new ? chosen.push_back(i) : void(chosen[known->second] = i);
    }
    out_.mark();
    for (const std::size_t i : chosen) {
      put(pairs.key(i), depth);
      put(pairs.mapped(i), depth, true);
    }
    out_.set_items();
  }

  // A call of one of the classes above. What else they make is a blob or a tensor.
  void put_object(const PickleValue& from) {
    const auto arguments = from.arguments();
    if (from.is_object_of("builtins", "complex")) {
      if (arguments.size() != 2) corrupt(from, "a complex number without two parts");
      return put_complex(out_, arguments[0].as_float(), arguments[1].as_float());
    }
    if (!from.is_object_of("torch", "device"))
      unsupported(from, "an object of " + to_string(from.callee().as_global()) + ", which cannot be held here");
    put_device(out_, device_name_of(from));
  }

  // Each tensor gets a storage of its own. Tensors that share memory are separate ones after a
  // load.
  void put_tensor_of(const PickleValue& from) {
    const TensorDescription found = described_tensor(from);
    rules_.spend(from, 16 * found.sizes.size());
    tensors_.push_back(found);
    if (found.dtype == DType::kUnknown)
      unsupported(from, "a tensor of torch." + found.unknown_dtype + ", which this version of Cairn does not know");
    put_tensor(out_, std::to_string(tensors_.size() - 1), found.dtype, found.sizes, found.requires_grad);
  }

  SavedRules& rules_;
  Pickler& out_;
  const BlobsAs blobs_;
  Slots& slots_;
  std::vector<TensorDescription>& tensors_;
};

}  // namespace

SavedPickle::SavedPickle(const TorchArchive& archive, std::uint64_t bytes_max)
    : SavedPickle(archive.pickle(bytes_max), archive.what()) {}

SavedPickle::SavedPickle(Bytes from, const std::string& what)
    : pickle(std::move(from)), tree(unpickle(pickle, what, saved_globals(), {}, OpaqueValues::kKept)) {}

TensorDescription described_tensor(const PickleValue& value) {
  TensorDescription tensor = describe_tensor(value);
  // Python refuses to load a tensor of whole numbers that requires a gradient.
  const bool may_be_whole = !is_floating(tensor.dtype) && !is_complex(tensor.dtype);
  if (may_be_whole && tensor.dtype != DType::kFloat4E2M1FnX2 && tensor.dtype != DType::kUnknown) tensor.requires_grad = false;
  return tensor;
}

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

std::optional<PickleValue> pairs_of(const PickleValue& value) {
  if (value.is(PickleKind::kDict)) return value;
  if (value.is_object_of("collections", "OrderedDict")) {
    if (value.arguments().size() != 0) unsupported(value, "an OrderedDict of a Python older than 3");
    return value.items();
  }
  return std::nullopt;
}

std::string dtype_name_of(const PickleValue& value) {
  const auto global = value.as_global();
  if (global.module != "torch" || !is_dtype_name(global.name))
    unsupported(value, to_string(global) + " itself, which cannot be held here");
  return std::string(global.name);
}

// Returns whether PyTorch takes this name: a type of device that it has, and perhaps an index
// without leading zeros. Any other would be saved as something else than what it was.
static bool is_device_name(std::string_view name) {
  static constexpr std::array<std::string_view, 21> kTypes{
      "cpu", "cuda", "mkldnn", "opengl", "opencl", "ideep", "hip",  "ve",  "fpga", "maia",       "ort",
      "xla", "lazy", "vulkan", "mps",    "meta",   "hpu",   "mtia", "xpu", "ipu",  "privateuseone"};
  const auto colon = name.find(':');
  if (std::find(kTypes.begin(), kTypes.end(), name.substr(0, colon)) == kTypes.end()) return false;
  if (colon == std::string_view::npos) return true;
  const std::string_view index = name.substr(colon + 1);
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (index.empty() || index.size() > 5 || (index.size() > 1 && index[0] == '0')) return false;
  return std::all_of(index.begin(), index.end(), is_digit);
}

std::string device_name_of(const PickleValue& device) {
  const auto arguments = device.arguments();
  std::string name(arguments[0].as_text());
  if (arguments.size() > 1) name += ":" + std::to_string(arguments[1].as_int());
  if (!is_device_name(name)) unsupported(device, "the device \"" + printable(name) + "\", which PyTorch does not know");
  return name;
}

void check_nesting(int depth) {
  constexpr int kDepthMax = 100;
  if (depth > kDepthMax)
    throw Error(ErrorCode::kUnsupported, "values are nested more than " + std::to_string(kDepthMax) + " deep");
}

void put_blob(Pickler& out, const Blob& blob, BlobsAs as) {
  if (as == BlobsAs::kBytes || blob.type == BytesType::kBytes) return out.bytes(blob.bytes);
  if (blob.type == BytesType::kByteArray) {
    out.global("builtins", "bytearray");
    out.bytes(blob.bytes);
    out.tuple(1);
    return out.reduce();
  }
  // As Python pickles a BytesIO: the class, and a state of content, position and attributes.
  out.global("_io", "BytesIO");
  out.tuple(0);
  out.new_object();
  out.bytes(blob.bytes);
  out.integer(0);  // the read position
  out.none();
  out.tuple(3);
  out.build();
}

void put_complex(Pickler& out, double real, double imaginary) {
  out.global("builtins", "complex");
  out.real(real);
  out.real(imaginary);
  out.tuple(2);
  out.reduce();
}

void put_device(Pickler& out, const std::string& name) {
  const auto colon = name.find(':');
  out.global("torch", "device");
  out.text(name.substr(0, colon));
  if (colon != std::string::npos) out.integer(std::stoll(name.substr(colon + 1)));
  out.tuple(colon != std::string::npos ? 2 : 1);
  out.reduce();
}

void SavedRules::spend(const PickleValue& on, std::uint64_t bytes) {
  is_spent_ = bytes > budget_bytes_;
  if (is_spent_) unsupported(on, "its values, shared ones counted in each place, take more memory than a pickle of its length may");
  budget_bytes_ -= bytes;
}

std::vector<std::string> SavedRules::keys_of(const PickleValue& pairs) {
  std::vector<std::string> keys;
  std::unordered_set<std::string> known;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    keys.push_back(key_text(pairs.key(i)));
    spend(pairs, kKeyBytes + 2 * keys.back().size());
    // Keys become texts: 1 and "1" would be one.
    if (!known.insert(keys.back()).second)
      throw Error(ErrorCode::kUnsupported, what_ + " holds a dict with two keys \"" + printable(keys.back()) + "\"");
  }
  return keys;
}

SavedRules::Nesting SavedRules::nesting(const PickleValue& list) {
  if (const auto known = nesting_.find(list.id()); known != nesting_.end()) return known->second;
  auto found = Nesting::kNone;
  for (std::size_t i = 0; i < list.size() && found != Nesting::kSplit; ++i) {
    const auto element = list[i];
    if (is_tensor(element) || pairs_of(element)) found = Nesting::kSplit;
    if (is_blob(element)) found = std::max(found, Nesting::kBytes);
    if (element.is(PickleKind::kList)) found = std::max(found, nesting(element));
  }
  nesting_.emplace(list.id(), found);
  return found;
}

void SavedPickler::put(const SavedValue& value) {
  if (value.is_opaque()) throw Error(ErrorCode::kUnsupported, value.why);
  SavedRules rules(*value.saved, "a saved value");
  put(value.value, rules, value.saved.get());
}

void SavedPickler::put(const PickleValue& value, SavedRules& rules, const SavedPickle* saved) {
  ValueWriter(rules, out_, blobs_, slots_[saved], tensors_).put(value);
}

void SavedPickler::put_tensor(DType dtype, const Extents& sizes, bool requires_grad) {
  cairn::put_tensor(out_, std::to_string(tensors_.size()), dtype, sizes, requires_grad);
  tensors_.emplace_back();
}

namespace {

// Looks as deep as values outside of tuples go: there, bytes are of their own type.
bool holds_blob(const PickleValue& value, SavedRules& rules) {
  if (is_tensor(value)) return false;
  if (is_blob(value)) return true;
  if (const auto pairs = pairs_of(value)) {
    for (std::size_t i = 0; i < pairs->size(); ++i)
      if (holds_blob(pairs->mapped(i), rules)) return true;
  } else if (value.is(PickleKind::kList) && value.size() > 0 && rules.nesting(value) != SavedRules::Nesting::kNone) {
    for (std::size_t i = 0; i < value.size(); ++i)
      if (holds_blob(value[i], rules)) return true;
  }
  return false;
}

}  // namespace

// Bytes are compact only from protocol 3 on. torch.load(weights_only=True) reads neither protocol 4
// nor a BytesIO, so protocol 4 costs nothing here. All other leaves use protocol 2, which it reads.
PickledLeaf pickle_leaf(const SavedValue& value, BlobsAs blobs) {
  SavedRules rules(*value.saved, "a saved value");
  Pickler out(blobs == BlobsAs::kOwnType && !value.is_opaque() && holds_blob(value.value, rules) ? 4 : 2);
  SavedPickler pickler(out, blobs);
  pickler.put(value);
  return {std::move(out).finish(), pickler.tensors()};
}

}  // namespace cairn
