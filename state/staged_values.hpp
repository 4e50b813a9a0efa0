// Copies and replaces the values of a staged state. Internal.
#pragma once

#include <functional>
#include <string>

#include <cairn/state/state_dict.hpp>

namespace cairn {

// Replaces each tensor in `value` with the result of `replace`, which also gets the tensor's name.
using Replace = std::function<torch::Tensor(const std::string& name, const torch::Tensor& tensor)>;
void replace_tensors(Value& value, const std::string& name, const Replace& replace);

// Copies the containers within plain values, and the tensors in them. These containers are handles,
// so the trainer could otherwise change them during the save.
void copy_plain_values(Value& value);

}  // namespace cairn
