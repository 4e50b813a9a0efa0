// Converts between nested state dicts and flat names by the rules of DCP's flatten_state_dict and
// set_element.
#include <algorithm>

#include <cairn/base/error.hpp>
#include <cairn/planning/flat_names.hpp>
#include <cairn/state/flat_leaf.hpp>

namespace cairn {
namespace {

void check_depth(std::size_t depth) {
  if (depth <= kNestingMax) return;
  throw Error(ErrorCode::kInvalidArgument,
              "state dict: nested deeper than " + std::to_string(kNestingMax) + " levels; make it flatter");
}

// Dicts are always split. A list is split if it contains a tensor, a dict, or a list that is split.
bool is_taken_apart(const Value& value, std::size_t depth) {
  check_depth(depth);
  if (value.is_dict()) return true;
  if (!value.is_list()) return false;
  const List& list = value.list();
  return std::any_of(list.begin(), list.end(), [depth](const Value& element) {
    return element.is_tensor() || element.is_sharded() || element.is_stateful() || is_taken_apart(element, depth + 1);
  });
}

// A list without tensors is saved as one value. If any element is a rank's own, the whole value is.
bool holds_per_rank(const Value& value) {
  if (value.is_per_rank()) return true;
  return value.is_list() && std::any_of(value.list().begin(), value.list().end(), holds_per_rank);
}

[[noreturn]] void throw_stateful(const Path& path) {
  throw Error(ErrorCode::kPrecondition, "state dict: " + describe_path(path) +
                                            " is a stateful object; replace it by what its state_dict() returns before flattening");
}

class LeafVisitor {
 public:
  explicit LeafVisitor(const std::function<void(const FlatLeaf&)>& leaf) : leaf_(leaf) {}

  void visit_items(const Dict& dict, const Value& marks) {
    for (const auto& [key, value] : dict) descend({&key, 0}, value, marks);
  }

 private:
  void descend(FlatLeaf::Step step, const Value& value, const Value& marks) {
    const std::size_t above = name_.size();
    if (!steps_.empty()) name_ += '.';
    name_ += step.key ? *step.key : std::to_string(step.index);
    steps_.push_back(step);
    check_depth(steps_.size());
    visit({name_, steps_, value, marks});
    steps_.pop_back();
    name_.resize(above);
  }

  void visit(const FlatLeaf& at) {
    const Value& value = at.value;
    if (value.is_stateful()) throw_stateful(at.path());
    // An empty dict is a leaf of its own: without one, a load could not tell it from an absent key.
    if (value.is_dict() && !value.dict().empty()) {
      visit_items(value.dict(), with_marks_of(value, at.marks));
    } else if (value.is_list() && is_taken_apart(value, steps_.size())) {
      const Value marks = with_marks_of(value, at.marks);
      std::int64_t index = 0;
      for (const Value& element : value.list()) descend({nullptr, index++}, element, marks);
    } else {
      leaf_(at);
    }
  }

