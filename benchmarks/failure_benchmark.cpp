// Measures the time from the death or freeze of a rank during a save until the survivors have the
// failure map, compared with the time until a bare socket of the same process reports its end. Also
// measures false alarms on busy machines, the cost of heartbeats and event recording while nothing
// fails, and the first save, which connects the ranks.
//
// Runs four rank processes, or eight, on this machine. Prints one JSON object per line: {name,
// value, unit, limit, ratio, goal, met}. `--quick`: fewer repetitions. `--resident MIB`: memory
// that the victim holds, default 256, because the kernel closes a large process's sockets late.
// `--calm SECONDS`: duration of the test for false alarms, default 30, or 5 with `--quick`. `--cost
// RANKS` and `--first RANKS`: the cost, or the first save, alone.
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <cairn/base/error.hpp>
#include <cairn/base/failure.hpp>
#include <cairn/runtime/checkpoints/checkpointer.hpp>
#include <cairn/runtime/worlds/world.hpp>

namespace cairn {
namespace {

constexpr int kRanks = 4;
constexpr std::chrono::milliseconds kSilence{500};
constexpr int kPatienceMs = 60000;

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

[[noreturn]] void give_up(const std::string& what) { throw Error(ErrorCode::kUnavailable, "failure benchmark: " + what); }

int listen_on_loopback(int& port) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (listener < 0 || ::bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 || ::listen(listener, kRanks) != 0 ||
      ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0)
    give_up("cannot listen on loopback");
  port = ntohs(address.sin_port);
  return listener;
}

// --- the ranks -----------------------------------------------------------------------------------

void tell(const std::string& line) {
  if (::write(STDOUT_FILENO, line.data(), line.size()) != static_cast<ssize_t>(line.size())) std::_Exit(3);
}

// Stores nothing. The victim's write never ends. Every rank reports when its first write begins.
class WaitingWriter : public StorageWriter {
 public:
  explicit WaitingWriter(bool waits) : waits_(waits) {}
  void reset(const std::string&) override {}
  void set_up_storage_writer(const StorageContext&) override {}
  SavePlan prepare_local_plan(SavePlan plan) override { return plan; }
  std::vector<SavePlan> prepare_global_plan(std::vector<SavePlan> plans) override { return plans; }
  Future<WriteResults> write_data(const SavePlan&, SavePlanner&) override {
    if (!std::exchange(told_, true)) tell("ready\n");
    if (!waits_) return ready_future(WriteResults{});
    return never_.future();
  }
  void finish(Metadata, std::vector<WriteResults>) override {}

