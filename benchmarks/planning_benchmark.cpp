// The planning of one save on the coordinator and its ranks: encoding and decoding local plans,
// making one global plan, checking coverage, and encoding the plan for every rank.
//
// Prints one JSON object per line: {name, value, unit, limit, ratio, goal, met}. The limit of a
// time is the time to copy the messages in memory. The limit of the cost per item with many ranks
// is that with few. `--quick`: fewer repetitions.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <malloc.h>
#include <time.h>

#include <cairn/base/error.hpp>
#include <cairn/benchmarks/benchmark_program.hpp>
#include <cairn/planning/global_plan.hpp>
#include <cairn/tests/support/plan_bytes.hpp>

namespace cairn {
namespace {

using benchmarks::print;

constexpr double kSecondsGoal = 1.0;
constexpr double kScalingGoal = 1.3;
constexpr double kCoordinatorGoal = 300;  // ns an item

using SteadyClock = std::chrono::steady_clock;

double seconds_since(SteadyClock::time_point start) { return std::chrono::duration<double>(SteadyClock::now() - start).count(); }

double thread_cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double heap_bytes() {
  const auto info = ::mallinfo2();
  return static_cast<double>(info.uordblks) + static_cast<double>(info.hblkhd);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// How the tensors of a benchmark are distributed.
enum class Layout {
  kSharded,     // every tensor is split on dim 0 over all ranks
  kReplicated,  // every tensor is on every rank
  kHybrid,      // 2-D mesh: split on dim 0 over half of the ranks, replicated over the other axis
};

std::string tensor_name(int tensor) {
  static constexpr const char* kParts[] = {"attention.query.weight", "attention.value.weight", "mlp.up.weight", "mlp.down.weight"};
  return "model.decoder.layers." + std::to_string(tensor / 4) + "." + kParts[tensor % 4];
}

SavePlan local_plan(Layout layout, int rank, int ranks, int tensors) {
  constexpr std::int64_t kColumns = 1024;
  const int shards = layout == Layout::kSharded ? ranks : layout == Layout::kHybrid ? std::max(1, ranks / 2) : 1;
  const std::int64_t rows = 8;  // per shard
  SavePlan plan;
  for (int tensor = 0; tensor < tensors; ++tensor) {
    WriteItem item;
    item.name = plan.names.intern(tensor_name(tensor));
    item.type = layout == Layout::kReplicated ? WriteItemType::kTensor : WriteItemType::kShard;
    item.properties.dtype = DType::kBFloat16;
    item.size = {rows * shards, kColumns};
    item.chunk = {{rows * (rank % shards), 0}, {rows, kColumns}};
    plan.items.push_back(item);
    plan.mappings.edit().push_back({item.name, {"model", tensor_name(tensor).substr(6)}});
  }
  WriteItem step;
  step.name = plan.names.intern("step");
  step.content_hash = 7;
  step.content_bytes = 300;
  plan.items.push_back(step);
  plan.mappings.edit().push_back({step.name, {"step"}});
  return plan;
}

std::vector<SavePlan> local_plans(Layout layout, int ranks, int tensors) {
  std::vector<SavePlan> plans;
  for (int rank = 0; rank < ranks; ++rank) plans.push_back(local_plan(layout, rank, ranks, tensors));
  return plans;
}

using Plans = std::vector<std::shared_ptr<const SavePlan>>;  // by rank

std::shared_ptr<const SavePlan> decode_local(ByteSpan bytes, SharedNames& seen) {
  v1::SavePlan message;
  columns::parse(bytes, message, "record");
  return std::make_shared<const SavePlan>(from_proto(message, seen));
}

GlobalSavePlan plan_globally(const Plans& local) {
  std::vector<SavePlan> plans;
  for (const auto& plan : local) plans.push_back(*plan);  // a coordinator keeps the local ones
  return create_global_save_plan(std::move(plans));
}

std::vector<Bytes> encode_parts(const Plans& local, GlobalSavePlan& global) {
  Plans plans;
  for (SavePlan& plan : global.plans) plans.push_back(std::make_shared<const SavePlan>(std::move(plan)));
  std::vector<Bytes> encoded;
  for (const auto& part : parts_of_plans(local, plans)) {
    check_invariant(part != nullptr, "a global plan follows from the local one");
    encoded.push_back(encode_as<v1::PlanPart>(*part));
  }
  return encoded;
}

struct Timing {
  double encode_local = 0;
  double decode_local = 0;
  double plan = 0;
  double coverage = 0;
  double encode_global = 0;
  double decode_global = 0;
  double coordinator = 0;  // all but the first encoding and the last decoding
  double all = 0;
  double cpu = 0;  // total CPU time of this thread
  std::size_t message_bytes = 0;
};

Timing plan_once(const std::vector<SavePlan>& locals) {
  Timing timing;
  const double cpu_start = thread_cpu_seconds();
  const auto start = SteadyClock::now();
  auto part = start;
  const auto lap = [&] {
    const double seconds = seconds_since(part);
    part = SteadyClock::now();
    return seconds;
  };

  std::vector<Bytes> messages;
  messages.reserve(locals.size());
  for (const SavePlan& plan : locals) messages.push_back(encode_save_plan(plan));
  timing.encode_local = lap();

  Plans decoded;
  decoded.reserve(messages.size());
  SharedNames seen;
  for (const Bytes& message : messages) decoded.push_back(decode_local(message, seen));
  timing.decode_local = lap();

  GlobalSavePlan global = plan_globally(decoded);
  timing.plan = lap();

  check_invariant(check_coverage(global.metadata).empty(), "the planned chunks tile their tensors");
  timing.coverage = lap();

  const std::vector<Bytes> answers = encode_parts(decoded, global);
  timing.encode_global = lap();

  std::size_t items = 0;
  for (std::size_t rank = 0; rank < locals.size(); ++rank)
    items += plan_of_part(locals[rank], decode_as<v1::PlanPart>(answers[rank]))->items.size();
  timing.decode_global = lap();
  timing.all = seconds_since(start);
  timing.coordinator = timing.decode_local + timing.plan + timing.coverage + timing.encode_global;
  timing.cpu = thread_cpu_seconds() - cpu_start;

  check_invariant(items > 0, "ranks have something to write");
  for (const Bytes& message : messages) timing.message_bytes += message.size();
  for (const Bytes& answer : answers) timing.message_bytes += answer.size();
  return timing;
}

// The lower bound for any encoding: copying the same bytes once for writing and once for reading.
double copy_seconds(std::size_t bytes) {
  const std::string source(bytes, 'x');
  std::string target(bytes, 'y');
  std::vector<double> times;
  for (int i = 0; i < 5; ++i) {
    const auto start = SteadyClock::now();
    std::memcpy(target.data(), source.data(), bytes);
    std::memcpy(target.data(), source.data(), bytes);
    times.push_back(seconds_since(start));
    check_invariant(target[bytes / 2] == 'x', "the copy is there");
  }
  return median(times);
}

const Timing& median(std::vector<Timing>& timings, double Timing::*what) {
  std::sort(timings.begin(), timings.end(), [&](const Timing& a, const Timing& b) { return a.*what < b.*what; });
  return timings[timings.size() / 2];
}

void print_coordinator(const std::string& name, std::vector<Timing>& timings, int ranks, int tensors) {
  const Timing& typical = median(timings, &Timing::coordinator);
  const double items = 1.0 * ranks * (tensors + 1);
  print("plan_coordinator_" + std::to_string(ranks) + "_ranks_" + std::to_string(tensors) + "_tensors_" + name,
        1e9 * typical.coordinator / items, "ns", 1e9 * copy_seconds(typical.message_bytes) / items, "at most 300 ns an item",
        1e9 * typical.coordinator <= kCoordinatorGoal * items);
}

// The coordinator of a large world alone: a plan arrives, and the one before is no longer anywhere.
void measure_large_world(int ranks) {
  constexpr int kTensors = 400;
  const double items = 1.0 * ranks * (kTensors + 1);
  const double before = heap_bytes();
  double seconds = 0;
  std::size_t message_bytes = 0;
  SharedNames seen;
  Plans decoded;
  decoded.reserve(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    const Bytes message = encode_save_plan(local_plan(Layout::kSharded, rank, ranks, kTensors));
    message_bytes += message.size();
    const auto start = SteadyClock::now();
    decoded.push_back(decode_local(message, seen));
    seconds += seconds_since(start);
  }
  const auto start = SteadyClock::now();
  GlobalSavePlan global = plan_globally(decoded);
  check_invariant(check_coverage(global.metadata).empty(), "the planned chunks tile their tensors");
  const double memory = heap_bytes() - before;
  for (const Bytes& part : encode_parts(decoded, global)) message_bytes += part.size();
  seconds += seconds_since(start);
  const std::string name = "plan_coordinator_" + std::to_string(ranks) + "_ranks_400_tensors";
  print(name, 1e9 * seconds / items, "ns", 1e9 * copy_seconds(message_bytes) / items, "at most 300 ns an item",
        1e9 * seconds <= kCoordinatorGoal * items);
  print(name + "_memory", memory / items, "bytes", sizeof(WriteItem), "at most 900 bytes an item", memory <= 900 * items);
}

void measure(Layout layout, const std::string& name, bool quick) {
  constexpr int kRanks = 256;
  constexpr int kRanksFew = 16;
  constexpr int kTensors = 1000;
  const std::vector<SavePlan> many = local_plans(layout, kRanks, kTensors);
  const std::vector<SavePlan> few = local_plans(layout, kRanksFew, kTensors);
  plan_once(many);  // warm-up of the allocator
  plan_once(few);
  // Alternate the two, so that other load on the machine affects both equally.
  std::vector<Timing> timings;
  std::vector<Timing> timings_few;
  for (int i = 0; i < (quick ? 3 : 11); ++i) {
    timings.push_back(plan_once(many));
    for (int j = 0; j < 5; ++j) timings_few.push_back(plan_once(few));
  }

  const Timing& typical = median(timings, &Timing::all);
  print("plan_256_ranks_1000_tensors_" + name, typical.all, "s", copy_seconds(typical.message_bytes), "at most 1 s",
        typical.all <= kSecondsGoal);
  std::fprintf(
      stderr,
      "%s: encode %.1f ms, decode %.1f ms, plan %.1f ms, coverage %.1f ms, encode %.1f ms, decode %.1f ms, %.1f MB of messages\n",
      name.c_str(), 1e3 * typical.encode_local, 1e3 * typical.decode_local, 1e3 * typical.plan, 1e3 * typical.coverage,
      1e3 * typical.encode_global, 1e3 * typical.decode_global, 1e-6 * static_cast<double>(typical.message_bytes));

  print_coordinator(name, timings, kRanks, kTensors);
  const double ns = 1e9 * median(timings, &Timing::cpu).cpu / (1.0 * kRanks * (kTensors + 1));
  const double ns_few = 1e9 * median(timings_few, &Timing::cpu).cpu / (1.0 * kRanksFew * (kTensors + 1));
  print("plan_cpu_per_item_256_ranks_to_16_" + name, ns, "ns", ns_few, "at most 1.3 x that of 16 ranks",
        ns <= kScalingGoal * ns_few);
}

void run(bool quick) {
  measure(Layout::kSharded, "sharded", quick);
  measure(Layout::kReplicated, "replicated", quick);
  measure(Layout::kHybrid, "hybrid", quick);
  if (quick) return;
  measure_large_world(4096);
  measure_large_world(16384);
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  // Rounds reuse each other's memory. By default the C library returns a round's memory to the
  // kernel, and most of the measured time would be page faults. In a trainer it cannot return the
  // memory, because the heap continues above it.
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  return cairn::benchmarks::run_benchmark(argc, argv, cairn::run);
}
