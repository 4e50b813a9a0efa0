// Saving and loading many small tensors, with a process for each rank. Saving and loading 1 GiB
// with 4 ranks of one process, on tmpfs and on a disk, compared with plain threads that write and
// read on the same machine in the same run. Saving a state that 2 ranks hold, with and without
// SaveOptions::check_replicas. Saving a state that hardly changes, with
// CheckpointWriterOptions::reuse. Loading a state that all ranks need, with and without
// LoadOptions::read_once; read_once_hosts.py does the same on several hosts.
//
// Prints one JSON object per line: {name, value, unit, limit, ratio, goal, met}; times are medians.
// `--quick`: a quarter of the data, fewer repetitions. `--small`: small tensors alone. `--disk
// DIRECTORY`: a directory on the disk to measure; default: the working directory.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <torch/torch.h>

#include <cairn/actors/links/socket.hpp>
#include <cairn/base/digest.hpp>
#include <cairn/base/error.hpp>
#include <cairn/benchmarks/benchmark_program.hpp>
#include <cairn/runtime/checkpoints/checkpointer.hpp>
#include <cairn/state/checkpoint_writer.hpp>
#include <cairn/state/hugging_face.hpp>
#include <cairn/storage/format/zstd_item.hpp>
#include <cairn/storage/stores/store_decorator.hpp>
#include <cairn/tests/support/in_process_world.hpp>
#include <cairn/tests/support/local_protocol.hpp>
#include <cairn/tests/support/temporary_directory.hpp>

namespace cairn {
namespace {

constexpr int kRanks = 4;
constexpr std::int64_t kRows = 4096;
constexpr std::int64_t kColumns = 1024;
constexpr std::size_t kBlockBytes = 4u << 20;

using SteadyClock = std::chrono::steady_clock;

double seconds_of(const std::function<void()>& act) {
  const auto start = SteadyClock::now();
  act();
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void require(bool ok, const std::string& what) {
  if (!ok) throw system_error(what, "the benchmark's files", errno);
}

// Each rank's share, as one page-aligned block of memory.
class Shares {
 public:
  explicit Shares(std::size_t bytes) : bytes_(bytes) {
    for (int rank = 0; rank < kRanks; ++rank) {
      memory_.emplace_back(static_cast<char*>(std::aligned_alloc(4096, bytes)), &std::free);
      std::memset(memory_.back().get(), rank + 1, bytes);
    }
  }

  // Writes every rank's share to its own file with plain writes, bypassing the page cache if the
  // file system can.
  double write(const std::string& directory, bool direct) const {
    return seconds_of([&] {
      on_all_ranks([&](int rank) {
        const std::string path = directory + "/share" + std::to_string(rank);
        int file = direct ? ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0600) : -1;
        if (file < 0) file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        require(file >= 0, "create");
        for (std::size_t at = 0; at < bytes_; at += kBlockBytes)
          require(::pwrite(file, memory_[static_cast<std::size_t>(rank)].get() + at, kBlockBytes, static_cast<off_t>(at)) ==
                      static_cast<ssize_t>(kBlockBytes),
                  "write");
        require(::fdatasync(file) == 0, "sync");
        ::close(file);
      });
    });
  }

  double read(const std::string& directory) const {
    return seconds_of([&] {
      on_all_ranks([&](int rank) {
        const int file = ::open((directory + "/share" + std::to_string(rank)).c_str(), O_RDONLY | O_CLOEXEC);
        require(file >= 0, "open");
        for (std::size_t at = 0; at < bytes_; at += kBlockBytes)
          require(::pread(file, memory_[static_cast<std::size_t>(rank)].get() + at, kBlockBytes, static_cast<off_t>(at)) ==
                      static_cast<ssize_t>(kBlockBytes),
                  "read");
        ::close(file);
      });
    });
  }

 private:
  static void on_all_ranks(const std::function<void(int)>& act) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) threads.emplace_back(act, rank);
    for (std::thread& thread : threads) thread.join();
  }

