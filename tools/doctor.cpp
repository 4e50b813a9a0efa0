// `cairn doctor`: finds what would make saves slow or fail here.
#include <arpa/inet.h>
#include <fcntl.h>
#include <mntent.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <cairn/base/descriptor.hpp>
#include <cairn/base/random.hpp>
#include <cairn/base/settings.hpp>
#include <cairn/runtime/library_versions.hpp>
#include <cairn/tools/commands.hpp>
#include <cairn/tools/terminal.hpp>

namespace cairn::tools {
namespace {

constexpr std::size_t kFoundColumn = 28;  // the column at which findings begin

constexpr const char* kDoctorExamples = R"(Examples:
  cairn doctor run           checks this machine, and the disk that holds run
  cairn doctor               checks only the machine
  cairn doctor run --json    prints JSON

Writes a file of at most --test-size to DIR, and removes it. Run this command on the machines of the
ranks, as the same user and with the same limits.
Exits with 1 if it finds a problem. A problem would make saves fail; a warning only makes them slow.)";

struct DoctorOptions {
  std::string directory;
  std::uint64_t test_bytes = 256u << 20;
  bool json = false;
};

enum class Health : std::uint8_t { kOk = 1, kWarning, kProblem };

struct Finding {
  std::string name;  // "open files"
  Health health = Health::kOk;
  std::string found;   // "1024"
  std::string effect;  // the consequence (slow or failed saves) and what to do; "" if kOk
};

// If `is_right`, returns a finding that is kOk and has no effect. If not, returns one with health
// `otherwise` and `effect`.
Finding finding(bool is_right, const char* name, std::string found, Health otherwise, std::string effect) {
  return {name, is_right ? Health::kOk : otherwise, std::move(found), is_right ? "" : std::move(effect)};
}

const char* to_string(Health health) { return health == Health::kOk ? "ok" : health == Health::kWarning ? "warning" : "problem"; }

std::string coloured_health(Health health) {
  const std::string text = fmt::format("{:<8}", to_string(health));
  return coloured(health == Health::kOk ? Colour::kGood : health == Health::kWarning ? Colour::kWarning : Colour::kBad, text);
}

Finding check_versions() {
  std::string text;
  for (const LibraryVersion& library : library_versions())
    text += (text.empty() ? "" : ", ") + library.name + " " + library.version;
  return {"versions", Health::kOk, text, ""};
}

// A limit that must be at least `wanted`.
struct Limit {
  const char* name;
  __rlimit_resource resource;
  rlim_t wanted;
  Health otherwise;
  const char* effect;
};
constexpr Limit kLimits[] = {
    {"open files", RLIMIT_NOFILE, 4096, Health::kWarning,
     "a rank has connections to others and files open: in worlds of hundreds of ranks it runs out of them. ulimit -n 65536"},
    {"file size", RLIMIT_FSIZE, RLIM_INFINITY, Health::kProblem,
     "a rank that writes more than that into its file fails with no_space. ulimit -f unlimited"},
    {"locked memory", RLIMIT_MEMLOCK, 64u << 20, Health::kWarning,
     "page-locked staging memory for copies from devices may be refused: they are then several times slower. ulimit -l unlimited"},
    {"address space", RLIMIT_AS, RLIM_INFINITY, Health::kWarning,
     "LibTorch and staging memory reserve much: allocations may fail. ulimit -v unlimited"},
};

Finding check_limit(const Limit& limit) {
  constexpr rlim_t kFilesNeeded = 1024;  // below that, saves of small worlds fail, too
  struct rlimit limits {};
  const rlim_t value = ::getrlimit(limit.resource, &limits) == 0 ? limits.rlim_cur : RLIM_INFINITY;
  const bool is_count = limit.resource == RLIMIT_NOFILE;
  return finding(value >= limit.wanted, limit.name,
                 value == RLIM_INFINITY ? "unlimited"
                 : is_count             ? std::to_string(value)
                                        : human_bytes(value),
                 is_count && value < kFilesNeeded ? Health::kProblem : limit.otherwise, limit.effect);
}

// If there is none, every use fails with EBADF.
Descriptor tcp_socket() { return Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

sockaddr_in address_of(in_addr_t host, std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(host);
  address.sin_port = htons(port);
  return address;
}

// Connects over loopback to a port that the system chooses.
Finding check_loopback() {
  const Descriptor server = tcp_socket(), client = tcp_socket();
  sockaddr_in address = address_of(INADDR_LOOPBACK, 0);
  socklen_t length = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  const bool connects = server.get() >= 0 && client.get() >= 0 && ::bind(server.get(), any, length) == 0 &&
                        ::listen(server.get(), 1) == 0 && ::getsockname(server.get(), any, &length) == 0 &&
                        ::connect(client.get(), any, length) == 0;
  return finding(connects, "loopback",
                 connects ? "ranks of this machine reach each other" : fmt::format("cannot connect: {}", std::strerror(errno)),
                 Health::kProblem, "ranks of one machine talk over 127.0.0.1: bring the interface lo up, and allow TCP there");
}

// Checks that MASTER_PORT, which the rendezvous uses, is free on this machine.
Finding check_master_port() {
  const std::string text = environment_value("MASTER_PORT");
  if (text.empty()) return {"MASTER_PORT", Health::kOk, "not set: cairn-launch chooses a free one", ""};
  const int port = parse_number<int>(text).value_or(0);
  if (port < 1 || port > 65535)
    return {"MASTER_PORT", Health::kProblem, text, "no rank would find the others: give a number from 1 to 65535"};
  const Descriptor server = tcp_socket();
  const sockaddr_in address = address_of(INADDR_ANY, static_cast<std::uint16_t>(port));
  const int yes = 1;
  ::setsockopt(server.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  const bool is_free = ::bind(server.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  return finding(is_free, "MASTER_PORT", is_free ? text : fmt::format("{}: {}", text, std::strerror(errno)), Health::kWarning,
                 "a job that has its rank 0 here could not assemble, unless it is this very job that runs: choose another port");
}

Finding check_clock() {
  struct timex state {};
  const bool in_step = ::adjtimex(&state) >= 0 && (state.status & STA_UNSYNC) == 0;
  return finding(in_step, "clock", in_step ? "kept in step by NTP or PTP" : "not kept in step by NTP or PTP", Health::kWarning,
                 "times in logs of several machines differ; cairn trace aligns clocks by messages. Run chrony, or its like");
}

// --- the checks of a directory: its file system, free space and speed ---

using std::chrono::steady_clock;

constexpr std::size_t kBlockBytes = 4u << 20;
constexpr std::size_t kAlignment = 4096;
constexpr std::chrono::seconds kMeasuredMax{3};

// By type as in /proc/self/mounts, or its beginning.
constexpr std::pair<std::string_view, const char*> kDoubtful[] = {
    {"tmpfs", "this is memory: checkpoints are gone when the machine stops, and what they take is missing elsewhere"},
    {"ramfs", "this is memory: checkpoints are gone when the machine stops, and what they take is missing elsewhere"},
    {"overlay", "a container's own layer: checkpoints are gone with the container. Mount a volume"},
    {"nfs",
     "ranks on other machines may see a checkpoint some seconds later; mount it without 'async' on the server, or a power loss "
     "there may lose one"},
    {"cifs", "renaming and syncing may not be durable: prefer another file system"},
    {"smb", "renaming and syncing may not be durable: prefer another file system"},
    {"fuse", "whether syncing is durable and renaming atomic depends on the program behind it: ask its manual"},
    {"9p", "whether syncing is durable depends on the host"},
};

// Returns the type of the file system that is mounted where `directory` is; "" if that is unknown.
std::string file_system_type(const std::filesystem::path& directory) {
  std::error_code error;
  const std::string path = std::filesystem::canonical(directory, error).string() + "/";
  const std::unique_ptr<std::FILE, decltype(&::endmntent)> mounts(::setmntent("/proc/self/mounts", "re"), &::endmntent);
  std::string type;
  std::size_t longest = 0;
  while (const mntent* const mount = mounts ? ::getmntent(mounts.get()) : nullptr) {
    std::string point = mount->mnt_dir;
    if (point != "/") point += "/";
    // If mounts cover each other, the last one counts.
    if (path.rfind(point, 0) != 0 || point.size() < longest) continue;
    longest = point.size();
    type = mount->mnt_type;
  }
  return type;
}

Finding file_system(const std::filesystem::path& directory) {
  const std::string type = file_system_type(directory);
  if (type.empty()) return {"file system", Health::kWarning, "unknown", "what it can do is unknown"};
  for (const auto& [doubtful, effect] : kDoubtful)
    if (type.rfind(doubtful, 0) == 0) return {"file system", Health::kWarning, type, effect};
  return {"file system", Health::kOk, type, ""};
}

std::uint64_t check_room(const std::string& path, std::vector<Finding>& findings) {
  struct statvfs status {};
  if (::statvfs(path.c_str(), &status) != 0) return 0;
  constexpr std::uint64_t kRoomWanted = std::uint64_t{10} << 30;
  constexpr std::uint64_t kInodesWanted = 10'000;
  const std::uint64_t room = std::uint64_t{status.f_bavail} * status.f_frsize;
  const double part = status.f_blocks == 0 ? 1 : static_cast<double>(status.f_bavail) / static_cast<double>(status.f_blocks);
  findings.push_back(finding(room >= kRoomWanted && part >= 0.05, "free space",
                             fmt::format("{}, {:.0f} %", human_bytes(room), 100 * part), Health::kWarning,
                             "a save needs its whole size before it writes, beside the checkpoints that stay: cairn prune, or "
                             "another disk"));
  if (status.f_files != 0)  // otherwise, the file system creates inodes on demand
    findings.push_back(finding(status.f_favail >= kInodesWanted, "free inodes", std::to_string(status.f_favail), Health::kWarning,
                               "each rank makes a file or more in every save: remove files, or use another disk"));
  return room;
}

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

// A block of bytes without a pattern that a disk could compress.
std::unique_ptr<void, Free> make_block() {
  std::unique_ptr<void, Free> block(std::aligned_alloc(kAlignment, kBlockBytes));
  if (!block) throw Error(ErrorCode::kUnavailable, "no memory for a block to write");
  const auto random = seeded_random(1);
  auto* const words = static_cast<std::uint64_t*>(block.get());
  for (std::size_t i = 0; i < kBlockBytes / sizeof *words; ++i) words[i] = random->next();
  return block;
}

// A file for measurements, with direct I/O if the file system has it; removed when destroyed.
class TestFile {
 public:
  explicit TestFile(const std::filesystem::path& directory)
      : path_((directory / (".cairn-doctor-" + random_hex(*system_random(), 64))).string()),
        file_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) {
    if (!file_.valid()) throw system_error("create", path_, errno);
    set_direct(true);
    // Some file systems refuse direct I/O only when writing.
    if (is_direct() && ::pwrite(file_.get(), block_.get(), kAlignment, 0) < 0 && errno == EINVAL) set_direct(false);
  }
  ~TestFile() { remove_name(); }

  bool is_direct() const { return (::fcntl(file_.get(), F_GETFL) & O_DIRECT) != 0; }

  // Without a name the file disappears with the process, however that ends. But journaling file
  // systems need not sync a file that has no name.
  void remove_name() { ::unlink(path_.c_str()); }

  // Writes blocks until `bytes_max` or the time limit, and syncs. Returns the bytes and seconds.
  std::pair<std::uint64_t, double> write(std::uint64_t bytes_max) {
    const auto start = steady_clock::now();
    std::uint64_t done = 0;
    while (done < bytes_max && steady_clock::now() - start < kMeasuredMax) {
      const ssize_t bytes = ::pwrite(file_.get(), block_.get(), kBlockBytes, static_cast<off_t>(done));
      if (bytes <= 0) throw system_error("write to", path_, bytes < 0 ? errno : ENOSPC);
      done += static_cast<std::uint64_t>(bytes);
    }
    sync();
    return {done, std::chrono::duration<double>(steady_clock::now() - start).count()};
  }
  // Returns the time of one small sync; a save makes a few of them.
  double sync_seconds() {
    constexpr int kSyncs = 5;
    set_direct(false);
    const auto start = steady_clock::now();
    for (int i = 0; i < kSyncs; ++i) {
      if (::pwrite(file_.get(), block_.get(), kAlignment, 0) < 0) throw system_error("write to", path_, errno);
      sync();
    }
    return std::chrono::duration<double>(steady_clock::now() - start).count() / kSyncs;
  }

 private:
  void set_direct(bool is_on) {
    const int flags = ::fcntl(file_.get(), F_GETFL);
    ::fcntl(file_.get(), F_SETFL, is_on ? flags | O_DIRECT : flags & ~O_DIRECT);
  }
  void sync() {
    if (::fsync(file_.get()) != 0) throw system_error("sync", path_, errno);
  }

  const std::unique_ptr<void, Free> block_ = make_block();
  const std::string path_;
  const Descriptor file_;
};

void measure(const std::filesystem::path& directory, std::uint64_t bytes_max, std::vector<Finding>& findings) {
  if (bytes_max < kBlockBytes) {
    findings.push_back({"disk speed", Health::kWarning, "not measured", "there is too little room to write a file"});
    return;
  }
  constexpr double kSlow = 200e6;  // bytes per second
  {
    TestFile file(directory);
    file.remove_name();
    const auto [bytes, seconds] = file.write(bytes_max / kBlockBytes * kBlockBytes);
    findings.push_back(finding(file.is_direct(), "direct I/O", file.is_direct() ? "works" : "refused", Health::kWarning,
                               "writing goes through the page cache, which takes memory and time from the trainer; nothing fails"));
    const double rate = static_cast<double>(bytes) / std::max(seconds, 1e-9);
    findings.push_back(
        finding(rate >= kSlow, "write speed",
                fmt::format("{}/s, by {}", human_bytes(static_cast<std::uint64_t>(rate)), human_bytes(bytes)), Health::kWarning,
                fmt::format("a checkpoint of 10 GiB takes {} at this speed: use a faster disk, or save in the background",
                            human_seconds(10.0 * (1u << 30) / rate))));
  }
  constexpr double kSlowSync = 0.05;
  const double sync = TestFile(directory).sync_seconds();
  findings.push_back(finding(sync <= kSlowSync, "fsync", fmt::format("works, {:.1f} ms", 1e3 * sync), Health::kWarning,
                             "small checkpoints take this many times over: a handful of syncs each"));
}

// Checks a directory for checkpoints. Writes a file of at most `test_bytes` there, and removes it.
// If the directory is not writable, reports that as a finding.
std::vector<Finding> check_place(const std::filesystem::path& directory, std::uint64_t test_bytes) {
  std::error_code error;
  const std::string shown = printable(directory.string());
  if (!std::filesystem::is_directory(directory, error))
    return {{"directory", Health::kProblem, fmt::format("{} is no directory", shown),
             "make it, and run this again: what kind of disk it is on is not known before"}};
  const bool is_writable = ::access(directory.c_str(), W_OK | X_OK) == 0;
  const int why_not = errno;
  std::vector<Finding> findings{
      finding(is_writable, "directory", is_writable ? shown : fmt::format("{}: {}", shown, std::strerror(why_not)),
              Health::kProblem,
              why_not == EROFS
                  ? "every save fails: choose a file system that is not mounted read-only"
                  : "every save fails with permission: run as the user who owns it, or change its mode"),
      file_system(directory)};
  const std::uint64_t room = check_room(directory.string(), findings);
  if (!is_writable) return findings;
  try {
    // Never writes more than a tenth of the free space.
    measure(directory, std::min(std::max<std::uint64_t>(test_bytes, kBlockBytes), room / 10), findings);
  } catch (const Error& failed) {
    findings.push_back({"writing", Health::kProblem, printable(failed.what()), "saves fail in the same way"});
  }
  return findings;
}

int doctor(const DoctorOptions& options) {
  std::vector<Finding> findings;
  findings.push_back(check_versions());
  for (const Limit& limit : kLimits) findings.push_back(check_limit(limit));
  findings.push_back(check_loopback());
  findings.push_back(check_master_port());
  findings.push_back(check_clock());
  if (!options.directory.empty()) {
    const auto path = local_path(options.directory);
    if (!path) throw WrongUse(fmt::format("{} is no directory of this machine", printable(options.directory)));
    for (Finding& one : check_place(*path, options.test_bytes)) findings.push_back(std::move(one));
  }
  const auto worst = std::max_element(findings.begin(), findings.end(), [](const Finding& a, const Finding& b) {
                       return a.health < b.health;
                     })->health;
  if (options.json) {
    Json json{{"health", to_string(worst)}, {"checks", Json::array()}};
    for (const Finding& one : findings)
      json["checks"].push_back(
          {{"name", one.name}, {"health", to_string(one.health)}, {"found", one.found}, {"effect", one.effect}});
    print_json(json);
  } else {
    for (const Finding& one : findings) {
      print_line(fmt::format("{} {:<18} {}", coloured_health(one.health), one.name, printable(one.found)), kFoundColumn);
      if (!one.effect.empty()) print_line(fmt::format("{:{}}{}", "", kFoundColumn, one.effect), kFoundColumn);
    }
    if (options.directory.empty()) std::cout << "Name a directory to look at its disk as well.\n";
  }
  return worst == Health::kProblem ? kFoundBad : kFine;
}

}  // namespace

void add_doctor(CLI::App& app, Run& chosen) {
  const auto [command, options] =
      add_command(app, chosen, "doctor", "Find what would make saves slow or fail on this machine", kDoctorExamples, doctor);
  command->add_option("DIR", options.directory, "The directory in which checkpoints will be saved");
  command->add_option("--test-size", options.test_bytes, "Largest size of the file that measures the disk")
      ->transform(CLI::AsSizeValue(false))
      ->type_name("SIZE")
      ->default_str("256MiB");
  command->add_flag("--json", options.json, "Print JSON");
}

}  // namespace cairn::tools
