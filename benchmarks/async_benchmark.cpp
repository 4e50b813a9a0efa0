// Asynchronous saves: how long they stop the trainer, compared with a plain copy of the same bytes
// in the same run; how much memory they hold; and how much background work slows the trainer's
// steps. On the CPU, and on the first CUDA device if there is one. Saves to tiers: how long they
// stop the trainer, compared with saves to the near tier alone.
//
// Prints one JSON object per line: {name, value, unit, limit, ratio, goal, met}. Values are medians
// of several runs, each with a new checkpointer. `--quick`: less data, fewer runs. `--cuda`: the
// device alone, how long saves of 8 GiB stop the trainer, fewer runs. `--directory DIRECTORY`:
// where checkpoints are written; default /dev/shm.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include <cairn/runtime/cairn.hpp>
#include <cairn/storage/tiers.hpp>
#include <cairn/tests/support/temporary_directory.hpp>

namespace cairn {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

using SteadyClock = std::chrono::steady_clock;

double seconds_of(const std::function<void()>& act) {
  const auto start = SteadyClock::now();
  act();
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

double quantile(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<std::size_t>(part * static_cast<double>(values.size())))];
}
double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

// `goal` is the maximum of value / limit; 0: none, the value is for information only.
void print(const std::string& name, double value, const char* unit, double limit, double goal) {
  std::printf("{\"name\": \"%s\", \"value\": %.6g, \"unit\": \"%s\", \"limit\": %.6g, \"ratio\": %.4g, ", name.c_str(), value, unit,
              limit, value / limit);
  if (goal > 0)
    std::printf("\"goal\": \"at most %.4g x the limit\", \"met\": %s}\n", goal, value <= goal * limit ? "true" : "false");
  else
    std::printf("\"goal\": null, \"met\": null}\n");
  std::fflush(stdout);
}

// Takes every tensor once and stores nothing, so only the time that the trainer waits remains.
class NowhereWriter final : public StorageWriter {
 public:
  void reset(const std::string&) override {}
  void set_up_storage_writer(const StorageContext&) override {}
  SavePlan prepare_local_plan(SavePlan plan) override { return plan; }
  std::vector<SavePlan> prepare_global_plan(std::vector<SavePlan> plans) override { return plans; }
  Future<WriteResults> write_data(const SavePlan& plan, SavePlanner& planner) override {
    for (const WriteItem& item : plan.items) planner.resolve_data(plan, item);
    return ready_future(WriteResults{});
  }
  void finish(Metadata, std::vector<WriteResults>) override {}
};

struct Load {
  StateDict state;
  std::vector<torch::Tensor> tensors;
  std::uint64_t bytes = 0;
};

Load make_load(int count, std::int64_t bytes_each, torch::Device device) {
  Load load;
  for (int i = 0; i < count; ++i) {
    load.tensors.push_back(torch::full({bytes_each / 4}, i, torch::TensorOptions(torch::kFloat32).device(device)));
    load.state.insert("tensor" + std::to_string(i), load.tensors.back());
    load.bytes += static_cast<std::uint64_t>(bytes_each);
  }
  return load;
}

void wait_for(torch::Device device) {
  if (device.is_cuda()) torch::cuda::synchronize(device.index());
}

// Copies the same bytes without Cairn: with memcpy, on as many threads as staging uses, or with the
// device's copy engine into page-locked memory. The destination has been used before and is larger
// than any cache.
class PlainCopy {
 public:
  explicit PlainCopy(torch::Device device)
      : device_(device), to_(torch::zeros({256 * kMiB}, torch::TensorOptions(torch::kUInt8).pinned_memory(device.is_cuda()))) {}

  double seconds(const Load& load) {
    wait_for(device_);
    return seconds_of([&] {
      std::int64_t at = 0;
      for (const torch::Tensor& tensor : load.tensors) {
        const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
        for (std::int64_t done = 0; done < bytes;) {
          if (at == to_.numel()) at = 0;
          const std::int64_t part = std::min(bytes - done, to_.numel() - at);
          copy(tensor, done, at, part);
          done += part;
          at += part;
        }
      }
      wait_for(device_);
    });
  }