  std::size_t bytes_;
  std::vector<std::unique_ptr<char, void (*)(void*)>> memory_;
};

StateDict state_of(int rank, int tensors, double value) {
  ChunkShardingSpec spec;
  for (int r = 0; r < kRanks; ++r) spec.placements.push_back(r);
  StateDict state;
  for (int i = 0; i < tensors; ++i) {
    ShardedTensor tensor = ShardedTensor::zeros(spec, {kRows, kColumns}, rank);
    for (const LocalShard& shard : tensor.local_shards()) torch::Tensor(shard.tensor).fill_(value + i + rank);
    state["layer." + std::to_string(i)] = std::move(tensor);
  }
  return state;
}

void print(const std::string& name, double value, double limit, double goal) {
  std::printf(
      "{\"name\": \"%s\", \"value\": %.6g, \"unit\": \"s\", \"limit\": %.6g, \"ratio\": %.4g, \"goal\": \"at most %.4g x the "
      "limit\", "
      "\"met\": %s}\n",
      name.c_str(), value, limit, value / limit, goal, value <= goal * limit ? "true" : "false");
  std::fflush(stdout);
}

enum class Format { kOwn, kSafetensors };

// Writers, readers and planners are reused from save to save, as in a trainer.
class Ranks {
 public:
  Ranks(int tensors, Format format) {
    for (int rank = 0; rank < kRanks; ++rank) {
      sources_.push_back(state_of(rank, tensors, 1));
      targets_.push_back(state_of(rank, tensors, 0));
      if (format == Format::kSafetensors) {
        HuggingFaceWriterOptions options;
        options.files = HuggingFaceFiles::kDistributed;
        writers_.push_back(std::make_unique<HuggingFaceStorageWriter>(options));
        readers_.push_back(std::make_unique<HuggingFaceStorageReader>());
      } else {
        writers_.push_back(std::make_unique<CheckpointWriter>());
        readers_.push_back(std::make_unique<CheckpointReader>());
      }
    }
  }

  double save(const std::string& path) {
    testing::LocalSave how;
    how.checkpoint_id = path;
    how.save_id = testing::local_save_id(++saves_);
    std::vector<DefaultSavePlanner> planners(kRanks);
    std::vector<testing::LocalSaver> ranks;
    for (std::size_t rank = 0; rank < kRanks; ++rank) ranks.push_back({&sources_[rank], &planners[rank], writers_[rank].get()});
    return seconds_of([&] { testing::save_locally(how, ranks); });
  }

  double load(const std::string& path) {
    std::vector<DefaultLoadPlanner> planners(kRanks);
    std::vector<testing::LocalLoader> ranks;
    for (std::size_t rank = 0; rank < kRanks; ++rank) ranks.push_back({&targets_[rank], &planners[rank], readers_[rank].get()});
    return seconds_of([&] { testing::load_locally(path, ranks); });
  }

 private:
  std::uint64_t saves_ = 0;
  std::vector<StateDict> sources_;
  std::vector<StateDict> targets_;
  std::vector<std::unique_ptr<StorageWriter>> writers_;
  std::vector<std::unique_ptr<StorageReader>> readers_;
};

struct Place {
  std::string name;  // in the names of the rows
  std::string directory;
  bool on_disk = false;
  double save_goal = 1;  // maximum of time / limit
  double load_goal = 1;
};

