// Copies and replaces the values of a staged state. Internal.
#pragma once

#include <functional>
#include <string>

#include <cairn/state/state_dict.hpp>

namespace cairn {

// Replaces each tensor in `value` with the result of `replace`. `name` is the name of `value`.
using Replace = std::function<torch::Tensor(const std::string& name, const torch::Tensor& tensor)>;
void replace_tensors(Value& value, const std::string& name, const Replace& replace);

// Replaces each list, tuple and dict in an IValue by a deep copy, including its tensors. IValues
// hold them by reference, so the trainer could otherwise change them during the save.
void copy_plain_values(Value& value);

}  // namespace cairn
