// Parses the trainer's communication backends, by device type. Internal.
#pragma once

#include <map>
#include <string>

namespace cairn {

// Parses a text in the format of PyTorch's init_process_group: "cpu:gloo,cuda:nccl", or one name.
// "nccl" alone serves "cuda"; any other name serves "cpu" and "cuda". Returns the names by device
// type. Throws kInvalidArgument for any other text.
std::map<std::string, std::string> parse_backends(const std::string& text);

}  // namespace cairn
