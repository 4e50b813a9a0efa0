// Runs a doctest binary that cairn-launch starts on all ranks of one world. Cairn's own tests use
// this header, and your tests can use it too. It needs doctest.
//
//   #define DOCTEST_CONFIG_IMPLEMENT            // in one file
//   #include <cairn/runtime/testing/testing.hpp>
//   int main(int argc, char** argv) { return cairn::testing::run_ranks(argc, argv); }
//
//   TEST_CASE("every rank is here") { CHECK(cairn::testing::world().size() == 4); }
//
//   $ cairn-launch -n 4 --timeout 60 -- ./my_tests -tc="every rank*"
//
// If LibTorch is included after doctest, LibTorch silently redefines CHECK and similar macros. This
// header includes both and keeps doctest's macros, in whatever order a file has included the two.
#pragma once

#include <torch/torch.h>

#undef CHECK
#undef CHECK_EQ
#undef CHECK_NE
#undef CHECK_LT
#undef CHECK_LE
#undef CHECK_GT
#undef CHECK_GE

#if defined(DOCTEST_LIBRARY_INCLUDED)
#define CHECK(...) DOCTEST_CHECK(__VA_ARGS__)
#define CHECK_EQ(...) DOCTEST_CHECK_EQ(__VA_ARGS__)
#define CHECK_NE(...) DOCTEST_CHECK_NE(__VA_ARGS__)
#define CHECK_LT(...) DOCTEST_CHECK_LT(__VA_ARGS__)
#define CHECK_LE(...) DOCTEST_CHECK_LE(__VA_ARGS__)
#define CHECK_GT(...) DOCTEST_CHECK_GT(__VA_ARGS__)
#define CHECK_GE(...) DOCTEST_CHECK_GE(__VA_ARGS__)
#else
#include <doctest/doctest.h>
#endif

#include <cstdio>
#include <exception>
#include <functional>
#include <string>

#include <cairn/runtime/worlds/world.hpp>

namespace cairn::testing {

// Returns this rank's world, joined from the environment before the first test case. Throws
// kPrecondition if the binary was started without ranks.
World& world();
// Returns a new directory that all ranks of this run share. Rank 0 creates it before the first test
// case and removes it at the end.
const std::string& shared_directory();
// Returns after all ranks have called it the same number of times. Throws kDeadline after a minute.
void barrier();

// Enables injection (see <cairn/runtime/testing/injection.hpp>), joins the world, calls `run` with
// the rank, and leaves the world. If RANK is not set, only calls `run(-1)`. `run` returns an exit
// code. Ranks that succeed wait for each other before they leave. A rank that fails leaves at once,
// and cairn-launch ends the others.
int run_joined(const std::function<int(int rank)>& run);

namespace detail {

struct MatchCounter : doctest::IReporter {
  explicit MatchCounter(const doctest::ContextOptions&) {}
  static unsigned& matched() {
    static unsigned count = 0;
    return count;
  }
  static bool& finished() {
    static bool yes = false;
    return yes;
  }
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats& stats) override {
    matched() = stats.numTestCasesPassingFilters;
    finished() = true;
  }
  void test_case_start(const doctest::TestCaseData&) override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}
};

}  // namespace detail

// Runs the tests of a binary; call it from `main`. Takes doctest's options. A run whose filter
// matches no test case fails. Ranks other than 0 print failures only. A rank stops at its first
// failure, because the others may be waiting for it within the test case, and cairn-launch can then
// end them. With the option `-aa=0`, a rank continues after failures.
inline int run_ranks(int argc, char** argv) {
  return run_joined([argc, argv](int rank) {
    doctest::registerReporter<detail::MatchCounter>("cairn-match-counter", 1, false);
    doctest::Context context;
    context.setOption("abort-after", 1);
    context.setOption("no-intro", true);
    if (rank > 0) context.setOption("minimal", true);
    context.applyCommandLine(argc, argv);
    const int code = context.run();
    if (code == 0 && detail::MatchCounter::finished() && detail::MatchCounter::matched() == 0) {
      std::fprintf(stderr, "no test case matches the filter\n");
      return 1;
    }
    return code;
  });
}

}  // namespace cairn::testing
