// Measures the cost of one coordinator in a world of thousands of ranks: its state machine alone,
// without actors and connections.
//
// Prints one JSON object per line: {name, value, unit, limit, ratio, goal, met}; report.py makes a
// table of them. The limit of a cost per rank or message with many ranks is the cost with a
// thousand. One function per row. `--quick`: fewer ranks.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <malloc.h>
#include <time.h>

#include <cairn/actors/protocol/coordinator_machine.hpp>
#include <cairn/base/error.hpp>
#include <cairn/benchmarks/benchmark_program.hpp>
#include <cairn/messages/codec.hpp>
#include <cairn/tests/support/plan_bytes.hpp>

namespace cairn {
namespace {

using benchmarks::print;

using namespace protocol;

constexpr int kFewRanks = 1000;
constexpr double kMegabyte = 1e6;

double thread_cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double heap_bytes() {
  const auto info = ::mallinfo2();
  return static_cast<double>(info.uordblks) + static_cast<double>(info.hblkhd);
}

// Prints the cost per rank or message with many ranks; the limit is the cost with few.
void print_scaling(const std::string& name, const char* unit, int many, const std::function<double(int)>& cost_of_one) {
  constexpr double kScalingGoal = 3;
  const double few = cost_of_one(kFewRanks);
  const double value = cost_of_one(many);
  print(name + "_" + std::to_string(many) + "_ranks_to_" + std::to_string(kFewRanks), value, unit, few,
        "at most 3 x that of " + std::to_string(kFewRanks) + " ranks", value <= kScalingGoal * few);
}

constexpr const char* kIncarnation = "0123456789abcdef0123456789abcdef";

CoordinatorMachine machine_of(int rank, int ranks) { return {Identity{rank, ranks, kIncarnation, "main", 0}, RuntimeOptions{}}; }

Join join_of(int ranks, int coordinator) {
  Join join;
  join.ticket = join.ordinal = 1;
  join.checkpoint_id = "/scratch/run/step_1";
  join.world_size = static_cast<std::uint32_t>(ranks);
  join.coordinator_rank = coordinator;
  return join;
}

void join_all(CoordinatorMachine& machine, int ranks) {
  for (int rank = 0; rank < ranks; ++rank) machine.step(Received{rank, 0, join_of(ranks, 0)});
}

Failure failure_of(int rank, bool same_text) {
  Failure failure;
  failure.rank = rank;
  failure.phase = Phase::kLocalPlan;
  failure.code = ErrorCode::kNoSpace;
  failure.what = (same_text ? "" : "rank " + std::to_string(rank) + " ") + std::string(16000, 'x');
  failure.actor = "planner";
  return failure;
}

// --- rows ----------------------------------------------------------------------------------------

// All ranks fail with a long text: peak memory of the coordinator with all resulting messages
// encoded.
void measure_failure_of_all(int ranks, bool same_text) {
  constexpr double kGoalMegabytes = 64;
  const double before = heap_bytes();
  CoordinatorMachine machine = machine_of(0, ranks);
  join_all(machine, ranks);
  for (int rank = 0; rank + 1 < ranks; ++rank)
    machine.step(Received{rank, machine.counter(), PhaseFailed{failure_of(rank, same_text)}});
  const Event last = Received{ranks - 1, machine.counter(), PhaseFailed{failure_of(ranks - 1, same_text)}};
  const double gathered = heap_bytes() - before;
  const Effects effects = machine.step(last);
  EnvelopeEncoder encoder;
  std::vector<EncodedEnvelope> encoded;
  for (const auto& effect : effects) {
    const auto* const send = std::get_if<Send>(&effect);
    if (send == nullptr) continue;
    Envelope envelope;
    envelope.attempt = {kIncarnation, "main", send->counter};
    envelope.body = send->body;
    encoded.push_back(encoder.encode(envelope));
  }
  check_invariant(encoded.size() == static_cast<std::size_t>(ranks), "all ranks are told");
  const double taken = std::max(gathered, heap_bytes() - before) / kMegabyte;
  const double text = 16000.0 * ranks / kMegabyte;
  print("failure_of_" + std::to_string(ranks) + "_ranks_with_" + (same_text ? "one_text" : "texts_of_their_own"), taken, "MB", text,
        "less than 64 MB; the limit is the texts once", taken < kGoalMegabytes);
}

// All ranks join one call: CPU time per rank.
void measure_joins(int many) {
  print_scaling("join_cpu", "us", many, [](int ranks) {
    CoordinatorMachine machine = machine_of(0, ranks);
    const double start = thread_cpu_seconds();
    join_all(machine, ranks);
    check_invariant(machine.state() == CoordinatorMachine::State::kLocalPlans, "the call has begun");
    return 1e6 * (thread_cpu_seconds() - start) / ranks;
  });
}

// All ranks join a call that rank 1 coordinates: CPU time of the registrar per rank.
void measure_registrar(int many) {
  print_scaling("registrar_cpu", "us", many, [](int ranks) {
    CoordinatorMachine machine = machine_of(kRegistrar, ranks);
    const double start = thread_cpu_seconds();
    for (int rank = 0; rank < ranks; ++rank) machine.step(Received{rank, 0, join_of(ranks, 1)});
    return 1e6 * (thread_cpu_seconds() - start) / ranks;
  });
}

// Ranks report progress: CPU time per message.
void measure_progress(int many) {
  print_scaling("progress_cpu", "us", many, [](int ranks) {
    constexpr int kRounds = 3;
    CoordinatorMachine machine = machine_of(0, ranks);
    join_all(machine, ranks);
    const double start = thread_cpu_seconds();
    for (std::uint64_t round = 1; round <= kRounds; ++round)
      for (int rank = 0; rank < ranks; ++rank)
        machine.step(Received{rank, machine.counter(), Progress{round, {1000, round, 1000000, round * 1000}}});
    return 1e6 * (thread_cpu_seconds() - start) / (kRounds * ranks);
  });
}

// All ranks lost their coordinator: CPU time of its successor per answer.
void measure_succession(int many) {
  print_scaling("succession_cpu", "us", many, [](int ranks) {
    CoordinatorMachine machine = machine_of(1, ranks);
    StatusReply status;
    status.kind = RankStatus::kOrphaned;
    status.ticket = status.ordinal = 1;
    status.checkpoint_id = "/scratch/run/step_1";
    status.lost = failure_of(0, false);
    status.lost->what = "gone";
    const Effects asked = machine.step(Received{1, 5, status});
    for (const auto& effect : asked)
      if (const auto* const send = std::get_if<Send>(&effect)) status.inquiry = std::get<StatusRequest>(send->body).inquiry;
    const double start = thread_cpu_seconds();
    for (int rank = 1; rank < ranks; ++rank) machine.step(Received{rank, 5, status});
    return 1e6 * (thread_cpu_seconds() - start) / ranks;
  });
}

// All ranks send their plans: memory that the coordinator keeps per tensor and rank.
void measure_kept_plans(int ranks) {
  constexpr int kTensors = 200;
  constexpr double kGoal = 1.2;
  std::vector<Bytes> messages;
  for (int rank = 0; rank < ranks; ++rank) {
    SavePlan plan;
    for (int tensor = 0; tensor < kTensors; ++tensor) {
      WriteItem item;
      item.name = plan.names.intern("model.decoder.layers." + std::to_string(tensor) + ".attention.query.weight");
      item.type = WriteItemType::kShard;
      item.size = {8LL * ranks, 1024};
      item.chunk = {{8LL * rank, 0}, {8, 1024}};
      plan.items.push_back(item);
      plan.mappings.edit().push_back({item.name, {"model", plan.names[item.name].substr(6)}});
    }
    messages.push_back(encode_save_plan(plan));
  }
  CoordinatorMachine machine = machine_of(0, ranks);
  join_all(machine, ranks);
  const double before = heap_bytes();
  for (int rank = 0; rank + 1 < ranks; ++rank) {
    const auto plan = std::make_shared<const SavePlan>(decode_save_plan(messages[static_cast<std::size_t>(rank)]));
    machine.step(Received{rank, machine.counter(), LocalSavePlan{plan, plan_digest(*plan)}});
  }
  const double value = (heap_bytes() - before) / (1.0 * kTensors * (ranks - 1));
  print("kept_plans_of_" + std::to_string(ranks) + "_ranks_per_tensor", value, "bytes", sizeof(WriteItem),
        "at most 1.2 x an item without its name", value <= kGoal * sizeof(WriteItem));
}

void run(bool quick) {
  const int many = quick ? 8000 : 10000;
  measure_failure_of_all(1000, true);
  measure_failure_of_all(1000, false);
  measure_joins(8000);
  if (many != 8000) measure_joins(many);
  measure_registrar(many);
  measure_progress(many);
  measure_succession(many);
  measure_kept_plans(1000);
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  // As in a trainer, whose heap continues above the measured memory.
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  return cairn::benchmarks::run_benchmark(argc, argv, cairn::run);
}
