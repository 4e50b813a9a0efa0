// Pairs of tiers for tests: in directories, where the test acts before each operation of the far
// tier, and on simulated disks. Two pairs of one near and one far tier stand for two processes.
#pragma once

#include <cairn/tests/support/torch.hpp>
// The suite uses doctest, which the line above brings.
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <cairn/state/checkpoint_writer.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/stores/file_store.hpp>
#include <cairn/storage/stores/store_decorator.hpp>
#include <cairn/storage/stores/tier_copier.hpp>
#include <cairn/storage/tiers.hpp>
#include <cairn/tests/storage/store_tools.hpp>
#include <cairn/tests/support/local_protocol.hpp>
#include <cairn/tests/support/simulated_file_system.hpp>
#include <cairn/tests/support/temporary_directory.hpp>

namespace cairn::testing::two_tiers {

// The far tier's store in a directory. The test may act, such as throw, before each operation.
struct Watch {
  std::mutex mutex;
  std::function<void(const DecoratedOperation&)> before;

  void set(std::function<void(const DecoratedOperation&)> act) {
    std::lock_guard lock(mutex);
    before = std::move(act);
  }
  void pass(const DecoratedOperation& operation) {
    std::function<void(const DecoratedOperation&)> act;
    {
      std::lock_guard lock(mutex);
      act = before;
    }
    if (act) act(operation);
  }
};

inline Watch& watch() {
  static auto* the_watch = new Watch;
  return *the_watch;
}

inline std::thread::id test_thread() {
  static const std::thread::id id = std::this_thread::get_id();
  return id;
}

class WatchedTier : public StoreDecorator {
 public:
  WatchedTier(const std::string& scheme, const std::string& path) : StoreDecorator(open_store(path)), scheme_(scheme) {}
  std::string url() const override { return scheme_ + "://" + StoreDecorator::url(); }

 private:
  void around(const DecoratedOperation& operation, const std::function<void()>& act) override {
    // In the near tier, the test acts only before its own operations.
    if (scheme_ == "far-watch" || std::this_thread::get_id() == test_thread()) watch().pass(operation);
    act();
  }

  const std::string scheme_;
};

// File systems of the schemes near-disk and far-disk, which lose power.
inline SimulatedFileSystem*& disk_of(const std::string& scheme) {
  static auto* disks = new std::map<std::string, SimulatedFileSystem*>;
  return (*disks)[scheme];
}

inline std::string path_in(const std::string& url) { return url.substr(url.find("://") + 3); }

class DiskStore : public FileStore {
 public:
  DiskStore(const std::string& scheme, const std::string& path) : FileStore(path, *disk_of(scheme)), scheme_(scheme) {}
  std::string url() const override { return scheme_ + "://" + FileStore::url(); }

 private:
  const std::string scheme_;
};

inline void register_test_stores() {
  static const bool registered = [] {
    test_thread();
    for (const std::string scheme : {"far-watch", "near-watch"})
      register_store(scheme, [scheme](const std::string& url) { return std::make_shared<WatchedTier>(scheme, path_in(url)); });
    for (const std::string scheme : {"near-disk", "far-disk"})
      register_store(scheme, [scheme](const std::string& url) { return std::make_shared<DiskStore>(scheme, path_in(url)); });
    return true;
  }();
  REQUIRE(registered);
}

[[noreturn]] inline void fail_as_down(const std::string& operation) {
  throw Error(ErrorCode::kUnavailable, "the far tier is down: " + operation);
}
inline void be_down(const DecoratedOperation& operation) { fail_as_down(operation.name); }
// Takes attempts, but no objects and records.
inline void take_no_objects(const DecoratedOperation& operation) {
  if (std::string(operation.name) == "create") fail_as_down(operation.name);
}

struct Tiers {
  Tiers() {
    register_test_stores();
    start();
  }
  ~Tiers() {
    watch().set(nullptr);
    stop();
  }
  TierOptions options(const std::string& near = "near") const {
    TierOptions made;
    made.near_url = (watches_near ? "near-watch://" : "") + directory.path() + "/" + near;
    made.far_url = "far-watch://" + directory.path() + "/far";
    made.keep_near = keep_near;
    made.copy_threads = 1;
    made.piece_bytes = 1;  // rounded up to 4 MiB
    made.retry_min = std::chrono::milliseconds(1);
    made.retry_max = std::chrono::milliseconds(5);
    made.takeover_after = takeover_after;
    made.drain_patience = drain_patience;
    return made;
  }
  // `first` and `second` are two processes of one node.
  void start() {
    register_tier("first", options());
    register_tier("second", options());
  }
  void stop() {
    forget_tier("first");
    forget_tier("second");
  }
  void restart() {
    stop();
    start();
  }
  void lose_near() { std::filesystem::remove_all(directory.path() + "/near"); }
  std::string near(const std::string& place = "") const { return directory.path() + "/near" + place; }
  std::string far(const std::string& place = "") const { return directory.path() + "/far" + place; }

