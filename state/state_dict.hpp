// What is saved and loaded: nested dicts and lists of values, insertion order kept.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/types.h>

#include <cairn/base/bytes.hpp>
#include <cairn/state/sharded_tensor.hpp>
#include <cairn/state/stateful.hpp>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace cairn {

class Value;
using List = std::vector<Value>;

// A dict with text keys that keeps the order of insertion. Values are stored by value; tensors and objects are handles, so copying
// a Dict copies no tensor data.
class Dict {
 public:
  using Item = std::pair<std::string, Value>;

  Dict() = default;
  Dict(std::initializer_list<Item> items);  // throws kAlreadyExists on a key given twice

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
  std::unordered_map<std::string, std::size_t> index_;
};

using StateDict = Dict;

// Bytes that are saved as they are; PyTorch reads them back as an io.BytesIO.
struct Blob {
  Bytes bytes;
  friend bool operator==(const Blob& a, const Blob& b) { return a.bytes == b.bytes; }
};

// As what a state dict keeps an object of a class derived from Stateful, Module or Optimizer; no type for any other class.
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
using KnownBase = typename KnownBaseOf<Object>::type;

// One value of a state dict.
//   Tensor, ShardedTensor   loaded in place
//   Dict, List              nested
//   IValue                  int, double, bool, string, None, tuples and lists of those (tuples are never taken apart)
//                           A list of plain values is loaded as the kind, List or IValue, that the caller has in its place.
//   Blob                    bytes
//   Stateful                an object that describes itself: asked at save and at load
class Value {
 public:
  using Variant = std::variant<c10::IValue, torch::Tensor, ShardedTensor, Blob, std::shared_ptr<Dict>, std::shared_ptr<List>,
                               std::shared_ptr<Stateful>>;

  Value() = default;                                          // None
  Value(torch::Tensor tensor) : value_(std::move(tensor)) {}  // NOLINT: implicit on purpose, as are all of these
  Value(ShardedTensor tensor) : value_(std::move(tensor)) {}  // NOLINT
  Value(Blob blob) : value_(std::move(blob)) {}               // NOLINT
  Value(Dict dict);                                           // NOLINT
  Value(List list);                                           // NOLINT
  Value(std::shared_ptr<Stateful> object);                    // NOLINT: must not be null
  Value(std::shared_ptr<torch::nn::Module> module);           // NOLINT: see adapters.hpp
  Value(std::shared_ptr<torch::optim::Optimizer> optimizer);  // NOLINT: see adapters.hpp
  // The same for classes derived from these: `std::make_shared<MyModel>()`, `std::make_shared<torch::optim::Adam>(…)`. A class that
  // is both a Stateful and a module is asked as a Stateful.
  template <class Object, class = KnownBase<Object>>
  Value(std::shared_ptr<Object> object);  // NOLINT
  // And for what TORCH_MODULE makes, as torch::nn::Linear and torch::nn::Sequential are.
  template <class Holder, class = KnownBase<typename Holder::ContainedType>>
  Value(const Holder& holder) : Value(holder.ptr()) {}  // NOLINT
  // A tensor becomes a Tensor; a dict becomes a Dict (keys as text, as Python's str() writes them), and so does a list that holds
  // tensors or dicts become a List: those are what flattening takes apart. All else stays an IValue. Throws kUnsupported for a list
  // or dict that contains itself, or whose shared parts unfold to millions of values; kInvalidArgument beyond kNestingMax levels.
  Value(c10::IValue value);                                                    // NOLINT
  Value(bool value) : value_(c10::IValue(value)) {}                            // NOLINT
  Value(int value) : value_(c10::IValue(static_cast<std::int64_t>(value))) {}  // NOLINT
  Value(std::int64_t value) : value_(c10::IValue(value)) {}                    // NOLINT
  Value(double value) : value_(c10::IValue(value)) {}                          // NOLINT
  Value(const char* text) : value_(c10::IValue(std::string(text))) {}          // NOLINT
  Value(std::string text) : value_(c10::IValue(std::move(text))) {}            // NOLINT

  // Values are values: copying a Dict or List inside copies it deeply (tensors stay shared handles).
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
  bool is_ivalue() const { return std::holds_alternative<c10::IValue>(value_); }

  // Each throws kMismatch, saying what the value is instead.
  const torch::Tensor& tensor() const;
  const ShardedTensor& sharded() const;
  const Blob& blob() const;
  Dict& dict();
  const Dict& dict() const;
  List& list();
  const List& list() const;
  const std::shared_ptr<Stateful>& stateful() const;
  const c10::IValue& ivalue() const;
  std::int64_t to_int() const;
  double to_double() const;  // also from an int
  bool to_bool() const;
  const std::string& to_text() const;

  // Nested access: `state["model"]["weight"]`. On a value that is not a dict: throws kMismatch, except that None becomes a dict in
  // the non-const form.
  Value& operator[](std::string_view key);
  const Value& operator[](std::string_view key) const;

  // Marked by `per_rank`: each rank saves and loads its own.
  bool is_per_rank() const { return per_rank_; }
  friend Value per_rank(Value value);

  const char* type_name() const;  // "tensor", "dict", …: for error texts
  const Variant& variant() const { return value_; }

 private:
  class Unfolding;

  Variant value_;
  bool per_rank_ = false;
};

// Says that ranks hold different values under this key on purpose (RNG states, data positions). Saved under
// `<name>.rank_<r>`; loading on a rank that the checkpoint has no value for keeps what the caller passed.
Value per_rank(Value value);

// --- flattening: state/flatten.cpp ----------------------------------------------------------------------------------------

// A leaf of a state dict under its flattened name. Stateful objects must have been replaced by their dicts before.
struct FlatEntry {
  std::string fqn;
  Path path;
  Value value;  // tensors: handles to the caller's memory
};
using FlatStateDict = std::vector<FlatEntry>;

// Deeper nesting than this is refused (kInvalidArgument).
inline constexpr std::size_t kNestingMax = 256;
// `set_at` makes no list longer than this (kInvalidArgument).
inline constexpr std::int64_t kMadeListMax = std::int64_t{1} << 20;

// As DCP: dicts are taken apart; lists only if a tensor, dict or such a list is in them; tuples never; keys join with '.'. An empty
// dict is a leaf of its own, so that it survives. Two paths that give the same name: kAlreadyExists naming both. What `per_rank`
// marks: every leaf below it; a list that stays whole and holds a marked value is marked as a whole.
// Throws kPrecondition for a Stateful, naming its path.
FlatStateDict flatten(const StateDict& state_dict);
// Without taking apart: top-level keys only. What `flatten` would take apart is an error (kUnsupported) that names all such keys.
FlatStateDict flatten_top_level(const StateDict& state_dict);
// Puts `value` at `path`, making dicts and lists on the way; a numeric element makes a list, filled up with None. A place that was
// marked by `per_rank` stays marked. Throws kMismatch, naming the place, where the path leads through a value that holds none.
void set_at(StateDict& state_dict, const Path& path, Value value);
// What is at `path`; nullptr if nothing is.
const Value* find_at(const StateDict& state_dict, const Path& path);
// For error texts: `["model"]["net1.weight"][0]`. Other than to_string(Path), it tells keys with dots from nested ones.
std::string describe_path(const Path& path);

template <class Object, class>
Value::Value(std::shared_ptr<Object> object) : Value(std::shared_ptr<KnownBase<Object>>(std::move(object))) {}

inline std::size_t Dict::size() const { return items_.size(); }
inline bool Dict::empty() const { return items_.empty(); }

}  // namespace cairn
