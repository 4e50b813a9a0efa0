// The main function of the sharded training tests, whose ranks are threads or processes.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>  // its implementation, in a unity build too
#include <cairn/runtime/testing/testing.hpp>
int main(int argc, char** argv) { return cairn::testing::run_ranks(argc, argv); }
