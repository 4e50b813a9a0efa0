#include <cairn/tests/fuzz/mutator.hpp>

#include <algorithm>
#include <iterator>

namespace cairn::testing {
namespace {

// Edge values that decoders often mishandle.
constexpr std::uint64_t kEdges[] = {
    0,          1,       2,          0x7f,       0x80,       0xff,       0x100,      0x7fff,
    0xffff,     0x10000, 0x7fffffff, 0x80000000, 0xffffffff, 1ull << 32, 1ull << 62, 0x7fffffffffffffff,
    1ull << 63, ~0ull,   ~0ull - 7,  4096};

// SplitMix64: random enough, and free to seed for each input.
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  std::size_t below(std::size_t bound) { return bound == 0 ? 0 : static_cast<std::size_t>(next() % bound); }
  // Returns a length, mostly a short one.
  std::size_t length(std::size_t most) { return std::min(most, 1 + below(std::size_t{1} << below(11))); }

 private:
  std::uint64_t state_;
};

void put_number(Bytes& bytes, Numbers& numbers) {
  const std::uint64_t edge = kEdges[numbers.below(std::size(kEdges))] + numbers.below(3) - 1;
  const std::size_t width = std::size_t{1} << numbers.below(4);
  const bool big_endian = numbers.below(4) == 0;
  const std::size_t at = numbers.below(bytes.size());
  for (std::size_t i = 0; i < width && at + i < bytes.size(); ++i)
    bytes[at + i] = static_cast<char>(edge >> (8 * (big_endian ? width - 1 - i : i)));
}

void put_varint(Bytes& bytes, Numbers& numbers) {
  std::uint64_t value = kEdges[numbers.below(std::size(kEdges))];
  Bytes encoded;
  for (; value >= 0x80; value >>= 7) encoded.push_back(static_cast<char>(value | 0x80));
  encoded.push_back(static_cast<char>(value));
  const std::size_t at = numbers.below(bytes.size());
  bytes.replace(at, std::min<std::size_t>(bytes.size() - at, 1 + numbers.below(2)), encoded);
}

void change(Bytes& bytes, Numbers& numbers, const Bytes& other) {
  if (bytes.empty()) bytes.push_back(static_cast<char>(numbers.next()));
  const std::size_t at = numbers.below(bytes.size());
  const std::size_t length = numbers.length(bytes.size() - at);
  switch (numbers.below(10)) {
    case 0:
    case 1:
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << numbers.below(8)));
      break;
    case 2:
      bytes[at] = static_cast<char>(numbers.next());
      break;
    case 3:
      put_number(bytes, numbers);
      break;
    case 4:
      put_varint(bytes, numbers);
      break;
    case 5:
      bytes.erase(at, length);
      break;
    case 6:
      bytes.insert(numbers.below(bytes.size() + 1), Bytes(bytes, at, length));
      break;
    case 7: {  // overwrites what is there
      const Bytes moved(bytes, at, length);
      const std::size_t to = numbers.below(bytes.size());
      bytes.replace(to, std::min(length, bytes.size() - to), moved);
      break;
    }
    case 8: {
      const std::size_t from = numbers.below(other.size());
      bytes.replace(at, numbers.below(2) * length, other, from, numbers.length(other.size() - from));
      break;
    }
    default:
      if (numbers.below(4) == 0)
        bytes.resize(at);
      else
        bytes.insert(at, length, static_cast<char>(numbers.below(2) * numbers.next()));
  }
}

}  // namespace

Bytes Mutator::input(std::uint64_t number) const {
  Numbers numbers(number);
  Bytes bytes = seeds_[numbers.below(seeds_.size())];
  const std::size_t changes = std::size_t{1} << numbers.below(5);
  for (std::size_t i = 0; i < changes; ++i) change(bytes, numbers, seeds_[numbers.below(seeds_.size())]);
  if (bytes.size() > kInputBytesMax) bytes.resize(kInputBytesMax);
  return bytes;
}

}  // namespace cairn::testing
