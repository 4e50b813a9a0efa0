// The safetensors format: a length, a JSON header, then the tensors one after another. The header
// gives the position of each tensor, so names, dtypes and shapes are known before the first byte of
// data.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <cairn/base/bytes.hpp>
#include <cairn/planning/box.hpp>
#include <cairn/planning/dtype.hpp>
#include <cairn/tools/commands.hpp>

namespace cairn::tools {

struct SafetensorsTensor {
  std::string name;
  DType dtype = DType::kFloat32;
  Extents shape;
  std::uint64_t bytes() const { return static_cast<std::uint64_t>(volume(shape)) * element_size(dtype); }
};

// Returns why the format cannot represent a tensor of this name and dtype, or "" if it can. The
// format, or most of its readers, lacks complex numbers.
std::string safetensors_objection(const std::string& name, DType dtype);

struct SafetensorsLayout {
  std::vector<SafetensorsTensor> tensors;  // in file order
  std::string head;                        // everything before the first tensor
};

// Lays out tensors by decreasing alignment, then by name, so that each begins at a multiple of its
// element size. `metadata` goes into the header. `safetensors_objection` must be "" for each
// tensor. Throws kUnsupported if the header exceeds the format's limit.
SafetensorsLayout lay_out_safetensors(std::vector<SafetensorsTensor> tensors, const std::map<std::string, std::string>& metadata);

// A tensor in a file.
struct StoredSafetensor : SafetensorsTensor {
  std::string type;          // the format's name of the type; `dtype` is kUnknown if Cairn lacks the type
  std::uint64_t offset = 0;  // its elements begin here, counted from the start of the file
};

// Lets Json::parse throw `refusal` at JSON that is nested deeper than headers and indexes of this
// format are: a value nested a hundred thousand times would overflow the stack.
Json::parser_callback_t depth_limit(const Error& refusal);

// Returns whether a file begins like a file in this format.
bool is_safetensors(ByteSpan file);
// Returns the tensors of a file, in file order. Throws kCorrupt, with `what` first, unless the
// tensors cover the file without holes.
std::vector<StoredSafetensor> read_safetensors(ByteSpan file, const std::string& what);

}  // namespace cairn::tools
