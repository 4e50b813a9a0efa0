// What stagers do with the values of a state. Internal.
#pragma once

#include <functional>
#include <string>

#include <cairn/state/state_dict.hpp>

namespace cairn {

// Calls `replace` for each tensor in `value`, with its name, and puts the result in its place.
using Replace = std::function<torch::Tensor(const std::string& name, const torch::Tensor& tensor)>;
void replace_tensors(Value& value, const std::string& name, const Replace& replace);

// Containers within plain values are handles, and the trainer may change what they refer to: copies those, with the tensors in them.
void copy_plain_values(Value& value);

}  // namespace cairn