 private:
  const bool waits_;
  bool told_ = false;
  Promise<WriteResults> never_;
};

RuntimeOptions watchful() {
  RuntimeOptions options;
  options.heartbeat_timeout = kSilence;
  return options;
}

// Almost no heartbeats, and no event recording.
RuntimeOptions careless() {
  RuntimeOptions options;
  options.heartbeat_timeout = std::chrono::hours(1);
  options.trace_ring_bytes = 0;
  return options;
}

World join(int rank, const std::string& addresses, const std::string& job, const RuntimeOptions& runtime = watchful()) {
  std::vector<std::string> all;
  for (std::size_t at = 0; at < addresses.size();) {
    const std::size_t comma = std::min(addresses.find(',', at), addresses.size());
    all.push_back(addresses.substr(at, comma - at));
    at = comma + 1;
  }
  WorldOptions options;
  options.runtime = runtime;
  options.secret = "known to the ranks of this benchmark";
  return World::from_addresses(rank, all, job, options);
}

StateDict small_state() { return {{"step", 1}, {"loss", 0.5}}; }

int be_rank(int rank, int victim, const std::string& addresses, const std::string& job, int bare_port, int resident_mib) {
  std::vector<char> resident;
  int bare = -1;
  if (rank == victim) {
    resident.assign(static_cast<std::size_t>(resident_mib) << 20, 1);
    bare = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(bare_port));
    if (::connect(bare, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return 3;
  }
  Checkpointer checkpointer(join(rank, addresses, job));
  SaveOptions options;
  options.storage_writer = std::make_shared<WaitingWriter>(rank == victim);
  try {
    checkpointer.save(small_state(), "nowhere", options);
  } catch (const CheckpointException& error) {
    const std::int64_t heard = now_ns();
    tell("map " + std::to_string(heard) + " " + std::to_string(std::hash<std::string>()(describe(error.failures()))) + "\n");
    // Other ranks may still ask this rank for its failure map. Then exit without leaving the world,
    // because the victim may be frozen.
    pollfd ended{STDIN_FILENO, POLLIN, 0};
    ::poll(&ended, 1, kPatienceMs);
    std::_Exit(0);
  }
  return 3;
}

// Saves repeatedly until standard input ends. Prints the number of saves and the first failure.
int be_calm_rank(int rank, const std::string& addresses, const std::string& job) {
  Checkpointer checkpointer(join(rank, addresses, job));
  SaveOptions options;
  options.storage_writer = std::make_shared<WaitingWriter>(false);
  std::string failure;
  std::int64_t saves = 0;
  // All ranks stop after the same save, because rank 0 saves the decision to stop.
  for (bool going = true; going && failure.empty();) {
    pollfd input{STDIN_FILENO, POLLIN, 0};
    going = ::poll(&input, 1, 0) == 0;
    try {
      checkpointer.save(small_state(), "nowhere", options);
      ++saves;
    } catch (const std::exception& error) {
      failure = error.what();
    }
  }
  std::replace(failure.begin(), failure.end(), '\n', ' ');
  // Ranks that stop earlier than others end the calls of those, so only failures before the end
  // count.
  tell("calm " + std::to_string(saves) + " " + failure + "\n");
  std::_Exit(0);
}

// Saves 1,000 small tensors in all, `saves` times after a first one, to `directory`. Begins when
// standard input ends. Prints the median time of the later saves, and the time of the first two.
int be_paced_rank(int rank, const std::string& addresses, const std::string& job, bool watched, int saves,
                  const std::string& directory) {
  const World world = join(rank, addresses, job, watched ? watchful() : careless());
  Checkpointer checkpointer(world);
  StateDict state;
  for (int i = rank; i < 1000; i += world.size()) state[std::to_string(i)] = torch::ones({256});
  SaveOptions options;
  tell("ready\n");
  char end = 0;
  while (::read(STDIN_FILENO, &end, 1) > 0) {
  }
  std::vector<double> times;
  for (int i = 0; i <= saves; ++i) {
    const std::int64_t start = now_ns();
    checkpointer.save(state, directory, options);
    times.push_back(static_cast<double>(now_ns() - start) / 1e6);
  }
  const double first = times[0], second = times[1];
  times.erase(times.begin());  // the first save connects the ranks
  std::nth_element(times.begin(), times.begin() + saves / 2, times.end());
  tell("paced " + std::to_string(times[static_cast<std::size_t>(saves / 2)]) + " " + std::to_string(first) + " " +
       std::to_string(second) + "\n");
  return 0;
}

// --- the driver ----------------------------------------------------------------------------------

class RankProcess {
 public:
  RankProcess(const std::string& program, const std::vector<std::string>& arguments) {
    int output[2];
    int input[2];
    if (::pipe2(output, O_CLOEXEC) != 0 || ::pipe2(input, O_CLOEXEC) != 0) give_up("cannot make pipes");
    std::vector<char*> words{const_cast<char*>(program.c_str())};
    for (const auto& argument : arguments) words.push_back(const_cast<char*>(argument.c_str()));
    words.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ < 0) give_up("cannot fork");
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::dup2(input[0], STDIN_FILENO);
      ::dup2(output[1], STDOUT_FILENO);
      ::execv("/proc/self/exe", words.data());
      std::_Exit(127);
    }
    ::close(output[1]);
    ::close(input[0]);
    output_ = output[0];
    input_ = input[1];
  }
  RankProcess(RankProcess&& other) noexcept : pid_(std::exchange(other.pid_, -1)), output_(other.output_), input_(other.input_) {}
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;
  ~RankProcess() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    ::close(output_);
    if (input_ >= 0) ::close(input_);
  }

  void send(int signal) const { ::kill(pid_, signal); }
  void end_input() {
    ::close(input_);
    input_ = -1;
  }

  // Returns the next line that begins with `word`, without `word`.
  std::string wait_for(const std::string& word) {
    for (;;) {
      const std::size_t end = text_.find('\n');
      if (end != std::string::npos) {
        const std::string line = text_.substr(0, end);
        text_.erase(0, end + 1);
        if (line.compare(0, word.size(), word) == 0) return line.substr(word.size());
        continue;
      }
      pollfd waiting{output_, POLLIN, 0};
      char buffer[512];
      const ssize_t size = ::poll(&waiting, 1, kPatienceMs) == 1 ? ::read(output_, buffer, sizeof buffer) : 0;
      if (size <= 0) give_up("a rank ended or is silent, where '" + word + "' was expected");
      text_.append(buffer, static_cast<std::size_t>(size));
    }
  }

 private:
  pid_t pid_;
  int output_;
  int input_;
  std::string text_;
};

