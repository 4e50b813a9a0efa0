#include <cairn/tests/support/torch.hpp>

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include <cairn/actors/failure_report.hpp>
#include <cairn/actors/trace.hpp>
#include <cairn/tests/messages/allocation_meter.hpp>
#include <cairn/tests/support/temporary_directory.hpp>

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
  Tracer tracer(0, 64 * 1024, nullptr);  // 8 KiB of the ring hold texts
  for (int i = 0; i < 200; ++i) tracer.record(saying(std::string(700, static_cast<char>('a' + i % 26))));
  const TraceSnapshot taken = tracer.snapshot();
  REQUIRE(taken.events.size() == 200);
  std::size_t kept = 0;
  for (const auto& event : taken.events) {
    if (event.text.empty()) {
      CHECK(kept == 0);  // older texts are gone
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

TEST_CASE("trace ring: recording allocates nothing") {
  Tracer tracer(0, 1u << 20, nullptr);
  const std::string text(300, 'x');
  tracer.record(saying(text));
  const testing::AllocationMeter meter;
  for (int i = 0; i < 10'000; ++i) tracer.record(saying(text));
  CHECK(meter.bytes() == 0);
}

TEST_CASE("trace ring: without memory it keeps no events, and an observer still gets them") {
  struct Counting final : Observer {
    void on_event(const ObservedEvent&) noexcept override { ++events; }
    int events = 0;
  };
  const auto observer = std::make_shared<Counting>();
  Tracer tracer(0, 0, observer);
  tracer.record(saying("a"));
  CHECK(tracer.record(saying("b")) == 2);
  CHECK(observer->events == 2);
  CHECK(tracer.snapshot().events.empty());
  CHECK(tracer.snapshot().lost == 2);
}

TEST_CASE("failure report: a call gets its outcome if its report has no memory") {
  const testing::TemporaryDirectory directory;
  const auto tracer = std::make_shared<Tracer>(0, 1024, nullptr);
  bool is_reported = false;
  int failing = 0;
  for (; !is_reported; ++failing) {
    REQUIRE(failing < 1000);
    const auto call = std::make_shared<ReportedCall>();
    call->directory = directory.path();
    call->checkpoint_id = directory.path() + "/step_1";
    call->operation = "save";
    call->incarnation = std::string(32, 'a');
    call->tracer = tracer;
    int calls = 0;
    std::promise<std::pair<CallResult, std::thread::id>> ended;
    call->done = [&](CallResult outcome) {
      if (++calls == 1) ended.set_value({std::move(outcome), std::this_thread::get_id()});
    };
    CallResult outcome;
    outcome.failures[0].what = "the disk is on fire, and the text is too long for a string without an allocation";
    const FailureMap failures = outcome.failures;
    {
      const testing::AllocationFault fault(failing);
      CHECK_NOTHROW(end_call(call, std::move(outcome)));
    }
    auto future = ended.get_future();
    if (call.use_count() == 1 && future.wait_for(std::chrono::seconds(0)) != std::future_status::ready)
      FAIL("the outcome is lost if memory runs out after " << failing << " allocations");
    const auto [told, thread] = future.get();
    CHECK(calls == 1);
    CHECK((told.failures == failures));
    is_reported = thread != std::this_thread::get_id();
  }
  CHECK(failing > 3);
}

}  // namespace
}  // namespace cairn
