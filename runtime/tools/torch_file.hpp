// A file that torch.save wrote of a state dict, as a source of tensors.
#pragma once

#include <filesystem>
#include <memory>

#include <cairn/runtime/tools/tensor_source.hpp>

namespace cairn::tools {

// The file is mapped: tensors are read as they are asked for, each storage against its checksum. Whoever cuts the file short meanwhile ends
// the process. kUnsupported, naming them, for classes that are no part of plain state dicts; kCorrupt.
std::unique_ptr<TensorSource> open_torch_file(const std::filesystem::path& path);

}  // namespace cairn::tools
