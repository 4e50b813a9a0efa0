#include <cairn/base/digest.hpp>

#include <cstring>

#include <isa-l/crc.h>
#include <openssl/evp.h>
#define XXH_INLINE_ALL  // no library to link with
#include <xxhash.h>
#include <zlib.h>

#include <cairn/base/error.hpp>

namespace cairn {

std::uint32_t crc32(std::uint32_t crc, ByteSpan bytes) noexcept {
  if (bytes.empty()) return crc;
  // ISA-L computes the same values as zlib's crc32, including the inversion at both ends, so that
  // results of the two may be combined.
  return crc32_gzip_refl(crc, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

std::uint32_t crc32_combine(std::uint32_t crc_a, std::uint32_t crc_b, std::uint64_t length_b) noexcept {
  // z_off_t is signed and has 64 bits on the platforms that Cairn supports. No file is longer.
  return static_cast<std::uint32_t>(::crc32_combine(crc_a, crc_b, static_cast<z_off_t>(length_b)));
}

namespace {

// One SHA-256 computation. Integers are buffered, because an OpenSSL call per integer costs more
// than hashing it.
class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new()) {
    if (!context_ || EVP_DigestInit_ex(context_, EVP_sha256(), nullptr) != 1) {
      // The destructor does not run if the constructor throws.
      EVP_MD_CTX_free(context_);
      fail();
    }
  }
  ~Sha256() { EVP_MD_CTX_free(context_); }
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void add(const void* data, std::size_t size) {
    if (size > sizeof(buffer_) - used_) {
      flush();
      // Large inputs, such as a bytes object, are hashed in place.
      if (size > sizeof(buffer_)) {
        update(data, size);
        return;
      }
    }
    if (size > 0) std::memcpy(buffer_ + used_, data, size);
    used_ += size;
  }

  void add_integer(std::uint64_t value) {
    unsigned char encoded[8];
    // Shifts fix the byte order, so that machines of any byte order compute the same digest.
    for (int i = 0; i < 8; ++i) encoded[i] = static_cast<unsigned char>(value >> (8 * i));
    add(encoded, sizeof(encoded));
  }

  Digest finish() {
    // OpenSSL forbids further calls with a context after EVP_DigestFinal_ex.
    check_invariant(!finished_, "a digest was finished twice");
    finished_ = true;
    flush();
    Digest digest{};
    unsigned int length = 0;
    if (EVP_DigestFinal_ex(context_, digest.data(), &length) != 1 || length != digest.size()) fail();
    return digest;
  }

 private:
  [[noreturn]] static void fail() {
    throw InternalError("OpenSSL cannot compute SHA-256: is the digest disabled on this machine?");
  }

  void update(const void* data, std::size_t size) {
    if (EVP_DigestUpdate(context_, data, size) != 1) fail();
  }
  void flush() {
    if (used_ > 0) update(buffer_, used_);
    used_ = 0;
  }

  EVP_MD_CTX* context_;
  bool finished_ = false;
  std::size_t used_ = 0;
  unsigned char buffer_[1024];
};

}  // namespace

Digest sha256(ByteSpan bytes) {
  Sha256 hash;
  hash.add(bytes.data(), bytes.size());
  return hash.finish();
}

std::uint64_t xxh3(ByteSpan bytes) noexcept { return XXH3_64bits(bytes.data(), bytes.size()); }

Digest128 xxh3_128(ByteSpan bytes) noexcept {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.low64, hash.high64};
}

std::string to_hex(const Digest& digest) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * digest.size());
  for (const std::uint8_t byte : digest) {
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 15]);
  }
  return text;
}

// The public header holds a void*, because public headers do not include OpenSSL.
DigestBuilder::DigestBuilder() : context_(new Sha256) {}

DigestBuilder::~DigestBuilder() { delete static_cast<Sha256*>(context_); }

DigestBuilder& DigestBuilder::add(std::uint64_t value) {
  static_cast<Sha256*>(context_)->add_integer(value);
  return *this;
}

DigestBuilder& DigestBuilder::add(ByteSpan text) {
  auto* hash = static_cast<Sha256*>(context_);
  // Without the length, "ab" then "c" and "a" then "bc" would have the same digest.
  hash->add_integer(text.size());
  hash->add(text.data(), text.size());
  return *this;
}

Digest DigestBuilder::finish() { return static_cast<Sha256*>(context_)->finish(); }

}  // namespace cairn
