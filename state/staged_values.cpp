#include <cairn/state/staged_values.hpp>

#include <unordered_map>
#include <utility>
#include <vector>

#include <cairn/state/tensor_types.hpp>

namespace cairn {
namespace {

// LibTorch's own `deepcopy` treats tensors that share memory as one tensor.
class DeepCopier {
 public:
  // Values that cannot be saved stay as they are. Planning refuses them with a better error.
  // Values that cannot change stay as well.
  c10::IValue copy(const c10::IValue& value) {
    if (!value.isTensor() && !value.isTuple() && !value.isList() && !value.isGenericDict()) return value;
    if (is_torch_size(value)) return value;
    const void* const identity = value.isTensor() ? value.toTensor().unsafeGetTensorImpl() : value.internalToPointer();
    if (const auto known = copies_.find(identity); known != copies_.end()) return known->second;
    if (value.isTensor()) return copies_.emplace(identity, copy_of(value.toTensor())).first->second;
    if (value.isTuple()) {
      std::vector<c10::IValue> elements;
      for (const c10::IValue& element : value.toTupleRef().elements()) elements.push_back(copy(element));
      return copies_.emplace(identity, c10::ivalue::Tuple::create(std::move(elements))).first->second;
    }
    // Registered before its elements, because it may contain itself.
    if (value.isList()) {
      c10::impl::GenericList list(value.toList().elementType());
      copies_.emplace(identity, list);
      for (const c10::IValue& element : value.toListRef()) list.push_back(copy(element));
      return list;
    }
    const c10::impl::GenericDict from = value.toGenericDict();
    c10::impl::GenericDict dict(from.keyType(), from.valueType());
    copies_.emplace(identity, dict);
    for (const auto& item : from) dict.insert(item.key(), copy(item.value()));
    return dict;
  }

 private:
  static torch::Tensor copy_of(const torch::Tensor& tensor) {
    if (!why_not_storable(tensor).empty()) return tensor;
    return with_torch("copy a tensor in a plain value",
                      [&] { return tensor.detach().clone().requires_grad_(tensor.requires_grad()); });
  }

  std::unordered_map<const void*, c10::IValue> copies_;
};

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
    Value copy{DeepCopier().copy(plain)};
    value = with_marks_of(value, std::move(copy));
  }
}

}  // namespace cairn
