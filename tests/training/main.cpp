// The main function of the sharded training tests. Ranks are threads, or the processes of
// cairn-launch.
#define DOCTEST_CONFIG_IMPLEMENT
#include <cairn/runtime/testing/testing.hpp>

int main(int argc, char** argv) { return cairn::testing::run_ranks(argc, argv); }