  TemporaryDirectory directory;
  std::size_t keep_near = 2;
  std::chrono::milliseconds takeover_after{5};
  std::chrono::milliseconds drain_patience = std::chrono::minutes(10);
  bool watches_near = false;
};

inline constexpr std::int64_t kElements = 200'000;  // several checksum blocks
inline std::int64_t tier_elements = kElements;

inline StateDict tiered_state(int value) {
  return {{"model", torch::full({tier_elements}, value, torch::kInt64)}, {"note", std::string("of ") + std::to_string(value)}};
}

inline void save_value(const std::string& url, int value, int ranks = 1) {
  const StateDict state = tiered_state(value);
  LocalSave save;
  save.checkpoint_id = url;
  save.save_id = local_save_id(static_cast<std::uint64_t>(value));
  save.step = value;
  save_locally(save, std::vector<const StateDict*>(static_cast<std::size_t>(ranks), &state),
               [] { return std::make_unique<CheckpointWriter>(CheckpointWriterOptions{}); });
}

// Returns the value of a checkpoint whose elements are all the same; -1 if they are not.
inline int loaded_value(const std::string& url) {
  StateDict state{{"model", torch::zeros({tier_elements}, torch::kInt64)}, {"note", std::string()}};
  load_locally(url, std::vector<StateDict*>{&state}, [] { return std::make_unique<CheckpointReader>(CheckpointReaderOptions{}); });
  const torch::Tensor tensor = state.at("model").tensor();
  const int value = tensor[0].item<int>();
  const bool fits = tensor.eq(value).all().item<bool>() && state.at("note").ivalue().toStringRef() == "of " + std::to_string(value);
  return fits ? value : -1;
}

inline bool has_checkpoint(const std::string& url) { return open_store(url)->exists(kCommitRecordName); }

inline std::vector<ObjectName> files_at(const std::string& url) { return names_of(open_store(url)->list(kDataFilePrefix)); }

inline void flip_byte(const std::string& path, std::streamoff at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const char byte = static_cast<char>(file.get());
  file.seekp(at);
  file.put(static_cast<char>(byte ^ 1));
  REQUIRE(file.good());
}

// Waits until the far tier has an open attempt of a checkpoint.
inline void wait_until_announced(const std::string& far_url) {
  while (open_store(far_url)->open_attempts().empty()) wait_for_copies("tiered://first", std::chrono::milliseconds(1));
}

// Waits until the copies of a pair are done, or fail.
inline bool ends_or_fails(const std::string& name, const std::string& url) {
  while (!wait_for_copies(url, std::chrono::milliseconds(1)))
    if (tier_progress(name).failing_since) return false;
  return true;
}

struct Disks {
  Disks() {
    register_test_stores();
    disk_of("far-disk") = &far;
    replace_near();
    start();
  }
  ~Disks() { forget_tier("disks"); }
  void start() const {
    TierOptions options;
    options.near_url = "near-disk:///near";
    options.far_url = "far-disk:///far";
    options.keep_near = 1;
    options.retry_min = options.retry_max = options.takeover_after = std::chrono::milliseconds(1);
    register_tier("disks", options);
  }
  void replace_near() { disk_of("near-disk") = &near.emplace(); }

  std::optional<SimulatedFileSystem> near;
  SimulatedFileSystem far;
};

}  // namespace cairn::testing::two_tiers
