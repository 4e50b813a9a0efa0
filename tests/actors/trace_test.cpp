#include <cairn/tests/support/torch.hpp>

#include <string>

#include <cairn/actors/trace.hpp>

namespace cairn {
namespace {

ObservedEvent saying(std::string_view text) {
  ObservedEvent event;
  event.name = "said";
  event.text = text;
  return event;
}

TEST_CASE("trace ring: the last events, with ids, rank and texts of their own") {
  Tracer tracer(3, 64 * 1024, nullptr);
  for (int i = 0; i < 1000; ++i) tracer.record(saying("text " + std::to_string(i)));
  const TraceSnapshot taken = tracer.snapshot();
  REQUIRE(taken.events.size() > 100);
  CHECK(taken.lost + taken.events.size() == 1000);
  std::uint64_t id = 1000 - taken.events.size();
  for (const auto& event : taken.events) {
    CHECK(event.id == ++id);
    CHECK(event.rank == 3);
    CHECK(event.text == "text " + std::to_string(id - 1));
  }
}

TEST_CASE("trace ring: newer texts take the place of older ones, never half of one") {
  Tracer tracer(0, 64 * 1024, nullptr);  // 8 KiB of it for texts
  for (int i = 0; i < 200; ++i) tracer.record(saying(std::string(700, static_cast<char>('a' + i % 26))));
  const TraceSnapshot taken = tracer.snapshot();
  REQUIRE(taken.events.size() == 200);
  std::size_t kept = 0;
  for (const auto& event : taken.events) {
    if (event.text.empty()) {
      CHECK(kept == 0);  // the older ones are gone
      continue;
    }
    ++kept;
    CHECK(event.text == std::string(700, static_cast<char>('a' + (event.id - 1) % 26)));
  }
  CHECK(kept >= 8);
  CHECK(kept <= 11);
}

TEST_CASE("trace ring: long texts are cut, and one event is kept of the smallest ring") {
  Tracer tracer(0, 1, nullptr);
  tracer.record(saying(std::string(5000, 'x')));
  CHECK(tracer.snapshot().events.size() == 1);
  Tracer larger(0, 1u << 20, nullptr);
  larger.record(saying(std::string(5000, 'x')));
  CHECK(larger.snapshot().events.front().text.size() == kEventTextMax);
}

}  // namespace
}  // namespace cairn
