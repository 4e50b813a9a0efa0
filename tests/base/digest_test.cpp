#include <cairn/tests/support/plain.hpp>

#include <string>

#include <cairn/base/digest.hpp>
#include <cairn/base/random.hpp>

namespace cairn {
namespace {

std::string random_bytes(Random& random, std::size_t size) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random.next());
  return bytes;
}

TEST_CASE("checksums of parts larger than memory can be combined") {
  // Combines the checksums of two runs of 2^32 + 5 zero bytes. Combining shorter runs step by step
  // must give the same result.
  const std::uint64_t length = (std::uint64_t{1} << 32) + 5;
  const std::uint32_t once = crc32_combine(0xDEADBEEF, 0, length);
  std::uint32_t stepped = crc32_combine(0xDEADBEEF, 0, std::uint64_t{1} << 31);
  stepped = crc32_combine(stepped, 0, std::uint64_t{1} << 31);
  stepped = crc32_combine(stepped, 0, 5);
  CHECK(once == stepped);
}

TEST_CASE("SHA-256 gives the standard's digests") {
  CHECK(to_hex(sha256("")) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(to_hex(sha256("abc")) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST_CASE("XXH3 gives its reference values") {
  CHECK(xxh3("") == 0x2D06800538D394C2);
  CHECK(xxh3("abc") == 0x78AF5F94892F3950);
}

TEST_CASE("a digest is of the canonical encoding, however large the pieces") {
  std::string encoding;
  DigestBuilder builder;
  const auto random = seeded_random(2);
  for (const std::size_t size : {0u, 1u, 900u, 200u, 5000u, 1024u, 1016u, 3u}) {
    const std::uint64_t number = random->next();
    const std::string text = random_bytes(*random, size);
    builder.add(number).add(ByteSpan(text));
    for (const std::uint64_t value : {number, std::uint64_t{size}})
      for (int byte = 0; byte < 8; ++byte) encoding.push_back(static_cast<char>(value >> (8 * byte)));
    encoding += text;
  }
  CHECK(builder.finish() == sha256(encoding));
}

TEST_CASE("where one text ends and the next begins matters to a digest") {
  const auto digest_of = [](ByteSpan a, ByteSpan b) { return DigestBuilder().add(a).add(b).finish(); };
  CHECK(digest_of("ab", "c") != digest_of("a", "bc"));
  CHECK(DigestBuilder().add(std::int64_t{-1}).finish() != DigestBuilder().add(std::int64_t{1}).finish());
}

}  // namespace
}  // namespace cairn
