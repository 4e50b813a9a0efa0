// Reads tensors, dtypes and sizes from pickles.
#include <algorithm>
#include <limits>
#include <optional>

#include <cairn/base/error.hpp>
#include <cairn/formats/tensor_pickle.hpp>
#include <cairn/formats/torch_archive.hpp>
#include <cairn/formats/unicode.hpp>
#include <cairn/planning/device_mesh.hpp>

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

// Returns whether a value is what a call of this function made. The function is not called.
bool is_call_of(const PickleValue& value, std::string_view module, std::string_view name) {
  return value.shape() == PickleKind::kObject && value.callee().shape() == PickleKind::kGlobal &&
         value.callee().global() == PickleGlobal{module, name};
}

bool makes_tensors(const PickleValue& function) {
  // All such names on the list are functions that make tensors.
  return function.is(PickleKind::kGlobal) && function.global().module == "torch._utils" &&
         function.global().name.substr(0, 9) == "_rebuild_";
}

// Returns the arguments of a call that sets attributes of a tensor, or makes a subclass of it:
// function, class, the arguments of the function, attributes. Nothing for other values.
std::optional<PickleValue> call_with_attributes(const PickleValue& value) {
  if (!is_call_of(value, "torch._tensor", "_rebuild_from_type_v2")) return std::nullopt;
  const auto arguments = value.arguments();
  const bool is_sound = arguments.size() == 4 && arguments[0].shape() == PickleKind::kGlobal &&
                        arguments[1].shape() == PickleKind::kGlobal && arguments[2].is(PickleKind::kTuple);
  return is_sound ? std::optional(arguments) : std::nullopt;
}

// As torch.nn.Buffer makes it.
bool is_buffer(const PickleValue& value) {
  const auto call = call_with_attributes(value);
  return call && makes_tensors((*call)[0]) && (*call)[1].global() == PickleGlobal{"torch", "Tensor"};
}

// Returns whether a global belongs to torch.distributed: PyTorch has moved DTensor within it.
bool is_of_dtensor(const PickleGlobal& global) {
  return global.module.substr(0, 17) == "torch.distributed" && (global.module.size() == 17 || global.module[17] == '.');
}

// Bounds the mesh that is made of numbers in a file.
constexpr std::int64_t kMeshRanksMax = 65536;

// Throws kCorrupt if an element is no integer.
std::vector<std::int64_t> integers_in(const PickleValue& list) {
  std::vector<std::int64_t> result;
  for (std::size_t i = 0; i < list.size(); ++i) result.push_back(list[i].as_int());
  return result;
}

PickleValue attributes_of(const PickleValue& object) {
  const auto state = object.state();
  if (!state) corrupt(object, "an object without attributes");
  return *state;
}

// Returns the sizes of a mesh. Versions before 2.14 save the ranks as a tensor.
std::vector<std::int64_t> mesh_shape(const PickleValue& mesh) {
  if (const auto ranks = mesh.find("mesh")) return describe_tensor(*ranks).sizes.to_vector();
  std::vector<std::int64_t> shape;
  const auto axes = attributes_of(mesh.at("_layout")).at("axes");
  for (std::size_t i = 0; i < axes.size(); ++i) {
    shape.push_back(1);
    for (const auto size : integers_in(attributes_of(axes[i]).at("shape"))) {
      if (size < 1 || size > kMeshRanksMax) corrupt(mesh, "a mesh with an axis of " + std::to_string(size));
      shape.back() = std::min(shape.back() * size, kMeshRanksMax + 1);
    }
  }
  return shape;
}

