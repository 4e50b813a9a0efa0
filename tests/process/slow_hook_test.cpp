// A rank that is slow, over real links.
#include <memory>
#include <string>
#include <thread>

#include <cairn/runtime/cairn.hpp>
#include <cairn/runtime/testing/testing.hpp>
#include <cairn/tests/support/failure_maps.hpp>
#include <cairn/tests/support/faulty_storage.hpp>
#include <cairn/tests/support/thrown.hpp>

using namespace cairn;
using namespace cairn::testing;

namespace {

constexpr int kSlowRank = 1;
constexpr std::chrono::milliseconds kSilence{1000};
constexpr std::size_t kFrameBytes = 64u << 10;

// The slow rank writes for three times the heartbeat timeout: a save that no other rank joins tells
// when that has passed.
class SlowWriter : public FaultyWriter {
 public:
  explicit SlowWriter(const World& of) : FaultyWriter({}, of.rank()), world_(of) {}
  Future<WriteResults> write_data(const SavePlan& plan, SavePlanner& planner) override {
    if (world_.rank() == kSlowRank) std::thread([this] { wait(); }).join();
    return FaultyWriter::write_data(plan, planner);
  }
  FailureMap waited;

 private:
  void wait() {
    Checkpointer alone(world_, "alone");
    SaveOptions options;
    options.deadline = 3 * kSilence;
    options.storage_writer = std::make_shared<FaultyWriter>(FailOn{}, world_.rank());
    waited = failures_of([&] { alone.save({}, "nowhere", options); });
  }
  World world_;
};

// A plan of it is at least 1 MB, by its names alone.
StateDict many_values(int rank) {
  StateDict state;
  const std::string prefix = "rank " + std::to_string(rank) + std::string(100, '.');
  for (int i = 0; i < 10'000; ++i) state.insert(prefix + std::to_string(i), torch::zeros({1}));
  return state;
}

}  // namespace

TEST_CASE("a rank that writes for longer than the heartbeat timeout is waited for") {
  WorldOptions world_options;
  world_options.runtime.heartbeat_timeout = kSilence;
  world_options.runtime.frame_bytes_max = kFrameBytes;
  world_options.failure_reports = false;
  const World slow = World::from_environment(world_options);
  CHECK_FALSE(slow.one_process());
  const StateDict state = many_values(slow.rank());
  Checkpointer checkpointer(slow, "main");
  for (const int coordinator : {0, 2}) {
    CAPTURE(coordinator);
    const auto writer = std::make_shared<SlowWriter>(slow);
    SaveOptions options;
    options.storage_writer = writer;
    options.coordinator_rank = coordinator;
    CHECK(thrown_by([&] { checkpointer.save(state, "nowhere", options); }).what == "");
    if (slow.rank() != kSlowRank) continue;
    REQUIRE(writer->waited.count(kSlowRank) == 1);
    CHECK(writer->waited.at(kSlowRank).code == ErrorCode::kDeadline);
    CHECK(writer->waited.at(kSlowRank).what.find("to join it") != std::string::npos);
  }
}
