// A file system in memory. It can lose unsynced changes at a power loss, fail chosen operations,
// and call a function of the test before any operation.
//
// simulated_disk.hpp defines the state after a power loss. Operations that change something are
// counted from 0. Closing a written file counts, because it may report a failure; reading does not
// count. Thread-safe.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <cairn/storage/stores/file_system.hpp>
#include <cairn/tests/support/simulated_disk.hpp>

namespace cairn::testing {

class SimulatedFileSystem : public FileSystem {
 public:
  using Survival = SimulatedDisk::Survival;
  struct Features {
    bool direct = true;
    bool allocate = true;
    bool exclusive_rename = true;
    bool links = true;
    bool replaces_directories = true;        // rename may replace an empty directory
    std::size_t write_bytes_max = SIZE_MAX;  // per call; POSIX allows short writes
    std::uint64_t capacity_bytes = UINT64_MAX;
  };
  // Runs before an operation, without holding a lock. Operations that the function itself makes do
  // not call it again. `index` is the operation's number.
  using BeforeOperation = std::function<void(std::uint64_t index, const std::string& operation)>;

  // --- settings of the test ---
  Features features;
  BeforeOperation before_operation;  // set while no operation is in flight
  // Runs after an operation has looked up the directories in its paths and before it changes them.
  // The operation continues in those directories even if they have been renamed. Called for
  // creating, renaming and linking.
  BeforeOperation after_lookup;
  // Runs at the same moment as `after_lookup`, and may block one operation while others proceed.
  // Returns false to fail the operation with EIO.
  std::function<bool()> held_after_lookup;
  // Makes operation `index` fail with `error_number` and change nothing.
  void fail_operation(std::uint64_t index, int error_number) { failures_[index] = error_number; }
  // Makes operation `index` and all later ones fail with EIO and change nothing, until `restart`.
  void lose_power_at(std::uint64_t index) { power_loss_ = index; }

  // Restarts the machine: only what survived is there, and all handles are closed.
  void restart(Survival survival) {
    std::lock_guard lock(mutex_);
    disk_.lose_power(survival);
    handles_.clear();
    created_.clear();
    power_loss_.reset();
    failures_.clear();
    durable.clear();  // the memory of a process
  }
  // Simulates the failure of the machine that had `file` open: its unsynced content is lost. Names
  // are kept by the server and stay.
  void lose_unsynced(int file, Survival survival) {
    std::lock_guard lock(mutex_);
    if (const Id id = of_handle(file); id != 0) disk_.lose_unsynced(id, survival);
  }
  // Makes everything that exists now durable.
  void settle() {
    std::lock_guard lock(mutex_);
    disk_.sync_all();
  }

  std::uint64_t operations() const {
    std::lock_guard lock(mutex_);
    return operations_;
  }
  std::size_t open_handles() const {
    std::lock_guard lock(mutex_);
    return handles_.size();
  }
  // Records every system call from now on, including those that change nothing: "sync directory
  // /run", "list directory /run", "look at /run".
  void record_calls() {
    std::lock_guard lock(mutex_);
    calls_.emplace();
  }
  std::vector<std::string> calls() const {
    std::lock_guard lock(mutex_);
    return calls_ ? *calls_ : std::vector<std::string>{};
  }
  std::size_t calls_that_begin(const std::string& words) const {
    const auto all = calls();
    return static_cast<std::size_t>(
        std::count_if(all.begin(), all.end(), [&](const std::string& call) { return call.compare(0, words.size(), words) == 0; }));
  }
  // Makes every call that opens, stats or lists a path with the prefix `path` fail with
  // `error_number`.
  void fail_looks_at(const std::string& path, int error_number) {
    std::lock_guard lock(mutex_);
    unreadable_ = path;
    unreadable_error_ = error_number;
  }
  // Returns the full paths of all files and directories, sorted.
  std::vector<std::string> paths() const {
    std::lock_guard lock(mutex_);
    return disk_.paths();
  }

