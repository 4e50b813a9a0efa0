// Tests of the support code that the other tests of this folder use.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include <cairn/runtime/testing/testing.hpp>

using namespace cairn::testing;

namespace {

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

TEST_CASE("the test support joins the ranks that the launcher started") {
  CHECK(std::to_string(world().rank()) == variable("RANK"));
  CHECK(std::to_string(world().size()) == variable("WORLD_SIZE"));
  CHECK(std::to_string(world().local_rank()) == variable("LOCAL_RANK"));
  CHECK(world().incarnation().size() == 32);
  CHECK_FALSE(world().one_process());
}

TEST_CASE("the test support gives all ranks one directory") {
  const std::filesystem::path directory = shared_directory();
  std::ofstream(directory / ("rank " + std::to_string(world().rank()))) << world().incarnation();
  barrier();
  std::set<std::string> incarnations;
  for (int rank = 0; rank < world().size(); ++rank) {
    std::string text;
    std::getline(std::ifstream(directory / ("rank " + std::to_string(rank))), text);
    incarnations.insert(text);
  }
  CHECK(incarnations == std::set<std::string>{world().incarnation()});
  barrier();
}