std::string free_addresses(int count = kRanks) {
  std::vector<int> held;
  std::string addresses;
  for (int rank = 0; rank < count; ++rank) {
    int port = 0;
    held.push_back(listen_on_loopback(port));
    addresses += (rank == 0 ? "127.0.0.1:" : ",127.0.0.1:") + std::to_string(port);
  }
  for (const int listener : held) ::close(listener);
  return addresses;
}

std::string fresh_job() {
  static int count = 0;
  return "failure-benchmark-" + std::to_string(::getpid()) + "-" + std::to_string(++count);
}

struct Delay {
  double bare_ms = 0;  // until the bare socket was seen closed
  double map_ms = 0;   // until the last survivor's call had thrown
};

Delay measure(const std::string& program, int victim, int signal, int resident_mib) {
  int bare_port = 0;
  const int listener = listen_on_loopback(bare_port);
  const std::string addresses = free_addresses();
  const std::string job = fresh_job();
  std::vector<RankProcess> ranks;
  ranks.reserve(kRanks);
  for (int rank = 0; rank < kRanks; ++rank)
    ranks.emplace_back(program, std::vector<std::string>{"--rank", std::to_string(rank), std::to_string(victim), addresses, job,
                                                         std::to_string(bare_port), std::to_string(resident_mib)});
  const int bare = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  ::close(listener);
  for (auto& rank : ranks) rank.wait_for("ready");

  const std::int64_t start = now_ns();
  ranks[static_cast<std::size_t>(victim)].send(signal);
  Delay delay;
  if (signal == SIGKILL) {
    pollfd closed{bare, POLLIN, 0};
    ::poll(&closed, 1, kPatienceMs);
    delay.bare_ms = static_cast<double>(now_ns() - start) / 1e6;
  }
  std::map<std::string, int> maps;
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == victim) continue;
    const std::string heard = ranks[static_cast<std::size_t>(rank)].wait_for("map ");
    const std::size_t space = heard.find(' ');
    delay.map_ms = std::max(delay.map_ms, static_cast<double>(std::stoll(heard) - start) / 1e6);
    ++maps[heard.substr(space)];
  }
  ::close(bare);
  if (maps.size() != 1) give_up("the survivors' maps differ");
  return delay;
}

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<std::size_t>(q * static_cast<double>(values.size())))];
}

void print(const std::string& name, double value, double limit, const std::string& goal, bool met) {
  std::printf(
      "{\"name\": \"%s\", \"value\": %.4g, \"unit\": \"ms\", \"limit\": %.4g, \"ratio\": %.4g, \"goal\": \"%s\", \"met\": %s}\n",
      name.c_str(), value, limit, value / limit, goal.c_str(), met ? "true" : "false");
  std::fflush(stdout);
}

void measure_kills(const std::string& program, const std::string& name, int victim, int repeats, int resident_mib) {
  std::vector<double> bare;
  std::vector<double> map;
  std::vector<double> beyond;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    const Delay delay = measure(program, victim, SIGKILL, resident_mib);
    bare.push_back(delay.bare_ms);
    map.push_back(delay.map_ms);
    beyond.push_back(delay.map_ms - delay.bare_ms);
  }
  const double worst = quantile(beyond, 0.99);
  print("kill_" + name + "_to_map_p99", quantile(map, 0.99), quantile(bare, 0.99), "at most 20 ms beyond the bare socket",
        worst <= 20);
}

void measure_freezes(const std::string& program, const std::string& name, int victim, int repeats) {
  std::vector<double> map;
  for (int repeat = 0; repeat < repeats; ++repeat) map.push_back(measure(program, victim, SIGSTOP, 1).map_ms);
  const double worst = quantile(map, 0.99);
  const auto silence = static_cast<double>(kSilence.count());
  print("freeze_" + name + "_to_map_p99", worst, silence, "at most 1.2 x the timeout", worst <= 1.2 * silence);
}