 private:
  void copy(const torch::Tensor& from, std::int64_t done, std::int64_t at, std::int64_t bytes) {
    if (device_.is_cuda()) {
      to_.narrow(0, at, bytes).copy_(from.view(torch::kUInt8).narrow(0, done, bytes), /*non_blocking=*/true);
      return;
    }
    const char* const source = static_cast<const char*>(from.data_ptr()) + done;
    char* const target = static_cast<char*>(to_.data_ptr()) + at;
    at::parallel_for(0, bytes, kMiB, [&](std::int64_t begin, std::int64_t end) {
      std::memcpy(target + begin, source + begin, static_cast<std::size_t>(end - begin));
    });
  }

  const torch::Device device_;
  const torch::Tensor to_;
};

AsyncSaveOptions kept() {
  AsyncSaveOptions options;
  options.staging.cache_staged_state_dict = true;
  return options;
}

void measure_stall(const std::string& name, const Load& load, torch::Device device, int runs, double goal) {
  PlainCopy plain(device);
  plain.seconds(load);  // warm-up
  std::vector<double> unprepared, first, tenth, limits;
  std::uint64_t held = 0;
  const World world = World::single();
  for (int run = 0; run < 2 * runs; ++run) {
    Checkpointer checkpointer(world);
    SaveOptions options;
    options.storage_writer = std::make_shared<NowhereWriter>();
    const bool is_prepared = run % 2 == 1;
    if (is_prepared) checkpointer.prepare(load.state, kept());
    for (int save = 1; save <= (is_prepared ? 10 : 1); ++save) {
      if (save % 3 == 1) limits.push_back(plain.seconds(load));
      wait_for(device);
      std::unique_ptr<AsyncSaveResponse> saving;
      const double stall = seconds_of(
          [&] { saving = std::make_unique<AsyncSaveResponse>(checkpointer.async_save(load.state, "nowhere", options, kept())); });
      held = std::max(held, saving->progress().staging_bytes);
      saving->result();
      if (save == 1) (is_prepared ? first : unprepared).push_back(stall);
      if (save == 10) tenth.push_back(stall);
    }
  }
  print("async_stall_" + name + "_first_unprepared", median(unprepared), "s", median(limits), device.is_cuda() ? 5 : 0);
  print("async_stall_" + name + "_first_after_prepare", median(first), "s", median(limits), goal);
  print("async_stall_" + name + "_tenth", median(tenth), "s", median(limits), goal);
  const auto state = static_cast<double>(load.bytes);
  print("async_staged_" + name, static_cast<double>(held) / kMiB, "MiB", state / kMiB, (state + 64 * kMiB) / state);
}

void measure_streaming(const std::string& name, const Load& load, torch::Device device, const std::string& directory, int runs) {
  PlainCopy plain(device);
  plain.seconds(load);
  std::vector<double> stalls, limits;
  std::uint64_t peak = 0;
  AsyncSaveOptions options;
  options.staging.stream = true;
  const World world = World::single();
  for (int run = 0; run < runs; ++run) {
    Checkpointer checkpointer(world);
    SaveOptions to_disk;
    limits.push_back(plain.seconds(load));
    wait_for(device);
    options.staging.block_on_staging = false;
    std::unique_ptr<AsyncSaveResponse> saving;
    stalls.push_back(seconds_of([&] {
      saving = std::make_unique<AsyncSaveResponse>(checkpointer.async_save(load.state, directory + "/streamed", to_disk, options));
      while (!saving->wait_staged(std::chrono::milliseconds(1))) peak = std::max(peak, saving->progress().staging_bytes);
    }));
    while (!saving->wait(std::chrono::milliseconds(1))) peak = std::max(peak, saving->progress().staging_bytes);
    peak = std::max(peak, saving->progress().staging_bytes);
    saving->result();
  }
  print("async_streaming_" + name + "_peak", static_cast<double>(peak) / kMiB, "MiB",
        static_cast<double>(options.staging.stream_bytes_max) / kMiB, 1);
  print("async_streaming_" + name + "_stall", median(stalls), "s", median(limits), 0);
}

