// The shipping planners, writer and reader of a simulated rank, and objects around them that tell a
// watcher which of their methods run. The watcher may throw in their place.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <cairn/state/planner.hpp>
#include <cairn/state/storage.hpp>

namespace cairn::simulation {

// The methods of planners, writers and readers, and the functions of a call.
enum class Hook : std::uint8_t {
  kReset = 1,
  kBegin,
  kReadMetadata,
  kSetUpPlanner,
  kSetUpStorage,
  kCreateLocalPlan,
  kPrepareLocalPlan,
  kCreateGlobalPlan,
  kPrepareGlobalPlan,
  kFinishPlan,
  kMoveData,
  kFinish,
  kAskCommitted,
  kAbandon,
  kDiscard,
  kDecide,
};
// Returns the method's name, such as "write_data", or "read_data" for a load.
std::string name_of(Hook hook, bool is_load);
// Returns whether only the coordinator, or its successor, runs the hook.
bool is_coordinators(Hook hook);

// The objects that one rank's checkpointer keeps between calls.
struct Tools {
  Tools();
  std::shared_ptr<SavePlanner> save_planner;
  std::shared_ptr<LoadPlanner> load_planner;
  std::shared_ptr<StorageWriter> writer;
  std::shared_ptr<StorageReader> reader;
};

class HookWatcher {
 public:
  virtual ~HookWatcher() = default;
  // The first two may throw, as if the hook had thrown.
  virtual void hook_begins(Hook hook) = 0;
  virtual void hook_ends(Hook hook) = 0;
  virtual void hook_fails(Hook hook, const std::exception_ptr& exception) = 0;
  // Called within the hook that sets up a writer, and within the one that reads the metadata.
  virtual void save_begins(const std::string& save_id) = 0;
  virtual void load_begins(const std::string& save_id) = 0;
  virtual void save_settles(Committed committed) = 0;
  // Returns the end of a read: at once, or when the bytes that other ranks pass on have come.
  virtual Future<bool> read_ends(Future<bool> own_read) = 0;
};

// Runs one hook. Throws what the hook or the watcher throws.
template <class Act>
auto watched(HookWatcher& watcher, Hook hook, Act act) {
  try {
    watcher.hook_begins(hook);
    if constexpr (std::is_void_v<decltype(act())>) {
      act();
      watcher.hook_ends(hook);
    } else {
      auto result = act();
      watcher.hook_ends(hook);
      return result;
    }
  } catch (...) {
    watcher.hook_fails(hook, std::current_exception());
    throw;
  }
}

class WatchedSavePlanner final : public SavePlanner {
 public:
  WatchedSavePlanner(SavePlanner& planner, HookWatcher& watcher) : planner_(planner), watcher_(watcher) {}
  void set_up_planner(const StateDict& state, int rank, bool is_coordinator) override {
    watched(watcher_, Hook::kSetUpPlanner, [&] { planner_.set_up_planner(state, rank, is_coordinator); });
  }
  SavePlan create_local_plan() override {
    return watched(watcher_, Hook::kCreateLocalPlan, [&] { return planner_.create_local_plan(); });
  }
  GlobalSavePlan create_global_plan(std::vector<SavePlan> plans) override {
    return watched(watcher_, Hook::kCreateGlobalPlan, [&] { return planner_.create_global_plan(std::move(plans)); });
  }
  SavePlan finish_plan(SavePlan plan) override {
    return watched(watcher_, Hook::kFinishPlan, [&] { return planner_.finish_plan(std::move(plan)); });
  }
  ResolvedData resolve_data(const SavePlan& plan, const WriteItem& item) override { return planner_.resolve_data(plan, item); }

