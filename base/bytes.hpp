// Borrowed and owned byte ranges.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {

// A read-only view of bytes. It owns nothing: a caller that passes a ByteSpan to a function must
// keep the memory alive until the function returns. `subspan` does not check its bounds.
class ByteSpan {
 public:
  constexpr ByteSpan() = default;
  constexpr ByteSpan(const void* data, std::size_t size) : data_(static_cast<const char*>(data)), size_(size) {}
  constexpr ByteSpan(std::string_view text) : data_(text.data()), size_(text.size()) {}  // NOLINT: implicit on purpose
  ByteSpan(const std::string& text) : data_(text.data()), size_(text.size()) {}          // NOLINT: implicit on purpose
  constexpr ByteSpan(const char* text) : ByteSpan(std::string_view(text)) {}             // NOLINT: implicit on purpose

  constexpr const char* data() const { return data_; }
  constexpr std::size_t size() const { return size_; }
  constexpr bool empty() const { return size_ == 0; }
  constexpr ByteSpan subspan(std::size_t offset, std::size_t length) const { return {data_ + offset, length}; }
  constexpr std::string_view view() const { return {data_, size_}; }

 private:
  const char* data_ = nullptr;
  std::size_t size_ = 0;
};

// A writable view of bytes.
class MutableByteSpan {
 public:
  constexpr MutableByteSpan() = default;
  constexpr MutableByteSpan(void* data, std::size_t size) : data_(static_cast<char*>(data)), size_(size) {}

  constexpr char* data() const { return data_; }
  constexpr std::size_t size() const { return size_; }
  constexpr bool empty() const { return size_ == 0; }
  constexpr MutableByteSpan subspan(std::size_t offset, std::size_t length) const { return {data_ + offset, length}; }
  constexpr operator ByteSpan() const { return {data_, size_}; }

 private:
  char* data_ = nullptr;
  std::size_t size_ = 0;
};

// Owned bytes: a std::string, because Protobuf, streams and the standard library use that type.
using Bytes = std::string;

}  // namespace cairn
