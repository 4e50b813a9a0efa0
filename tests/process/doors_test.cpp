// The effect of the launcher's secret on rank processes, seen from inside one of them.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <sys/stat.h>

#include <cairn/runtime/cairn.hpp>
#include <cairn/runtime/testing/testing.hpp>

using namespace cairn;
using namespace cairn::testing;

namespace {

std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

}  // namespace

TEST_CASE("doors: the launcher's secret guards the links, and is seen nowhere") {
  const char* const path = std::getenv("CAIRN_SECRET_FILE");
  REQUIRE(path != nullptr);
  struct stat status {};
  REQUIRE(::stat(path, &status) == 0);
  CHECK((status.st_mode & 07777) == 0600);
  std::string secret = content_of(path);
  REQUIRE(secret.size() == 65);
  secret.pop_back();
  CHECK(world().secured());

  Checkpointer checkpointer(world(), "doors");
  const std::string key = "tensor of rank " + std::to_string(world().rank());
  const StateDict state{{key, torch::ones({16, 16})}};
  checkpointer.save(state, shared_directory() + "/step_1");
  StateDict loaded{{key, torch::zeros({16, 16})}};
  checkpointer.load(loaded, shared_directory() + "/step_1");
  CHECK(torch::equal(loaded[key].tensor(), torch::ones({16, 16})));

  barrier();
  int processes = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    if (entry.path().filename().string().find_first_not_of("0123456789") != std::string::npos) continue;
    ++processes;
    for (const char* name : {"cmdline", "environ"}) {
      CAPTURE(entry.path().string());
      CHECK(content_of(entry.path() / name).find(secret) == std::string::npos);
    }
  }
  CHECK(processes > world().size());
  CHECK(world().dump_trace().find(secret) == std::string::npos);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(shared_directory())) {
    if (entry.is_regular_file()) CHECK(content_of(entry.path()).find(secret) == std::string::npos);
  }
  barrier();
}

TEST_CASE("doors: without a secret ranks talk over loopback") {
  CHECK_FALSE(world().secured());
  Checkpointer checkpointer(world(), "doors");
  const StateDict state{{"rank " + std::to_string(world().rank()), torch::ones({4})}};
  checkpointer.save(state, shared_directory() + "/step_1");
  barrier();
}
