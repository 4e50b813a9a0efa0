// Reads tensors, dtypes and sizes from pickles.
#include <algorithm>
#include <limits>
#include <optional>

#include <cairn/state/pickle/tensor_pickle.hpp>
#include <cairn/state/pickle/torch_archive.hpp>
#include <cairn/state/pickle/unicode.hpp>

namespace cairn {
namespace {

// Returns nothing for an untyped storage.
std::optional<DType> typed_storage_dtype(const PickleGlobal& global) {
  for (std::uint8_t value = 1; value <= kDTypeCount; ++value) {
    const auto storage = storage_class(static_cast<DType>(value));
    if (storage.is_typed && storage.name == global.name && storage.module == global.module) return static_cast<DType>(value);
  }
  return std::nullopt;
}

struct StorageReference {
  std::string key;
  std::optional<DType> dtype;  // absent: the size is in bytes
  std::uint64_t bytes = 0;
};

// Parses ("storage", class, key, device, count). Before PyTorch 0.4, a view could follow.
StorageReference storage_of(const PickleValue& value) {
  const auto id = value.persistent_id();
  if (id.size() < 5 || id[0].as_text() != "storage") corrupt(id, "a persistent id that names no storage");
  if (id.size() > 5 && !id[5].is_none()) corrupt(id, "a storage that is a view of another, as only very old versions wrote");
  StorageReference result;
  const auto global = id[1].as_global();
  result.dtype = typed_storage_dtype(global);
  result.key = std::string(id[2].as_text());
  id[3].as_text();  // the device is ignored: the bytes are in the archive
  const auto count = id[4].as_int();
  const std::uint64_t width = result.dtype ? element_size(*result.dtype) : 1;
  // Sizes in bytes must fit into 63 bits, as LibTorch's do.
  if (count < 0 || static_cast<std::uint64_t>(count) > std::numeric_limits<std::int64_t>::max() / width)
    corrupt(id, "a storage of " + std::to_string(count) + " elements");
  result.bytes = static_cast<std::uint64_t>(count) * width;
  return result;
}

// Reads the flags that PyTorch stores with a tensor: {"conj": True, "neg": True}.
void read_flags(const PickleValue& flags, TensorDescription& tensor) {
  if (flags.is_none()) return;
  for (std::size_t i = 0; i < flags.size(); ++i) {
    const auto name = flags.key(i).as_text();
    if (name == "conj") {
      tensor.is_conjugated = flags.mapped(i).as_bool();
    } else if (name == "neg") {
      tensor.is_negated = flags.mapped(i).as_bool();
    } else {
      unsupported(flags, "a tensor with the unknown property \"" + printable(name) + "\"");
    }
  }
}

// Checks that the highest element that the tensor can reach lies within its storage.
void check_reach(const PickleValue& where, const TensorDescription& tensor) {
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  // An element of an unknown type has at least one byte.
  const auto elements = tensor.storage_bytes / std::max<std::size_t>(1, element_size(tensor.dtype));
  std::uint64_t reach = tensor.storage_offset;
  std::uint64_t count = 1;
  bool is_empty = false;
  for (std::size_t i = 0; i < tensor.sizes.size(); ++i) {
    const auto size = static_cast<std::uint64_t>(tensor.sizes[i]);
    const auto stride = static_cast<std::uint64_t>(tensor.strides[i]);
    if (size == 0) is_empty = true;
    // A dimension of size 0 or 1 does not move the highest element.
    if (size <= 1) continue;
    if (count > kMax / size)
      corrupt(where, "a tensor of size " + to_string(tensor.sizes) + " has more elements than 63 bits count");
    count *= size;
    if (stride > 0 && size - 1 > (kMax - reach) / stride) corrupt(where, "a tensor that reaches beyond 63 bits");
    reach += stride * (size - 1);
  }
  if (!is_empty && reach >= elements)
    corrupt(where, "a tensor of size " + to_string(tensor.sizes) + ", strides " + to_string(tensor.strides) + " and offset " +
                       std::to_string(tensor.storage_offset) + " does not fit in its storage of " + std::to_string(elements) +
                       " elements");
}

}  // namespace

// Strides of dimensions with size 0 or 1 may be anything in PyTorch.
bool TensorDescription::is_contiguous() const {
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return true;
  std::int64_t expected = 1;
  for (std::size_t i = sizes.size(); i > 0; --i) {
    if (sizes[i - 1] == 1) continue;  // the stride of a dimension of size 1 is never used
    if (strides[i - 1] != expected) return false;
    expected *= sizes[i - 1];
  }
  return true;
}

// Patterns, because newer versions of PyTorch add types. A checkpoint with one of them can then
// still be listed.
const std::vector<PickleGlobal>& dtype_globals() {
  static const auto globals = [] {
    std::vector<PickleGlobal> result{{"torch", "Size"}, {"torch", "bool"}};
    // Also of types that newer versions of PyTorch add, and of quantized ones.
    for (const auto* kind : {"float*", "bfloat*", "int*", "uint*", "complex*", "bits*", "qint*", "quint*"})
      result.push_back({"torch", kind});
    return result;
  }();
  return globals;
}

const std::vector<PickleGlobal>& tensor_globals() {
  static const auto globals = [] {
    std::vector<PickleGlobal> result{{"torch._utils", "_rebuild_tensor"},
                                     {"torch._utils", "_rebuild_tensor_v2"},
                                     {"torch._utils", "_rebuild_tensor_v3"},
                                     {"torch._utils", "_rebuild_parameter"},
                                     {"collections", "OrderedDict"},
                                     {"torch.storage", "UntypedStorage"},
                                     {"torch", "UntypedStorage"}};
    for (std::uint8_t value = 1; value <= kDTypeCount; ++value)
      if (const auto storage = storage_class(static_cast<DType>(value)); storage.is_typed)
        result.push_back({storage.module, storage.name});
    result.insert(result.end(), dtype_globals().begin(), dtype_globals().end());
    return result;
  }();
  return globals;
}

bool is_tensor(const PickleValue& value) {
  if (!value.is(PickleKind::kObject)) return false;
  const auto callee = value.callee().as_global();
  // All such names on the list are functions that make tensors.
  return callee.module == "torch._utils" && callee.name.substr(0, 9) == "_rebuild_";
}

DType dtype_of(const PickleValue& value) {
  const auto global = value.as_global();
  if (global.module != "torch" || !is_dtype_name(global.name)) corrupt(value, to_string(global) + " is no dtype");
  return dtype_from_name(global.name).value_or(DType::kUnknown);
}

Extents extents_of(const PickleValue& value) {
  auto list = value;
  if (value.is_object_of("torch", "Size")) {
    const auto arguments = value.arguments();
    if (arguments.size() == 0) return {};
    list = arguments[0];
  }
  auto result = Extents::filled(list.size(), 0);
  for (std::size_t i = 0; i < list.size(); ++i) {
    result[i] = list[i].as_int();
    if (result[i] < 0) corrupt(list[i], "a negative size, offset or stride: " + std::to_string(result[i]));
  }
  return result;
}

TensorDescription describe_tensor(const PickleValue& value) {
  if (value.is_object_of("torch._utils", "_rebuild_parameter")) {
    const auto arguments = value.arguments();
    auto tensor = describe_tensor(arguments[0]);
    // The parameter's flag counts, not that of the tensor in it.
    tensor.requires_grad = arguments[1].as_bool();
    return tensor;
  }
  const bool is_v2 = value.is_object_of("torch._utils", "_rebuild_tensor_v2");
  const bool is_v3 = value.is_object_of("torch._utils", "_rebuild_tensor_v3");
  // Three functions rebuild tensors: the first is of old versions, the second of all typed
  // storages, the third of types without one.
  if (!is_v2 && !is_v3 && !value.is_object_of("torch._utils", "_rebuild_tensor"))
    corrupt(value,
            std::string("expected a tensor, found ") +
                (value.is(PickleKind::kObject) ? to_string(value.callee().as_global()) : std::string(to_string(value.kind()))));

  const auto arguments = value.arguments();
  const auto storage = storage_of(arguments[0]);
  TensorDescription tensor;
  tensor.storage_key = storage.key;
  tensor.storage_bytes = storage.bytes;
  if (is_v3) {
    tensor.dtype = dtype_of(arguments[6]);
    if (tensor.dtype == DType::kUnknown) tensor.unknown_dtype = std::string(arguments[6].as_global().name);
  } else if (storage.dtype) {
    tensor.dtype = *storage.dtype;
  } else {
    corrupt(value, "a tensor without a dtype");
  }
  const auto offset = arguments[1].as_int();
  if (offset < 0) corrupt(value, "a negative storage offset");
  tensor.storage_offset = static_cast<std::uint64_t>(offset);
  tensor.sizes = extents_of(arguments[2]);
  tensor.strides = extents_of(arguments[3]);
  if (tensor.sizes.size() != tensor.strides.size()) corrupt(value, "a tensor with more sizes than strides, or fewer");
  if (is_v2 || is_v3) tensor.requires_grad = arguments[4].as_bool();
  if (is_v2 && arguments.size() > 6) read_flags(arguments[6], tensor);
  if (is_v3 && arguments.size() > 7) read_flags(arguments[7], tensor);
  if (tensor.is_negated && !storage_class(tensor.dtype).is_typed && tensor.dtype != DType::kComplex32)
    unsupported(value, std::string("a negated tensor of ") + to_string(tensor.dtype));
  check_reach(value, tensor);
  return tensor;
}

}  // namespace cairn