void measure(const Place& place, int tensors, int repeats, const std::string& size) {
  const testing::TemporaryDirectory directory(place.directory);
  const std::string raw = directory.path() + "/raw";
  std::filesystem::create_directory(raw);
  const Shares shares(static_cast<std::size_t>(tensors) * kRows * kColumns * sizeof(float) / kRanks);
  Ranks ranks(tensors, Format::kOwn), safetensors(tensors, Format::kSafetensors);
  std::vector<double> saves, loads, writes, reads, safetensors_saves, safetensors_loads;
  for (int repeat = 0; repeat <= repeats; ++repeat) {
    // Alternate, so that other load on the machine affects both equally.
    const std::string path = directory.path() + "/step";
    const double write = shares.write(raw, place.on_disk);
    if (place.on_disk) benchmarks::forget_cached(raw);
    const double read = shares.read(raw);
    std::filesystem::remove_all(raw);
    std::filesystem::create_directory(raw);
    const double save = ranks.save(path);
    if (place.on_disk) benchmarks::forget_cached(path);
    const double load = ranks.load(path);
    std::filesystem::remove_all(path);
    const double safetensors_save = safetensors.save(path);
    if (place.on_disk) benchmarks::forget_cached(path);
    const double safetensors_load = safetensors.load(path);
    std::filesystem::remove_all(path);
    if (repeat == 0) continue;  // warm-up of memory and threads
    writes.push_back(write);
    reads.push_back(read);
    saves.push_back(save);
    loads.push_back(load);
    safetensors_saves.push_back(safetensors_save);
    safetensors_loads.push_back(safetensors_load);
  }
  print("save_" + size + "_4_ranks" + place.name, median(saves), median(writes), place.save_goal);
  print("load_" + size + "_4_ranks" + place.name, median(loads), median(reads), place.load_goal);
  // Beside Cairn's own format. A load does not check safetensors files: they have no block
  // checksums.
  print("save_" + size + "_4_ranks_safetensors" + place.name, median(safetensors_saves), median(saves), 1 / 0.9);
  print("load_" + size + "_4_ranks_safetensors" + place.name, median(safetensors_loads), median(loads), 1 / 0.9);
}

// Weights in bfloat16: their exponents compress, the rest hardly.
StateDict weights_of(int rank, int tensors) {
  StateDict state;
  for (int i = 0; i < tensors; ++i)
    state["layer." + std::to_string(i) + "." + std::to_string(rank)] =
        torch::randn({kRows, kColumns / kRanks}).to(torch::kBFloat16);
  return state;
}

// Saves and loads with compression on tmpfs. The limit of saving is a thread per rank that
// compresses the same bytes in memory.
void measure_compression(int level, int tensors) {
  std::vector<StateDict> states, targets;
  for (int rank = 0; rank < kRanks; ++rank) {
    states.push_back(weights_of(rank, tensors));
    targets.push_back(weights_of(rank, tensors));
  }
  const double bytes = static_cast<double>(tensors) * kRows * kColumns * 2;
  const testing::TemporaryDirectory directory("/dev/shm");
  testing::LocalSave how;
  how.checkpoint_id = directory.path() + "/step";
  how.save_id = testing::local_save_id(1);
  CheckpointWriterOptions options;
  options.zstd_level = level;
  std::vector<const StateDict*> sources;
  std::vector<StateDict*> destinations;
  for (int rank = 0; rank < kRanks; ++rank) {
    sources.push_back(&states[static_cast<std::size_t>(rank)]);
    destinations.push_back(&targets[static_cast<std::size_t>(rank)]);
  }
  const double save =
      seconds_of([&] { testing::save_locally(how, sources, [&] { return std::make_unique<CheckpointWriter>(options); }); });
  const double load = seconds_of(
      [&] { testing::load_locally(how.checkpoint_id, destinations, [] { return std::make_unique<CheckpointReader>(); }); });
  std::uintmax_t stored = 0;
  for (const auto& entry : std::filesystem::directory_iterator(how.checkpoint_id)) stored += entry.file_size();

  std::vector<std::thread> threads;
  const double compress = seconds_of([&] {
    for (const StateDict& state : states)
      threads.emplace_back([&state, level] {
        ZstdCompressor compressor(level);
        Bytes frame(ZstdCompressor::frame_bytes_max(kZstdFrameBytes), '\0');
        for (const auto& [name, value] : state)
          for (std::size_t at = 0; at < value.tensor().nbytes(); at += kZstdFrameBytes)
            compressor.compress(
                {static_cast<const char*>(value.tensor().data_ptr()) + at, std::min(kZstdFrameBytes, value.tensor().nbytes() - at)},
                {frame.data(), frame.size()});
      });
    for (std::thread& thread : threads) thread.join();
  });
  const std::string name = "zstd_level_" + std::to_string(level) + "_bfloat16";
  const auto print_rate = [&](const std::string& what, double seconds, double limit) {
    std::printf("{\"name\": \"%s_%s\", \"value\": %.4g, \"unit\": \"GB/s\"", what.c_str(), name.c_str(), bytes / seconds / 1e9);
    if (limit > 0) std::printf(", \"limit\": %.4g, \"ratio\": %.4g", bytes / limit / 1e9, limit / seconds);
    std::printf("}\n");
  };
  print_rate("save", save, compress);
  print_rate("load", load, 0);
  std::printf("{\"name\": \"compression_ratio_%s\", \"value\": %.4g, \"unit\": \"x\"}\n", name.c_str(),
              bytes / static_cast<double>(stored));
  std::fflush(stdout);
}

