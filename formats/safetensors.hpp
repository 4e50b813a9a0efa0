// The safetensors format: a length, a JSON header, then the tensors one after another. The header
// gives the position of each tensor, so names, dtypes and shapes are known before the first byte of
// data. A file of PyTorch's HuggingFaceStorageWriter may hold parts of tensors; the header then
// gives the offsets of each part, under __metadata__.
//
// Pure functions, thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <cairn/base/bytes.hpp>
#include <cairn/planning/box.hpp>
#include <cairn/planning/dtype.hpp>

namespace cairn {

// A tensor, or a part of one, in a file.
struct SafetensorsTensor {
  std::string name;
  DType dtype = DType::kFloat32;
  Extents shape;                   // of the elements in the file
  std::optional<Extents> offsets;  // of a part, within the whole tensor; absent: the file says nothing about parts
  std::optional<Extents> size;     // of the whole tensor, of which this is a part; PyTorch does not write it
  // The format's name of the type and the number of bytes, used if `dtype` is kUnknown. An element
  // of such a type may have fewer than 8 bits.
  std::string type = "";
  std::uint64_t packed_bytes = 0;
  std::uint64_t offset = 0;  // of a tensor that was read: its elements begin here, counted from the start of the file

  std::uint64_t bytes() const {
    return dtype == DType::kUnknown ? packed_bytes : static_cast<std::uint64_t>(volume(shape)) * element_size(dtype);
  }
};

// Returns why the format cannot represent a tensor of this name and dtype, or "" if it can.
std::string safetensors_objection(const std::string& name, DType dtype);

struct SafetensorsLayout {
  std::vector<SafetensorsTensor> tensors;  // in file order
  std::string head;                        // everything before the first tensor
};

// Lays out tensors by decreasing alignment, then by name, so that each begins at a multiple of its
// element size. `metadata` goes into the header. Tensors must have different names, and
// `safetensors_objection` must return "" for each whose type Cairn has. Throws kUnsupported if the
// header exceeds the format's limit.
SafetensorsLayout lay_out_safetensors(std::vector<SafetensorsTensor> tensors, std::map<std::string, std::string> metadata);

// Returns whether a file begins like a file in this format.
bool is_safetensors(ByteSpan file);
// Reads [offset, offset + size of the span) of a file into the span.
using ReadBytes = std::function<void(std::uint64_t offset, MutableByteSpan to)>;
// Reads the header of a file of `file_bytes` bytes, and returns the tensors in file order. Error
// texts start with `what`. Throws kCorrupt unless the tensors cover the file without holes, and
// kUnsupported if the header exceeds the format's limit, 100 MB.
std::vector<SafetensorsTensor> read_safetensors(std::uint64_t file_bytes, const ReadBytes& read, const std::string& what);

// The index of several files, `model.safetensors.index.json`: the names of the tensors in each
// file.
using SafetensorsIndex = std::map<std::string, std::set<std::string>>;
// The ends of the names of files and indexes, and the index that Cairn and PyTorch write.
inline constexpr const char* kSafetensorsEnd = ".safetensors";
inline constexpr const char* kSafetensorsIndexEnd = ".safetensors.index.json";
inline constexpr const char* kSafetensorsIndexName = "model.safetensors.index.json";
// Throws kCorrupt for text that is no index, an index without files, or a file in another
// directory. Error texts start with `what`.
SafetensorsIndex read_safetensors_index(ByteSpan text, const std::string& what);
std::string write_safetensors_index(const SafetensorsIndex& index, std::uint64_t tensor_bytes);

}  // namespace cairn
