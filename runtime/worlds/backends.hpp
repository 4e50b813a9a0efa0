// Parses the trainer's communication backends, by device type. Internal.
#pragma once

#include <map>
#include <string>

namespace cairn {

// Parses the format of PyTorch's init_process_group: "cpu:gloo,cuda:nccl", or one name: "nccl"
// serves "cuda" only, any other name "cpu" and "cuda". Returns the names by device type. Throws
// kInvalidArgument for any other text.
std::map<std::string, std::string> parse_backends(const std::string& text);

}  // namespace cairn