// Saves a state that two ranks hold. The limit is the same save that does not compare the values.
void measure_replicas(const std::string& name, const std::string& parent, int tensors, int repeats) {
  const testing::TemporaryDirectory directory(parent);
  std::vector<double> seconds[2];
  testing::on_all_ranks(2, [&](World& world) {
    Checkpointer checkpointer(world);
    StateDict state;
    for (int i = 0; i < tensors; ++i) state["layer." + std::to_string(i)] = torch::full({kRows, kColumns}, i, torch::kFloat32);
    for (int repeat = 0; repeat <= repeats; ++repeat)
      for (const bool compare : {false, true}) {
        SaveOptions options;
        options.check_replicas = compare ? CheckReplicas::kWarn : CheckReplicas::kOff;
        const double taken = seconds_of([&] { checkpointer.save(state, directory.path() + "/step", options); });
        // Not the warm-up of memory and threads.
        if (world.rank() == 0 && repeat > 0) seconds[compare ? 1 : 0].push_back(taken);
      }
  });
  print(name, median(seconds[1]), median(seconds[0]), 1.02);
}

// Saves and loads tensors of 16 elements that each rank has for itself. `arguments`: the number of
// tensors, the repetitions, the goals of a save and of a load in seconds, and a directory.
void save_small_tensors(const World& world, char** arguments) {
  torch::set_num_threads(1);
  std::vector<double> saves, loads;
  Checkpointer checkpointer(world);
  StateDict state;
  const std::string prefix = "model." + std::to_string(world.rank()) + ".layers.";
  for (int i = 0; i < std::atoi(arguments[0]); ++i)
    state[prefix + std::to_string(i) + ".weight"] = torch::full({16}, i, torch::kFloat32);
  for (int repeat = 0; repeat <= std::atoi(arguments[1]); ++repeat) {
    const std::string path = std::string(arguments[4]) + "/step_" + std::to_string(repeat);
    const double save = seconds_of([&] { checkpointer.save(state, path); });
    const double load = seconds_of([&] { checkpointer.load(state, path); });
    if (repeat == 0) continue;  // not the first: a repeated save sends no plans
    saves.push_back(save);
    loads.push_back(load);
  }
  if (world.rank() != 0) return;
  const std::string size = std::to_string(world.size()) + "_ranks_" + arguments[0] + "_small_tensors";
  print("save_" + size, median(saves), std::atof(arguments[2]), 1);
  print("load_" + size, median(loads), std::atof(arguments[3]), 1);
}

