#include <cairn/state/state_dict.hpp>

#include <ATen/core/enum_type.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <iterator>
#include <limits>

#include <cairn/base/error.hpp>

namespace cairn {
namespace {

constexpr std::size_t kKeysInErrorTexts = 8;
// The maximum number of repeated values when one IValue expands to Dicts and Lists. A container
// that appears in several places is copied to each.
constexpr std::size_t kCopiedMax = std::size_t{1} << 20;

std::string some_keys(const std::vector<Dict::Item>& items) {
  if (items.empty()) return "it is empty";
  std::string text = "it has ";
  for (std::size_t i = 0; i < std::min(items.size(), kKeysInErrorTexts); ++i)
    text += (i == 0 ? "\"" : ", \"") + items[i].first + '"';
  if (items.size() > kKeysInErrorTexts) text += " and " + std::to_string(items.size() - kKeysInErrorTexts) + " more";
  return text;
}

// A list without tensors is an IValue. Callers expect a List, so the error says how to read it.
[[noreturn]] void throw_kind(const Value& value, const char* wanted) {
  const bool plain_list = value.is_ivalue() && value.ivalue().isList();
  throw Error(ErrorCode::kMismatch, std::string("state dict: a value is read as ") + wanted + ", but it is " + value.type_name() +
                                        (plain_list ? " of plain values, an IValue: read it with ivalue()" : ""));
}

std::string key_text(const c10::IValue& key) {
  if (key.isString()) return key.toStringRef();
  if (key.isInt()) return std::to_string(key.toInt());
  if (key.isBool()) return key.toBool() ? "True" : "False";
  throw Error(ErrorCode::kUnsupported,
              "state dict: a dict has a key of kind " + key.tagKind() + "; use text, whole numbers or truth values");
}

}  // namespace

// --- Dict ----------------------------------------------------------------------------------------

Dict::Dict(std::initializer_list<Item> items) {
  items_.reserve(items.size());
  for (const Item& item : items) insert(item.first, item.second);
}

Value* Dict::find(std::string_view key) { return const_cast<Value*>(static_cast<const Dict&>(*this).find(key)); }

const Value* Dict::find(std::string_view key) const {
  const auto found = keys_.find(key);
  return found ? &items_[*found].second : nullptr;
}

Value& Dict::operator[](std::string_view key) {
  if (Value* value = find(key)) return *value;
  insert(std::string(key), Value());
  return items_.back().second;
}

Value& Dict::at(std::string_view key) { return const_cast<Value&>(static_cast<const Dict&>(*this).at(key)); }

const Value& Dict::at(std::string_view key) const {
  if (const Value* value = find(key)) return *value;
  throw Error(ErrorCode::kNotFound, "state dict: there is no key \"" + std::string(key) + "\"; " + some_keys(items_));
}

// Refuses duplicates, which a brace list would otherwise drop without a word.
void Dict::insert(std::string key, Value value) {
  if (keys_.intern(key) != items_.size()) {
    throw Error(ErrorCode::kAlreadyExists,
                "state dict: the key \"" + key + "\" is given twice; assign through [] to replace its value");
  }
  items_.emplace_back(std::move(key), std::move(value));
}

// Keeps the order of the other keys, which is the order in the checkpoint.
bool Dict::erase(std::string_view key) {
  const auto found = keys_.find(key);
  if (!found) return false;
  items_.erase(items_.begin() + static_cast<std::ptrdiff_t>(*found));
  keys_ = {};
  for (const auto& [other, value] : items_) keys_.intern(other);
  return true;
}

std::vector<Dict::Item>::iterator Dict::begin() { return items_.begin(); }
std::vector<Dict::Item>::iterator Dict::end() { return items_.end(); }
std::vector<Dict::Item>::const_iterator Dict::begin() const { return items_.begin(); }
std::vector<Dict::Item>::const_iterator Dict::end() const { return items_.end(); }

// Converts IValues to Dicts and Lists as far as flattening splits them. An IValue's lists and dicts
// are handles: one may appear in many places, or contain itself.
class Value::Unfolding {
 public:
  Variant unfold(const c10::IValue& value, std::size_t depth) {
    if (value.isTensor()) return value.toTensor();
    if (auto blob = blob_in(value)) return std::move(*blob);
    if (value.isGenericDict()) {
      const Copying copying(*this, value, depth);
      auto dict = std::make_shared<Dict>();
      for (const auto& item : value.toGenericDict()) dict->insert(key_text(item.key()), element(item.value(), depth + 1));
      return dict;
    }
    if (value.isList() && must_nest(value, depth)) {
      const Copying copying(*this, value, depth);
      auto list = std::make_shared<List>();
      for (const c10::IValue& inner : value.toListRef()) list->push_back(element(inner, depth + 1));
      return list;
    }
    return value;
  }