  // --- files ---
  int open_for_reading(const std::string& path) noexcept override {
    std::lock_guard lock(mutex_);
    if (const int problem = look("open", path); problem < 0) return problem;
    const long node = disk_.find(path);
    return node < 0 ? static_cast<int>(node) : open_handle(static_cast<Id>(node));
  }
  int create_exclusively(const std::string& path) noexcept override {
    return operate_after_lookup("create " + path, path, path, [&](const Place& place, const Place&) -> int {
      if (place.node != 0) return -EEXIST;
      const int handle = open_handle(disk_.make(place, FileKind::kRegular));
      created_.insert(handle);
      return handle;
    });
  }
  int close(int file) noexcept override {
    const int result = is_for_writing(file) ? operate("close", [] { return 0; }) : 0;
    std::lock_guard lock(mutex_);
    created_.erase(file);
    return handles_.erase(file) == 1 ? result : -EBADF;
  }
  ssize_t read_at(int file, void* destination, std::size_t size, std::uint64_t offset) noexcept override {
    std::lock_guard lock(mutex_);
    if (powerless()) return -EIO;
    const Id id = of_handle(file);
    if (id == 0) return -EBADF;
    if (disk_.is_directory(id)) return -EISDIR;
    const std::string& content = disk_.content(id);
    if (offset >= content.size()) return 0;
    const std::size_t count = std::min<std::size_t>(size, content.size() - offset);
    std::memcpy(destination, content.data() + offset, count);
    return static_cast<ssize_t>(count);
  }
  ssize_t write_at(int file, const void* source, std::size_t size, std::uint64_t offset) noexcept override {
    return operate("write " + std::to_string(size) + " at " + std::to_string(offset), [&]() -> ssize_t {
      const Id id = of_handle(file);
      if (id == 0) return -EBADF;
      const std::size_t count = std::min(size, features.write_bytes_max);
      if (const int problem = disk_.extend(id, offset + count, features.capacity_bytes); problem < 0) return problem;
      std::memcpy(disk_.content(id).data() + offset, source, count);
      return static_cast<ssize_t>(count);
    });
  }
  int bypass_cache(int, bool on) noexcept override { return on && !features.direct ? -EINVAL : 0; }
  int allocate(int file, std::uint64_t length) noexcept override {
    return operate("allocate " + std::to_string(length), [&]() -> int {
      const Id id = of_handle(file);
      if (id == 0) return -EBADF;
      return features.allocate ? disk_.extend(id, length, features.capacity_bytes) : -EOPNOTSUPP;
    });
  }
  int truncate(int file, std::uint64_t length) noexcept override {
    return operate("truncate to " + std::to_string(length), [&]() -> int {
      const Id id = of_handle(file);
      if (id == 0) return -EBADF;
      if (length > disk_.content(id).size()) return disk_.extend(id, length, features.capacity_bytes);
      disk_.content(id).resize(length);
      return 0;
    });
  }
  int sync_data(int file) noexcept override {
    return operate("sync file", [&]() -> int {
      const Id id = of_handle(file);
      if (id == 0) return -EBADF;
      disk_.sync(id);
      return 0;
    });
  }
  int status_of(int file, FileStatus& status) noexcept override {
    std::lock_guard lock(mutex_);
    if (powerless()) return -EIO;
    const Id id = of_handle(file);
    if (id == 0) return -EBADF;
    fill(status, id);
    return 0;
  }

  // --- names ---
  int status(const std::string& path, bool, FileStatus& status) noexcept override {
    std::lock_guard lock(mutex_);
    if (const int problem = look("look at", path); problem < 0) return problem;
    const long node = disk_.find(path);
    if (node < 0) return static_cast<int>(node);
    fill(status, static_cast<Id>(node));
    return 0;
  }
  int list_directory(const std::string& path, std::vector<DirectoryEntry>& entries) override {
    std::lock_guard lock(mutex_);
    if (const int problem = look("list directory", path); problem < 0) return problem;
    const long id = disk_.find(path);
    if (id < 0) return static_cast<int>(id);
    if (!disk_.is_directory(static_cast<Id>(id))) return -ENOTDIR;
    for (const auto& [name, child] : disk_.entries(static_cast<Id>(id))) entries.push_back({name, disk_.kind_of(child)});
    return 0;
  }
  int make_directory(const std::string& path) noexcept override {
    return operate("make directory " + path, [&]() -> int {
      Place place;
      if (const int problem = disk_.locate(path, place); problem < 0) return problem;
      if (place.node != 0) return -EEXIST;
      disk_.make(place, FileKind::kDirectory);
      return 0;
    });
  }
  int remove_directory(const std::string& path) noexcept override {
    return operate("remove directory " + path, [&]() -> int {
      Place place;
      if (const int problem = disk_.locate(path, place); problem < 0) return problem;
      if (place.node == 0) return -ENOENT;
      if (!disk_.is_directory(place.node)) return -ENOTDIR;
      if (!disk_.entries(place.node).empty()) return -ENOTEMPTY;
      disk_.remove(place);
      return 0;
    });
  }
  int remove_file(const std::string& path) noexcept override {
    return operate("remove " + path, [&]() -> int {
      Place place;
      if (const int problem = disk_.locate(path, place); problem < 0) return problem;
      if (place.node == 0) return -ENOENT;
      if (disk_.is_directory(place.node)) return -EISDIR;
      disk_.remove(place);
      return 0;
    });
  }
  int rename(const std::string& from, const std::string& to) noexcept override {
    return operate_after_lookup("rename " + from + " to " + to, from, to, [&](const Place& source, const Place& target) {
      return disk_.rename(source, target, false, features.replaces_directories);
    });
  }
  int rename_exclusively(const std::string& from, const std::string& to) noexcept override {
    return operate_after_lookup(
        "rename exclusively " + from + " to " + to, from, to, [&](const Place& source, const Place& target) {
          return features.exclusive_rename ? disk_.rename(source, target, true, features.replaces_directories) : -EINVAL;
        });
  }
  int link(const std::string& from, const std::string& to) noexcept override {
    return operate_after_lookup("link " + from + " to " + to, from, to, [&](const Place& source, const Place& target) -> int {
      if (!features.links) return -EPERM;
      if (source.node == 0) return -ENOENT;
      if (target.node != 0) return -EEXIST;
      if (disk_.is_directory(source.node)) return -EPERM;
      disk_.link(source.node, target);
      return 0;
    });
  }
  int sync_directory(const std::string& path) noexcept override {
    return operate("sync directory " + path, [&]() -> int {
      const long id = disk_.find(path);
      if (id < 0) return static_cast<int>(id);
      if (!disk_.is_directory(static_cast<Id>(id))) return -ENOTDIR;
      disk_.sync_names(static_cast<Id>(id));
      return 0;
    });
  }