// Runs `save_small_tensors` with a process for each rank, as trainers do. The limits are the times
// that a trainer should see.
void measure_small_tensors(int ranks, int tensors, int repeats, double save_goal, double load_goal) {
  const testing::TemporaryDirectory directory("/dev/shm");
  std::vector<std::string> words{"ranks", "--small-tensors", std::to_string(tensors), std::to_string(repeats),
                                 std::to_string(save_goal), std::to_string(load_goal), directory.path()};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const Endpoint rendezvous = local_endpoint(reserve_port("127.0.0.1", 0));
  std::vector<pid_t> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t process = ::fork();
    require(process >= 0, "fork");
    if (process > 0) {
      processes.push_back(process);
      continue;
    }
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::setenv("RANK", std::to_string(rank).c_str(), 1);
    for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}) ::setenv(name, std::to_string(ranks).c_str(), 1);
    ::setenv("MASTER_ADDR", "127.0.0.1", 1);
    ::setenv("MASTER_PORT", std::to_string(split_address(to_string(rendezvous)).port).c_str(), 1);
    ::execv("/proc/self/exe", arguments.data());
    std::_Exit(127);
  }
  for (const pid_t process : processes) {
    int status = 0;
    if (::waitpid(process, &status, 0) != process || status != 0) throw Error(ErrorCode::kUnavailable, "a rank has failed");
  }
}

// Saves a state of which one percent changes, with Reuse::kDigest. The limit of the time is the
// same save without. Also compares the pass that digests all tensors with one that reads them.
void measure_reuse(const std::string& name, const std::string& parent, int tensors, int repeats) {
  const testing::TemporaryDirectory directory(parent);
  const int unchanged_rows = static_cast<int>(kRows) * tensors;
  StateDict state{{"trained", torch::zeros({unchanged_rows / 99, kColumns})}};
  for (int i = 0; i < tensors; ++i) state["layer." + std::to_string(i)] = torch::full({kRows, kColumns}, i, torch::kFloat32);
  std::vector<double> seconds[2], passes[2];
  double written = 1;
  Checkpointer with(World::single(), "with"), without(World::single(), "without");
  for (int repeat = -3; repeat <= repeats; ++repeat) {  // the first saves learn what does not change
    state["trained"].tensor().add_(1);
    for (const bool reuses : {false, true}) {
      SaveOptions options;
      if (reuses) options.writer.reuse = Reuse::kDigest;
      options.writer.reuse_generations_max = 1000;
      const std::string path = directory.path() + (reuses ? "/with_" + std::to_string(repeat) : "/without");
      const double taken = seconds_of([&] { (reuses ? with : without).save(state, path, options); });
      if (repeat > 0) seconds[reuses ? 1 : 0].push_back(taken);
      double own = 0, all = 0;
      for (const auto& entry : std::filesystem::directory_iterator(path)) {
        all += static_cast<double>(entry.file_size());
        if (entry.hard_link_count() == 1) own += static_cast<double>(entry.file_size());
      }
      std::filesystem::remove_all(reuses ? directory.path() + "/with_" + std::to_string(repeat - 1) : path);
      if (reuses) written = own / all;
    }
    for (const bool digests : {false, true}) {
      const auto pass = [&](int first) {
        std::uint64_t sum = 0;
        for (int i = first; i < tensors; i += 2) {
          const torch::Tensor tensor = state["layer." + std::to_string(i)].tensor();
          const auto* const words = static_cast<const std::uint64_t*>(tensor.data_ptr());
          constexpr std::size_t kPieceWords = 16384;
          for (std::size_t at = 0; at < tensor.nbytes() / sizeof(*words); at += kPieceWords)
            sum += digests ? xxh3_128({reinterpret_cast<const char*>(words + at), kPieceWords * sizeof(*words)})[0]
                           : std::accumulate(words + at, words + at + kPieceWords, std::uint64_t{0});
        }
        return sum;
      };
      std::atomic<std::uint64_t> sum{0};
      const double taken = seconds_of([&] {
        std::thread other([&] { sum += pass(1); });
        sum += pass(0);
        other.join();
      });
      if (repeat > 0 && sum != 1) passes[digests ? 1 : 0].push_back(taken);
    }
  }
  print(name, median(seconds[1]), median(seconds[0]), 1);
  print(name + "_digest_pass_2_threads", median(passes[1]), median(passes[0]), 1 / 0.8);
  std::printf("{\"name\": \"%s_bytes_written\", \"value\": %.4g, \"unit\": \"x\", \"limit\": 1, \"ratio\": %.4g, \"goal\": "
              "\"at most 0.05\", \"met\": %s}\n",
              name.c_str(), written, written, written <= 0.05 ? "true" : "false");
}

