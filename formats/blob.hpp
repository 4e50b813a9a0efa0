// Bytes as a value of a state dict.
#pragma once

#include <cstdint>

#include <cairn/base/bytes.hpp>

namespace cairn {

// The Python type that PyTorch returns for bytes.
enum class BytesType : std::uint8_t { kBytesIO = 1, kBytes, kByteArray };

// Bytes that are saved unchanged. A load gives them the type that they were saved with. Bytes of
// different types are equal if their contents are.
struct Blob {
  Bytes bytes;
  BytesType type = BytesType::kBytesIO;
  friend bool operator==(const Blob& a, const Blob& b) { return a.bytes == b.bytes; }
};

}  // namespace cairn
