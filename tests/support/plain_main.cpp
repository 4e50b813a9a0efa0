// The main function of every test binary that runs as one process.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cairn/tests/support/skipped.hpp>

int main(int argc, char** argv) {
  doctest::Context context(argc, argv);
  const int code = context.run();
  return code == 0 && cairn::testing::skipped_cases() > 0 ? cairn::testing::kSkippedExitCode : code;
}
