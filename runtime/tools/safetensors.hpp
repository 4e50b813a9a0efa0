// The safetensors format: a length, a JSON header, the tensors one after the other. The header says where each tensor lies, so names, types and
// shapes are known before the first byte of data.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <cairn/planning/box.hpp>
#include <cairn/planning/dtype.hpp>

namespace cairn::tools {

struct SafetensorsTensor {
  std::string name;
  DType dtype = DType::kFloat32;
  Extents shape;
  std::uint64_t bytes() const { return static_cast<std::uint64_t>(volume(shape)) * element_size(dtype); }
};

// The format's name of an element type; nothing for those that it lacks (complex numbers).
std::optional<std::string> safetensors_type(DType dtype);
// Why the format cannot hold a tensor of this name and type, "" if it can.
std::string safetensors_objection(const std::string& name, DType dtype);

struct SafetensorsLayout {
  std::vector<SafetensorsTensor> tensors;  // in the order of the file
  std::string head;                        // what comes before the first of them
};

// Tensors are laid out by falling alignment, then by name, so that each begins at a multiple of its element size. `metadata` goes into
// the header. Throws kUnsupported for a header above the format's limit. None of the tensors has an objection.
SafetensorsLayout lay_out_safetensors(std::vector<SafetensorsTensor> tensors, const std::map<std::string, std::string>& metadata);

}  // namespace cairn::tools