// Returns the box of a part; nothing if it is not known.
std::optional<Box> box_of_part(const PickleValue& spec, const Extents& size, const Extents& local_sizes) {
  std::vector<Placement> placements;
  const auto saved = spec.at("placements");
  for (std::size_t i = 0; i < saved.size(); ++i) {
    const auto kind = saved[i].callee().global();
    if (is_of_dtensor(kind) && kind.name == "Replicate")
      placements.emplace_back(Replicate{});
    else if (is_of_dtensor(kind) && kind.name == "Shard")
      placements.emplace_back(Shard{attributes_of(saved[i]).at("dim").as_int()});
    else
      return std::nullopt;
  }
  // Another order of shards on one dimension has other boxes.
  if (const auto order = spec.find("shard_order"))
    for (std::size_t i = 0; i < order->size(); ++i) {
      const auto axes = integers_in((*order)[i].arguments()[1]);
      if (!std::is_sorted(axes.begin(), axes.end())) return std::nullopt;
    }
  const auto mesh = attributes_of(spec.at("mesh"));
  const auto shape = mesh_shape(mesh);
  const auto coordinate = integers_in(mesh.at("_coordinate_on_dim"));
  if (coordinate.size() != shape.size()) return std::nullopt;
  std::int64_t rank = 0, ranks = 1;
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis] < 1 || shape[axis] > kMeshRanksMax / ranks || coordinate[axis] < 0 || coordinate[axis] >= shape[axis])
      return std::nullopt;
    ranks *= shape[axis];
    rank = rank * shape[axis] + coordinate[axis];
  }
  // The numbers of the ranks do not matter, so they are counted from 0.
  auto box = local_box(size, DeviceMesh(shape), placements, static_cast<int>(rank));
  return box && box->sizes == local_sizes ? box : std::nullopt;
}

TensorDescription describe_call(const PickleValue& value, const PickleGlobal& function, const PickleValue& arguments);

}  // namespace

std::optional<DistributedPart> distributed_part(const PickleValue& value) {
  const auto call = call_with_attributes(value);
  if (!call || (*call)[0].global() != PickleGlobal{"torch._utils", "_rebuild_wrapper_subclass"} ||
      !is_of_dtensor((*call)[1].global()) || (*call)[1].global().name != "DTensor")
    return std::nullopt;
  try {
    const auto made = (*call)[2];  // class, type, size, strides, offset, layout, device, requires_grad
    // The attributes of the class are in slots.
    const auto fields = (*call)[3].is(PickleKind::kTuple) ? (*call)[3][1] : (*call)[3];
    const auto local = fields.at("_local_tensor");
    const auto size = extents_of(made[2]);
    const auto box = box_of_part(attributes_of(fields.at("_spec")), size, describe_tensor(local).sizes);
    if (!box) return std::nullopt;
    return DistributedPart{local, size, *box, made[7].as_bool()};
  } catch (const Error&) {  // of another version
    return std::nullopt;
  }
}

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
  if (value.is(PickleKind::kObject)) return makes_tensors(value.callee());
  if (is_buffer(value)) return true;
  const auto part = distributed_part(value);
  return part && part->box == Box::whole(part->size);
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
  if (value.is(PickleKind::kObject)) return describe_call(value, value.callee().as_global(), value.arguments());
  if (is_buffer(value)) return describe_call(value, value.arguments()[0].as_global(), value.arguments()[2]);
  const auto part = distributed_part(value);
  if (!part || part->box != Box::whole(part->size))
    corrupt(value, std::string("expected a tensor, found ") + to_string(value.kind()));
  auto tensor = describe_tensor(part->local);
  tensor.requires_grad = part->requires_grad;
  return tensor;
}

namespace {

TensorDescription describe_call(const PickleValue& value, const PickleGlobal& function, const PickleValue& arguments) {
  if (function == PickleGlobal{"torch._utils", "_rebuild_parameter"}) {
    auto tensor = describe_tensor(arguments[0]);
    // The parameter's flag counts, not that of the tensor in it.
    tensor.requires_grad = arguments[1].as_bool();
    return tensor;
  }
  const bool is_v2 = function == PickleGlobal{"torch._utils", "_rebuild_tensor_v2"};
  const bool is_v3 = function == PickleGlobal{"torch._utils", "_rebuild_tensor_v3"};
  // Three functions rebuild tensors: the first is of old versions, the second of all typed
  // storages, the third of types without one.
  if (!is_v2 && !is_v3 && function != PickleGlobal{"torch._utils", "_rebuild_tensor"})
    corrupt(value, "expected a tensor, found " + to_string(function));

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

}  // namespace

}  // namespace cairn
