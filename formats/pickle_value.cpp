#include <cairn/formats/pickle_value.hpp>

#include <algorithm>
#include <cstring>
#include <limits>

#include <cairn/base/enum_names.hpp>
#include <cairn/base/error.hpp>
#include <cairn/formats/unicode.hpp>

namespace cairn {

const char* to_string(PickleKind kind) noexcept {
  static constexpr const char* kNames[] = {"None",      "a bool",          "an int",         "a float", "a str",
                                           "bytes",     "a list",          "a tuple",        "a dict",  "a class or function",
                                           "an object", "a persistent id", "an opaque value"};
  return name_in<PickleKind::kOpaque>(kNames, kind, "an unknown kind");
}

std::string to_string(const PickleGlobal& global) { return std::string(global.module) + "." + std::string(global.name); }

const std::vector<PickleTree::Id>& PickleTree::container(const Node& node) const {
  // Empty lists and dicts have no container, which saves memory in pickles of many.
  static const std::vector<Id> empty;
  return node.second == kNoContainer ? empty : containers_[node.second];
}

PickleKind PickleValue::kind() const { return tree_->nodes_[id_].is_opaque ? PickleKind::kOpaque : shape(); }
PickleKind PickleValue::shape() const { return tree_->nodes_[id_].kind; }
std::uint64_t PickleValue::position() const { return tree_->nodes_[id_].position; }
std::string PickleValue::where() const { return tree_->what() + ", at byte " + std::to_string(position()) + " of its pickle"; }

void corrupt(const PickleValue& value, const std::string& why) {
  if (value.is(PickleKind::kOpaque)) unsupported(value, value.why_opaque());
  throw Error(ErrorCode::kCorrupt, value.where() + ": " + why);
}

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

std::string_view PickleValue::borrowed() const {
  const auto& node = tree_->nodes_[id_];
  return {reinterpret_cast<const char*>(node.second), node.first};
}

std::string_view PickleValue::as_text() const {
  expect(PickleKind::kText);
  return borrowed();
}

std::string_view PickleValue::as_bytes() const {
  expect(PickleKind::kBytes);
  return borrowed();
}

PickleGlobal PickleValue::as_global() const {
  expect(PickleKind::kGlobal);
  return global();
}

std::size_t PickleValue::size() const {
  if (shape() == PickleKind::kTuple) return tree_->nodes_[id_].first;
  if (shape() != PickleKind::kDict && shape() != PickleKind::kList) expect(PickleKind::kList);
  return tree_->container(tree_->nodes_[id_]).size() / (shape() == PickleKind::kDict ? 2 : 1);
}

// Checked: the index comes from the code, the size from the pickle.
PickleValue PickleValue::operator[](std::size_t index) const {
  const bool is_tuple = shape() == PickleKind::kTuple;
  if (!is_tuple && shape() != PickleKind::kList) expect(PickleKind::kList);
  if (index >= size())
    corrupt(*this, std::string(to_string(kind())) + " of " + std::to_string(size()) + " elements where more than " +
                       std::to_string(index) + " are needed");
  return {tree_, is_tuple ? tree_->children_[tree_->nodes_[id_].second + index] : tree_->container(tree_->nodes_[id_])[index]};
}

PickleValue PickleValue::key(std::size_t index) const { return in_pair(2 * index); }
PickleValue PickleValue::mapped(std::size_t index) const { return in_pair(2 * index + 1); }
PickleValue PickleValue::in_pair(std::size_t index) const {
  expect(PickleKind::kDict);
  check_invariant(index / 2 < size(), "a dict is asked only for pairs that it has");
  return {tree_, tree_->container(tree_->nodes_[id_])[index]};
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

const PickleTree::Object& PickleTree::object_of(const PickleValue& value) const {
  if (value.shape() != PickleKind::kObject) value.expect(PickleKind::kObject);
  return objects_[nodes_[value.id()].second];
}

std::optional<PickleValue> PickleValue::if_there(std::uint32_t id) const {
  return id == PickleTree::kNoId ? std::nullopt : std::optional<PickleValue>(PickleValue(tree_, id));
}

PickleValue PickleValue::callee() const { return {tree_, tree_->object_of(*this).callee}; }
PickleValue PickleValue::arguments() const { return {tree_, tree_->object_of(*this).arguments}; }
// Python calls __setstate__ with it, or updates __dict__ by it. The reader knows which of the two
// the class does.
std::optional<PickleValue> PickleValue::state() const { return if_there(tree_->object_of(*this).state); }
PickleValue PickleValue::items() const {
  return if_there(tree_->object_of(*this).items).value_or(PickleValue(tree_, tree_->empty_dict_));
}
std::optional<PickleValue> PickleValue::keywords() const { return if_there(tree_->object_of(*this).keywords); }
std::optional<PickleValue> PickleValue::elements() const { return if_there(tree_->object_of(*this).elements); }

PickleGlobal PickleValue::global() const {
  if (shape() != PickleKind::kGlobal) expect(PickleKind::kGlobal);
  return tree_->globals_[tree_->nodes_[id_].second];
}

std::string_view PickleValue::opcode() const {
  check_invariant(is(PickleKind::kOpaque) && (shape() == PickleKind::kInt || shape() == PickleKind::kBytes),
                  "an opcode is kept here");
  return borrowed();
}

std::string PickleValue::opaque_name() const {
  if (shape() == PickleKind::kGlobal) return to_string(global());
  if (!is(PickleKind::kOpaque)) return to_string(kind());
  switch (shape()) {
    case PickleKind::kList:
      return tree_->nodes_[id_].first == 0 ? "builtins.set" : "builtins.frozenset";
    case PickleKind::kInt:
      return "an int of more than 64 bits";
    case PickleKind::kBytes:
      return "a class that only its extension code names";
    case PickleKind::kNone:
      return "a value that contains itself";
    default:
      break;
  }
  // Python's own helper takes the class as its first argument. Only one of both is asked for its
  // name, because objects may be nested in both.
  const bool is_helper =
      callee().shape() == PickleKind::kGlobal && to_string(callee().global()) == "copyreg._reconstructor" && arguments().size() > 0;
  return (is_helper ? arguments()[0] : callee()).opaque_name();
}

std::string PickleValue::why_opaque() const {
  const auto name = printable(opaque_name());
  if (shape() == PickleKind::kNone || shape() == PickleKind::kInt || shape() == PickleKind::kBytes) return name;
  return "it asks for " + name + ", which is not a global that Cairn allows here; nothing was executed";
}

PickleValue PickleValue::persistent_id() const {
  expect(PickleKind::kPersistentId);
  return {tree_, tree_->children_[tree_->nodes_[id_].second]};
}

namespace {

void visit_all(const PickleValue& container, const VisitPart& visit) {
  for (std::size_t i = 0; i < container.size(); ++i) {
    if (container.shape() != PickleKind::kDict) {
      visit("", container[i]);
      continue;
    }
    const auto key = container.key(i);
    const std::string number = key.is(PickleKind::kInt) ? std::to_string(key.as_int()) : "";
    visit(key.is(PickleKind::kText) ? key.as_text() : number, container.mapped(i));
  }
}

}  // namespace

void for_each_part(const PickleValue& value, const VisitPart& visit) {
  const auto shape = value.shape();
  if (shape == PickleKind::kList || shape == PickleKind::kTuple || shape == PickleKind::kDict) return visit_all(value, visit);
  if (shape == PickleKind::kPersistentId) return visit("", value.persistent_id());
  if (shape != PickleKind::kObject) return;
  if (value.callee().shape() != PickleKind::kGlobal) visit("", value.callee());
  visit_all(value.arguments(), visit);
  for (const auto& parts : {value.keywords(), value.elements(), std::optional<PickleValue>(value.items())})
    if (parts) visit_all(*parts, visit);
  const auto state = value.state();
  if (!state) return;
  // `__dict__`, or None, and the values of `__slots__`.
  const bool has_slots = state->is(PickleKind::kTuple) && state->size() == 2 && (*state)[1].is(PickleKind::kDict);
  if (has_slots && (*state)[0].is(PickleKind::kDict)) visit_all((*state)[0], visit);
  const auto fields = has_slots ? (*state)[1] : *state;
  fields.is(PickleKind::kDict) ? visit_all(fields, visit) : visit("state", fields);
}

// --- trees are safe for recursive walks: no value contains itself, and none nests too deep ---

std::size_t PickleTree::child_count(const Node& node) const {
  switch (node.kind) {
    case PickleKind::kTuple:
    case PickleKind::kPersistentId:
      return node.first;
    case PickleKind::kList:
    case PickleKind::kDict:
      return container(node).size();
    case PickleKind::kObject:
      return 6;
    default:
      return 0;
  }
}

PickleTree::Id& PickleTree::child(Node& node, std::size_t index) {
  if (node.kind == PickleKind::kTuple || node.kind == PickleKind::kPersistentId) return children_[node.second + index];
  if (node.kind != PickleKind::kObject) return containers_[node.second][index];
  auto& object = objects_[node.second];
  Id* const parts[] = {&object.callee, &object.arguments, &object.items, &object.state, &object.elements, &object.keywords};
  return *parts[index];
}

// Depth first, without recursion. Visits each node once, so shared values cost nothing extra.
void PickleTree::check_nesting(std::uint32_t depth_max, bool cut) {
  // For each node: 0 if not yet visited, kOpen while on the path, then the number of levels below
  // it.
  constexpr auto kOpen = std::numeric_limits<std::uint32_t>::max();
  std::vector<std::uint32_t> levels(nodes_.size(), 0);
  struct Step {
    Id id;
    std::size_t next_child;
    std::uint32_t levels_below;
  };
  std::vector<Step> path;
  const auto fail = [&](Id id, const std::string& why) { unsupported(PickleValue(this, id), why); };
  const auto enter = [&](Id id) {
    levels[id] = kOpen;
    path.push_back({id, 0, 0});
  };

  enter(root_);
  while (!path.empty()) {
    auto& step = path.back();
    const auto id = step.id;
    if (step.next_child == child_count(nodes_[id])) {
      levels[id] = step.levels_below + 1;
      path.pop_back();
      if (!path.empty()) path.back().levels_below = std::max(path.back().levels_below, levels[id]);
    } else {
      auto& part = child(nodes_[id], step.next_child++);
      const auto below = part;
      if (below == kNoId) continue;  // an object without this part
      if (levels[below] == kOpen) {
        if (!cut) fail(below, "a value that contains itself");
        part = static_cast<Id>(nodes_.size());
        nodes_.push_back({PickleKind::kNone, true, nodes_[below].position, 0, 0});
        levels.push_back(1);
      } else if (levels[below] == 0) {
        enter(below);
      } else {
        step.levels_below = std::max(step.levels_below, levels[below]);
      }
    }
    if (!path.empty() && path.size() + path.back().levels_below > depth_max)
      fail(id, "values are nested more than " + std::to_string(depth_max) + " deep");
  }
}

}  // namespace cairn
