// The checks of `cairn doctor` that concern a directory: its file system, free space and speed.
#include <cairn/tools/doctor_checks.hpp>

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>

#include <fmt/format.h>

#include <cairn/base/random.hpp>
#include <cairn/tools/commands.hpp>

namespace cairn::tools {
namespace {

using std::chrono::steady_clock;

constexpr std::size_t kBlockBytes = 4u << 20;
constexpr std::size_t kAlignment = 4096;
constexpr std::chrono::seconds kMeasuredMax{3};

struct Doubtful {
  std::string_view type;  // as in /proc/self/mountinfo, or its beginning
  const char* effect;
};
constexpr Doubtful kDoubtful[] = {
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

// Replaces the escapes of /proc/self/mountinfo: \040 is a space.
std::string unescaped(const std::string& text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      plain += static_cast<char>(std::stoi(text.substr(i + 1, 3), nullptr, 8));
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

// Returns the type of the file system that is mounted where `directory` is; "" if that is unknown.
std::string file_system_type(const std::filesystem::path& directory) {
  std::error_code error;
  const std::string path = std::filesystem::canonical(directory, error).string() + "/";
  std::ifstream mounts("/proc/self/mountinfo");
  std::string type;
  std::size_t longest = 0;
  for (std::string line; std::getline(mounts, line);) {
    // "36 35 98:0 /root /mount/point options optional... - type source options"
    std::istringstream words(line);
    std::string skipped, point;
    words >> skipped >> skipped >> skipped >> skipped >> point;
    point = unescaped(point);
    if (point != "/") point += "/";
    const auto dash = line.find(" - ");
    // If mounts cover each other, the last one counts.
    if (path.rfind(point, 0) != 0 || point.size() < longest || dash == std::string::npos) continue;
    longest = point.size();
    type = line.substr(dash + 3, line.find(' ', dash + 3) - dash - 3);
  }
  return type;
}

Finding file_system(const std::filesystem::path& directory) {
  const std::string type = file_system_type(directory);
  const auto* const doubtful =
      std::find_if(std::begin(kDoubtful), std::end(kDoubtful), [&](const Doubtful& one) { return type.rfind(one.type, 0) == 0; });
  if (type.empty()) return {"file system", Health::kWarning, "unknown", "what it can do is unknown"};
  if (doubtful == std::end(kDoubtful)) return {"file system", Health::kOk, type, ""};
  return {"file system", Health::kWarning, type, doubtful->effect};
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
        descriptor_(::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) {
    if (descriptor_ < 0) throw system_error("create", path_, errno);
    set_direct(true);
    // Some file systems refuse direct I/O only when writing.
    if (is_direct() && ::pwrite(descriptor_, block_.get(), kAlignment, 0) < 0 && errno == EINVAL) set_direct(false);
  }
  ~TestFile() {
    ::close(descriptor_);
    remove_name();
  }
  TestFile(const TestFile&) = delete;
  TestFile& operator=(const TestFile&) = delete;

  bool is_direct() const { return (::fcntl(descriptor_, F_GETFL) & O_DIRECT) != 0; }

  // Without a name the file disappears with the process, however that ends. But journaling file
  // systems need not sync a file that has no name.
  void remove_name() { ::unlink(path_.c_str()); }

  struct Transfer {
    std::uint64_t bytes;
    double seconds;
  };
  // These move blocks until `bytes_max` or the time limit. `write` also syncs.
  Transfer write(std::uint64_t bytes_max) {
    return moved(
        "write to", ENOSPC, bytes_max, [&](off_t at) { return ::pwrite(descriptor_, block_.get(), kBlockBytes, at); },
        [&] { sync(); });
  }
  Transfer read(std::uint64_t bytes_max) {
    if (!is_direct()) ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED);
    return moved(
        "read from", EIO, bytes_max, [&](off_t at) { return ::pread(descriptor_, block_.get(), kBlockBytes, at); }, [] {});
  }
  // Returns the time of one small sync; a save makes a few of them.
  double sync_seconds() {
    constexpr int kSyncs = 5;
    set_direct(false);
    const auto start = steady_clock::now();
    for (int i = 0; i < kSyncs; ++i) {
      if (::pwrite(descriptor_, block_.get(), kAlignment, 0) < 0) throw system_error("write to", path_, errno);
      sync();
    }
    return std::chrono::duration<double>(steady_clock::now() - start).count() / kSyncs;
  }

 private:
  void set_direct(bool is_on) {
    const int flags = ::fcntl(descriptor_, F_GETFL);
    ::fcntl(descriptor_, F_SETFL, is_on ? flags | O_DIRECT : flags & ~O_DIRECT);
  }
  void sync() {
    if (::fsync(descriptor_) != 0) throw system_error("sync", path_, errno);
  }
  template <class Move, class Finish>
  Transfer moved(const char* action, int why_none, std::uint64_t bytes_max, Move&& move, Finish&& finish) {
    const auto start = steady_clock::now();
    std::uint64_t done = 0;
    while (done < bytes_max && steady_clock::now() - start < kMeasuredMax) {
      const ssize_t bytes = move(static_cast<off_t>(done));
      if (bytes <= 0) throw system_error(action, path_, bytes < 0 ? errno : why_none);
      done += static_cast<std::uint64_t>(bytes);
    }
    finish();
    return {done, std::chrono::duration<double>(steady_clock::now() - start).count()};
  }

  const std::unique_ptr<void, Free> block_ = make_block();
  const std::string path_;
  const int descriptor_;
};

Finding speed(const char* name, TestFile::Transfer measured) {
  constexpr double kSlow = 200e6;  // bytes per second
  const double rate = static_cast<double>(measured.bytes) / std::max(measured.seconds, 1e-9);
  return finding(rate >= kSlow, name,
                 fmt::format("{}/s, by {}", human_bytes(static_cast<std::uint64_t>(rate)), human_bytes(measured.bytes)),
                 Health::kWarning,
                 fmt::format("a checkpoint of 10 GiB takes {} at this speed: use a faster disk, or save in the background",
                             human_seconds(10.0 * (1u << 30) / rate)));
}

void measure(const std::filesystem::path& directory, std::uint64_t bytes_max, std::vector<Finding>& findings) {
  if (bytes_max < kBlockBytes) {
    findings.push_back({"disk speed", Health::kWarning, "not measured", "there is too little room to write a file"});
    return;
  }
  {
    TestFile file(directory);
    file.remove_name();
    const auto written = file.write(bytes_max / kBlockBytes * kBlockBytes);
    findings.push_back(finding(file.is_direct(), "direct I/O", file.is_direct() ? "works" : "refused", Health::kWarning,
                               "writing goes through the page cache, which takes memory and time from the trainer; nothing fails"));
    findings.push_back(speed("write speed", written));
    findings.push_back(speed("read speed", file.read(written.bytes)));
  }
  constexpr double kSlowSync = 0.05;
  const double sync = TestFile(directory).sync_seconds();
  findings.push_back(finding(sync <= kSlowSync, "fsync", fmt::format("works, {:.1f} ms", 1e3 * sync), Health::kWarning,
                             "small checkpoints take this many times over: a handful of syncs each"));
}

}  // namespace

std::vector<Finding> check_place(const std::filesystem::path& directory, std::uint64_t test_bytes) {
  std::error_code error;
  const std::string shown = printable(directory.string());
  if (!std::filesystem::is_directory(directory, error))
    return {{"directory", Health::kProblem, fmt::format("{} is no directory", shown),
             "make it, and run this again: what kind of disk it is on is not known before"}};
  const bool is_writable = ::access(directory.c_str(), W_OK | X_OK) == 0;
  std::vector<Finding> findings{
      finding(is_writable, "directory", is_writable ? shown : fmt::format("{}: {}", shown, std::strerror(errno)), Health::kProblem,
              "every save fails with permission: run as the user who owns it, or change its mode"),
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

}  // namespace cairn::tools
