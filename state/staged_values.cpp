#include <cairn/state/staged_values.hpp>

#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

#include <cairn/state/tensor_types.hpp>

namespace cairn {
namespace {

// The table of copies that `deepcopy` takes: newer LibTorch compares identities instead of aliases.
template <class IValue, class = void>
struct Copies {
  using Table = typename IValue::HashAliasedIValueMap;
};
template <class IValue>
struct Copies<IValue, std::void_t<typename IValue::HashIdentityIValueMap>> {
  using Table = typename IValue::HashIdentityIValueMap;
};

// LibTorch copies no enums, and copies a torch.Size as a plain tuple. Both are immutable: they stay
// shared.
c10::IValue deep_copy(const c10::IValue& value) {
  Copies<c10::IValue>::Table copies;
  std::unordered_set<const void*> seen;  // a node may be in many places
  value.visit([&](const c10::IValue& node) {
    if (node.isPtrType() && !seen.insert(node.internalToPointer()).second) return true;
    if (node.isEnum() || is_torch_size(node)) copies.emplace(node, node);
    return false;
  });
  return value.deepcopy(copies);
}

}  // namespace

// The order of visits is fixed: DefaultStager matches tensors with their copies by it.
void replace_tensors(Value& value, const std::string& name, const Replace& replace) {
  if (value.is_dict()) {
    for (auto& [key, inner] : value.dict()) replace_tensors(inner, name.empty() ? key : name + "." + key, replace);
    return;
  }
  if (value.is_list()) {
    for (std::size_t i = 0; i < value.list().size(); ++i) replace_tensors(value.list()[i], name + "." + std::to_string(i), replace);
    return;
  }
  if (value.is_tensor()) {
    value = with_marks_of(value, Value(replace(name, value.tensor())));
  } else if (value.is_sharded()) {
    std::vector<torch::Tensor> parts;
    for (const LocalShard& shard : value.sharded().local_shards()) parts.push_back(replace(name, shard.tensor));
    value = with_marks_of(value, Value(value.sharded().with_local_tensors(std::move(parts))));
  }
}

void copy_plain_values(Value& value) {
  if (value.is_dict()) {
    for (auto& [key, inner] : value.dict()) copy_plain_values(inner);
  } else if (value.is_list()) {
    for (auto& inner : value.list()) copy_plain_values(inner);
  } else if (value.is_ivalue()) {
    const c10::IValue& plain = value.ivalue();
    // Numbers and texts cannot change. Only containers are handles.
    if (!plain.isList() && !plain.isTuple() && !plain.isGenericDict()) return;
    Value copy{deep_copy(plain)};
    value = with_marks_of(value, std::move(copy));
  }
}

}  // namespace cairn