// Runs busy threads, four per core, while ranks save all the time: no rank may be reported silent.
// The limit is the longest delay with which a plain thread woke up from sleeping a quarter of the
// heartbeat timeout.
void look_for_false_alarms(const std::string& program, int seconds) {
  std::atomic<bool> going{true};
  std::vector<std::thread> busy;
  for (unsigned i = 0; i < 4 * std::thread::hardware_concurrency(); ++i)
    busy.emplace_back([&going] {
      while (going.load(std::memory_order_relaxed)) {
      }
    });
  double late_ms = 0;
  const std::string addresses = free_addresses();
  const std::string job = fresh_job();
  std::vector<RankProcess> ranks;
  ranks.reserve(kRanks);
  for (int rank = 0; rank < kRanks; ++rank)
    ranks.emplace_back(program, std::vector<std::string>{"--calm-rank", std::to_string(rank), addresses, job});
  for (auto& rank : ranks) rank.wait_for("ready");
  const std::int64_t end = now_ns() + std::int64_t{seconds} * 1000000000;
  while (now_ns() < end) {
    const std::int64_t before = now_ns();
    std::this_thread::sleep_for(kSilence / 4);
    late_ms = std::max(late_ms, static_cast<double>(now_ns() - before) / 1e6 - static_cast<double>(kSilence.count()) / 4);
  }
  // Failures before the first rank was told to stop are alarms; later ones result from its leaving.
  int alarms = 0;
  for (auto& rank : ranks) rank.end_input();
  std::int64_t saves = 0;
  for (auto& rank : ranks) {
    const std::string said = rank.wait_for("calm ");
    saves = std::max(saves, static_cast<std::int64_t>(std::stoll(said)));
    if (said.find("no sign of life") != std::string::npos || said.find("silent") != std::string::npos) ++alarms;
  }
  going = false;
  for (auto& thread : busy) thread.join();
  std::fprintf(stderr, "%lld saves in %d s among busy threads; a bare thread woke up to %.1f ms late\n",
               static_cast<long long>(saves), seconds, late_ms);
  std::printf(
      "{\"name\": \"false_alarms_in_%d_s_at_%d_ms_silence\", \"value\": %d, \"unit\": \"\", \"goal\": \"none\", \"met\": %s}\n",
      seconds, static_cast<int>(kSilence.count()), alarms, alarms == 0 ? "true" : "false");
}

struct PacedSaves {
  double median_ms = 0;  // of all saves but the first; each the slowest rank's
  double first_ms = 0;
  double second_ms = 0;
};

PacedSaves run_paced_ranks(const std::string& program, bool watched, int saves, int world_size) {
  char directory[] = "/dev/shm/cairn-failure-XXXXXX";
  if (::mkdtemp(directory) == nullptr) give_up("cannot make a directory in /dev/shm");
  PacedSaves slowest;
  {
    const std::string addresses = free_addresses(world_size);
    const std::string job = fresh_job();
    std::vector<RankProcess> ranks;
    ranks.reserve(static_cast<std::size_t>(world_size));
    for (int rank = 0; rank < world_size; ++rank)
      ranks.emplace_back(program, std::vector<std::string>{"--paced-rank", std::to_string(rank), addresses, job,
                                                           watched ? "1" : "0", std::to_string(saves), directory});
    for (auto& rank : ranks) rank.wait_for("ready");
    for (auto& rank : ranks) rank.end_input();
    for (auto& rank : ranks) {
      std::istringstream line(rank.wait_for("paced "));
      PacedSaves own;
      line >> own.median_ms >> own.first_ms >> own.second_ms;
      slowest.median_ms = std::max(slowest.median_ms, own.median_ms);
      slowest.first_ms = std::max(slowest.first_ms, own.first_ms);
      slowest.second_ms = std::max(slowest.second_ms, own.second_ms);
    }
  }
  std::filesystem::remove_all(directory);
  return slowest;
}

