// Reads a small safetensors file: the expected tensors of a checkpoint, by name.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>

#include <nlohmann/json.hpp>

#include <cairn/tests/support/torch.hpp>  // before the headers that use doctest

#include <cairn/planning/box.hpp>
#include <cairn/planning/dtype.hpp>
#include <cairn/state/tensor_types.hpp>

namespace cairn::testing {

struct SafeTensor {
  DType dtype = DType::kFloat32;
  Extents sizes;
  std::string bytes;  // contiguous, row-major
};

inline DType safetensors_dtype(const std::string& name) {
  static const std::map<std::string, DType> names{{"F32", DType::kFloat32},   {"F64", DType::kFloat64}, {"F16", DType::kFloat16},
                                                  {"BF16", DType::kBFloat16}, {"I8", DType::kInt8},     {"U8", DType::kUInt8},
                                                  {"I16", DType::kInt16},     {"I32", DType::kInt32},   {"I64", DType::kInt64},
                                                  {"BOOL", DType::kBool}};
  return names.at(name);
}

inline std::string file_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::map<std::string, SafeTensor> read_safetensors(const std::string& path) {
  const auto bytes = file_bytes(path);
  std::uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i) header_bytes = header_bytes << 8 | static_cast<unsigned char>(bytes.at(static_cast<std::size_t>(i)));
  const auto header = nlohmann::json::parse(bytes.substr(8, header_bytes));
  std::map<std::string, SafeTensor> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    SafeTensor tensor;
    tensor.dtype = safetensors_dtype(entry.at("dtype").get<std::string>());
    tensor.sizes = Extents(entry.at("shape").get<std::vector<std::int64_t>>());
    const auto offsets = entry.at("data_offsets").get<std::vector<std::uint64_t>>();
    tensor.bytes = bytes.substr(8 + header_bytes + offsets.at(0), offsets.at(1) - offsets.at(0));
    tensors.emplace(name, std::move(tensor));
  }
  return tensors;
}

inline torch::Tensor tensor_of(const SafeTensor& stored) {
  torch::Tensor tensor = torch::empty(array_of(stored.sizes), *scalar_type_of(stored.dtype));
  REQUIRE(tensor.nbytes() == stored.bytes.size());
  if (tensor.numel() > 0) std::memcpy(tensor.data_ptr(), stored.bytes.data(), stored.bytes.size());
  return tensor;
}

}  // namespace cairn::testing
