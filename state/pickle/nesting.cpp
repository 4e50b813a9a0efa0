// Checks that trees are safe for recursive walks: no value contains itself, and none nests too
// deep.
#include <algorithm>
#include <limits>

#include <cairn/state/pickle/pickle_value.hpp>

namespace cairn {

std::size_t PickleTree::child_count(const Node& node) const {
  switch (node.kind) {
    case PickleKind::kTuple:
      return node.first;
    case PickleKind::kList:
    case PickleKind::kDict:
      return container(node).size();
    case PickleKind::kObject:
      // Arguments, items and, if it was set, the state. The callee is a global, which has no
      // children.
      return objects_[node.second].state == kNoId ? 2 : 3;
    case PickleKind::kPersistentId:
      return 1;
    default:
      return 0;
  }
}

PickleTree::Id PickleTree::child(const Node& node, std::size_t index) const {
  switch (node.kind) {
    case PickleKind::kTuple:
      return children_[node.second + index];
    case PickleKind::kObject: {
      const auto& object = objects_[node.second];
      return index == 0 ? object.arguments : index == 1 ? object.items : object.state;
    }
    case PickleKind::kPersistentId:
      return static_cast<Id>(node.second);
    default:
      return container(node)[index];
  }
}

// Depth first, without recursion. Visits each node once, so shared values cost nothing extra.
void PickleTree::check_nesting(std::uint32_t depth_max) const {
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
    const auto& node = nodes_[id];
    if (step.next_child == child_count(node)) {
      levels[id] = step.levels_below + 1;
      path.pop_back();
      if (!path.empty()) path.back().levels_below = std::max(path.back().levels_below, levels[id]);
    } else {
      const auto below = child(node, step.next_child++);
      if (levels[below] == kOpen) fail(below, "a value that contains itself");
      if (levels[below] == 0) {
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