  const std::function<void(const FlatLeaf&)>& leaf_;
  std::vector<FlatLeaf::Step> steps_;
  std::string name_;
};

// Returns the value one step below `container`; creates it if it does not exist.
// Paths come from a checkpoint and may be damaged, so every step is checked against the container
// that is there.
Value& step_into(Value& container, const PathElement& step, const Path& path, std::size_t depth) {
  const auto* index = std::get_if<std::int64_t>(&step);
  if (container.is_none()) container = index != nullptr ? Value(List{}) : Value(Dict{});
  // Keys of a Dict are text. A path of PyTorch's may have whole numbers there.
  if (container.is_dict()) return container.dict()[index != nullptr ? std::to_string(*index) : std::get<std::string>(step)];
  if (container.is_list() && index != nullptr) {
    List& list = container.list();
    if (*index < 0 || *index >= std::max(kMadeListMax, static_cast<std::int64_t>(list.size()))) {
      throw Error(ErrorCode::kInvalidArgument, "state dict: cannot put a value at " + describe_path(path) +
                                                   ": lists are made with at most " + std::to_string(kMadeListMax) + " elements");
    }
    // Elements may come in any order. The gaps hold None until their own values come.
    if (static_cast<std::size_t>(*index) >= list.size()) list.resize(static_cast<std::size_t>(*index) + 1);
    return list[static_cast<std::size_t>(*index)];
  }
  const Path above(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(depth));
  throw Error(ErrorCode::kMismatch, "state dict: cannot put a value at " + describe_path(path) + ": " + describe_path(above) +
                                        " is " + container.type_name() + ", which has no such place");
}

}  // namespace

Path FlatLeaf::path() const {
  Path path;
  path.reserve(steps.size());
  for (const Step& step : steps) path.push_back(step.key ? PathElement(*step.key) : PathElement(step.index));
  return path;
}

bool FlatLeaf::is_at(const Path& path) const {
  const auto is_same = [](const Step& step, const PathElement& element) {
    if (const auto* index = std::get_if<std::int64_t>(&element)) return !step.key && step.index == *index;
    return step.key && *step.key == std::get<std::string>(element);
  };
  return steps.size() <= path.size() && std::equal(steps.begin(), steps.end(), path.begin(), is_same);
}

bool FlatLeaf::is_per_rank() const { return marks.is_per_rank() || holds_per_rank(value); }

Value FlatLeaf::marked() const {
  Value marked = with_marks_of(marks, value);
  return is_per_rank() ? per_rank(std::move(marked)) : marked;
}

void visit_leaves(const StateDict& state_dict, const std::function<void(const FlatLeaf& leaf)>& visit) {
  LeafVisitor(visit).visit_items(state_dict, Value());
}

FlatStateDict flatten(const StateDict& state_dict) {
  FlatStateDict entries;
  FlatNames names;
  entries.reserve(state_dict.size());
  names.reserve(state_dict.size());
  visit_leaves(state_dict, [&](const FlatLeaf& leaf) {
    FlatEntry entry{leaf.name, leaf.path(), leaf.marked()};
    names.add(entry.fqn, entry.path, entries);
    entries.push_back(std::move(entry));
  });
  return entries;
}

FlatStateDict flatten_top_level(const StateDict& state_dict) {
  FlatStateDict entries;
  std::string nested;
  for (const auto& [key, value] : state_dict) {
    if (value.is_stateful()) throw_stateful(Path{key});
    if (!(value.is_dict() && value.dict().empty()) && is_taken_apart(value, 1)) {
      nested += (nested.empty() ? "" : ", ") + describe_path(Path{key});
    } else {
      entries.push_back({key, Path{key}, holds_per_rank(value) ? per_rank(value) : value});
    }
  }
  if (!nested.empty()) {
    throw Error(ErrorCode::kUnsupported, "state dict: flattening is off, but these hold nested values: " + nested +
                                             "; turn flatten_state_dict on or flatten them");
  }
  return entries;
}

void set_at(StateDict& state_dict, const Path& path, Value value) {
  if (path.empty() || !std::holds_alternative<std::string>(path.front())) {
    throw Error(ErrorCode::kInvalidArgument, "state dict: a path must begin with a key, but is " + describe_path(path));
  }
  check_depth(path.size());
  Value* place = &state_dict[std::get<std::string>(path.front())];
  for (std::size_t depth = 1; depth < path.size(); ++depth) place = &step_into(*place, path[depth], path, depth);
  // The marks belong to the place: a loaded value has none of its own.
  *place = with_marks_of(*place, std::move(value));
}

// The counterpart of set_at that changes nothing and throws nothing.
const Value* find_at(const StateDict& state_dict, const Path& path) {
  if (path.empty() || !std::holds_alternative<std::string>(path.front())) return nullptr;
  const Value* place = state_dict.find(std::get<std::string>(path.front()));
  for (std::size_t depth = 1; place != nullptr && depth < path.size(); ++depth) {
    const auto* index = std::get_if<std::int64_t>(&path[depth]);
    if (place->is_dict()) {
      place = place->dict().find(index != nullptr ? std::to_string(*index) : std::get<std::string>(path[depth]));
    } else if (place->is_list() && index != nullptr && *index >= 0 && static_cast<std::size_t>(*index) < place->list().size()) {
      place = &place->list()[static_cast<std::size_t>(*index)];
    } else {
      place = nullptr;
    }
  }
  return place;
}

}  // namespace cairn
