#include <cairn/base/random.hpp>

#include <cerrno>
#include <random>

#include <sys/random.h>

#include <cairn/base/error.hpp>

namespace cairn {
namespace {

class SystemRandom final : public Random {
 public:
  std::uint64_t next() override {
    std::uint64_t value = 0;
    // Requests of up to 256 bytes are never partial. Only a signal before the entropy pool is ready
    // interrupts them.
    while (getrandom(&value, sizeof(value), 0) != static_cast<ssize_t>(sizeof(value))) {
      if (errno != EINTR) throw system_error("read random numbers from", "the operating system", errno);
    }
    return value;
  }
};

class SeededRandom final : public Random {
 public:
  explicit SeededRandom(std::uint64_t seed) : engine_(seed) {}
  std::uint64_t next() override { return engine_(); }

 private:
  std::mt19937_64 engine_;  // standardised, so a seed gives the same numbers on every machine
};

}  // namespace

std::unique_ptr<Random> system_random() { return std::make_unique<SystemRandom>(); }

std::unique_ptr<Random> seeded_random(std::uint64_t seed) { return std::make_unique<SeededRandom>(seed); }

std::string random_hex(Random& random, int bits) {
  if (bits < 0 || bits % 4 != 0)
    throw Error(ErrorCode::kInvalidArgument,
                "cannot make " + std::to_string(bits) + " random bits as hexadecimal: use a multiple of 4");
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(static_cast<std::size_t>(bits) / 4);
  std::uint64_t word = 0;
  for (int digit = 0; digit < bits / 4; ++digit) {
    // A number of 64 bits gives 16 digits.
    if (digit % 16 == 0) word = random.next();
    text.push_back(kDigits[word & 15]);
    word >>= 4;
  }
  return text;
}

}  // namespace cairn
