// Runs every target on many inputs, the same ones in every run.
//
// CAIRN_FUZZ_INPUTS is the number of inputs for each target. CAIRN_FUZZ_FIRST is the number of the
// first one, to try other inputs or to repeat one.
#include <cairn/tests/support/plain.hpp>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <typeinfo>

#include <cairn/tests/fuzz/mutator.hpp>
#include <cairn/tests/fuzz/targets.hpp>
#include <cairn/tests/support/stride.hpp>

using namespace cairn;
using namespace cairn::testing;

extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));
// A few bytes must not expand into gigabytes. Larger allocations fail, and that does not count as a
// rejection.
extern "C" const char* __asan_default_options() { return "max_allocation_size_mb=256"; }

namespace {

// The target and input that are running, for the report of a crash.
const char* running_target = "";
std::uint64_t running_input = 0;

void say_what_was_running() {
  std::fprintf(stderr, "fuzz target %s, input %llu: repeat it with CAIRN_FUZZ_FIRST=%llu CAIRN_FUZZ_INPUTS=1\n", running_target,
               static_cast<unsigned long long>(running_input), static_cast<unsigned long long>(running_input));
}

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

std::string hex_of(ByteSpan bytes) {
  std::string text;
  for (const char byte : bytes.view()) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(byte));
    text += digits;
  }
  return text;
}

// Returns what is wrong with the target's reaction to the input; empty if nothing is.
std::string fault_of(const FuzzTarget& target, ByteSpan input, bool& is_taken) {
  try {
    is_taken = target.run(input);
    return "";
  } catch (const std::exception& error) {
    return std::string(typeid(error).name()) + ": " + error.what();
  }
}

}  // namespace

TEST_CASE("fuzz: every target takes some of its seeds") {
  for (const FuzzTarget& target : fuzz_targets()) {
    const auto seeds = target.seeds();
    INFO(target.name);
    REQUIRE_FALSE(seeds.empty());
    std::size_t taken = 0;
    for (const Bytes& seed : seeds) {
      bool is_taken = false;
      CHECK(fault_of(target, seed, is_taken) == "");
      taken += is_taken;
    }
    CHECK(taken > 0);
  }
}

TEST_CASE("fuzz: the same number gives the same input, and others give others") {
  const Mutator mutator({"a seed of some length", "another one"});
  std::size_t different = 0;
  for (std::uint64_t number = 0; number < 1000; ++number) {
    CHECK(mutator.input(number) == mutator.input(number));
    different += mutator.input(number) != mutator.input(number + 1);
  }
  CHECK(different > 900);
}

TEST_CASE("fuzz: no input makes a target do anything but take or refuse it") {
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(say_what_was_running);
  const std::uint64_t first = number_from("CAIRN_FUZZ_FIRST", 0);
  const std::uint64_t count = number_from("CAIRN_FUZZ_INPUTS", 20'000 / kStride);
  for (const FuzzTarget& target : fuzz_targets()) {
    const Mutator mutator(target.seeds());
    running_target = target.name.c_str();
    std::size_t faults = 0;
    std::uint64_t taken = 0;
    for (std::uint64_t number = first; number < first + count && faults < 3; ++number) {
      running_input = number;
      const Bytes input = mutator.input(number);
      bool is_taken = false;
      const std::string fault = fault_of(target, input, is_taken);
      taken += is_taken;
      if (fault.empty()) continue;
      ++faults;
      FAIL_CHECK(target.name << ", input " << number << ": " << fault << "\n" << hex_of(input));
    }
    MESSAGE(target.name, ": ", taken, " of ", count, " inputs taken");
    // If no input or every input is accepted, the target tests nothing.
    if (count >= 1000) CHECK((taken > 0 && taken < count));
  }
}
