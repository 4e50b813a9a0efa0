// State dicts: nested dicts and lists of values, in insertion order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/types.h>

#include <cairn/base/bytes.hpp>
#include <cairn/formats/blob.hpp>
#include <cairn/planning/name_table.hpp>
#include <cairn/state/sharded_tensor.hpp>
#include <cairn/state/stateful.hpp>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class LRScheduler;
class Optimizer;
}

namespace cairn {

class Value;
using List = std::vector<Value>;

// A dict with text keys in insertion order. A Dict owns its values. Tensors and objects are
// handles, so copying a Dict copies no tensor data.
class Dict {
 public:
  using Item = std::pair<std::string, Value>;

  Dict() = default;
  Dict(std::initializer_list<Item> items);  // throws kAlreadyExists if a key occurs twice

  std::size_t size() const;
  bool empty() const;
  bool contains(std::string_view key) const { return find(key) != nullptr; }
  Value* find(std::string_view key);
  const Value* find(std::string_view key) const;
  Value& operator[](std::string_view key);  // inserts None at the end if absent
  Value& at(std::string_view key);          // throws kNotFound, naming the key
  const Value& at(std::string_view key) const;
  void insert(std::string key, Value value);  // at the end; throws kAlreadyExists
  bool erase(std::string_view key);

  std::vector<Item>::iterator begin();
  std::vector<Item>::iterator end();
  std::vector<Item>::const_iterator begin() const;
  std::vector<Item>::const_iterator end() const;

 private:
  std::vector<Item> items_;
  NameTable keys_;  // of the items, in their order
};

using StateDict = Dict;

// Convert bytes to and from a plain value, which a tuple can hold. `blob_in` returns nothing for
// other values.
c10::IValue plain_value_of(Blob blob);
std::optional<Blob> blob_in(const c10::IValue& value);

// A value that only Python can hold, because it is, or contains, an object of a class that Cairn
// does not know. Cairn never executes code from it. Loads make one only for a name that
// LoadPlannerOptions::keep_opaque lists, and saves write it back as it was. Thread-safe.
class Opaque {
 public:
  Opaque(std::string name, std::string why, Bytes archive)
      : name_(std::move(name)), why_(std::move(why)), archive_(std::move(archive)) {}
  const std::string& name() const { return name_; }  // the class or function that Cairn does not know: "argparse.Namespace"
  const std::string& why() const { return why_; }    // the reason, for an error text
  const Bytes& archive() const { return archive_; }  // of torch.save, with this value alone

