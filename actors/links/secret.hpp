// The secret of a job, known to its ranks only. It is never printed, logged or traced. Keys are
// derived from it per purpose. The memory of a secret is wiped before it is freed.
#pragma once

#include <cstddef>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/base/bytes.hpp>

namespace cairn {

// Overwrites memory in a way that the compiler does not optimize away.
void wipe(void* bytes, std::size_t size) noexcept;

// Wipes memory before freeing it, including the old memory of a container that grew.
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
  // Shorter secrets could be guessed; longer ones are surely a mistake.
  static constexpr std::size_t kBytesMin = 16;
  static constexpr std::size_t kBytesMax = 4096;

  Secret() = default;  // no secret
  // `bytes` must come from a random source, and may be encoded, for example in hexadecimal. Throws
  // kInvalidArgument unless there are kBytesMin to kBytesMax of them.
  explicit Secret(ByteSpan bytes);
  // Reads the secret from a file; drops white space at its end. Throws kPermission if anyone but
  // the owner may access the file, or if the owner is neither the current user nor root. Throws
  // kInvalidArgument if the file is not regular or the secret is beyond the limits. Throws the code
  // of `system_error`, such as kNotFound or kPermission, if the file cannot be read.
  static Secret from_file(const std::string& path);

  bool empty() const { return bytes_.empty(); }
  // Derives 32 bytes for one purpose in one context, by HKDF with SHA-256. The bytes reveal neither
  // the secret nor the bytes for other purposes or contexts. The secret must not be empty.
  SecretBytes derive(std::string_view purpose, ByteSpan context) const;
  // Returns a proof that the author of `text` knows the secret: HMAC-SHA256 as 64 hexadecimal
  // digits; "none" if the secret is empty.
  std::string sign(std::string_view purpose, ByteSpan text) const;

 private:
  SecretBytes bytes_;
};

}  // namespace cairn
