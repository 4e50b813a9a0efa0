// Files and directories in memory: their state as programs see it, and their state after a power
// loss.
//
// Only what journalling file systems guarantee survives a power loss: the content of a file as of
// its last `sync`, and the names in a directory as of its last `sync_names`. Unsynced name changes
// may survive, in the order in which they were made within each directory (kAny: in any order). A
// rename between two directories survives in both or in neither. Parts of unsynced content may
// survive. `Survival` selects the outcome. There are no symbolic links to directories. Not
// thread-safe.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <cairn/storage/stores/file_system.hpp>

namespace cairn::testing {

class SimulatedDisk {
 public:
  struct Survival {
    // How much of the unsynced changes survives: none, all, a random part in journal order, or any
    // part, as POSIX allows.
    enum Kind { kSynced, kEverything, kRandom, kAny } kind = kSynced;
    std::uint64_t seed = 0;
  };
  using Id = std::uint64_t;  // of a file or directory; 0 = none
  static constexpr Id kRoot = 1;
  struct Place {
    Id directory = 0;
    std::string name;
    Id node = 0;  // the node of that name; 0 if there is none
  };

  SimulatedDisk() { nodes_[kRoot].kind = FileKind::kDirectory; }

  // Starts an operation. All changes until the next call belong to it, and both halves of a rename
  // survive together.
  void begin_operation(std::uint64_t index) { operation_ = index; }

  // --- the view of programs ---
  bool is_directory(Id id) const { return kind_of(id) == FileKind::kDirectory; }
  FileKind kind_of(Id id) const { return nodes_.at(id).kind; }
  const std::string& content(Id file) const { return nodes_.at(file).live; }
  std::string& content(Id file) { return nodes_.at(file).live; }
  const std::map<std::string, Id>& entries(Id directory) const { return nodes_.at(directory).entries; }
  // Returns the full paths of all files and directories, sorted.
  std::vector<std::string> paths() const {
    std::vector<std::string> found;
    collect(kRoot, "", found);
    std::sort(found.begin(), found.end());
    return found;
  }

  // Returns the node at `path`, or -errno.
  long find(const std::string& path) const {
    if (path == "/") return kRoot;
    Place place;
    if (const int problem = locate(path, place); problem < 0) return problem;
    return place.node == 0 ? -ENOENT : static_cast<long>(place.node);
  }
  // Finds the place where `path` is or would be. Returns -errno if its parent does not exist or is
  // not a directory.
  int locate(const std::string& path, Place& place) const {
    const std::vector<std::string> parts = parts_of(path);
    if (parts.empty()) return -EBUSY;  // the root itself
    Id here = kRoot;
    for (std::size_t i = 0;; ++i) {
      if (!is_directory(here)) return -ENOTDIR;
      place = {here, parts[i], entry(here, parts[i])};
      if (i + 1 == parts.size()) return 0;
      if (place.node == 0) return -ENOENT;
      here = place.node;
    }
  }
  // Looks up the name again in the directory that was found before, even if that directory has been
  // renamed.
  int look_again(Place& place) const {
    if (nodes_.at(place.directory).removed) return -ENOENT;
    place.node = entry(place.directory, place.name);
    return 0;
  }

  // --- changes: `make` and `link` need a free place, and `remove` an occupied one ---
  Id make(const Place& place, FileKind kind) {
    const Id id = ++last_id_;
    nodes_[id].kind = kind;
    change(place.directory, place.name, id, 0);
    return id;
  }
  void link(Id file, const Place& place) { change(place.directory, place.name, file, 0); }
  void remove(const Place& place) {
    nodes_[place.node].removed = is_directory(place.node);
    change(place.directory, place.name, 0, 0);
  }
  int rename(const Place& source, const Place& target, bool exclusively, bool replaces_directories) {
    if (source.node == 0) return -ENOENT;
    if (target.node != 0 && exclusively) return -EEXIST;
    if (target.node == source.node) return 0;
    if (target.node != 0) {
      const bool onto_directory = is_directory(target.node);
      if (is_directory(source.node) && !onto_directory) return -ENOTDIR;
      if (!is_directory(source.node) && onto_directory) return -EISDIR;
      if (onto_directory && !replaces_directories) return -EINVAL;  // also if it is not empty
      if (onto_directory && !entries(target.node).empty()) return -ENOTEMPTY;
      nodes_[target.node].removed = onto_directory;
    }
    const bool between = source.directory != target.directory;
    change(source.directory, source.name, 0, between ? target.directory : 0);
    change(target.directory, target.name, source.node, between ? source.directory : 0);
    return 0;
  }
  // Extends the file to at least `length`. Returns -ENOSPC if all files together would exceed
  // `capacity_bytes`.
  int extend(Id file, std::uint64_t length, std::uint64_t capacity_bytes) {
    std::string& grown = content(file);
    if (length <= grown.size()) return 0;
    std::uint64_t used = length - grown.size();
    for (const auto& [id, node] : nodes_) used += node.live.size();
    if (used > capacity_bytes) return -ENOSPC;
    grown.resize(length);
    return 0;
  }