 private:
  const std::string name_;
  const std::string why_;
  const Bytes archive_;
};

// The base class under which a state dict holds an object: Stateful, Module, Optimizer or
// LRScheduler. Any other class has no `type`.
template <class Object, class = void>
struct KnownBaseOf {};
template <class Object>
struct KnownBaseOf<Object, std::enable_if_t<std::is_convertible_v<Object*, Stateful*>>> {
  using type = Stateful;
};
template <class Object>
struct KnownBaseOf<
    Object, std::enable_if_t<std::is_convertible_v<Object*, torch::nn::Module*> && !std::is_convertible_v<Object*, Stateful*>>> {
  using type = torch::nn::Module;
};
template <class Object>
struct KnownBaseOf<Object, std::enable_if_t<std::is_convertible_v<Object*, torch::optim::Optimizer*> &&
                                            !std::is_convertible_v<Object*, Stateful*>>> {
  using type = torch::optim::Optimizer;
};
template <class Object>
struct KnownBaseOf<Object, std::enable_if_t<std::is_convertible_v<Object*, torch::optim::LRScheduler*> &&
                                            !std::is_convertible_v<Object*, Stateful*>>> {
  using type = torch::optim::LRScheduler;
};
template <class Object>
using KnownBase = typename KnownBaseOf<Object>::type;

// Whether `T` is an integer type for which Value has no constructor of its own.
template <class T>
inline constexpr bool kIsOtherInteger = std::is_integral_v<T> && sizeof(T) <= sizeof(std::int64_t) && !std::is_same_v<T, bool> &&
                                        !std::is_same_v<T, int> && !std::is_same_v<T, std::int64_t>;

// Whether `T` is a holder that TORCH_MODULE makes, of a class with a KnownBase.
template <class T, class = void>
inline constexpr bool kIsModuleHolder = false;
template <class T>
inline constexpr bool kIsModuleHolder<T, std::void_t<KnownBase<typename std::decay_t<T>::ContainedType>>> = true;
// Whether the class of `T` has a conversion function to Value.
template <class T, class = void>
inline constexpr bool kConvertsItself = false;
template <class T>
inline constexpr bool kConvertsItself<T, std::void_t<decltype(std::declval<T>().operator Value())>> = true;
template <class T, class... Types>
inline constexpr bool kIsAnyOf = (std::is_convertible_v<T, Types> || ...);
// Whether Value has a constructor for `T`.
template <class T>
inline constexpr bool kIsValue =
    std::is_base_of_v<Value, std::decay_t<T>> || std::is_same_v<c10::IValue, std::decay_t<T>> ||
    std::is_pointer_v<std::decay_t<T>> || kIsModuleHolder<T> || kConvertsItself<T> ||
    kIsAnyOf<T, torch::Tensor, ShardedTensor, Blob, Dict, List, std::int64_t, double, std::string, std::nullptr_t,
             std::shared_ptr<const Opaque>, std::shared_ptr<Stateful>, std::shared_ptr<torch::nn::Module>,
             std::shared_ptr<torch::optim::Optimizer>, std::shared_ptr<torch::optim::LRScheduler>>;

// One value of a state dict.
//   Tensor, ShardedTensor   loaded in place
//   Dict, List              nested
//   IValue                  int, double, bool, string, None, tuples and lists of those. Tuples are
//                           never flattened. A list of plain values is loaded as a List or an
//                           IValue, whichever the caller's list is.
//   Blob                    bytes
//   Opaque                  a value that only Python can hold
//   Stateful                an object that saves and restores its own state
class Value {
 public:
  using Variant = std::variant<c10::IValue, torch::Tensor, ShardedTensor, Blob, std::shared_ptr<Dict>, std::shared_ptr<List>,
                               std::shared_ptr<Stateful>, std::shared_ptr<const Opaque>>;