// A training step of matrix multiplications. It takes at least ten milliseconds; on a device, long
// enough for the copy of the state.
class Trainer {
 public:
  explicit Trainer(torch::Device device)
      : device_(device), matrix_(device.is_cuda() ? torch::rand({4096, 4096}, device) : torch::rand({192, 192}, device)) {
    for (int i = 0; i < 10; ++i) step();
    const double one = seconds_of([this] { step(); });
    times_ = std::max(1, static_cast<int>((device.is_cuda() ? 0.06 : 0.012) / one) + 1);
    step();
  }
  void step() {
    for (int i = 0; i < times_; ++i) matrix_ = torch::mm(matrix_, matrix_).clamp_(-1, 1);
    // Wait only for the trainer's own stream: copies for a save run in parallel.
    if (device_.is_cuda()) c10::impl::VirtualGuardImpl(device_.type()).getStream(device_).synchronize();
  }
  double seconds() {
    return seconds_of([this] { step(); });
  }

 private:
  const torch::Device device_;
  torch::Tensor matrix_;
  int times_ = 1;
};

double write_plainly(const Load& load, const std::string& path) {
  const torch::Tensor host = load.tensors.front().to(torch::kCPU);
  return seconds_of([&] {
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    for (std::uint64_t done = 0; file >= 0 && done < load.bytes;) {
      const ssize_t wrote = ::write(file, host.data_ptr(),
                                    std::min<std::uint64_t>(load.bytes - done, std::min<std::uint64_t>(host.nbytes(), 4 * kMiB)));
      if (wrote <= 0) throw std::runtime_error("cannot write " + path);
      done += static_cast<std::uint64_t>(wrote);
    }
    ::fdatasync(file);
    ::close(file);
    ::unlink(path.c_str());
  });
}

void measure_steps(const std::string& name, const Load& load, torch::Device device, const std::string& directory, int saves) {
  Trainer trainer(device);
  const World world = World::single();
  std::vector<double> alone, beside, seconds, plain, stalls;
  AsyncSaveOptions options = kept();
  options.staging.block_on_staging = false;
  Checkpointer checkpointer(world);
  checkpointer.prepare(load.state, options);
  for (int save = 0; save < saves; ++save) {
    for (int i = 0; i < 20; ++i) alone.push_back(trainer.seconds());
    plain.push_back(write_plainly(load, directory + "/plain"));
    const auto start = SteadyClock::now();
    std::unique_ptr<AsyncSaveResponse> saving;
    double stall = seconds_of([&] {
      saving = std::make_unique<AsyncSaveResponse>(checkpointer.async_save(load.state, directory + "/beside", {}, options));
    });
    const double step = trainer.seconds();  // forward and backward, while the copy is in flight
    stall += seconds_of([&] { saving->wait_staged(); });
    stalls.push_back(stall);
    beside.push_back(step);
    while (!saving->done()) beside.push_back(trainer.seconds());
    saving->result();
    seconds.push_back(std::chrono::duration<double>(SteadyClock::now() - start).count());
  }
  print("async_step_" + name + "_median_beside_saves", median(beside), "s", median(alone), device.is_cuda() ? 1.02 : 0);
  print("async_step_" + name + "_p99_beside_saves", quantile(beside, 0.99), "s", quantile(alone, 0.99), 0);
  PlainCopy copy(device);
  copy.seconds(load);
  print("async_overlapped_" + name + "_stall", median(stalls), "s", copy.seconds(load), device.is_cuda() ? 0.05 : 0);
  print("async_background_" + name + "_save", median(seconds), "s", median(plain), 0);
}

double resident_mib() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t size = 0, resident = 0;
  file >> size >> resident;
  return static_cast<double>(resident) * static_cast<double>(::sysconf(_SC_PAGESIZE)) / kMiB;
}

void measure_growth(const std::string& name, torch::Device device, const std::string& directory, int saves) {
  const Load load = make_load(100, kMiB / 4, device);
  Checkpointer checkpointer(World::single());
  double before = 0;
  std::uint64_t held_before = 0, held = 0;
  for (int save = 0; save <= saves; ++save) {
    const auto saving = checkpointer.async_save(load.state, directory + "/growing", {}, kept());
    saving.result();
    held = saving.progress().staging_bytes;
    if (save != saves / 4) continue;  // from here on pools and caches are full
    before = resident_mib();
    held_before = held;
  }
  print("async_growth_" + name + "_resident_after_" + std::to_string(saves) + "_saves", resident_mib(), "MiB", before, 1.01);
  const char* const kind = device.is_cuda() ? "_pinned_after_" : "_staging_after_";  // page-locked, for copies from a device
  print("async_growth_" + name + kind + std::to_string(saves) + "_saves", static_cast<double>(held) / kMiB, "MiB",
        static_cast<double>(held_before) / kMiB, 1);
}

