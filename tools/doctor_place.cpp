// The checks of `cairn doctor` that concern a directory: its file system, free space and speed.
#include <cairn/tools/doctor_checks.hpp>

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include <cairn/base/random.hpp>
#include <cairn/tools/commands.hpp>

namespace cairn::tools {
namespace {

using std::chrono::steady_clock;

constexpr std::size_t kBlockBytes = 4u << 20;
constexpr std::size_t kAlignment = 4096;
constexpr std::chrono::seconds kMeasuredMax{3};

struct KnownFileSystem {
  unsigned long magic;
  const char* name;
  const char* effect;  // "" if it is fine
};
constexpr unsigned long kLustre = 0x0BD00BD0, kGpfs = 0x47504653, kFuse = 0x65735546, kZfs = 0x2FC12FC1, kCeph = 0x00C36400,
                        kCifs = 0xFF534D42, kSmb2 = 0xFE534D42, kV9fs = 0x01021997;
constexpr KnownFileSystem kKnown[] = {
    {EXT4_SUPER_MAGIC, "ext4", ""},
    {XFS_SUPER_MAGIC, "xfs", ""},
    {BTRFS_SUPER_MAGIC, "btrfs", ""},
    {kZfs, "zfs", ""},
    {kLustre, "lustre", ""},
    {kGpfs, "gpfs", ""},
    {kCeph, "ceph", ""},
    {TMPFS_MAGIC, "tmpfs", "this is memory: checkpoints are gone when the machine stops, and what they take is missing elsewhere"},
    {RAMFS_MAGIC, "ramfs", "this is memory: checkpoints are gone when the machine stops, and what they take is missing elsewhere"},
    {OVERLAYFS_SUPER_MAGIC, "overlayfs", "a container's own layer: checkpoints are gone with the container. Mount a volume"},
    {NFS_SUPER_MAGIC, "nfs",
     "ranks on other machines may see a checkpoint some seconds later; mount it without 'async' on the server, or a power loss "
     "there may lose one"},
    {kCifs, "cifs", "renaming and syncing may not be durable: prefer another file system"},
    {kSmb2, "smb", "renaming and syncing may not be durable: prefer another file system"},
    {kFuse, "fuse", "whether syncing is durable and renaming atomic depends on the program behind it: ask its manual"},
    {kV9fs, "9p", "whether syncing is durable depends on the host"},
};

Finding file_system(const std::string& path) {
  struct statfs status {};
  if (::statfs(path.c_str(), &status) != 0)
    return {"file system", Health::kWarning, std::strerror(errno), "what it can do is unknown"};
  for (const KnownFileSystem& known : kKnown)
    if (static_cast<unsigned long>(status.f_type) == known.magic)
      return {"file system", *known.effect == '\0' ? Health::kOk : Health::kWarning, known.name, known.effect};
  return {"file system", Health::kOk, fmt::format("of type {:#x}", static_cast<unsigned long>(status.f_type)), ""};
}

void check_room(const std::string& path, std::vector<Finding>& findings) {
  struct statvfs status {};
  if (::statvfs(path.c_str(), &status) != 0) return;
  constexpr std::uint64_t kRoomWanted = std::uint64_t{10} << 30;
  constexpr std::uint64_t kInodesWanted = 10'000;
  const std::uint64_t room = std::uint64_t{status.f_bavail} * status.f_frsize;
  const double part = status.f_blocks == 0 ? 1 : static_cast<double>(status.f_bavail) / static_cast<double>(status.f_blocks);
  const bool is_tight = room < kRoomWanted || part < 0.05;
  findings.push_back(
      {"free space", is_tight ? Health::kWarning : Health::kOk, fmt::format("{}, {:.0f} %", human_bytes(room), 100 * part),
       is_tight ? "a save needs its whole size before it writes, beside the checkpoints that stay: cairn prune, or another disk"
                : ""});
  if (status.f_files == 0) return;  // the file system creates inodes on demand
  const bool is_scarce = status.f_favail < kInodesWanted;
  findings.push_back({"free inodes", is_scarce ? Health::kWarning : Health::kOk, std::to_string(status.f_favail),
                      is_scarce ? "each rank makes a file or more in every save: remove files, or use another disk" : ""});
}

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Block = std::unique_ptr<void, Free>;

// Selects whether the measuring file keeps its name after it is opened. Without a name it
// disappears with the process, however that ends; but journaling file systems need not sync a file
// that has no name.
enum class TestName { kNone, kThere };

// A file for measurements; removed when destroyed.
class TestFile {
 public:
  TestFile(const std::filesystem::path& directory, TestName name)
      : path_((directory / (".cairn-doctor-" + random_hex(*system_random(), 64))).string()) {
    direct_ = true;
    descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_DIRECT, 0600);
    if (descriptor_ < 0 && errno == EINVAL) {
      direct_ = false;
      ::unlink(path_.c_str());
      descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    }
    if (descriptor_ < 0) throw system_error("create", path_, errno);
    if (name == TestName::kNone) ::unlink(path_.c_str());
  }
  ~TestFile() {
    ::close(descriptor_);
    ::unlink(path_.c_str());
  }
  TestFile(const TestFile&) = delete;
  TestFile& operator=(const TestFile&) = delete;