 private:
  // A container that is being visited.
  class Open {
   public:
    Open(Unfolding& unfolding, const c10::IValue& container, std::size_t depth) : unfolding_(unfolding), container_(container) {
      if (depth > kNestingMax)
        throw Error(ErrorCode::kInvalidArgument,
                    "state dict: a value is nested deeper than " + std::to_string(kNestingMax) + " levels; make it flatter");
      if (!unfolding_.open_.insert(container).second)
        throw Error(ErrorCode::kUnsupported, "state dict: a list or dict contains itself, which cannot be saved; leave it out");
    }
    ~Open() { unfolding_.open_.erase(container_); }
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;

   private:
    Unfolding& unfolding_;
    const c10::IValue& container_;
  };

  // A container that is being converted to a Dict or List.
  class Copying {
   public:
    Copying(Unfolding& unfolding, const c10::IValue& container, std::size_t depth)
        : open_(unfolding, container, depth), repeats_(unfolding.repeats_) {
      // Values below a repeated container are copies. Only those count towards kCopiedMax.
      is_repeat_ = !unfolding.copied_.insert(container).second;
      if (is_repeat_) ++repeats_;
    }
    ~Copying() {
      if (is_repeat_) --repeats_;
    }
    Copying(const Copying&) = delete;
    Copying& operator=(const Copying&) = delete;

   private:
    Open open_;
    std::size_t& repeats_;
    bool is_repeat_ = false;
  };

  Value element(const c10::IValue& value, std::size_t depth) {
    if (repeats_ > 0 && ++repeated_values_ > kCopiedMax)
      throw Error(ErrorCode::kUnsupported,
                  "state dict: lists or dicts that appear in many places of one value unfold to more than " +
                      std::to_string(kCopiedMax) + " values; save them once");
    Value made;
    made.value_ = unfold(value, depth);
    return made;
  }

  // Returns whether flattening splits the list.
  bool must_nest(const c10::IValue& list, std::size_t depth) {
    // Without this table, lists that share lists would be visited once per path, which can be
    // exponential.
    if (const auto known = nests_.find(list); known != nests_.end()) return known->second.toBool();
    const Open open(*this, list, depth);
    bool nests = false;
    for (const c10::IValue& inner : list.toListRef()) {
      nests = inner.isTensor() || inner.isGenericDict() || (inner.isList() && must_nest(inner, depth + 1));
      if (nests) break;
    }
    nests_.emplace(list, nests);
    return nests;
  }

