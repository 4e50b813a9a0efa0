// Reads tensors from a state dict that torch.save wrote.
#pragma once

#include <filesystem>
#include <memory>

#include <cairn/tools/tensor_source.hpp>

namespace cairn::tools {

// Maps the file. Tensors are read on demand, and each storage is verified against its checksum. If
// the file is truncated meanwhile, the process dies of SIGBUS. Throws kUnsupported, naming them,
// for classes that plain state dicts do not contain; kCorrupt.
std::unique_ptr<TensorSource> open_torch_file(const std::filesystem::path& path);

}  // namespace cairn::tools
