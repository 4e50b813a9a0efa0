// Which means of communication the ranks of a trainer have, by the type of device whose tensors they move. Internal.
#pragma once

#include <map>
#include <string>

namespace cairn {

// As PyTorch's init_process_group takes them: "cpu:gloo,cuda:nccl"; or one name for all devices that it serves: "gloo" for "cpu" and
// "cuda", "nccl" for "cuda" alone. Returns names by device type. Throws kInvalidArgument for what is neither.
std::map<std::string, std::string> parse_backends(const std::string& text);

}  // namespace cairn
