// The job's secret: where it may be read from, and the keys derived from it.
#include <cairn/tests/support/torch.hpp>
//
#include <fstream>
#include <set>

#include <sys/stat.h>

#include <cairn/actors/links/secret.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tests/support/thrown.hpp>

namespace cairn::testing {
namespace {

constexpr std::string_view kText = "0123456789abcdef";

std::string write_file(const TemporaryDirectory& directory, const std::string& text, mode_t mode) {
  static int count = 0;
  const std::string path = directory.path() + "/" + std::to_string(++count);
  std::ofstream(path, std::ios::binary) << text;
  REQUIRE(::chmod(path.c_str(), mode) == 0);
  return path;
}

std::string proof_of(const Secret& secret) { return secret.sign("test", "text"); }

TEST_CASE("a secret file is read without trailing white space") {
  const TemporaryDirectory directory;
  const std::string expected = proof_of(Secret(kText));
  for (const char* end : {"", "\n", "\r\n", " \n\n"})
    CHECK(proof_of(Secret::from_file(write_file(directory, std::string(kText) + end, 0600))) == expected);
  CHECK(proof_of(Secret::from_file(write_file(directory, std::string(kText), 0400))) == expected);
  CHECK(proof_of(Secret::from_file(write_file(directory, "\n" + std::string(kText), 0600))) != expected);
  // Bytes of any value are allowed.
  std::string binary(32, '\0');
  binary.back() = 'x';
  CHECK(proof_of(Secret::from_file(write_file(directory, binary, 0600))) == proof_of(Secret(binary)));
  CHECK_FALSE(Secret::from_file(write_file(directory, std::string(Secret::kBytesMax, 'x') + "\n", 0600)).empty());
}

TEST_CASE("a file that others may use is refused") {
  const TemporaryDirectory directory;
  for (const mode_t mode : {0644, 0640, 0604, 0620, 0602, 0666, 0610, 0601}) {
    CAPTURE(mode);
    const auto path = write_file(directory, std::string(kText), mode);
    const Thrown thrown = thrown_by([&] { Secret::from_file(path); });
    CHECK(thrown.code == ErrorCode::kPermission);
    CHECK(thrown.says(path));
    CHECK(thrown.says("chmod 600"));
    CHECK_FALSE(thrown.says(std::string(kText)));
  }
}

TEST_CASE("anything but a secret file is refused by name") {
  const TemporaryDirectory directory;
  const auto refused = [&](const std::string& path, ErrorCode code) {
    CAPTURE(path);
    const Thrown thrown = thrown_by([&] { Secret::from_file(path); });
    CHECK(thrown.is_error);
    CHECK(thrown.code == code);
    CHECK(thrown.says(path));
  };
  refused(directory.path() + "/absent", ErrorCode::kNotFound);
  refused(directory.path(), ErrorCode::kInvalidArgument);
  refused("/dev/zero", ErrorCode::kInvalidArgument);
  const std::string pipe = directory.path() + "/pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  refused(pipe, ErrorCode::kInvalidArgument);
  refused(write_file(directory, "", 0600), ErrorCode::kInvalidArgument);
  refused(write_file(directory, "too short\n", 0600), ErrorCode::kInvalidArgument);
  refused(write_file(directory, std::string(15, 'x') + "\n\n\n", 0600), ErrorCode::kInvalidArgument);
  refused(write_file(directory, std::string(Secret::kBytesMax + 1, 'x'), 0600), ErrorCode::kInvalidArgument);
  refused(write_file(directory, std::string(1 << 20, 'x'), 0600), ErrorCode::kInvalidArgument);
}

TEST_CASE("a secret has a length that nobody can guess") {
  CHECK(thrown_by([] { Secret(std::string_view("fifteen bytes..")); }).code == ErrorCode::kInvalidArgument);
  CHECK(thrown_by([] { Secret(std::string_view("")); }).code == ErrorCode::kInvalidArgument);
  CHECK_FALSE(thrown_by([] { Secret(std::string_view("sixteen bytes...")); }).is_error);
  CHECK(Secret().empty());
}

TEST_CASE("keys differ by secret, purpose and context") {
  const Secret secret(kText);
  const Secret other(std::string_view("another secret, as long"));
  std::set<SecretBytes> keys;
  for (const Secret* one : {&secret, &other}) {
    for (const char* purpose : {"links", "rendezvous"}) {
      for (const char* context : {"", "a", "b"}) {
        const auto key = one->derive(purpose, context);
        CHECK(key.size() == 32);
        CHECK(key == one->derive(purpose, context));
        CHECK(keys.insert(key).second);
      }
    }
  }
  CHECK(secret.sign("links", "text") != secret.sign("links", "texts"));
  CHECK(secret.sign("links", "text") != secret.sign("rendezvous", "text"));
  CHECK(secret.sign("links", "text") != other.sign("links", "text"));
  CHECK(secret.sign("links", "text").size() == 64);
  CHECK(Secret().sign("links", "text") == "none");
}

TEST_CASE("keys are those of HKDF with SHA-256") {
  // RFC 5869, test case 1. Cairn uses the first 32 bytes of its output.
  std::string context;
  for (char byte = 0; byte <= 12; ++byte) context += byte;
  std::string purpose;
  for (int byte = 0xf0; byte <= 0xf9; ++byte) purpose += static_cast<char>(byte);
  const SecretBytes key = Secret(std::string(22, '\x0b')).derive(purpose, context);
  std::string hex;
  for (const unsigned char byte : key) {
    char text[3];
    std::snprintf(text, sizeof(text), "%02x", byte);
    hex += text;
  }
  CHECK(hex == "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf");
}

TEST_CASE("memory that held a secret is wiped") {
  char bytes[] = "0123456789abcdef";
  wipe(bytes, sizeof(bytes));
  for (const char byte : bytes) CHECK(byte == 0);
}

}  // namespace
}  // namespace cairn::testing