 private:
  using Id = SimulatedDisk::Id;
  using Place = SimulatedDisk::Place;

  template <class Act>
  auto operate(const std::string& what, Act act) noexcept -> decltype(act()) {
    const std::uint64_t index = count_operation(what);
    announce(before_operation, index, what);
    std::lock_guard lock(mutex_);
    if (const int problem = problem_of(index); problem < 0) return problem;
    disk_.begin_operation(index);
    return act();
  }

  // Runs an operation on two paths. For one path, pass it twice.
  template <class Act>
  int operate_after_lookup(const std::string& what, const std::string& from, const std::string& to, Act act) noexcept {
    const std::uint64_t index = count_operation(what);
    announce(before_operation, index, what);
    Place source, target;
    {
      std::lock_guard lock(mutex_);
      if (const int problem = problem_of(index); problem < 0) return problem;
      if (const int problem = disk_.locate(from, source); problem < 0) return problem;
      if (const int problem = disk_.locate(to, target); problem < 0) return problem;
    }
    announce(after_lookup, index, what);
    if (held_after_lookup && !held_after_lookup()) return -EIO;
    std::lock_guard lock(mutex_);
    if (const int problem = problem_of(index); problem < 0) return problem;
    for (Place* place : {&source, &target})
      if (const int problem = disk_.look_again(*place); problem < 0) return problem;
    disk_.begin_operation(index);
    return act(source, target);
  }

  std::uint64_t count_operation(const std::string& what) {
    std::lock_guard lock(mutex_);
    if (calls_) calls_->push_back(what);
    return operations_++;
  }

  void announce(const BeforeOperation& hook, std::uint64_t index, const std::string& what) {
    if (!hook) return;
    {
      std::lock_guard lock(mutex_);
      if (announcing_) return;
      announcing_ = true;
    }
    hook(index, what);
    std::lock_guard lock(mutex_);
    announcing_ = false;
  }

  int problem_of(std::uint64_t index) const {
    if (power_loss_ && index >= *power_loss_) return -EIO;
    const auto failure = failures_.find(index);
    return failure == failures_.end() ? 0 : -failure->second;
  }

  int look(const char* how, const std::string& path) {
    if (calls_) calls_->push_back(std::string(how) + " " + path);
    if (powerless()) return -EIO;
    return !unreadable_.empty() && path.compare(0, unreadable_.size(), unreadable_) == 0 ? -unreadable_error_ : 0;
  }

  bool powerless() const { return power_loss_ && operations_ > *power_loss_; }

  int open_handle(Id node) {
    const int handle = ++last_handle_;
    handles_[handle] = node;
    return handle;
  }
  bool is_for_writing(int file) const {
    std::lock_guard lock(mutex_);
    return created_.count(file) > 0;
  }
  Id of_handle(int file) const {
    const auto found = handles_.find(file);
    return found == handles_.end() ? 0 : found->second;
  }
  void fill(FileStatus& status, Id id) const {
    status.kind = disk_.kind_of(id);
    status.size_bytes = disk_.content(id).size();
    status.device = 1;
    status.serial = id;
  }

  mutable std::mutex mutex_;
  SimulatedDisk disk_;
  std::map<int, Id> handles_;
  std::set<int> created_;  // the handles of handles_ that may write
  int last_handle_ = 2;
  std::uint64_t operations_ = 0;
  bool announcing_ = false;
  std::optional<std::vector<std::string>> calls_;
  std::string unreadable_;
  int unreadable_error_ = 0;
  std::optional<std::uint64_t> power_loss_;
  std::map<std::uint64_t, int> failures_;
};

}  // namespace cairn::testing