  Value() = default;                                            // None
  Value(torch::Tensor tensor) : value_(std::move(tensor)) {}    // NOLINT: all these conversions are implicit on purpose
  Value(ShardedTensor tensor) : value_(std::move(tensor)) {}    // NOLINT
  Value(Blob blob) : value_(std::move(blob)) {}                 // NOLINT
  Value(std::shared_ptr<const Opaque> value);                   // NOLINT: must not be null
  Value(Dict dict);                                             // NOLINT
  Value(List list);                                             // NOLINT
  Value(std::shared_ptr<Stateful> object);                      // NOLINT: must not be null
  Value(std::shared_ptr<torch::nn::Module> module);             // NOLINT: see adapters.hpp
  Value(std::shared_ptr<torch::optim::Optimizer> optimizer);    // NOLINT: see adapters.hpp
  Value(std::shared_ptr<torch::optim::LRScheduler> scheduler);  // NOLINT: see adapters.hpp
  // Accepts classes derived from Stateful, Module, Optimizer or LRScheduler:
  // `std::make_shared<MyModel>()`, `std::make_shared<torch::optim::Adam>(…)`. A class that is both
  // Stateful and a module counts as Stateful.
  template <class Object, class = KnownBase<Object>>
  Value(std::shared_ptr<Object> object);  // NOLINT
  // Accepts the holders that TORCH_MODULE makes, such as torch::nn::Linear and
  // torch::nn::Sequential.
  template <class Holder, class = KnownBase<typename Holder::ContainedType>>
  Value(const Holder& holder) : Value(holder.ptr()) {}  // NOLINT
  // Converts a tensor to a Tensor, a dict to a Dict, and bytes to a Blob. Converts a list to a List
  // if it contains a tensor or a dict, directly or in lists within it. Keys become text as by
  // Python's str(). Any other IValue stays as it is. Throws kUnsupported for a key that is not a
  // string, an int or a bool, for a container that contains itself, and if containers that occur
  // several times expand to more than 2^20 values. Throws kAlreadyExists if two keys become the
  // same text, and kInvalidArgument beyond kNestingMax levels.
  Value(c10::IValue value);                                                    // NOLINT
  Value(bool value) : value_(c10::IValue(value)) {}                            // NOLINT
  Value(int value) : value_(c10::IValue(static_cast<std::int64_t>(value))) {}  // NOLINT
  Value(std::int64_t value) : value_(c10::IValue(value)) {}                    // NOLINT
  Value(double value) : value_(c10::IValue(value)) {}                          // NOLINT
  Value(const char* text) : value_(c10::IValue(std::string(text))) {}          // NOLINT
  Value(std::string text) : value_(c10::IValue(std::move(text))) {}            // NOLINT
  // Accepts all other integer types. Throws kInvalidArgument for a number of 2^63 or more.
  template <class Integer, std::enable_if_t<kIsOtherInteger<Integer>, int> = 0>
  Value(Integer value)  // NOLINT
      : Value(std::is_signed_v<Integer> ? static_cast<std::int64_t>(value) : in_int64(static_cast<std::uint64_t>(value))) {}
  // Other pointers would convert to true.
  template <class Object, std::enable_if_t<!std::is_same_v<std::remove_const_t<Object>, char>, int> = 0>
  Value(Object* pointer) = delete;
  Value(std::nullptr_t) = delete;
  // Says why any other type does not compile.
  template <class Other, std::enable_if_t<!kIsValue<Other>, int> = 0>
  Value(Other&&) {  // NOLINT
    static_assert(kIsValue<Other>,
                  "cairn::Value cannot hold this type. A state dict holds tensors, numbers, bool, text, cairn::Blob, Dict, List, "
                  "c10::IValue (as in c10::IValue(std::vector<double>{1})), and shared pointers to modules, optimizers, "
                  "schedulers and classes derived from cairn::Stateful");
  }

  // A Dict or List is copied deeply. Tensors and objects remain shared handles.
  Value(const Value& other);
  Value& operator=(const Value& other);
  Value(Value&&) noexcept = default;
  Value& operator=(Value&&) noexcept = default;
  ~Value() = default;

  bool is_none() const;
  bool is_tensor() const { return std::holds_alternative<torch::Tensor>(value_); }
  bool is_sharded() const { return std::holds_alternative<ShardedTensor>(value_); }
  bool is_blob() const { return std::holds_alternative<Blob>(value_); }
  bool is_dict() const { return std::holds_alternative<std::shared_ptr<Dict>>(value_); }
  bool is_list() const { return std::holds_alternative<std::shared_ptr<List>>(value_); }
  bool is_stateful() const { return std::holds_alternative<std::shared_ptr<Stateful>>(value_); }
  bool is_opaque() const { return std::holds_alternative<std::shared_ptr<const Opaque>>(value_); }
  bool is_ivalue() const { return std::holds_alternative<c10::IValue>(value_); }

  // Each throws kMismatch, naming the actual type, if the value is of another type.
  const torch::Tensor& tensor() const;
  const ShardedTensor& sharded() const;
  const Blob& blob() const;
  const Opaque& opaque() const;
  Dict& dict();
  const Dict& dict() const;
  List& list();
  const List& list() const;
  const std::shared_ptr<Stateful>& stateful() const;
  const c10::IValue& ivalue() const;
  std::int64_t to_int() const;
  double to_double() const;  // also converts an int
  bool to_bool() const;
  const std::string& to_text() const;

  // Accesses a nested value: `state["model"]["weight"]`. Throws kMismatch if the value is not a
  // dict. The non-const form turns None into a dict and inserts a missing key; the const form
  // throws kNotFound for a missing key.
  Value& operator[](std::string_view key);
  const Value& operator[](std::string_view key) const;

