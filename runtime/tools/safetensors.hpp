// Writes one safetensors file: a length, a JSON header, the tensors one after the other.
//
// The header says where each tensor lies, so names, types and shapes are known before the first byte of data; the data then arrives
// tensor by tensor, in the order of `tensors()`, and nothing is kept. The file appears under its name, complete and synced, with
// `finish`; until then it has a temporary name beside it, which an unfinished writer removes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <cairn/base/bytes.hpp>
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

class SafetensorsWriter {
 public:
  enum class Existing { kRefused, kReplaced };

  // Tensors are laid out by falling alignment, then by name, so that each begins at a multiple of its element size. `metadata` goes
  // into the header. Throws kAlreadyExists, kUnsupported for a tensor with an objection or a header above the format's limit, and
  // what the file system says.
  SafetensorsWriter(std::string path, std::vector<SafetensorsTensor> tensors, const std::map<std::string, std::string>& metadata,
                    Existing existing);
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }
  // The data of the next tensor, whole.
  void append(ByteSpan data);
  // All tensors were appended: makes the file appear, and survive power loss. kAlreadyExists if one came to be there meanwhile.
  void finish();
  std::uint64_t bytes_written() const { return bytes_written_; }

 private:
  void write(ByteSpan data);
  void rename_into_place();

  std::string path_;
  std::string partial_path_;
  std::vector<SafetensorsTensor> tensors_;
  Existing existing_;
  int descriptor_ = -1;
  bool finished_ = false;
  std::size_t next_ = 0;
  std::uint64_t bytes_written_ = 0;
};

}  // namespace cairn::tools
