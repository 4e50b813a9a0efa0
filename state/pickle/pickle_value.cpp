#include <cairn/state/pickle/pickle_value.hpp>

#include <cstring>

#include <cairn/base/enum_names.hpp>
#include <cairn/base/error.hpp>

namespace cairn {

const char* to_string(PickleKind kind) noexcept {
  static constexpr const char* kNames[] = {"None",      "a bool",         "an int",  "a float", "a str",
                                           "bytes",     "a list",         "a tuple", "a dict",  "a class or function",
                                           "an object", "a persistent id"};
  return name_in<PickleKind::kPersistentId>(kNames, kind, "an unknown kind");
}

std::string to_string(const PickleGlobal& global) { return std::string(global.module) + "." + std::string(global.name); }

const std::vector<PickleTree::Id>& PickleTree::container(const Node& node) const {
  // Empty lists and dicts have no container, which saves memory in pickles of many.
  static const std::vector<Id> empty;
  return node.second == kNoContainer ? empty : containers_[node.second];
}

PickleKind PickleValue::kind() const { return tree_->nodes_[id_].kind; }
std::uint64_t PickleValue::position() const { return tree_->nodes_[id_].position; }
std::string PickleValue::where() const { return tree_->what() + ", at byte " + std::to_string(position()) + " of its pickle"; }

void corrupt(const PickleValue& value, const std::string& why) { throw Error(ErrorCode::kCorrupt, value.where() + ": " + why); }

void unsupported(const PickleValue& value, const std::string& why) {
  throw Error(ErrorCode::kUnsupported, value.where() + ": " + why);
}

// Readers ask for what they need. A mismatch means that the pickle is not what it should be, and
// the error says where.
void PickleValue::expect(PickleKind kind_wanted) const {
  if (is(kind_wanted)) return;
  std::string found = to_string(kind());
  if (is(PickleKind::kObject)) found += " of " + to_string(callee().as_global());
  if (is(PickleKind::kGlobal)) found += " (" + to_string(as_global()) + ")";
  corrupt(*this, std::string("expected ") + to_string(kind_wanted) + ", found " + found);
}

bool PickleValue::is_global(std::string_view module, std::string_view name) const {
  return is(PickleKind::kGlobal) && as_global() == PickleGlobal{module, name};
}

bool PickleValue::is_object_of(std::string_view module, std::string_view name) const {
  return is(PickleKind::kObject) && callee().is_global(module, name);
}

bool PickleValue::as_bool() const {
  expect(PickleKind::kBool);
  return tree_->nodes_[id_].second != 0;
}

std::int64_t PickleValue::as_int() const {
  expect(PickleKind::kInt);
  return static_cast<std::int64_t>(tree_->nodes_[id_].second);
}

double PickleValue::as_float() const {
  expect(PickleKind::kFloat);
  double value;
  // The node holds the bits of the number.
  std::memcpy(&value, &tree_->nodes_[id_].second, sizeof value);
  return value;
}

std::string_view PickleValue::as_text() const {
  expect(PickleKind::kText);
  const auto& node = tree_->nodes_[id_];
  return {reinterpret_cast<const char*>(node.second), node.first};
}

std::string_view PickleValue::as_bytes() const {
  expect(PickleKind::kBytes);
  const auto& node = tree_->nodes_[id_];
  return {reinterpret_cast<const char*>(node.second), node.first};
}

PickleGlobal PickleValue::as_global() const {
  expect(PickleKind::kGlobal);
  return tree_->globals_[tree_->nodes_[id_].second];
}

std::size_t PickleValue::size() const {
  const auto& node = tree_->nodes_[id_];
  if (node.kind == PickleKind::kTuple) return node.first;
  if (node.kind == PickleKind::kDict) return tree_->container(node).size() / 2;
  expect(PickleKind::kList);
  return tree_->container(node).size();
}

// Checked: the index comes from the code, the size from the pickle.
PickleValue PickleValue::operator[](std::size_t index) const {
  const auto& node = tree_->nodes_[id_];
  if (node.kind != PickleKind::kTuple) expect(PickleKind::kList);
  if (index >= size())
    corrupt(*this, std::string(to_string(kind())) + " of " + std::to_string(size()) + " elements where more than " +
                       std::to_string(index) + " are needed");
  if (node.kind == PickleKind::kTuple) return {tree_, tree_->children_[node.second + index]};
  return {tree_, tree_->container(node)[index]};
}

PickleValue PickleValue::key(std::size_t index) const {
  expect(PickleKind::kDict);
  check_invariant(index < size(), "a dict is asked only for pairs that it has");
  return {tree_, tree_->container(tree_->nodes_[id_])[2 * index]};
}

PickleValue PickleValue::mapped(std::size_t index) const {
  expect(PickleKind::kDict);
  check_invariant(index < size(), "a dict is asked only for pairs that it has");
  return {tree_, tree_->container(tree_->nodes_[id_])[2 * index + 1]};
}

// Linear, because dicts of fields are short. Readers of large dicts go through all pairs anyway.
std::optional<PickleValue> PickleValue::find(std::string_view wanted) const {
  expect(PickleKind::kDict);
  const auto& pairs = tree_->container(tree_->nodes_[id_]);
  // Backwards: in Python, the last assignment to a key counts.
  for (std::size_t i = pairs.size(); i >= 2; i -= 2) {
    const PickleValue candidate{tree_, pairs[i - 2]};
    if (candidate.is(PickleKind::kText) && candidate.as_text() == wanted) return PickleValue{tree_, pairs[i - 1]};
  }
  return std::nullopt;
}

PickleValue PickleValue::at(std::string_view wanted) const {
  if (auto found = find(wanted)) return *found;
  corrupt(*this, "the field \"" + std::string(wanted) + "\" is missing");
}

PickleValue PickleValue::callee() const {
  expect(PickleKind::kObject);
  return {tree_, tree_->objects_[tree_->nodes_[id_].second].callee};
}

PickleValue PickleValue::arguments() const {
  expect(PickleKind::kObject);
  return {tree_, tree_->objects_[tree_->nodes_[id_].second].arguments};
}

// Python calls __setstate__ with it, or updates __dict__ by it. The reader knows which of the two
// the class does.
std::optional<PickleValue> PickleValue::state() const {
  expect(PickleKind::kObject);
  const auto state = tree_->objects_[tree_->nodes_[id_].second].state;
  if (state == PickleTree::kNoId) return std::nullopt;
  return PickleValue{tree_, state};
}

PickleValue PickleValue::items() const {
  expect(PickleKind::kObject);
  return {tree_, tree_->objects_[tree_->nodes_[id_].second].items};
}

PickleValue PickleValue::persistent_id() const {
  expect(PickleKind::kPersistentId);
  return {tree_, static_cast<std::uint32_t>(tree_->nodes_[id_].second)};
}

}  // namespace cairn
