// A tensor above 4 GiB, and one after it whose file offset is above 4 GiB. Needs 10 GiB of memory
// and 5 GiB of disk.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>

#include <cairn/runtime/cairn.hpp>
#include <cairn/tests/support/skipped.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tests/support/torch.hpp>

using namespace cairn;
using namespace cairn::testing;

namespace {

constexpr std::int64_t kElements = (std::int64_t{1} << 30) + 12345;  // 4 bytes each

// GiB of memory that a program may take without swapping, as the kernel estimates it.
double available_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string name; file >> name; file.ignore(std::numeric_limits<std::streamsize>::max(), '\n'))
    if (double kib = 0; name == "MemAvailable:" && file >> kib) return kib / (1 << 20);
  return 0;
}

void run_in_pytorch(const std::string& directory) {
  const char* pytorch = std::getenv("CAIRN_PYTORCH");
  if (pytorch == nullptr) {
    skip_case("CAIRN_PYTORCH names no command that runs a real PyTorch");
    return;
  }
  const std::string command =
      std::string(pytorch) + " " CAIRN_SOURCE_DIR "/tests/pytorch/check_large.py " + directory + " " + std::to_string(kElements);
  CHECK(std::system(command.c_str()) == 0);
}

}  // namespace

TEST_CASE("a tensor above 4 GiB is saved, verified, loaded, and opened by PyTorch") {
  if (available_memory() < 10) {
    skip_case("less than 10 GiB of memory are available");
    return;
  }
  const TemporaryDirectory directory;
  const std::string id = directory.path() + "/large";
  // Does not keep the tensors: PyTorch needs the memory.
  save({{"large", torch::arange(kElements, torch::kInt32)}, {"second", torch::arange(100, torch::kInt64)}}, id);
  CHECK(std::get<TensorStorageMetadata>(*read_metadata(id).find("second")).storage.at(0).offset > (std::uint64_t{1} << 32));
  run_in_pytorch(id);

  StateDict state{{"large", torch::zeros(kElements, torch::kInt32)}, {"second", torch::zeros(100, torch::kInt64)}};
  load(state, id);
  // Compares in pieces, so that the check needs little memory.
  const torch::Tensor& large = state.at("large").tensor();
  constexpr std::int64_t kPiece = 1 << 26;
  for (std::int64_t begin = 0; begin < kElements; begin += kPiece) {
    const std::int64_t end = std::min(begin + kPiece, kElements);
    REQUIRE(torch::equal(large.slice(0, begin, end), torch::arange(begin, end, torch::kInt32)));
  }
  CHECK(torch::equal(state.at("second").tensor(), torch::arange(100, torch::kInt64)));
}
