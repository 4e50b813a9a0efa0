#include <cairn/actors/links/secret.hpp>

#include <cerrno>
#include <cstring>
#include <memory>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include <cairn/actors/links/socket.hpp>
#include <cairn/base/digest.hpp>
#include <cairn/base/error.hpp>

namespace cairn {
namespace {

[[noreturn]] void refuse_file(ErrorCode code, const std::string& path, const std::string& why) {
  throw Error(code, "cannot take the job's secret from '" + path + "': " + why);
}

struct KdfDeleter {
  void operator()(EVP_KDF* kdf) const { EVP_KDF_free(kdf); }
  void operator()(EVP_KDF_CTX* context) const { EVP_KDF_CTX_free(context); }
};

OSSL_PARAM octets(const char* key, const void* bytes, std::size_t size) {
  return OSSL_PARAM_construct_octet_string(key, const_cast<void*>(bytes), size);
}

}  // namespace

void wipe(void* bytes, std::size_t size) noexcept { OPENSSL_cleanse(bytes, size); }

Secret::Secret(ByteSpan bytes) {
  if (bytes.size() < kBytesMin || bytes.size() > kBytesMax)
    throw Error(ErrorCode::kInvalidArgument, "the job's secret has " + std::to_string(bytes.size()) + " bytes instead of " +
                                                 std::to_string(kBytesMin) + " to " + std::to_string(kBytesMax) +
                                                 ": make one with 'openssl rand -hex 32'");
  bytes_.assign(bytes.data(), bytes.data() + bytes.size());
}

Secret Secret::from_file(const std::string& path) {
  // Non-blocking, so that a pipe at this path cannot block the open.
  const Socket file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) throw system_error("read the job's secret from", path, errno);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) throw system_error("look at the job's secret in", path, errno);
  if (!S_ISREG(status.st_mode)) refuse_file(ErrorCode::kInvalidArgument, path, "it is no regular file");
  if (status.st_uid != ::geteuid() && status.st_uid != 0)
    refuse_file(ErrorCode::kPermission, path, "it belongs to another user, who may read and change it; use a file of your own");
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0)
    refuse_file(
        ErrorCode::kPermission, path,
        "others than its owner may use it, so it is no secret; chmod 600 it, and change the secret if others may have read it");
  SecretBytes bytes(kBytesMax + 2);  // one byte beyond the limit, and a line end
  std::size_t size = 0;
  while (size < bytes.size()) {
    const auto count = ::read(file.get(), bytes.data() + size, bytes.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw system_error("read the job's secret from", path, errno);
    if (count == 0) break;
    size += static_cast<std::size_t>(count);
  }
  while (size > 0 && std::strchr(" \t\r\n", bytes[size - 1]) != nullptr && bytes[size - 1] != '\0') --size;
  try {
    return Secret(ByteSpan(bytes.data(), size));
  } catch (const Error& error) {
    refuse_file(error.code(), path, error.what());
  }
}

SecretBytes Secret::derive(std::string_view purpose, ByteSpan context) const {
  check_invariant(!empty(), "keys are derived from a secret only");
  const std::unique_ptr<EVP_KDF, KdfDeleter> hkdf(EVP_KDF_fetch(nullptr, "HKDF", nullptr));
  const std::unique_ptr<EVP_KDF_CTX, KdfDeleter> derivation(hkdf ? EVP_KDF_CTX_new(hkdf.get()) : nullptr);
  char digest[] = "SHA256";
  const OSSL_PARAM parameters[] = {OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
                                   octets(OSSL_KDF_PARAM_KEY, bytes_.data(), bytes_.size()),
                                   octets(OSSL_KDF_PARAM_SALT, context.data(), context.size()),
                                   octets(OSSL_KDF_PARAM_INFO, purpose.data(), purpose.size()), OSSL_PARAM_construct_end()};
  SecretBytes key(32);
  check_invariant(derivation && EVP_KDF_derive(derivation.get(), key.data(), key.size(), parameters) == 1,
                  "OpenSSL derives keys with HKDF");
  return key;
}

std::string Secret::sign(std::string_view purpose, ByteSpan text) const {
  if (empty()) return "none";
  const SecretBytes key = derive(purpose, "");
  Digest proof{};
  unsigned size = 0;
  check_invariant(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(text.data()),
                       text.size(), proof.data(), &size) != nullptr &&
                      size == proof.size(),
                  "OpenSSL computes HMACs");
  return to_hex(proof);
}

}  // namespace cairn
