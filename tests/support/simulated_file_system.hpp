// A file system in memory that forgets what was not synced when it loses power, fails where it is told to, and lets a test step in
// before any operation.
//
// What survives a power loss, as little as journalling file systems promise: the content of a file as of its last `sync_data`; the
// names in a directory as of its last `sync_directory`. Changes of names that were not synced may survive, in the order in which
// they were made within each directory (kAny: in no order); a rename between two directories happens in both or in neither. Content
// that was not synced may survive in part. `Survival` chooses.
//
// Operations that change something are counted from 0, and closing what was written, which may still report a failure; reading is
// not counted. Links to directories do not exist here. Thread-safe.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <cairn/storage/stores/file_system.hpp>

namespace cairn::testing {

class SimulatedFileSystem : public FileSystem {
 public:
  struct Survival {
    // Of what was not synced: nothing, all, a random part as journals keep it, or any part, as POSIX allows.
    enum Kind { kSynced, kEverything, kRandom, kAny } kind = kSynced;
    std::uint64_t seed = 0;
  };
  struct Features {
    bool direct = true;
    bool allocate = true;
    bool exclusive_rename = true;
    bool links = true;
    bool replaces_directories = true;        // by rename
    std::size_t write_bytes_max = SIZE_MAX;  // of one call: shorter ones are legal
    std::uint64_t capacity_bytes = UINT64_MAX;
  };
  // Runs before an operation, without a lock; operations it makes itself do not call it again. `index` counts them all.
  using BeforeOperation = std::function<void(std::uint64_t index, const std::string& operation)>;

  SimulatedFileSystem() { nodes_[kRoot].kind = FileKind::kDirectory; }

  // --- what tests say ---
  Features features;
  BeforeOperation before_operation;  // set while no operation runs
  // The same, between an operation's lookup of the directories that its paths name and what it does in them: it goes on in the
  // directories that it found, whatever they are called by then. For creating, renaming and linking.
  BeforeOperation after_lookup;
  // The same moment, for whoever holds operations up there while others go on. False: this one goes no further.
  std::function<bool()> held_after_lookup;
  // Operation `index` fails with `error_number` and does nothing.
  void fail_operation(std::uint64_t index, int error_number) { failures_[index] = error_number; }
  // Operation `index` and all after it fail with EIO and do nothing, until `restart`.
  void lose_power_at(std::uint64_t index) { power_loss_ = index; }

  // The machine comes up again: what survived is there, handles are gone.
  void restart(Survival survival) {
    std::lock_guard lock(mutex_);
    std::mt19937_64 random(survival.seed);
    for (auto& [id, node] : nodes_) {
      if (survival.kind == Survival::kSynced) break;
      if (node.kind == FileKind::kDirectory && !node.pending.empty()) {
        if (survival.kind == Survival::kAny) {
          persist_any_names(node, survival.seed);
          continue;
        }
        const std::size_t kept =
            survival.kind == Survival::kEverything ? node.pending.size() : random() % (node.pending.size() + 1);
        if (kept > 0) persist_names(id, node.pending[kept - 1].operation);
      }
      if (node.kind == FileKind::kRegular)
        node.durable = survival.kind == Survival::kEverything ? node.live : mixed(node.durable, node.live, random);
    }
    for (auto& [id, node] : nodes_) {
      node.pending.clear();
      node.live = node.durable;
      node.entries = node.durable_entries;
      node.removed = false;  // what has no name is out of reach anyway
    }
    handles_.clear();
    created_.clear();
    power_loss_.reset();
    failures_.clear();
  }
  // The machine that had `file` open is gone, and what it had not synced of it with it; names are the server's.
  void lose_unsynced(int file, Survival survival) {
    std::lock_guard lock(mutex_);
    std::mt19937_64 random(survival.seed);
    Node* node = of_handle(file);
    if (node == nullptr || survival.kind == Survival::kEverything) return;
    node->live = survival.kind == Survival::kSynced ? node->durable : mixed(node->durable, node->live, random);
  }
  // Everything that is there now is durable.
  void settle() {
    std::lock_guard lock(mutex_);
    for (auto& [id, node] : nodes_) {
      node.durable = node.live;
      node.durable_entries = node.entries;
      node.pending.clear();
    }
  }