  c10::IValue::HashAliasedIValues open_;     // containers being visited
  c10::IValue::HashAliasedIValueMap nests_;  // visited lists, with the results of `must_nest`
  c10::IValue::HashAliasedIValues copied_;   // containers already converted to Dicts and Lists
  std::size_t repeats_ = 0;                  // containers around the current one that were copied before
  std::size_t repeated_values_ = 0;
};

// --- bytes as plain values -----------------------------------------------------------------------

namespace {

const std::shared_ptr<c10::EnumType>& bytes_enum() {
  // LibTorch has no IValue for bytes. In an enum of Cairn's own, the name of a member is that of
  // the Python type, and its value the bytes.
  static const auto type = c10::EnumType::create(c10::QualifiedName("__torch__.cairn.bytes"), c10::StringType::get(), {}, {});
  return type;
}

constexpr const char* kBytesTypes[] = {"io.BytesIO", "bytes", "bytearray"};

}  // namespace

c10::IValue plain_value_of(Blob blob) {
  const char* const type = kBytesTypes[static_cast<std::size_t>(blob.type) - 1];
  return c10::IValue(c10::make_intrusive<c10::ivalue::EnumHolder>(bytes_enum(), type, c10::IValue(std::move(blob.bytes))));
}

std::optional<Blob> blob_in(const c10::IValue& value) {
  if (!value.isEnum() || value.toEnumHolder()->type() != bytes_enum()) return std::nullopt;
  const auto held = value.toEnumHolder();
  const auto* const type = std::find(std::begin(kBytesTypes), std::end(kBytesTypes), held->name());
  return Blob{held->value().toStringRef(), static_cast<BytesType>(type - std::begin(kBytesTypes) + 1)};
}

// --- Value ---------------------------------------------------------------------------------------

Value::Value(Dict dict) : value_(std::make_shared<Dict>(std::move(dict))) {}
Value::Value(List list) : value_(std::make_shared<List>(std::move(list))) {}
Value::Value(std::shared_ptr<Stateful> object) : value_(std::move(object)) {
  if (!this->stateful())
    throw Error(ErrorCode::kInvalidArgument, "state dict: a Stateful object is a null pointer; leave its key out");
}
Value::Value(std::shared_ptr<const Opaque> value) : value_(std::move(value)) {
  check_invariant(std::get<std::shared_ptr<const Opaque>>(value_) != nullptr, "an opaque value exists");
}
Value::Value(c10::IValue value) : value_(Unfolding().unfold(value, 1)) {}  // NOLINT(performance-unnecessary-value-param)

// Throws instead of wrapping around, which would store a negative number.
std::int64_t Value::in_int64(std::uint64_t value) {
  if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    throw Error(ErrorCode::kInvalidArgument, "state dict: the number " + std::to_string(value) +
                                                 " does not fit into int64, the type of whole numbers in checkpoints; save it as "
                                                 "text");
  return static_cast<std::int64_t>(value);
}

Value::Value(const Value& other)
    : value_(other.value_), per_rank_(other.per_rank_), if_stored_(other.if_stored_), frozen_(other.frozen_) {
  // Copy containers deeply. A moved-from value has no container.
  if (const auto* dict = std::get_if<std::shared_ptr<Dict>>(&value_); dict && *dict) value_ = std::make_shared<Dict>(**dict);
  if (const auto* list = std::get_if<std::shared_ptr<List>>(&value_); list && *list) value_ = std::make_shared<List>(**list);
}

Value& Value::operator=(const Value& other) {
  // `other` may lie within this value's own containers, so it is copied before they go.
  if (this != &other) *this = Value(other);
  return *this;
}

bool Value::is_none() const { return is_ivalue() && std::get<c10::IValue>(value_).isNone(); }

namespace {

template <class Held, class Stored>
const Held& held_in(const Value& value, const Stored& stored, const char* what) {
  const Held* const held = std::get_if<Held>(&stored);
  if (held == nullptr) throw_kind(value, what);
  return *held;
}

// Looks behind a pointer, which a move leaves null.
template <class Held, class Stored>
Held& pointed_in(const Value& value, const Stored& stored, const char* what) {
  const auto& pointer = held_in<std::shared_ptr<Held>>(value, stored, what);
  if (!pointer) throw_kind(value, what);
  return *pointer;
}

}  // namespace

const torch::Tensor& Value::tensor() const { return held_in<torch::Tensor>(*this, value_, "a tensor"); }
const ShardedTensor& Value::sharded() const { return held_in<ShardedTensor>(*this, value_, "a sharded tensor"); }
const Blob& Value::blob() const { return held_in<Blob>(*this, value_, "bytes"); }
const Opaque& Value::opaque() const { return pointed_in<const Opaque>(*this, value_, "an opaque value"); }
Dict& Value::dict() { return pointed_in<Dict>(*this, value_, "a dict"); }
const Dict& Value::dict() const { return pointed_in<Dict>(*this, value_, "a dict"); }
List& Value::list() { return pointed_in<List>(*this, value_, "a list"); }
const List& Value::list() const { return pointed_in<List>(*this, value_, "a list"); }
const std::shared_ptr<Stateful>& Value::stateful() const {
  return held_in<std::shared_ptr<Stateful>>(*this, value_, "a stateful object");
}
const c10::IValue& Value::ivalue() const { return held_in<c10::IValue>(*this, value_, "a plain value"); }

std::int64_t Value::to_int() const {
  if (!is_ivalue() || !ivalue().isInt()) throw_kind(*this, "a whole number");
  return ivalue().toInt();
}

double Value::to_double() const {
  if (!is_ivalue() || !(ivalue().isDouble() || ivalue().isInt())) throw_kind(*this, "a number");
  return ivalue().isInt() ? static_cast<double>(ivalue().toInt()) : ivalue().toDouble();
}

bool Value::to_bool() const {
  if (!is_ivalue() || !ivalue().isBool()) throw_kind(*this, "a truth value");
  return ivalue().toBool();
}

const std::string& Value::to_text() const {
  if (!is_ivalue() || !ivalue().isString()) throw_kind(*this, "a text");
  return ivalue().toStringRef();
}

Value& Value::operator[](std::string_view key) {
  // As in `state["a"]["b"] = …`: the inner dict is made on first use.
  if (is_none()) value_ = std::make_shared<Dict>();
  return dict()[key];
}

const Value& Value::operator[](std::string_view key) const { return dict().at(key); }

const char* Value::type_name() const {
  if (is_tensor()) return "a tensor";
  if (is_sharded()) return "a sharded tensor";
  if (is_blob()) return "bytes";
  if (is_opaque()) return "an opaque value";
  if (is_dict()) return std::get<std::shared_ptr<Dict>>(value_) ? "a dict" : "a dict that was moved away";
  if (is_list()) return std::get<std::shared_ptr<List>>(value_) ? "a list" : "a list that was moved away";
  if (is_stateful()) return "a stateful object";
  const c10::IValue& value = std::get<c10::IValue>(value_);
  if (value.isNone()) return "None";
  if (value.isBool()) return "a truth value";
  if (value.isInt()) return "a whole number";
  if (value.isDouble()) return "a number";
  if (value.isString()) return "a text";
  if (value.isTuple()) return "a tuple";
  if (value.isList()) return "a list";
  return "a value of another kind";
}

Value per_rank(Value value) {
  value.per_rank_ = true;
  return value;
}

Value if_stored(Value value) {
  value.if_stored_ = true;
  return value;
}

Value frozen(Value value) {
  value.frozen_ = true;
  return value;
}

// Marks add up: a value inside of a marked container has the container's mark as well.
Value with_marks_of(const Value& other, Value value) {
  value.per_rank_ = value.per_rank_ || other.per_rank_;
  value.if_stored_ = value.if_stored_ || other.if_stored_;
  value.frozen_ = value.frozen_ || other.frozen_;
  return value;
}

}  // namespace cairn
