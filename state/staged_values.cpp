#include <cairn/state/staged_values.hpp>

#include <utility>
#include <vector>

#include <cairn/base/error.hpp>
#include <cairn/state/planner.hpp>

namespace cairn {
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
    try {
      value = with_marks_of(value, deserialize_leaf(serialize_leaf(value)));
    } catch (const Error&) {
      // The value cannot be saved. Planning refuses it, with a better error.
    }
  }
}

}  // namespace cairn