  std::uint64_t operations() const {
    std::lock_guard lock(mutex_);
    return operations_;
  }
  std::size_t open_handles() const {
    std::lock_guard lock(mutex_);
    return handles_.size();
  }
  // Full paths of all files and directories, sorted.
  std::vector<std::string> paths() const {
    std::lock_guard lock(mutex_);
    std::vector<std::string> found;
    collect(kRoot, "", found);
    std::sort(found.begin(), found.end());
    return found;
  }

  // --- files ---
  int open_for_reading(const std::string& path) noexcept override {
    std::lock_guard lock(mutex_);
    if (powerless()) return -EIO;
    const long node = find(path);
    return node < 0 ? static_cast<int>(node) : open_handle(static_cast<Id>(node));
  }
  int create_exclusively(const std::string& path) noexcept override {
    return operate_after_lookup("create " + path, path, path, [&](const Place& place, const Place&) -> int {
      if (place.node != 0) return -EEXIST;
      const Id id = ++last_id_;
      nodes_[id].kind = FileKind::kRegular;
      change(place.directory, place.name, id, 0);
      const int handle = open_handle(id);
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
    const Node* node = of_handle(file);
    if (node == nullptr) return -EBADF;
    if (node->kind != FileKind::kRegular) return -EISDIR;
    if (offset >= node->live.size()) return 0;
    const std::size_t count = std::min<std::size_t>(size, node->live.size() - offset);
    std::memcpy(destination, node->live.data() + offset, count);
    return static_cast<ssize_t>(count);
  }
  ssize_t write_at(int file, const void* source, std::size_t size, std::uint64_t offset) noexcept override {
    return operate("write " + std::to_string(size) + " at " + std::to_string(offset), [&]() -> ssize_t {
      Node* node = of_handle(file);
      if (node == nullptr) return -EBADF;
      const std::size_t count = std::min(size, features.write_bytes_max);
      if (const int problem = extend(*node, offset + count); problem < 0) return problem;
      std::memcpy(node->live.data() + offset, source, count);
      return static_cast<ssize_t>(count);
    });
  }
  int bypass_cache(int, bool on) noexcept override { return on && !features.direct ? -EINVAL : 0; }
  int allocate(int file, std::uint64_t length) noexcept override {
    return operate("allocate " + std::to_string(length), [&]() -> int {
      Node* node = of_handle(file);
      if (node == nullptr) return -EBADF;
      return features.allocate ? extend(*node, length) : -EOPNOTSUPP;
    });
  }
  int truncate(int file, std::uint64_t length) noexcept override {
    return operate("truncate to " + std::to_string(length), [&]() -> int {
      Node* node = of_handle(file);
      if (node == nullptr) return -EBADF;
      if (length > node->live.size()) return extend(*node, length);
      node->live.resize(length);
      return 0;
    });
  }
  int sync_data(int file) noexcept override {
    return operate("sync file", [&]() -> int {
      Node* node = of_handle(file);
      if (node == nullptr) return -EBADF;
      node->durable = node->live;
      return 0;
    });
  }
  int status_of(int file, FileStatus& status) noexcept override {
    std::lock_guard lock(mutex_);
    if (powerless()) return -EIO;
    if (of_handle(file) == nullptr) return -EBADF;
    fill(status, handles_[file]);
    return 0;
  }

  // --- names ---
  int status(const std::string& path, bool, FileStatus& status) noexcept override {
    std::lock_guard lock(mutex_);
    if (powerless()) return -EIO;
    const long node = find(path);
    if (node < 0) return static_cast<int>(node);
    fill(status, static_cast<Id>(node));
    return 0;
  }
  int list_directory(const std::string& path, std::vector<DirectoryEntry>& entries) override {
    std::lock_guard lock(mutex_);
    if (powerless()) return -EIO;
    const long id = find(path);
    if (id < 0) return static_cast<int>(id);
    const Node& node = nodes_[static_cast<Id>(id)];
    if (node.kind != FileKind::kDirectory) return -ENOTDIR;
    for (const auto& [name, child] : node.entries) entries.push_back({name, nodes_[child].kind});
    return 0;
  }
  int make_directory(const std::string& path) noexcept override {
    return operate("make directory " + path, [&]() -> int {
      Place place;
      if (const int problem = locate(path, place); problem < 0) return problem;
      if (place.node != 0) return -EEXIST;
      const Id id = ++last_id_;
      nodes_[id].kind = FileKind::kDirectory;
      change(place.directory, place.name, id, 0);
      return 0;
    });
  }
  int remove_directory(const std::string& path) noexcept override {
    return operate("remove directory " + path, [&]() -> int {
      Place place;
      if (const int problem = locate(path, place); problem < 0) return problem;
      if (place.node == 0) return -ENOENT;
      if (nodes_[place.node].kind != FileKind::kDirectory) return -ENOTDIR;
      if (!nodes_[place.node].entries.empty()) return -ENOTEMPTY;
      nodes_[place.node].removed = true;
      change(place.directory, place.name, 0, 0);
      return 0;
    });
  }
  int remove_file(const std::string& path) noexcept override {
    return operate("remove " + path, [&]() -> int {
      Place place;
      if (const int problem = locate(path, place); problem < 0) return problem;
      if (place.node == 0) return -ENOENT;
      if (nodes_[place.node].kind == FileKind::kDirectory) return -EISDIR;
      change(place.directory, place.name, 0, 0);
      return 0;
    });
  }
  int rename(const std::string& from, const std::string& to) noexcept override {
    return operate_after_lookup("rename " + from + " to " + to, from, to,
                                [&](const Place& source, const Place& target) { return rename_entry(source, target, false); });
  }
  int rename_exclusively(const std::string& from, const std::string& to) noexcept override {
    return operate_after_lookup("rename exclusively " + from + " to " + to, from, to,
                                [&](const Place& source, const Place& target) {
                                  return features.exclusive_rename ? rename_entry(source, target, true) : -EINVAL;
                                });
  }
  int link(const std::string& from, const std::string& to) noexcept override {
    return operate_after_lookup("link " + from + " to " + to, from, to, [&](const Place& source, const Place& target) -> int {
      if (!features.links) return -EPERM;
      if (source.node == 0) return -ENOENT;
      if (target.node != 0) return -EEXIST;
      if (nodes_[source.node].kind == FileKind::kDirectory) return -EPERM;
      change(target.directory, target.name, source.node, 0);
      return 0;
    });
  }
  int sync_directory(const std::string& path) noexcept override {
    return operate("sync directory " + path, [&]() -> int {
      const long id = find(path);
      if (id < 0) return static_cast<int>(id);
      if (nodes_[static_cast<Id>(id)].kind != FileKind::kDirectory) return -ENOTDIR;
      persist_names(static_cast<Id>(id), UINT64_MAX);
      return 0;
    });
  }

 private:
  using Id = std::uint64_t;  // 0: none
  static constexpr Id kRoot = 1;

  // One name of one directory now means `node`; nothing if that is 0.
  struct NameChange {
    std::uint64_t operation = 0;
    std::string name;
    Id node = 0;
    Id other_directory = 0;  // changed by the same operation
  };
  struct Node {
    FileKind kind = FileKind::kRegular;
    std::string live, durable;                           // of a file
    std::map<std::string, Id> entries, durable_entries;  // of a directory
    std::vector<NameChange> pending;                     // what turns durable_entries into entries, in order
    bool removed = false;                                // a directory without a name: nothing can be made in it
  };
  struct Place {
    Id directory = 0;
    std::string name;
    Id node = 0;  // what is there, 0 if nothing
  };

  template <class Act>
  auto operate(const std::string& what, Act act) noexcept -> decltype(act()) {
    const std::uint64_t index = count_operation();
    announce(before_operation, index, what);
    std::lock_guard lock(mutex_);
    if (const int problem = problem_of(index); problem < 0) return problem;
    current_operation_ = index;
    return act();
  }

  // For one path, give it twice.
  template <class Act>
  int operate_after_lookup(const std::string& what, const std::string& from, const std::string& to, Act act) noexcept {
    const std::uint64_t index = count_operation();
    announce(before_operation, index, what);
    Place source, target;
    {
      std::lock_guard lock(mutex_);
      if (const int problem = problem_of(index); problem < 0) return problem;
      if (const int problem = locate(from, source); problem < 0) return problem;
      if (const int problem = locate(to, target); problem < 0) return problem;
    }
    announce(after_lookup, index, what);
    if (held_after_lookup && !held_after_lookup()) return -EIO;
    std::lock_guard lock(mutex_);
    if (const int problem = problem_of(index); problem < 0) return problem;
    for (Place* place : {&source, &target}) {
      Node& directory = nodes_[place->directory];
      if (directory.removed) return -ENOENT;
      const auto found = directory.entries.find(place->name);
      place->node = found == directory.entries.end() ? 0 : found->second;
    }
    current_operation_ = index;
    return act(source, target);
  }

  std::uint64_t count_operation() {
    std::lock_guard lock(mutex_);
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

  bool powerless() const { return power_loss_ && operations_ > *power_loss_; }

  static std::vector<std::string> parts_of(const std::string& path) {
    std::vector<std::string> parts;
    for (std::size_t begin = 1; begin < path.size();) {
      const std::size_t end = std::min(path.find('/', begin), path.size());
      parts.push_back(path.substr(begin, end - begin));
      begin = end + 1;
    }
    return parts;
  }

  // The node at `path`, or -errno.
  long find(const std::string& path) {
    if (path == "/") return kRoot;
    Place place;
    if (const int problem = locate(path, place); problem < 0) return problem;
    return place.node == 0 ? -ENOENT : static_cast<long>(place.node);
  }

  // Where `path` is or would be; -errno if what should hold it is no directory.
  int locate(const std::string& path, Place& place) {
    const std::vector<std::string> parts = parts_of(path);
    if (parts.empty()) return -EBUSY;  // the root itself
    Id here = kRoot;
    for (std::size_t i = 0;; ++i) {
      if (nodes_[here].kind != FileKind::kDirectory) return -ENOTDIR;
      const auto& entries = nodes_[here].entries;
      const auto found = entries.find(parts[i]);
      if (i + 1 == parts.size()) {
        place = {here, parts[i], found == entries.end() ? 0 : found->second};
        return 0;
      }
      if (found == entries.end()) return -ENOENT;
      here = found->second;
    }
  }

  void change(Id directory, const std::string& name, Id node, Id other_directory) {
    Node& changed = nodes_[directory];
    if (node == 0)
      changed.entries.erase(name);
    else
      changed.entries[name] = node;
    changed.pending.push_back({current_operation_, name, node, other_directory});
  }

  int rename_entry(const Place& source, const Place& target, bool exclusively) {
    if (source.node == 0) return -ENOENT;
    if (target.node != 0 && exclusively) return -EEXIST;
    if (target.node == source.node) return 0;
    const bool is_directory = nodes_[source.node].kind == FileKind::kDirectory;
    if (target.node != 0) {
      const bool onto_directory = nodes_[target.node].kind == FileKind::kDirectory;
      if (is_directory && !onto_directory) return -ENOTDIR;
      if (!is_directory && onto_directory) return -EISDIR;
      if (onto_directory && !nodes_[target.node].entries.empty()) return -ENOTEMPTY;
      if (onto_directory && !features.replaces_directories) return -EEXIST;
      nodes_[target.node].removed = onto_directory;
    }
    const bool between = source.directory != target.directory;
    change(source.directory, source.name, 0, between ? target.directory : 0);
    change(target.directory, target.name, source.node, between ? source.directory : 0);
    return 0;
  }

  // Makes the changes of `directory` up to `operation` durable, and the other halves of renames among them.
  void persist_names(Id directory, std::uint64_t operation) {
    while (true) {
      Node& node = nodes_[directory];
      if (node.pending.empty() || node.pending.front().operation > operation) return;
      const NameChange first = node.pending.front();
      node.pending.erase(node.pending.begin());
      make_durable(node, first);
      if (first.other_directory != 0) persist_names(first.other_directory, first.operation);
    }
  }

  static void make_durable(Node& directory, const NameChange& change) {
    if (change.node == 0)
      directory.durable_entries.erase(change.name);
    else
      directory.durable_entries[change.name] = change.node;
  }

  // Each operation for itself; both halves of a rename ask the same question.
  static void persist_any_names(Node& directory, std::uint64_t seed) {
    for (const NameChange& change : directory.pending)
      if (std::mt19937_64(seed ^ (change.operation * 0x9e3779b97f4a7c15u))() % 2 != 0) make_durable(directory, change);
  }

  // Any state that a disk may have between two contents: a length of one of them, and blocks of either.
  static std::string mixed(const std::string& durable, const std::string& live, std::mt19937_64& random) {
    constexpr std::size_t kBlock = 512;
    std::string result((random() % 2 == 0 ? durable : live).size(), '\0');
    for (std::size_t begin = 0; begin < result.size(); begin += kBlock) {
      const std::string& source = random() % 2 == 0 ? durable : live;
      for (std::size_t i = begin; i < std::min(begin + kBlock, result.size()); ++i)
        result[i] = i < source.size() ? source[i] : '\0';
    }
    return result;
  }

  int extend(Node& node, std::uint64_t length) {
    if (length <= node.live.size()) return 0;
    std::uint64_t used = length - node.live.size();
    for (const auto& [id, other] : nodes_) used += other.live.size();
    if (used > features.capacity_bytes) return -ENOSPC;
    node.live.resize(length);
    return 0;
  }

  int open_handle(Id node) {
    const int handle = ++last_handle_;
    handles_[handle] = node;
    return handle;
  }
  bool is_for_writing(int file) const {
    std::lock_guard lock(mutex_);
    return created_.count(file) > 0;
  }
  Node* of_handle(int file) {
    const auto found = handles_.find(file);
    return found == handles_.end() ? nullptr : &nodes_[found->second];
  }
  void fill(FileStatus& status, Id id) {
    status.kind = nodes_[id].kind;
    status.size_bytes = nodes_[id].live.size();
    status.device = 1;
    status.serial = id;
  }
  void collect(Id id, const std::string& path, std::vector<std::string>& found) const {
    for (const auto& [name, child] : nodes_.at(id).entries) {
      found.push_back(path + "/" + name);
      collect(child, path + "/" + name, found);
    }
  }

  mutable std::mutex mutex_;
  std::map<Id, Node> nodes_;
  Id last_id_ = kRoot;
  std::map<int, Id> handles_;
  std::set<int> created_;  // those of handles_ that may write
  int last_handle_ = 2;
  std::uint64_t operations_ = 0;
  std::uint64_t current_operation_ = 0;
  bool announcing_ = false;
  std::optional<std::uint64_t> power_loss_;
  std::map<std::uint64_t, int> failures_;
};

}  // namespace cairn::testing