// Takes the median over saves with and without watching, in alternating runs, so that both see the
// same machine load.
void measure_cost(const std::string& program, int turns, int saves, int world_size) {
  std::vector<double> watched;
  std::vector<double> careless;
  std::vector<double> ratios;
  for (int turn = 0; turn < turns; ++turn) {
    careless.push_back(run_paced_ranks(program, false, saves, world_size).median_ms);
    watched.push_back(run_paced_ranks(program, true, saves, world_size).median_ms);
    ratios.push_back(watched.back() / careless.back());
  }
  std::printf(
      "{\"name\": \"save_watched_and_recorded_%d_ranks\", \"value\": %.4g, \"unit\": \"ms\", \"limit\": %.4g, \"ratio\": %.4g, "
      "\"goal\": \"at most 1.01 x of one without\", \"met\": %s}\n",
      world_size, quantile(watched, 0.5), quantile(careless, 0.5), quantile(ratios, 0.5),
      quantile(ratios, 0.5) <= 1.01 ? "true" : "false");
  std::fflush(stdout);
}

void measure_first_save(const std::string& program, int turns, int world_size) {
  std::vector<double> first;
  std::vector<double> second;
  for (int turn = 0; turn < turns; ++turn) {
    const PacedSaves saves = run_paced_ranks(program, true, 4, world_size);
    first.push_back(saves.first_ms);
    second.push_back(saves.second_ms);
  }
  print("first_save_to_second_" + std::to_string(world_size) + "_ranks", quantile(first, 0.5), quantile(second, 0.5), "at most 2",
        quantile(first, 0.5) <= 2 * quantile(second, 0.5));
}

int run(int argc, char** argv) {
  const std::vector<std::string> words(argv, argv + argc);
  if (argc == 8 && words[1] == "--rank")
    return be_rank(std::stoi(words[2]), std::stoi(words[3]), words[4], words[5], std::stoi(words[6]), std::stoi(words[7]));
  if (argc == 5 && words[1] == "--calm-rank") return be_calm_rank(std::stoi(words[2]), words[3], words[4]);
  if (argc == 8 && words[1] == "--paced-rank")
    return be_paced_rank(std::stoi(words[2]), words[3], words[4], words[5] == "1", std::stoi(words[6]), words[7]);
  bool quick = false;
  int resident_mib = 256;
  std::optional<int> calm_seconds;
  std::optional<int> cost_ranks;   // measure the cost only
  std::optional<int> first_ranks;  // measure the first save only
  for (int i = 1; i < argc; ++i) {
    if (words[static_cast<std::size_t>(i)] == "--quick") {
      quick = true;
    } else if (words[static_cast<std::size_t>(i)] == "--resident" && i + 1 < argc) {
      resident_mib = std::stoi(argv[++i]);
    } else if (words[static_cast<std::size_t>(i)] == "--calm" && i + 1 < argc) {
      calm_seconds = std::stoi(argv[++i]);
    } else if (words[static_cast<std::size_t>(i)] == "--cost" && i + 1 < argc) {
      cost_ranks = std::stoi(argv[++i]);
    } else if (words[static_cast<std::size_t>(i)] == "--first" && i + 1 < argc) {
      first_ranks = std::stoi(argv[++i]);
    } else {
      std::fprintf(stderr, "usage: %s [--quick] [--resident MIB] [--calm SECONDS] [--cost RANKS] [--first RANKS]\n", argv[0]);
      return 2;
    }
  }
  const int turns = quick ? 3 : 15, saves = quick ? 50 : 200;
  if (cost_ranks) {
    measure_cost(words[0], turns, saves, *cost_ranks);
    measure_first_save(words[0], turns, *cost_ranks);
    return 0;
  }
  if (first_ranks) {
    measure_first_save(words[0], turns, *first_ranks);
    return 0;
  }
  measure_kills(words[0], "rank", 2, quick ? 5 : 30, resident_mib);
  measure_kills(words[0], "coordinator", 0, quick ? 5 : 30, resident_mib);
  measure_freezes(words[0], "rank", 2, quick ? 3 : 10);
  measure_freezes(words[0], "coordinator", 0, quick ? 3 : 10);
  look_for_false_alarms(words[0], calm_seconds.value_or(quick ? 5 : 30));
  measure_cost(words[0], turns, saves, kRanks);
  measure_cost(words[0], turns, saves, 2 * kRanks);
  measure_first_save(words[0], turns, 2 * kRanks);
  return 0;
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  try {
    return cairn::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