  bool is_direct() const { return direct_; }

  // Writes blocks until `bytes_max` or the time limit, then syncs. Returns bytes, and seconds
  // including the sync.
  std::pair<std::uint64_t, double> write(std::uint64_t bytes_max) {
    const Block block = make_block();
    const auto start = steady_clock::now();
    std::uint64_t done = 0;
    while (done < bytes_max && steady_clock::now() - start < kMeasuredMax) {
      const ssize_t written = ::pwrite(descriptor_, block.get(), kBlockBytes, static_cast<off_t>(done));
      if (written < 0 && errno == EINVAL && direct_ && done == 0) {
        direct_ = false;
        ::fcntl(descriptor_, F_SETFL, ::fcntl(descriptor_, F_GETFL) & ~O_DIRECT);
        continue;
      }
      if (written <= 0) throw system_error("write to", path_, written < 0 ? errno : ENOSPC);
      done += static_cast<std::uint64_t>(written);
    }
    if (::fsync(descriptor_) != 0) throw system_error("sync", path_, errno);
    return {done, std::chrono::duration<double>(steady_clock::now() - start).count()};
  }
  std::pair<std::uint64_t, double> read(std::uint64_t bytes) {
    const Block block = make_block();
    if (!direct_) ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED);
    const auto start = steady_clock::now();
    std::uint64_t done = 0;
    while (done < bytes && steady_clock::now() - start < kMeasuredMax) {
      const ssize_t got = ::pread(descriptor_, block.get(), kBlockBytes, static_cast<off_t>(done));
      if (got <= 0) throw system_error("read from", path_, got < 0 ? errno : EIO);
      done += static_cast<std::uint64_t>(got);
    }
    return {done, std::chrono::duration<double>(steady_clock::now() - start).count()};
  }
  // Returns the time of one small sync; a save makes a few of them.
  double sync_seconds() {
    constexpr int kSyncs = 5;
    const Block block = make_block();
    ::fcntl(descriptor_, F_SETFL, ::fcntl(descriptor_, F_GETFL) & ~O_DIRECT);  // some file systems refuse it only when writing
    const auto start = steady_clock::now();
    for (int i = 0; i < kSyncs; ++i)
      if (::pwrite(descriptor_, block.get(), kAlignment, 0) < 0 || ::fsync(descriptor_) != 0)
        throw system_error("sync", path_, errno);
    return std::chrono::duration<double>(steady_clock::now() - start).count() / kSyncs;
  }

