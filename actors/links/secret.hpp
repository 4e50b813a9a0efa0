// The secret of a job: what its ranks know and nobody else does. It is never printed, logged or traced, keys for a purpose are
// derived from it, and its memory is wiped when it is let go of.
#pragma once

#include <cstddef>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/base/bytes.hpp>

namespace cairn {

// Overwrites memory, whatever a compiler thinks of stores that nobody reads.
void wipe(void* bytes, std::size_t size) noexcept;

// Wipes what it frees, the former memory of a container that grew included.
template <class T>
struct WipingAllocator {
  using value_type = T;
  WipingAllocator() = default;
  template <class Other>
  WipingAllocator(const WipingAllocator<Other>&) noexcept {}  // NOLINT: implicit on purpose
  T* allocate(std::size_t count) { return static_cast<T*>(::operator new(count * sizeof(T))); }
  void deallocate(T* memory, std::size_t count) noexcept {
    wipe(memory, count * sizeof(T));
    ::operator delete(memory);
  }
  friend bool operator==(const WipingAllocator&, const WipingAllocator&) { return true; }
  friend bool operator!=(const WipingAllocator&, const WipingAllocator&) { return false; }
};

using SecretBytes = std::vector<unsigned char, WipingAllocator<unsigned char>>;

class Secret {
 public:
  // Fewer bytes than these could be guessed, more are a mistake.
  static constexpr std::size_t kBytesMin = 16;
  static constexpr std::size_t kBytesMax = 4096;

  Secret() = default;  // none
  // `bytes`: random ones, in any spelling. Throws kInvalidArgument beyond the limits.
  explicit Secret(ByteSpan bytes);
  // The content of a file, less white space at its end. Throws kPermission for a file that anybody but its owner may read or write,
  // or that belongs to another user than this one and root; kInvalidArgument beyond the limits; kNotFound, kUnavailable.
  static Secret from_file(const std::string& path);

  bool empty() const { return bytes_.empty(); }
  // 32 bytes for one purpose within one context, by HKDF with SHA-256: neither the secret nor the bytes for another purpose or
  // context can be found from them. Not of an empty secret.
  SecretBytes derive(std::string_view purpose, ByteSpan context) const;
  // Proves that whoever wrote `text` knows the secret: HMAC-SHA256, as 64 hexadecimal digits. Of an empty secret: "none".
  std::string sign(std::string_view purpose, ByteSpan text) const;

 private:
  SecretBytes bytes_;
};

}  // namespace cairn
