#include <cairn/formats/tensor_pickle.hpp>

#include <array>
#include <limits>
#include <string>
#include <utility>

namespace cairn {

// Types that PyTorch added later have no typed storage class. The pickle then names the dtype
// itself.
StorageClass storage_class(DType dtype) {
  static constexpr std::pair<DType, std::string_view> kTyped[] = {{DType::kFloat32, "FloatStorage"},
                                                                  {DType::kFloat64, "DoubleStorage"},
                                                                  {DType::kFloat16, "HalfStorage"},
                                                                  {DType::kBFloat16, "BFloat16Storage"},
                                                                  {DType::kInt8, "CharStorage"},
                                                                  {DType::kUInt8, "ByteStorage"},
                                                                  {DType::kInt16, "ShortStorage"},
                                                                  {DType::kInt32, "IntStorage"},
                                                                  {DType::kInt64, "LongStorage"},
                                                                  {DType::kBool, "BoolStorage"},
                                                                  {DType::kComplex64, "ComplexFloatStorage"},
                                                                  {DType::kComplex128, "ComplexDoubleStorage"}};
  for (const auto& [type, name] : kTyped)
    if (type == dtype) return {"torch", name};
  return {"torch.storage", "UntypedStorage", false};
}

Extents contiguous_strides(const Extents& sizes) {
  auto strides = Extents::filled(sizes.size(), 1);
  // Unsigned, because the product of the other dimensions may overflow 63 bits if one has size 0;
  // the strides are then meaningless.
  for (std::size_t i = sizes.size(); i > 1; --i)
    strides[i - 2] = static_cast<std::int64_t>(static_cast<std::uint64_t>(strides[i - 1]) *
                                               static_cast<std::uint64_t>(sizes[i - 1] > 1 ? sizes[i - 1] : 1));
  return strides;
}

void put_tensor(Pickler& out, std::string_view storage_key, DType dtype, const Extents& sizes, bool requires_grad) {
  const auto storage = storage_class(dtype);
  const auto put_extents = [&](const Extents& values) {
    if (values.size() > 3) out.mark();
    for (const auto value : values) out.integer(value);
    out.tuple(values.size());
    if (!values.empty()) out.remember();
  };
  // The arguments in the order of PyTorch's _rebuild_tensor_v2: storage, offset, sizes, strides,
  // requires_grad, hooks. The function _rebuild_tensor_v3 takes the dtype as well.
  out.global("torch._utils", storage.is_typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
  out.mark();
  out.mark();
  out.text("storage");
  out.global(storage.module, storage.name);
  out.text(storage_key);
  out.text("cpu");
  out.integer(volume(sizes) * static_cast<std::int64_t>(storage.is_typed ? 1 : element_size(dtype)));  // untyped: bytes
  out.tuple(5);
  out.remember();
  out.persistent_id();
  out.integer(0);
  put_extents(sizes);
  put_extents(contiguous_strides(sizes));
  out.boolean(requires_grad);
  out.global("collections", "OrderedDict");
  out.tuple(0);
  out.reduce();
  out.remember();
  if (!storage.is_typed) out.global("torch", to_string(dtype));
  out.tuple(storage.is_typed ? 6 : 7);
  out.remember();
  out.reduce();
  out.remember();
}

Bytes tensor_pickle(DType dtype, const Extents& sizes) {
  Pickler out(2);
  put_tensor(out, "0", dtype, sizes, false);
  return std::move(out).finish();
}

// Layouts are computed for every chunk of every rank, so this must not allocate.
std::uint64_t tensor_pickle_length(DType dtype, const Extents& sizes) {
  const auto of_integer = [](std::int64_t value) -> std::uint64_t {
    if (value <= 0xff) return 2;
    if (value <= 0xffff) return 3;
    if (value <= std::numeric_limits<std::int32_t>::max()) return 5;
    std::uint64_t bytes = 5;
    while (bytes < 8 && value >> (8 * bytes - 1) != 0) ++bytes;
    return 2 + bytes;
  };
  const auto of_extents = [&](const Extents& values) {
    std::uint64_t length = values.empty() ? 1 : values.size() > 3 ? 4 : 3;  // opcodes and memo slot
    for (const auto value : values) length += of_integer(value);
    return length;
  };
  const auto of_sizes = [&](DType type, const Extents& of) {
    const std::size_t width = storage_class(type).is_typed ? 1 : element_size(type);
    return of_integer(volume(of) * static_cast<std::int64_t>(width)) + of_extents(of) + of_extents(contiguous_strides(of));
  };
  // The rest depends only on the type.
  static const auto rests = [&] {
    std::array<std::uint64_t, kDTypeCount + 1> lengths{};
    for (std::size_t i = 0; i < lengths.size(); ++i)
      lengths[i] = tensor_pickle(static_cast<DType>(i), {}).size() - of_sizes(static_cast<DType>(i), {});
    return lengths;
  }();
  return rests[static_cast<std::size_t>(dtype)] + of_sizes(dtype, sizes);
}

}  // namespace cairn
