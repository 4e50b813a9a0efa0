// Checks that trees are safe for recursive walks: no value contains itself, and none nests too
// deep.
#include <algorithm>
#include <limits>

#include <cairn/formats/pickle_value.hpp>

namespace cairn {

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
