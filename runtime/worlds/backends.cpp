#include <cairn/runtime/worlds/backends.hpp>

#include <algorithm>

#include <cairn/base/error.hpp>

namespace cairn {
namespace {

[[noreturn]] void refuse(const std::string& text) {
  throw Error(
      ErrorCode::kInvalidArgument,
      "backends \"" + text + "\": give one name (\"gloo\", \"nccl\"), or one for each type of device (\"cpu:gloo,cuda:nccl\")");
}

}  // namespace

std::map<std::string, std::string> parse_backends(const std::string& text) {
  if (text.find(':') == std::string::npos) {
    if (text.empty() || text.find(',') != std::string::npos) refuse(text);
    // As in PyTorch, one name is for every type of device that the backend serves.
    std::map<std::string, std::string> backends{{"cuda", text}};
    // NCCL has no collectives in host memory.
    if (text != "nccl") backends.emplace("cpu", text);
    return backends;
  }
  std::map<std::string, std::string> backends;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string pair = text.substr(begin, end - begin);
    const std::size_t colon = pair.find(':');
    if (colon == std::string::npos || colon == 0 || colon + 1 == pair.size()) refuse(text);
    if (!backends.emplace(pair.substr(0, colon), pair.substr(colon + 1)).second) refuse(text);
    begin = end + 1;
  }
  return backends;
}

}  // namespace cairn