 private:
  SavePlanner& planner_;
  HookWatcher& watcher_;
};

class WatchedLoadPlanner final : public LoadPlanner {
 public:
  WatchedLoadPlanner(LoadPlanner& planner, HookWatcher& watcher) : planner_(planner), watcher_(watcher) {}
  void set_up_planner(StateDict& state, const Metadata& metadata, int rank, bool is_coordinator) override {
    watched(watcher_, Hook::kSetUpPlanner, [&] { planner_.set_up_planner(state, metadata, rank, is_coordinator); });
  }
  LoadPlan create_local_plan() override {
    return watched(watcher_, Hook::kCreateLocalPlan, [&] { return planner_.create_local_plan(); });
  }
  std::vector<LoadPlan> create_global_plan(std::vector<LoadPlan> plans) override {
    return watched(watcher_, Hook::kCreateGlobalPlan, [&] { return planner_.create_global_plan(std::move(plans)); });
  }
  LoadPlan finish_plan(LoadPlan plan) override {
    return watched(watcher_, Hook::kFinishPlan, [&] { return planner_.finish_plan(std::move(plan)); });
  }
  void load_bytes(const LoadPlan& plan, const ReadItem& item, Bytes bytes) override {
    planner_.load_bytes(plan, item, std::move(bytes));
  }
  torch::Tensor resolve_tensor(const LoadPlan& plan, const ReadItem& item) override { return planner_.resolve_tensor(plan, item); }
  void commit_tensor(const LoadPlan& plan, const ReadItem& item, torch::Tensor tensor) override {
    planner_.commit_tensor(plan, item, std::move(tensor));
  }

 private:
  LoadPlanner& planner_;
  HookWatcher& watcher_;
};

class WatchedWriter final : public StorageWriter {
 public:
  WatchedWriter(StorageWriter& writer, HookWatcher& watcher) : writer_(writer), watcher_(watcher) {}
  void reset(const std::string& checkpoint_id) override {
    watched(watcher_, Hook::kReset, [&] { writer_.reset(checkpoint_id); });
  }
  void set_up_storage_writer(const StorageContext& context) override;
  SavePlan prepare_local_plan(SavePlan plan) override {
    return watched(watcher_, Hook::kPrepareLocalPlan, [&] { return writer_.prepare_local_plan(std::move(plan)); });
  }
  std::vector<SavePlan> prepare_global_plan(std::vector<SavePlan> plans) override {
    return watched(watcher_, Hook::kPrepareGlobalPlan, [&] { return writer_.prepare_global_plan(std::move(plans)); });
  }
  bool repeats(const std::string& of, const std::vector<std::shared_ptr<const SavePlan>>& plans) override {
    if (!writer_.repeats(of, plans)) return false;
    // In place of these hooks, which faults may be planted in.
    for (const Hook hook : {Hook::kCreateGlobalPlan, Hook::kPrepareGlobalPlan}) watched(watcher_, hook, [] {});
    return true;
  }
  Future<WriteResults> write_data(const SavePlan& plan, SavePlanner& planner) override;
  void finish(Metadata metadata, std::vector<WriteResults> results) override {
    watched(watcher_, Hook::kFinish, [&] { writer_.finish(std::move(metadata), std::move(results)); });
  }
  Committed committed(const std::string& save_id) override;
  void abandon() noexcept override;
  void discard(bool ends_attempt) noexcept override;
  bool validate_checkpoint_id(const std::string& id) const override { return writer_.validate_checkpoint_id(id); }

 private:
  StorageWriter& writer_;
  HookWatcher& watcher_;
};

class WatchedReader final : public StorageReader {
 public:
  WatchedReader(StorageReader& reader, HookWatcher& watcher) : reader_(reader), watcher_(watcher) {}
  void reset(const std::string& checkpoint_id) override {
    watched(watcher_, Hook::kReset, [&] { reader_.reset(checkpoint_id); });
  }
  Metadata read_metadata() override;
  void set_up_storage_reader(const Metadata& metadata, const StorageContext& context) override {
    watched(watcher_, Hook::kSetUpStorage, [&] { reader_.set_up_storage_reader(metadata, context); });
  }
  LoadPlan prepare_local_plan(LoadPlan plan) override {
    return watched(watcher_, Hook::kPrepareLocalPlan, [&] { return reader_.prepare_local_plan(std::move(plan)); });
  }
  std::vector<LoadPlan> prepare_global_plan(std::vector<LoadPlan> plans) override {
    return watched(watcher_, Hook::kPrepareGlobalPlan, [&] { return reader_.prepare_global_plan(std::move(plans)); });
  }
  Future<bool> read_data(const LoadPlan& plan, LoadPlanner& planner) override;
  void abandon() noexcept override;
  bool validate_checkpoint_id(const std::string& id) const override { return reader_.validate_checkpoint_id(id); }

 private:
  StorageReader& reader_;
  HookWatcher& watcher_;
};

}  // namespace cairn::simulation