  // Returns true for values marked by `per_rank`: each rank saves and loads its own.
  bool is_per_rank() const { return per_rank_; }
  friend Value per_rank(Value value);
  // Returns true for values marked by `if_stored`: checkpoints may lack them.
  bool is_if_stored() const { return if_stored_; }
  friend Value if_stored(Value value);
  // Returns true for values marked by `frozen`: they seldom change between saves.
  bool is_frozen() const { return frozen_; }
  friend Value frozen(Value value);
  friend Value with_marks_of(const Value& other, Value value);

  const char* type_name() const;  // "tensor", "dict", …: for error texts
  const Variant& variant() const { return value_; }

 private:
  class Unfolding;

  static std::int64_t in_int64(std::uint64_t value);

  Variant value_;
  bool per_rank_ = false;
  bool if_stored_ = false;
  bool frozen_ = false;
};

// Marks a value that differs between ranks on purpose (RNG states, data positions). It is saved
// under `<name>.rank_<r>`. If the checkpoint has no value for a rank, loading keeps the caller's
// value on that rank.
Value per_rank(Value value);
// Marks a value that checkpoints may lack, such as one that only newer versions of a trainer save.
// If the checkpoint lacks it, loading keeps the caller's value. Has no effect on saves.
Value if_stored(Value value);
// Marks tensors that seldom change between saves, such as those of a base model that is not
// trained. Saves with `CheckpointWriterOptions::reuse` then write them again only if they have
// changed. If one changes, the save stores the new value, as always. Has no effect on loads.
Value frozen(Value value);
// Returns `value` with its own marks and those of `other`.
Value with_marks_of(const Value& other, Value value);

// --- flattening: state/flatten.cpp ---------------------------------------------------------------

// A leaf of a state dict under its flattened name. Replace Stateful objects by their dicts before
// flattening.
struct FlatEntry {
  std::string fqn;
  Path path;
  Value value;  // tensors are handles to the caller's memory
};
using FlatStateDict = std::vector<FlatEntry>;

// The maximum nesting depth (kInvalidArgument beyond it).
inline constexpr std::size_t kNestingMax = 256;
// The maximum length of a list that `set_at` makes (kInvalidArgument beyond it).
inline constexpr std::int64_t kMadeListMax = std::int64_t{1} << 20;

// Flattens as DCP does. Splits dicts. Splits lists that contain a tensor or a dict, directly or in
// lists within them. Never splits tuples. Joins keys with '.'. An empty dict is a leaf, so that it
// is saved. A mark (`per_rank`, `if_stored`, `frozen`) applies to every leaf below the marked
// value. If a list is not split and a value in it is marked by `per_rank`, the whole list counts as
// marked. Throws kAlreadyExists, naming both paths, if two paths give the same name, and
// kPrecondition, naming the path, for a Stateful. Throws kUnsupported if the names take more than
// 64 MiB and 1 KiB for each value.
FlatStateDict flatten(const StateDict& state_dict);
// Returns the top-level entries only. Throws kUnsupported if `flatten` would split any of their
// values; the error names the keys of all such values.
FlatStateDict flatten_top_level(const StateDict& state_dict);
// Stores `value` at `path` and creates missing containers on the way: a list, padded with None, for
// a numeric element, otherwise a dict. Keeps the marks of a value that it replaces. Throws
// kMismatch, naming the place, if the path leads through a value that is not a container.
void set_at(StateDict& state_dict, const Path& path, Value value);
// Returns the value at `path`, or nullptr if there is none.
const Value* find_at(const StateDict& state_dict, const Path& path);
inline Value* find_at(StateDict& state_dict, const Path& path) {
  return const_cast<Value*>(find_at(static_cast<const StateDict&>(state_dict), path));
}

template <class Object, class>
Value::Value(std::shared_ptr<Object> object) : Value(std::shared_ptr<KnownBase<Object>>(std::move(object))) {}

inline std::size_t Dict::size() const { return items_.size(); }
inline bool Dict::empty() const { return items_.empty(); }

}  // namespace cairn
