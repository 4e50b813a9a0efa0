// Saving and loading with the writer's and the reader's defaults, beside plain threads that write
// and read files of their own: the best of 1, 2, 4, ... of them is the limit of the machine.
//
//   cairn_engine_benchmark [--ranks N] [--mib N] [--cuda] [--at DIRECTORY] [--cold] [--repeat N]
//                          [--threads N] [--tensors N]
//
// --mib: the size of a rank's state; default: 1024. --cuda: rank r has its tensors on device r.
// --cold: reads find nothing in the page cache.
// Prints GB/s, medians, as lines of JSON. Checks the values after each load.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <torch/torch.h>

#include <cairn/base/error.hpp>
#include <cairn/benchmarks/benchmark_program.hpp>
#include <cairn/state/checkpoint_writer.hpp>
#include <cairn/tests/support/local_protocol.hpp>
#include <cairn/tests/support/temporary_directory.hpp>

namespace cairn {
namespace {

constexpr std::size_t kBlockBytes = 4u << 20;

struct Settings {
  int ranks = 1;
  std::int64_t mib = 1024;
  int tensors = 32;  // of a rank
  bool cuda = false;
  bool cold = false;
  std::string at = "/dev/shm";
  int repeat = 5;
  unsigned threads = 0;  // of a rank; 0: the default
  std::int64_t rank_bytes() const { return mib << 20; }
};

double seconds_of(const std::function<void()>& act) {
  const auto start = std::chrono::steady_clock::now();
  act();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void require(bool ok, const char* what) {
  if (!ok) throw system_error(what, "the benchmark's files", errno);
}

void in_threads(unsigned count, const std::function<void(unsigned)>& act) {
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < count; ++i) threads.emplace_back(act, i);
  for (std::thread& thread : threads) thread.join();
}

// Returns the seconds of `count` threads that write all bytes, and of as many that read them.
std::pair<double, double> plain(const Settings& settings, unsigned count, const std::string& directory) {
  const std::size_t bytes = static_cast<std::size_t>(settings.ranks * settings.rank_bytes()) / count / kBlockBytes * kBlockBytes;
  std::vector<void*> memory(count);
  for (void*& block : memory) std::memset(block = std::aligned_alloc(4096, kBlockBytes), 1, kBlockBytes);
  const auto path = [&](unsigned i) { return directory + "/plain" + std::to_string(i); };
  const double write = seconds_of([&] {
    in_threads(count, [&](unsigned i) {
      int file = ::open(path(i).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_DIRECT, 0600);
      if (file < 0) file = ::open(path(i).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
      require(file >= 0, "create");
      for (std::size_t at = 0; at < bytes; at += kBlockBytes)
        require(::pwrite(file, memory[i], kBlockBytes, static_cast<off_t>(at)) == static_cast<ssize_t>(kBlockBytes), "write");
      require(::fdatasync(file) == 0, "sync");
      ::close(file);
    });
  });
  if (settings.cold) benchmarks::forget_cached(directory);
  const double read = seconds_of([&] {
    in_threads(count, [&](unsigned i) {
      const int file = ::open(path(i).c_str(), O_RDONLY | O_CLOEXEC);
      require(file >= 0, "open");
      for (std::size_t at = 0; at < bytes; at += kBlockBytes)
        require(::pread(file, memory[i], kBlockBytes, static_cast<off_t>(at)) == static_cast<ssize_t>(kBlockBytes), "read");
      ::close(file);
    });
  });
  for (unsigned i = 0; i < count; ++i) std::filesystem::remove(path(i));
  for (void* block : memory) std::free(block);
  return {write, read};
}

std::vector<StateDict> states_of(const Settings& settings, bool filled) {
  std::vector<StateDict> states(static_cast<std::size_t>(settings.ranks));
  for (int rank = 0; rank < settings.ranks; ++rank) {
    torch::TensorOptions options(torch::kInt32);
    if (settings.cuda) options = options.device(c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(rank)));
    for (int i = 0; i < settings.tensors; ++i)
      states[static_cast<std::size_t>(rank)]["tensor." + std::to_string(rank) + "." + std::to_string(i)] =
          torch::full({settings.rank_bytes() / settings.tensors / 4}, filled ? rank * settings.tensors + i + 1 : 0, options);
  }
  return states;
}

void run(const Settings& settings) {
  const testing::TemporaryDirectory directory(settings.at);
  double write = 0, read = 0;  // the limits, in seconds
  for (unsigned count = 1; count <= std::thread::hardware_concurrency(); count *= 2) {
    const auto [writes, reads] = plain(settings, count, directory.path());
    write = write == 0 ? writes : std::min(write, writes);
    read = read == 0 ? reads : std::min(read, reads);
  }
  std::vector<StateDict> states = states_of(settings, true), targets = states_of(settings, false);
  const auto ranks = static_cast<std::size_t>(settings.ranks);
  CheckpointWriterOptions writer_options;
  CheckpointReaderOptions reader_options;
  if (settings.threads > 0)
    writer_options.threads = reader_options.threads = settings.threads;
  else if (settings.ranks > 1)  // ranks of one process share its CPUs
    writer_options.threads = reader_options.threads = std::clamp(std::thread::hardware_concurrency() / settings.ranks, 2u, 16u);
  std::vector<std::unique_ptr<CheckpointWriter>> writers;
  std::vector<std::unique_ptr<CheckpointReader>> readers;
  std::vector<DefaultSavePlanner> planners(ranks);
  std::vector<testing::LocalSaver> savers(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    writers.push_back(std::make_unique<CheckpointWriter>(writer_options));
    readers.push_back(std::make_unique<CheckpointReader>(reader_options));
    savers[rank] = {&states[rank], &planners[rank], writers[rank].get()};
  }
  std::vector<double> saves, loads;
  for (int i = 0; i <= settings.repeat; ++i) {
    testing::LocalSave how;
    how.checkpoint_id = directory.path() + "/step";
    how.save_id = testing::local_save_id(static_cast<std::uint64_t>(i) + 1);
    saves.push_back(seconds_of([&] { testing::save_locally(how, savers); }));
    for (StateDict& target : targets)
      for (auto& [key, value] : target) value.tensor().zero_();
    if (settings.cold) benchmarks::forget_cached(how.checkpoint_id);
    std::vector<DefaultLoadPlanner> load_planners(ranks);
    std::vector<testing::LocalLoader> loaders(ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank) loaders[rank] = {&targets[rank], &load_planners[rank], readers[rank].get()};
    loads.push_back(seconds_of([&] { testing::load_locally(how.checkpoint_id, loaders); }));
    for (std::size_t rank = 0; rank < ranks; ++rank)
      for (const auto& [key, value] : states[rank])
        if (!targets[rank].at(key).tensor().equal(value.tensor())) throw InternalError("wrong values in " + key);
    std::filesystem::remove_all(how.checkpoint_id);
  }
  const double bytes = static_cast<double>(settings.ranks) * static_cast<double>(settings.rank_bytes()) / 1e9;
  const auto print = [&](const char* what, std::vector<double>& seconds, double limit) {
    const double first = seconds.front();
    seconds.erase(seconds.begin());
    const auto [least, most] = std::minmax_element(seconds.begin(), seconds.end());
    std::printf("{\"name\": \"%s_%d_ranks_%lld_mib_%d_tensors%s%s\", \"value\": %.4g, \"unit\": \"GB/s\", "
                "\"limit\": %.4g, \"ratio\": %.3g, \"slowest\": %.4g, \"fastest\": %.4g, \"first\": %.4g}\n",
                what, settings.ranks, static_cast<long long>(settings.mib), settings.tensors, settings.cuda ? "_cuda" : "",
                settings.cold ? "_cold" : "", bytes / median(seconds), bytes / limit, limit / median(seconds), bytes / *most,
                bytes / *least, bytes / first);
  };
  print("save", saves, write);
  print("load", loads, read);
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  cairn::Settings settings;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    const bool has_value = option != "--cuda" && option != "--cold";
    const char* value = has_value && i + 1 < argc ? argv[++i] : "";
    if (option == "--cuda") settings.cuda = true;
    if (option == "--cold") settings.cold = true;
    if (option == "--ranks") settings.ranks = std::max(1, std::atoi(value));
    if (option == "--mib") settings.mib = std::max(1, std::atoi(value));
    if (option == "--at") settings.at = value;
    if (option == "--threads") settings.threads = static_cast<unsigned>(std::max(0, std::atoi(value)));
    if (option == "--tensors") settings.tensors = std::max(1, std::atoi(value));
    if (option == "--repeat") settings.repeat = std::max(1, std::atoi(value));
  }
  try {
    cairn::run(settings);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
