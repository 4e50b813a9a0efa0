#include <cairn/tests/support/plain.hpp>

#include <limits>

#include <cairn/base/units.hpp>

using namespace cairn;
using std::chrono::nanoseconds;

TEST_CASE("sizes and durations are written in the largest unit that they fill") {
  CHECK(human_bytes(0) == "0 B");
  CHECK(human_bytes(1023) == "1023 B");
  CHECK(human_bytes(1536) == "1.5 KiB");
  CHECK(human_bytes(std::numeric_limits<std::uint64_t>::max()) == "16.0 EiB");
  CHECK(human_duration(nanoseconds(12'300)) == "12 us");
  CHECK(human_duration(nanoseconds(-3'100'000)) == "-3.1 ms");
  CHECK(human_duration(nanoseconds(1'250'000'000)) == "1.25 s");
}
