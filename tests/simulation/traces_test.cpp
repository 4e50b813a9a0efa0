// Traces recorded in simulated worlds must explain what went wrong.
#include <cairn/tests/support/torch.hpp>
// torch first
#include <algorithm>
#include <iostream>

#include <cairn/tests/simulation/one_fault.hpp>
#include <cairn/tests/simulation/options.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tracing/trace_explanation.hpp>
#include <cairn/tracing/trace_text.hpp>

namespace cairn::simulation {
namespace {

constexpr std::size_t kShown = 20;

std::string replay_command(const char* test, std::uint64_t seed) {
  return "seed " + std::to_string(seed) + ": " + options().program + " -tc=\"" + test + "*\" --trace-seeds=" + std::to_string(seed);
}

// Returns what the diagnosis lacks, or "" if nothing.
std::string missing_in(const Trace& trace, const OneFault& fault, const FaultWitness& witness) {
  const auto messages = match_messages(trace);
  const TraceClocks clocks(trace, messages);
  const Diagnosis diagnosis = diagnose(trace, messages, clocks);
  const std::set<std::string> phases = witness.phases();
  std::string wanted = "wanted rank";
  for (const int rank : fault.ranks) wanted += " " + std::to_string(rank);
  wanted += " in";
  for (const auto& phase : phases) wanted += " " + phase;

  if (!witness.has_failed() && !fault.is_slow) {
    if (diagnosis.failures.empty()) return "";
    return "nothing has failed, and rank " + std::to_string(diagnosis.failures.front().rank) + " is said to have";
  }
  if (!witness.has_failed()) {
    if (diagnosis.wait && diagnosis.wait->awaited.size() == 1 && fault.ranks.count(diagnosis.wait->awaited.front()) != 0 &&
        phases.count(text_of(diagnosis.wait->phase)) != 0)
      return "";
    // In a phase of the coordinator alone, no other rank is waited for.
    const auto longest = std::max_element(diagnosis.phases.begin(), diagnosis.phases.end(),
                                          [](const auto& a, const auto& b) { return a.duration < b.duration; });
    if (longest != diagnosis.phases.end() && phases.count(to_string(longest->phase)) != 0 && longest->slowest_rank < 0 &&
        fault.ranks.count(diagnosis.coordinator) != 0)
      return "";
    return wanted + " to be waited for, and it is " +
           (diagnosis.wait ? "rank " + std::to_string(diagnosis.wait->awaited.front()) + " in " + text_of(diagnosis.wait->phase)
                           : "nobody");
  }
  const auto explanations = explain(trace, clocks, diagnosis);
  std::string named;
  for (const auto& explanation : explanations) {
    const auto* const failure = explanation.failure;
    if (failure == nullptr) continue;
    const bool is_phase = phases.count(text_of(failure->phase)) != 0 || phases.count(text_of(failure->own_phase)) != 0;
    if (fault.ranks.count(explanation.rank) != 0 && is_phase) return "";
    named += " rank " + std::to_string(explanation.rank) + " in " + text_of(failure->phase);
  }
  return wanted + ", told was:" + (named.empty() ? " nothing" : named);
}

TEST_CASE("traces: the rank and phase of a planted fault are named") {
  Coverage coverage;
  std::vector<std::string> unexplained;
  std::uint64_t harmless = 0, seeds = 0;
  for (std::uint64_t seed = options().first_trace_seed; seed <= options().last_trace_seed; ++seed) {
    ++seeds;
    const testing::TemporaryDirectory directory;
    World world(seed, coverage);
    world.tracing = options().trace;
    world.recordings = directory.path();
    const OneFault fault = one_fault(world.dice, world.last_content);
    FaultWitness witness(fault);
    world.witness = &witness;
    world.run(fault.job);
    const std::string which = replay_command("traces: the rank", seed) + "\n  " + fault.what;
    const TraceDirectory traces(directory.path());
    const TracedAttempt* const attempt = traces.most_interesting();
    REQUIRE_MESSAGE(attempt != nullptr, which);
    if (!witness.has_failed()) ++harmless;
    const std::string missing = missing_in(traces.read(*attempt), fault, witness);
    if (!missing.empty()) unexplained.push_back(which + "\n  " + missing);
  }
  std::cout << seeds << " seeds, " << harmless << " in which nothing failed, " << unexplained.size() << " not explained\n";
  for (std::size_t i = 0; i < std::min(unexplained.size(), kShown); ++i) std::cout << unexplained[i] << "\n";
  CHECK(unexplained.size() * 100 <= seeds);
  CHECK(harmless * 2 < seeds);
}

}  // namespace
}  // namespace cairn::simulation
