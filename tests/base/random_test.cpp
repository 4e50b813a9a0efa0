#include <cairn/tests/support/plain.hpp>

#include <cairn/base/clock.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/random.hpp>

namespace cairn {
namespace {

TEST_CASE("a seed gives the same numbers again, another seed others") {
  const auto a = seeded_random(7);
  const auto b = seeded_random(7);
  const auto c = seeded_random(8);
  bool differs = false;
  for (int i = 0; i < 100; ++i) {
    const std::uint64_t value = a->next();
    CHECK(value == b->next());
    differs = differs || value != c->next();
  }
  CHECK(differs);
}

TEST_CASE("the system's numbers do not repeat") {
  const auto random = system_random();
  const auto other = system_random();
  CHECK(random->next() != random->next());
  CHECK(random->next() != other->next());
}

TEST_CASE("random bits are written as hexadecimal") {
  const auto random = seeded_random(3);
  CHECK(random_hex(*random, 0).empty());
  const std::string text = random_hex(*random, 132);
  CHECK(text.size() == 33);
  CHECK(text.find_first_not_of("0123456789abcdef") == std::string::npos);
  CHECK(random_hex(*random, 128) != random_hex(*random, 128));
  CHECK_THROWS_AS(random_hex(*random, 3), Error);
  CHECK_THROWS_AS(random_hex(*random, -4), Error);
}

TEST_CASE("the machine's clock does not run backwards") {
  const Clock& clock = system_clock();
  const MonotonicTime before = clock.now();
  CHECK(clock.now() >= before);
  CHECK(clock.wall_now().time_since_epoch().count() > 0);
}

}  // namespace
}  // namespace cairn