 private:
  // The bytes have no pattern that a disk could compress.
  static Block make_block() {
    Block block(std::aligned_alloc(kAlignment, kBlockBytes));
    if (!block) throw Error(ErrorCode::kUnavailable, "no memory for a block to write");
    const auto random = seeded_random(1);
    auto* const words = static_cast<std::uint64_t*>(block.get());
    for (std::size_t i = 0; i < kBlockBytes / sizeof *words; ++i) words[i] = random->next();
    return block;
  }

  const std::string path_;
  int descriptor_ = -1;
  bool direct_ = false;
};

Finding speed(const char* name, std::pair<std::uint64_t, double> measured) {
  constexpr double kSlow = 200e6;  // bytes per second
  const double rate = static_cast<double>(measured.first) / std::max(measured.second, 1e-9);
  return {name, rate < kSlow ? Health::kWarning : Health::kOk,
          fmt::format("{}/s, by {}", human_bytes(static_cast<std::uint64_t>(rate)), human_bytes(measured.first)),
          rate < kSlow ? fmt::format("a checkpoint of 10 GiB takes {} at this speed: use a faster disk, or save in the background",
                                     human_seconds(10.0 * (1u << 30) / rate))
                       : ""};
}

void measure(const std::filesystem::path& directory, std::uint64_t test_bytes, std::vector<Finding>& findings) {
  TestFile file(directory, TestName::kNone);
  struct statvfs status {};
  std::uint64_t bytes = std::max<std::uint64_t>(test_bytes, kBlockBytes);
  // Never write more than a tenth of the free space.
  if (::statvfs(directory.c_str(), &status) == 0) bytes = std::min(bytes, std::uint64_t{status.f_bavail} * status.f_frsize / 10);
  if (bytes < kBlockBytes) {
    findings.push_back({"disk speed", Health::kWarning, "not measured", "there is too little room to write a file"});
    return;
  }
  bytes = bytes / kBlockBytes * kBlockBytes;
  const auto written = file.write(bytes);
  findings.push_back(
      {"direct I/O", file.is_direct() ? Health::kOk : Health::kWarning, file.is_direct() ? "works" : "refused",
       file.is_direct() ? "" : "writing goes through the page cache, which takes memory and time from the trainer; nothing fails"});
  findings.push_back(speed("write speed", written));
  findings.push_back(speed("read speed", file.read(written.first)));
  constexpr double kSlowSync = 0.05;
  const double sync = TestFile(directory, TestName::kThere).sync_seconds();
  findings.push_back({"fsync", sync > kSlowSync ? Health::kWarning : Health::kOk, fmt::format("works, {:.1f} ms", 1e3 * sync),
                      sync > kSlowSync ? "small checkpoints take this many times over: a handful of syncs each" : ""});
}

}  // namespace

std::vector<Finding> check_place(const std::filesystem::path& directory, std::uint64_t test_bytes) {
  std::error_code error;
  const std::string shown = printable(directory.string());
  if (!std::filesystem::is_directory(directory, error))
    return {{"directory", Health::kProblem, fmt::format("{} is no directory", shown),
             "make it, and run this again: what kind of disk it is on is not known before"}};
  std::vector<Finding> findings;
  if (::access(directory.c_str(), W_OK | X_OK) != 0) {
    findings.push_back({"directory", Health::kProblem, fmt::format("{}: {}", shown, std::strerror(errno)),
                        "every save fails with permission: run as the user who owns it, or change its mode"});
  } else {
    findings.push_back({"directory", Health::kOk, shown, ""});
  }
  findings.push_back(file_system(directory.string()));
  check_room(directory.string(), findings);
  if (findings.front().health == Health::kProblem) return findings;
  try {
    measure(directory, test_bytes, findings);
  } catch (const Error& failed) {
    findings.push_back({"writing", Health::kProblem, printable(failed.what()), "saves fail in the same way"});
  }
  return findings;
}

}  // namespace cairn::tools
