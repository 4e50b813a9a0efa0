// The main function of the tests that run as rank processes.
#define DOCTEST_CONFIG_IMPLEMENT
// Compiles doctest's implementation, even if another file of a unity build came first.
#include <doctest/doctest.h>
#include <cairn/runtime/testing/testing.hpp>
int main(int argc, char** argv) { return cairn::testing::run_ranks(argc, argv); }