// Before each save to the tiers the one before is copied, as in a run that copies faster than it
// saves.
void measure_tiers(const std::string& directory, bool quick) {
  const Load load = make_load(8, (quick ? 20 : 40) * kMiB, torch::kCPU);
  TierOptions tiers;
  tiers.near_url = directory + "/near";
  tiers.far_url = directory + "/far";
  register_tier("measured", tiers);
  const std::string alone = directory + "/alone", tiered = "tiered://measured/run/step";
  Checkpointer to_one(World::single()), to_two(World::single());
  std::vector<double> one, two, one_stalls, two_stalls;
  for (int save = 0; save < (quick ? 4 : 16); ++save) {
    // The first of two saves finds a machine that was busy with something else: they take turns.
    for (const bool in_tiers : {save % 2 == 0, save % 2 == 1}) {
      Checkpointer& checkpointer = in_tiers ? to_two : to_one;
      const std::string& place = in_tiers ? tiered : alone;
      const auto wait = [&] {
        if (!wait_for_copies(place)) throw std::runtime_error("a checkpoint was not copied");
      };
      (in_tiers ? two : one).push_back(seconds_of([&] { checkpointer.save(load.state, place); }));
      wait();
      std::unique_ptr<AsyncSaveResponse> saving;
      (in_tiers ? two_stalls : one_stalls).push_back(seconds_of([&] {
        saving = std::make_unique<AsyncSaveResponse>(checkpointer.async_save(load.state, place, {}, kept()));
      }));
      saving->result();
      wait();
    }
  }
  for (const char* const part : {"/near", "/far", "/alone"}) std::filesystem::remove_all(directory + part);
  print("tiered_save", median(two), "s", median(one), 1.05);
  print("tiered_async_stall", median(two_stalls), "s", median(one_stalls), 1.05);
}

void measure(const std::string& name, torch::Device device, const std::string& directory, bool quick) {
  const int runs = quick ? 3 : 7;
  const double goal = device.is_cuda() ? 1.10 : 1.15;
  const std::int64_t big = (device.is_cuda() ? (quick ? 1024 : 8192) : (quick ? 256 : 1024)) * kMiB;
  measure_stall(name + "_one_tensor", make_load(1, big, device), device, runs, goal);
  measure_stall(name + "_1000_tensors", make_load(quick ? 250 : 1000, kMiB, device), device, runs, goal);
  const Load load = make_load(8, (quick ? 40 : 80) * kMiB, device);
  measure_streaming(name, load, device, directory, quick ? 1 : 3);
  const Load beside = device.is_cuda() && !quick ? make_load(8, 256 * kMiB, device) : load;
  measure_steps(name, beside, device, directory, quick ? 3 : 8);
  measure_growth(name, device, directory, quick ? 40 : 200);
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  bool quick = false, cuda = false;
  std::string place = "/dev/shm";
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--quick") {
      quick = true;
    } else if (std::string_view(argv[i]) == "--cuda") {
      cuda = true;
    } else if (std::string_view(argv[i]) == "--directory" && i + 1 < argc) {
      place = argv[++i];
    } else {
      std::fprintf(stderr, "usage: %s [--quick | --cuda] [--directory DIRECTORY]\n", argv[0]);
      return 2;
    }
  }
  try {
    torch::set_num_threads(1);
    const cairn::testing::TemporaryDirectory directory(place);
    if (cuda) {
      const torch::Device device(torch::kCUDA, 0);
      cairn::measure_stall("cuda_one_tensor", cairn::make_load(1, 8192 * cairn::kMiB, device), device, 3, 1.02);
      cairn::measure_streaming("cuda_8gib", cairn::make_load(8, 1024 * cairn::kMiB, device), device, directory.path(), 3);
      return 0;
    }
    cairn::measure_tiers(directory.path(), quick);
    cairn::measure("cpu", torch::kCPU, directory.path(), quick);
    if (torch::cuda::is_available())
      cairn::measure("cuda", torch::Device(torch::kCUDA, 0), directory.path(), quick);
    else
      std::printf("CUDA: no device: skipped\n");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