// The rate of a store and what was read from it, over all processes that map this memory.
struct Meter {
  static_assert(std::atomic<std::int64_t>::is_always_lock_free, "processes share them");
  std::atomic<double> bytes_per_second{0};  // 0: no limit
  std::atomic<std::uint64_t> bytes_read{0};
  std::atomic<std::int64_t> free_at{0};  // of SteadyClock, which is the same in all processes
  std::atomic<std::uint64_t> arrived{0};
  std::atomic<std::int64_t> busy_microseconds{0};  // of processors
};

// A store of bounded rate, shared by all ranks, that counts the bytes read. To loads it looks like
// a network file system.
class LimitedStore final : public StoreDecorator {
 public:
  using StoreDecorator::StoreDecorator;
  static inline Meter own_meter;
  static inline Meter* meter = &own_meter;
  StoreTraits traits() const override {
    StoreTraits traits = StoreDecorator::traits();
    traits.writes = ObjectWrites::kParallel;
    return traits;
  }

 private:
  void around(const DecoratedOperation& operation, const std::function<void()>& act) override {
    act();
    if (std::string_view(operation.name) != "read") return;
    meter->bytes_read += operation.bytes;
    const double rate = meter->bytes_per_second;
    if (rate <= 0) return;
    const std::chrono::duration<double> cost(static_cast<double>(operation.bytes) / rate);
    const std::int64_t ticks = std::chrono::duration_cast<SteadyClock::duration>(cost).count();
    const std::int64_t now = SteadyClock::now().time_since_epoch().count();
    std::int64_t free_at = meter->free_at, until = 0;
    do {
      until = std::max(free_at, now) + ticks;
    } while (!meter->free_at.compare_exchange_weak(free_at, until));
    std::this_thread::sleep_until(SteadyClock::time_point(SteadyClock::duration(until)));
  }
};

// Returns the time that processors have spent on this process.
std::int64_t processor_microseconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto microseconds = [](const timeval& time) { return std::int64_t{time.tv_sec} * 1000000 + time.tv_usec; };
  return microseconds(used.ru_utime) + microseconds(used.ru_stime);
}

// Returns the URL under which reads of the store at `directory` are limited.
std::string limited_url(const std::string& directory) {
  register_store("limited", [](const std::string& url) { return std::make_shared<LimitedStore>(open_store(url.substr(10))); });
  return "limited://" + directory;
}

void print_factor(const std::string& name, double value, double limit, double goal) {
  std::printf(
      "{\"name\": \"%s\", \"value\": %.4g, \"unit\": \"x\", \"limit\": %.4g, \"ratio\": %.4g, \"goal\": \"at most %.4g\", "
      "\"met\": %s}\n",
      name.c_str(), value, limit, value / limit, goal, value <= goal ? "true" : "false");
  std::fflush(stdout);
}

