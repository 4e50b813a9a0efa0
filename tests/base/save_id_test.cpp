#include <cairn/base/save_id.hpp>

#include <limits>

#include <cairn/base/error.hpp>
#include <cairn/tests/support/plain.hpp>

using namespace cairn;

namespace {
const std::string kIncarnation = "0123456789abcdef0123456789abcdef";
}

TEST_CASE("texts that are no save id are told apart") {
  const std::string good = make_save_id(kIncarnation, "model", 7);
  for (const std::string& bad :
       {std::string(), std::string("cairn-"), std::string("cairn-1-2-3"), good + "x", good + "-1", " " + good,
        "Cairn" + good.substr(5), "cairn-" + std::string(32, 'A') + "-00000000-1", "cairn-" + kIncarnation + "-0000000-1",
        "cairn-" + kIncarnation + "-00000000-", "cairn-" + kIncarnation + "-00000000-01", "cairn-" + kIncarnation + "-00000000-+1",
        "cairn-" + kIncarnation + "-00000000-18446744073709551616", "cairn-" + kIncarnation + "-00000000-1/..",
        std::string("cairn-") + kIncarnation + "-00000000-1" + '\0'}) {
    INFO(bad);
    CHECK_FALSE(is_save_id(bad));
  }
}

TEST_CASE("a save id names world, checkpointer and counter, in letters safe for file names") {
  const std::string id = make_save_id(kIncarnation, "any name / at all \xff", std::numeric_limits<std::uint64_t>::max());
  CHECK(is_save_id(id));
  CHECK(id.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == std::string::npos);
  CHECK(id.size() <= 80);
  CHECK(make_save_id(kIncarnation, "model", 0) ==
        "cairn-" + kIncarnation + "-" + make_save_id(kIncarnation, "model", 0).substr(39, 8) + "-0");
  CHECK_THROWS_AS(make_save_id("G" + kIncarnation.substr(1), "model", 1), Error);
  CHECK(make_save_id(kIncarnation, "a", 1) != make_save_id(kIncarnation, "b", 1));
  CHECK(make_save_id(kIncarnation, "a", 1) != make_save_id(kIncarnation, "a", 2));
}
