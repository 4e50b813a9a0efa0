// The entry points for libFuzzer. CAIRN_FUZZ_TARGET names the target. Every fault aborts the
// process, as libFuzzer expects.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <string>

#include <cairn/tests/fuzz/targets.hpp>

namespace {

const cairn::testing::FuzzTarget* target = nullptr;

[[noreturn]] void stop(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::abort();
}

}  // namespace

// Writes the target's seeds to the directory CAIRN_FUZZ_SEEDS, if it is set.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* const name = std::getenv("CAIRN_FUZZ_TARGET");
  std::string known;
  for (const auto& candidate : cairn::testing::fuzz_targets()) {
    if (name != nullptr && candidate.name == name) target = &candidate;
    known += " " + candidate.name;
  }
  if (target == nullptr) stop("CAIRN_FUZZ_TARGET must be one of:" + known);
  if (const char* const directory = std::getenv("CAIRN_FUZZ_SEEDS")) {
    int number = 0;
    for (const cairn::Bytes& seed : target->seeds())
      std::ofstream(directory + ("/seed_" + std::to_string(number++)), std::ios::binary) << seed;
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    target->run({data, size});
  } catch (const std::exception& error) {
    stop(target->name + ": " + error.what());
  }
  return 0;
}
