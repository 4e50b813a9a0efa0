#include <cairn/base/digest.hpp>

#include <memory>

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

void check_openssl(bool is_done) {
  if (!is_done) throw InternalError("OpenSSL cannot compute SHA-256: is the digest disabled on this machine?");
}

struct FreeContext {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};

// One SHA-256 computation. Integers are buffered, because an OpenSSL call per integer costs more
// than hashing it.
struct Sha256 {
  static constexpr std::size_t kPendingMax = 1024;

  Sha256() { check_openssl(context && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1); }

  void add(ByteSpan bytes) {
    if (pending.size() + bytes.size() > kPendingMax) flush();
    // Large inputs, such as a bytes object, are hashed in place.
    bytes.size() > kPendingMax ? update(bytes) : void(pending.append(bytes.data(), bytes.size()));
  }
  void flush() {
    // OpenSSL forbids further calls with a context after EVP_DigestFinal_ex.
    check_invariant(context != nullptr, "a digest was finished twice, or added to afterwards");
    update(pending);
    pending.clear();
  }
  void update(ByteSpan bytes) { check_openssl(EVP_DigestUpdate(context.get(), bytes.data(), bytes.size()) == 1); }

  std::unique_ptr<EVP_MD_CTX, FreeContext> context{EVP_MD_CTX_new()};
  Bytes pending;
};

}  // namespace

Digest sha256(ByteSpan bytes) {
  Digest digest{};
  check_openssl(EVP_Digest(bytes.data(), bytes.size(), digest.data(), nullptr, EVP_sha256(), nullptr) == 1);
  return digest;
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
  char encoded[8];
  // Shifts fix the byte order, so that machines of any byte order compute the same digest.
  for (int i = 0; i < 8; ++i) encoded[i] = static_cast<char>(value >> (8 * i));
  static_cast<Sha256*>(context_)->add({encoded, sizeof encoded});
  return *this;
}

DigestBuilder& DigestBuilder::add(ByteSpan text) {
  // Without the length, "ab" then "c" and "a" then "bc" would have the same digest.
  add(std::uint64_t{text.size()});
  static_cast<Sha256*>(context_)->add(text);
  return *this;
}

Digest DigestBuilder::finish() {
  auto& hash = *static_cast<Sha256*>(context_);
  hash.flush();
  Digest digest{};
  check_openssl(EVP_DigestFinal_ex(hash.context.get(), digest.data(), nullptr) == 1);
  hash.context.reset();
  return digest;
}

}  // namespace cairn