// Loads a state that every rank needs whole. The limits are the same load without sharing, on
// tmpfs, and the time that the store takes to give the bytes once.
void measure_read_once(int tensors, int repeats, const std::string& size) {
  const testing::TemporaryDirectory directory("/dev/shm");
  const std::string place = limited_url(directory.path() + "/step");
  Meter& meter = *LimitedStore::meter;
  const double bytes = static_cast<double>(tensors) * kRows * kColumns * sizeof(float);
  constexpr double kRate = 0.25e9;
  std::vector<double> off, host, limited;
  std::uint64_t read_once = 0;
  testing::on_all_ranks(kRanks, [&](World& world) {
    Checkpointer checkpointer(world);
    StateDict state;
    for (int i = 0; i < tensors; ++i) state["layer." + std::to_string(i)] = torch::full({kRows, kColumns}, i, torch::kFloat32);
    checkpointer.save(state, place);
    const auto load = [&](ReadOnce mode) {
      LoadOptions options;
      options.read_once = mode;
      return seconds_of([&] { checkpointer.load(state, place, options); });
    };
    for (int repeat = 0; repeat <= repeats; ++repeat) {
      const double times[] = {load(ReadOnce::kOff), load(ReadOnce::kHost)};
      if (world.rank() != 0 || repeat == 0) continue;
      off.push_back(times[0]);
      host.push_back(times[1]);
    }
    if (world.rank() == 0) {
      meter.bytes_per_second = kRate;
      meter.bytes_read = 0;
    }
    const double taken = load(ReadOnce::kWorld);
    if (world.rank() != 0) return;
    read_once = meter.bytes_read;
    limited.push_back(taken);
  });
  meter.bytes_per_second = 0;
  const std::string name = "load_" + size + "_replicated_4_ranks_read_once";
  print(name, median(host), median(off), 1);
  print(name + "_slow_store", median(limited), bytes / kRate, 1.15);
  print_factor("bytes_" + name, static_cast<double>(read_once) / bytes, 1, 1.05);
}

