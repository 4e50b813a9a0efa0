#include <cairn/state/pickle/tensor_pickle.hpp>

#include <limits>

namespace cairn {
namespace {

// The destinations of the bytes: one sink writes them, the other only counts.
struct WritingSink {
  Bytes& out;
  void add(std::string_view text) { out.append(text); }
  void add(char byte) { out.push_back(byte); }
};

// Counts by running the same code, so that the length cannot differ from the bytes.
struct CountingSink {
  std::uint64_t count = 0;
  void add(std::string_view text) { count += text.size(); }
  void add(char) { ++count; }
};

// Opcodes of protocol 2 and the order of memo slots follow CPython's pickler, so that equal tensors
// give the same bytes as in Python.
template <class Sink>
class Emitter {
 public:
  explicit Emitter(Sink& sink) : sink_(sink) {}

  void tensor(DType dtype, const Extents& sizes) {
    auto elements = volume(sizes);
    const auto storage = storage_class(dtype);
    const auto strides = contiguous_strides(sizes);
    if (!storage.is_typed) elements *= static_cast<std::int64_t>(element_size(dtype));  // an untyped storage counts bytes

    // Opcodes: \x80 PROTO, ( MARK, t TUPLE, Q BINPERSID, \x89 NEWFALSE, ) EMPTY_TUPLE, R REDUCE, .
    // STOP.
    sink_.add("\x80\x02");
    global("torch._utils", storage.is_typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
    sink_.add("((");
    text("storage");
    global(storage.module, storage.name);
    text("0");
    text("cpu");
    integer(elements);
    sink_.add('t');
    memoize();
    sink_.add('Q');
    integer(0);  // storage offset
    extents(sizes);
    extents(strides);
    sink_.add('\x89');  // requires_grad: False
    global("collections", "OrderedDict");
    sink_.add(")R");  // no backward hooks
    memoize();
    if (!storage.is_typed) global("torch", to_string(dtype));
    sink_.add('t');
    memoize();
    sink_.add('R');
    memoize();
    sink_.add('.');
  }

 private:
  void memoize() {
    sink_.add('q');
    // One byte is enough: a tensor needs about twenty slots.
    sink_.add(static_cast<char>(slot_++));
  }

  void little_endian(std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) sink_.add(static_cast<char>((value >> (8 * i)) & 0xff));
  }

  void global(std::string_view module, std::string_view name) {
    sink_.add('c');
    sink_.add(module);
    sink_.add('\n');
    sink_.add(name);
    sink_.add('\n');
    memoize();
  }

  void text(std::string_view value) {
    sink_.add('X');
    little_endian(value.size(), 4);
    sink_.add(value);
    memoize();
  }

  // `value` is never negative here.
  void integer(std::int64_t value) {
    const auto bits = static_cast<std::uint64_t>(value);
    if (bits <= 0xff) {
      sink_.add('K');
      little_endian(bits, 1);
    } else if (bits <= 0xffff) {
      sink_.add('M');
      little_endian(bits, 2);
    } else if (bits <= static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max())) {
      sink_.add('J');
      little_endian(bits, 4);
    } else {
      int bytes = 4;  // the shortest two's complement form, in which the top bit is the sign
      while (bytes < 8 && (bits >> (8 * bytes - 1)) != 0) ++bytes;
      sink_.add('\x8a');
      sink_.add(static_cast<char>(bytes));
      little_endian(bits, bytes);
    }
  }

  void extents(const Extents& values) {
    if (values.empty()) {
      sink_.add(')');
      return;
    }
    // Tuples of one to three elements have opcodes of their own, which need no mark.
    if (values.size() > 3) sink_.add('(');
    for (const auto value : values) integer(value);
    sink_.add(values.size() > 3 ? 't' : static_cast<char>('\x84' + values.size()));
    memoize();
  }

  Sink& sink_;
  int slot_ = 0;
};

}  // namespace

// Types that PyTorch added later have no typed storage class. The pickle then names the dtype
// itself.
StorageClass storage_class(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return {"torch", "FloatStorage"};
    case DType::kFloat64:
      return {"torch", "DoubleStorage"};
    case DType::kFloat16:
      return {"torch", "HalfStorage"};
    case DType::kBFloat16:
      return {"torch", "BFloat16Storage"};
    case DType::kInt8:
      return {"torch", "CharStorage"};
    case DType::kUInt8:
      return {"torch", "ByteStorage"};
    case DType::kInt16:
      return {"torch", "ShortStorage"};
    case DType::kInt32:
      return {"torch", "IntStorage"};
    case DType::kInt64:
      return {"torch", "LongStorage"};
    case DType::kBool:
      return {"torch", "BoolStorage"};
    case DType::kComplex64:
      return {"torch", "ComplexFloatStorage"};
    case DType::kComplex128:
      return {"torch", "ComplexDoubleStorage"};
    case DType::kComplex32:
    case DType::kUInt16:
    case DType::kUInt32:
    case DType::kUInt64:
    case DType::kFloat8E4M3Fn:
    case DType::kFloat8E5M2:
    case DType::kFloat8E4M3FnUz:
    case DType::kFloat8E5M2FnUz:
    case DType::kFloat8E8M0Fnu:
    case DType::kFloat4E2M1FnX2:
    case DType::kUnknown:
      break;
  }
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

Bytes tensor_pickle(DType dtype, const Extents& sizes) {
  Bytes bytes;
  bytes.reserve(256);
  WritingSink sink{bytes};
  Emitter<WritingSink>(sink).tensor(dtype, sizes);
  return bytes;
}

// Layouts are computed for every chunk of every rank, so this must not allocate.
std::uint64_t tensor_pickle_length(DType dtype, const Extents& sizes) {
  CountingSink sink;
  Emitter<CountingSink>(sink).tensor(dtype, sizes);
  return sink.count;
}

}  // namespace cairn
