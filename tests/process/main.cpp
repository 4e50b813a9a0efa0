// The main function of the tests that run as rank processes.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>  // its implementation, in a unity build too
#include <cairn/runtime/testing/testing.hpp>
int main(int argc, char** argv) { return cairn::testing::run_ranks(argc, argv); }