// Loads a replicated state as one rank of several hosts, which read_once_hosts.py makes. The ranks
// share a store of bounded rate. `arguments`: the state's MiB, the rate in bytes per second, the
// number of hosts, the repetitions, and a directory that the hosts share, with a zeroed file
// "meter" in it. The limit is the time that the store takes to give each byte once.
void load_on_hosts(const World& world, char** arguments) {
  torch::set_num_threads(1);
  const int mib = std::atoi(arguments[0]), hosts = std::atoi(arguments[2]), repeats = std::atoi(arguments[3]);
  const double rate = std::atof(arguments[1]);
  const std::string directory = arguments[4];
  const int file = ::open((directory + "/meter").c_str(), O_RDWR | O_CLOEXEC);
  require(file >= 0, "open");
  void* const shared = ::mmap(nullptr, sizeof(Meter), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  require(shared != MAP_FAILED, "map");
  Meter& meter = *static_cast<Meter*>(shared);
  LimitedStore::meter = &meter;

  std::uint64_t meetings = 0;
  const auto meet = [&] {
    ++meter.arrived;
    const std::uint64_t all = ++meetings * static_cast<std::uint64_t>(world.size());
    while (meter.arrived < all) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  StateDict state;
  std::vector<torch::Tensor> tensors;
  std::vector<Digest128> digests;
  const auto digest_of = [](const torch::Tensor& tensor) {
    return xxh3_128({static_cast<const char*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.nbytes())});
  };
  const double bytes = mib * 1048576.0;
  for (std::int64_t left = mib * std::int64_t{1048576} / (kColumns * 4); left > 0; left -= kRows) {
    const auto number = static_cast<std::int64_t>(tensors.size());
    tensors.push_back(torch::arange(std::min(left, kRows) * kColumns, torch::kInt32).mul_(number + 1));
    digests.push_back(digest_of(tensors.back()));
    state["layer." + std::to_string(number)] = tensors.back();
  }
  Checkpointer checkpointer(world);
  const std::string place = limited_url(directory + "/step");
  checkpointer.save(state, place);
  meter.bytes_per_second = rate;

  const std::string name = "load_" + (mib % 1024 == 0 ? std::to_string(mib / 1024) + "gib" : std::to_string(mib) + "mib") +
                           "_replicated_" + std::to_string(world.size()) + "_ranks_" + std::to_string(hosts) + "_hosts_read_once_";
  // `factor`: how often the store gives each byte.
  const auto measure_mode = [&](const char* mode_name, ReadOnce mode, int factor, int times) {
    std::vector<double> taken, busy;
    double read = 0;
    for (int repeat = 0; repeat < times; ++repeat) {
      for (torch::Tensor& tensor : tensors) tensor.zero_();
      LoadOptions options;
      options.read_once = mode;
      const std::int64_t read_before = meter.bytes_read.load(), busy_before = meter.busy_microseconds;
      meet();
      const std::int64_t used_before = processor_microseconds();
      const double seconds = seconds_of([&] {
        checkpointer.load(state, place, options);
        meet();
      });
      meter.busy_microseconds += processor_microseconds() - used_before;
      for (std::size_t i = 0; i < tensors.size(); ++i)
        if (digest_of(tensors[i]) != digests[i]) throw Error(ErrorCode::kCorrupt, "a rank has loaded other bytes than were saved");
      meet();
      taken.push_back(seconds);
      busy.push_back(static_cast<double>(meter.busy_microseconds - busy_before) / 1e6 / seconds);
      read = std::max(read, static_cast<double>(meter.bytes_read - read_before));
      meet();
    }
    if (world.rank() != 0) return;
    print(name + mode_name, median(taken), bytes / rate, 1.15 * factor);
    print_factor("bytes_" + name + mode_name, read / bytes, 1, 1.05 * factor);
    std::printf("{\"name\": \"busy_%s%s\", \"value\": %.3g, \"unit\": \"cores\", \"limit\": %u, \"ratio\": %.3g}\n", name.c_str(),
                mode_name, median(busy), std::thread::hardware_concurrency(), median(busy) / std::thread::hardware_concurrency());
    std::fflush(stdout);
  };
  measure_mode("world", ReadOnce::kWorld, 1, repeats);
  measure_mode("auto", ReadOnce::kAuto, hosts, 1);
  measure_mode("off", ReadOnce::kOff, world.size(), 1);
}

void run(bool quick, bool small, const std::string& disk) {
  torch::set_num_threads(1);
  const int tensors = quick ? 16 : 64;
  const int repeats = quick ? 3 : 7;
  const std::string size = quick ? "256mib" : "1gib";
  measure_small_tensors(1, 100000, repeats, 0.5, 0.4);
  measure_small_tensors(8, 1000, repeats, 0.012, 0.010);
  measure_small_tensors(8, 4000, repeats, 0.040, 0.040);
  if (!quick) measure_small_tensors(64, 4000, repeats, 0.2, 0.15);
  if (small) return;
  // On tmpfs the limit is one copy. Saving copies twice and computes checksums; loading copies once
  // and computes checksums.
  measure({"", "/dev/shm", false, 2.5, 1.5}, tensors, repeats, size);
  measure({"_disk", disk, true, 1.25, 1.25}, tensors, repeats, size);
  measure_replicas("save_" + size + "_compared_2_ranks", "/dev/shm", tensors, 3 * repeats);
  measure_replicas("save_" + size + "_compared_2_ranks_disk", disk, tensors, repeats);
  measure_reuse("save_" + size + "_99_percent_unchanged", "/dev/shm", tensors, repeats);
  measure_reuse("save_" + size + "_99_percent_unchanged_disk", disk, tensors, repeats);
  measure_read_once(tensors, repeats, size);
  if (why_not_undone({kZstdTransform}).empty())
    for (const int level : {1, 3}) measure_compression(level, tensors);
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  bool quick = false, small = false;
  std::string disk = std::filesystem::current_path().string();
  if (argc == 7 && (std::string_view(argv[1]) == "--small-tensors" || std::string_view(argv[1]) == "--on-hosts")) {  // a rank
    cairn::WorldOptions options;
    options.secret = "known to the ranks of this benchmark";
    const auto act = std::string_view(argv[1]) == "--on-hosts" ? cairn::load_on_hosts : cairn::save_small_tensors;
    act(cairn::World::from_environment(options), argv + 2);
    return 0;
  }
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--quick") {
      quick = true;
    } else if (std::string_view(argv[i]) == "--small") {
      small = true;
    } else if (std::string_view(argv[i]) == "--disk" && i + 1 < argc) {
      disk = argv[++i];
    } else {
      std::fprintf(stderr, "usage: %s [--quick] [--small] [--disk DIRECTORY]\n", argv[0]);
      return 2;
    }
  }
  try {
    cairn::run(quick, small, disk);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