  // --- durability ---
  void sync(Id file) { nodes_.at(file).durable = nodes_.at(file).live; }
  void sync_names(Id directory) { persist_names(directory, UINT64_MAX); }
  // Makes everything that exists now durable.
  void sync_all() {
    for (auto& [id, node] : nodes_) {
      node.durable = node.live;
      node.durable_entries = node.entries;
      node.pending.clear();
    }
  }
  void lose_power(Survival survival) {
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
      node.removed = false;  // a node without a name is unreachable
    }
  }
  // Loses unsynced content of one file, as when another machine that had it open fails.
  void lose_unsynced(Id file, Survival survival) {
    if (survival.kind == Survival::kEverything) return;
    std::mt19937_64 random(survival.seed);
    Node& node = nodes_.at(file);
    node.live = survival.kind == Survival::kSynced ? node.durable : mixed(node.durable, node.live, random);
  }

 private:
  // A change of one name of one directory: the name now refers to `node`, or is removed if `node`
  // is 0.
  struct NameChange {
    std::uint64_t operation = 0;
    std::string name;
    Id node = 0;
    Id other_directory = 0;  // the other directory of the same rename; 0 if there is none
  };
  struct Node {
    FileKind kind = FileKind::kRegular;
    std::string live, durable;                           // of a file
    std::map<std::string, Id> entries, durable_entries;  // of a directory
    std::vector<NameChange> pending;                     // changes that lead from durable_entries to entries, in order
    bool removed = false;                                // a removed directory: nothing can be made in it
  };

  static std::vector<std::string> parts_of(const std::string& path) {
    std::vector<std::string> parts;
    for (std::size_t begin = 1; begin < path.size();) {
      const std::size_t end = std::min(path.find('/', begin), path.size());
      parts.push_back(path.substr(begin, end - begin));
      begin = end + 1;
    }
    return parts;
  }

  Id entry(Id directory, const std::string& name) const {
    const auto found = entries(directory).find(name);
    return found == entries(directory).end() ? 0 : found->second;
  }

  void collect(Id id, const std::string& path, std::vector<std::string>& found) const {
    for (const auto& [name, child] : entries(id)) {
      found.push_back(path + "/" + name);
      collect(child, path + "/" + name, found);
    }
  }

  void change(Id directory, const std::string& name, Id node, Id other_directory) {
    Node& changed = nodes_[directory];
    if (node == 0)
      changed.entries.erase(name);
    else
      changed.entries[name] = node;
    changed.pending.push_back({operation_, name, node, other_directory});
  }

  // Makes the changes of `directory` up to `operation` durable, along with the other halves of
  // renames among them.
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

  // Decides for each operation separately. Both halves of a rename use the same seed, so they get
  // the same decision.
  static void persist_any_names(Node& directory, std::uint64_t seed) {
    for (const NameChange& change : directory.pending)
      if (std::mt19937_64(seed ^ (change.operation * 0x9e3779b97f4a7c15u))() % 2 != 0) make_durable(directory, change);
  }

  // Returns a content that a disk may hold between two states: the length of one of them, and
  // blocks of either.
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

  std::map<Id, Node> nodes_;
  Id last_id_ = kRoot;
  std::uint64_t operation_ = 0;
};

}  // namespace cairn::testing
