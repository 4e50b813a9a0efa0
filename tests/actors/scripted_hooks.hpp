// Planners, writers and readers that only record their hooks and fail where a test tells them to.
#pragma once

#include <cairn/tests/support/torch.hpp>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <cairn/state/planner.hpp>
#include <cairn/state/storage.hpp>

namespace cairn::test {

// The log of one rank's hooks, and the actions that a test has planned for them.
class Script {
 public:
  // Called by every hook with its name ("planner.finish_plan"). Logs the name, then runs the
  // planned action.
  void hook(const std::string& name) {
    std::function<void()> action;
    {
      std::lock_guard lock(mutex_);
      log_.push_back(name);
      const auto found = actions_.find(name);
      if (found != actions_.end()) action = found->second;
    }
    if (action) action();
  }
  void on(const std::string& name, std::function<void()> action) {
    std::lock_guard lock(mutex_);
    actions_[name] = std::move(action);
  }
  void clear() {
    std::lock_guard lock(mutex_);
    actions_.clear();
    log_.clear();
  }
  std::vector<std::string> log() const {
    std::lock_guard lock(mutex_);
    return log_;
  }
  int count(const std::string& name) const {
    const auto all = log();
    return static_cast<int>(std::count(all.begin(), all.end(), name));
  }

  std::atomic<std::uint64_t> content{1};      // content of the rank's bytes object
  std::atomic<int> plan_version{0};           // another version means another plan
  std::string metadata_save_id = "one save";  // the save id that this rank's reader sees
  Committed committed = Committed::kUnknown;  // the writer's answer
  bool asynchronous = false;                  // another thread fulfils the data futures

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::function<void()>> actions_;
  std::vector<std::string> log_;
};

class ScriptedSavePlanner : public SavePlanner {
 public:
  explicit ScriptedSavePlanner(Script& script) : script_(script) {}
  void set_up_planner(const StateDict&, int rank, bool) override {
    rank_ = rank;
    script_.hook("planner.set_up_planner");
  }
  SavePlan create_local_plan() override {
    script_.hook("planner.create_local_plan");
    SavePlan plan;
    WriteItem tensor;
    tensor.name = plan.names.intern("weight." + std::to_string(script_.plan_version));
    tensor.type = WriteItemType::kShard;
    tensor.size = {1024, 4};
    tensor.chunk = Box{{rank_, 0}, {1, 4}};
    plan.items.push_back(tensor);
    WriteItem bytes;
    bytes.name = plan.names.intern("position.rank_" + std::to_string(rank_));
    bytes.type = WriteItemType::kByteIO;
    bytes.content_hash = script_.content;
    bytes.content_bytes = 8;
    plan.items.push_back(bytes);
    plan.mappings.edit().emplace_back(bytes.name, Path{std::string("position")});
    return plan;
  }
  GlobalSavePlan create_global_plan(std::vector<SavePlan> plans) override {
    script_.hook("planner.create_global_plan");
    contents_seen.clear();
    for (const auto& plan : plans) contents_seen.push_back(plan.items.at(1).content_hash);
    GlobalSavePlan global;
    global.plans = std::move(plans);
    if (drop_a_plan) global.plans.pop_back();
    if (break_a_plan) global.plans.front().items.front().name = 77;
    global.metadata.version = "of the planner";
    return global;
  }
  SavePlan finish_plan(SavePlan plan) override {
    script_.hook("planner.finish_plan");
    return plan;
  }
  ResolvedData resolve_data(const SavePlan&, const WriteItem&) override { return Bytes(); }

  std::vector<std::uint64_t> contents_seen;
  bool drop_a_plan = false;
  bool break_a_plan = false;

 private:
  Script& script_;
  int rank_ = -1;
};

// Fulfils futures at once, or on separate threads. The destructor waits for the threads.
class Deliveries {
 public:
  explicit Deliveries(Script& script) : script_(script) {}
  ~Deliveries() {
    for (auto& thread : threads_) thread.join();
  }
  template <class T>
  Future<T> fulfil(const std::string& hook, T value) {
    if (!script_.asynchronous) {
      script_.hook(hook + ".future");
      return ready_future(std::move(value));
    }
    auto promise = std::make_shared<Promise<T>>();
    auto future = promise->future();
    threads_.emplace_back([&script = script_, hook, promise, value]() mutable {
      try {
        script.hook(hook + ".future");
        promise->set_value(std::move(value));
      } catch (...) {
        promise->set_exception(std::current_exception());
      }
    });
    return future;
  }

 private:
  Script& script_;
  std::vector<std::thread> threads_;
};

class ScriptedWriter : public StorageWriter {
 public:
  explicit ScriptedWriter(Script& script) : script_(script), deliveries_(script) {}
  void reset(const std::string&) override { script_.hook("writer.reset"); }
  void set_up_storage_writer(const StorageContext& context) override {
    contexts.push_back(context);
    script_.hook("writer.set_up_storage_writer");
  }
  SavePlan prepare_local_plan(SavePlan plan) override {
    script_.hook("writer.prepare_local_plan");
    return plan;
  }
  std::vector<SavePlan> prepare_global_plan(std::vector<SavePlan> plans) override {
    script_.hook("writer.prepare_global_plan");
    return plans;
  }
  bool repeats(const std::string& of, const std::vector<std::shared_ptr<const SavePlan>>& plans) override {
    asked_to_repeat.emplace_back(of, plans.size());
    return false;
  }
  Future<WriteResults> write_data(const SavePlan& plan, SavePlanner&) override {
    script_.hook("writer.write_data");
    written.push_back(plan.items.at(1).content_hash);
    WriteResults results;
    results.files.push_back({"file_" + std::to_string(contexts.back().rank), 70, 8, 9, {}, {}});
    return deliveries_.fulfil("writer.write_data", std::move(results));
  }
  void finish(Metadata metadata, std::vector<WriteResults> results) override {
    finished_with = std::move(results);
    version_seen = metadata.version;
    script_.hook("writer.finish");
  }
  Committed committed(const std::string& save_id) override {
    asked_for = save_id;
    script_.hook("writer.committed");
    return script_.committed;
  }
  void abandon() noexcept override { script_.hook("writer.abandon"); }
  void discard(bool) noexcept override { script_.hook("writer.discard"); }

  std::vector<std::pair<std::string, std::size_t>> asked_to_repeat;  // of what, and how many plans
  std::vector<StorageContext> contexts;
  std::vector<std::uint64_t> written;
  std::vector<WriteResults> finished_with;
  std::string version_seen;
  std::string asked_for;

 private:
  Script& script_;
  Deliveries deliveries_;
};

class ScriptedLoadPlanner : public LoadPlanner {
 public:
  explicit ScriptedLoadPlanner(Script& script) : script_(script) {}
  void set_up_planner(StateDict&, const Metadata&, int, bool) override {
    script_.hook("planner.set_up_planner");
  }
  LoadPlan create_local_plan() override {
    script_.hook("planner.create_local_plan");
    LoadPlan plan;
    ReadItem item;
    item.dest_name = item.storage_name = plan.names.intern(name);
    item.dest_chunk_offset = item.dest_offsets = item.storage_chunk_offset = item.storage_offsets = {0};
    item.lengths = {4};
    plan.items.push_back(item);
    return plan;
  }
  std::vector<LoadPlan> create_global_plan(std::vector<LoadPlan> plans) override {
    script_.hook("planner.create_global_plan");
    plans_seen = plans.size();
    return plans;
  }
  LoadPlan finish_plan(LoadPlan plan) override {
    script_.hook("planner.finish_plan");
    finished = plan.names.size() == 1 ? plan.names[0] : "";
    return plan;
  }
  void load_bytes(const LoadPlan&, const ReadItem&, Bytes) override {}
  torch::Tensor resolve_tensor(const LoadPlan&, const ReadItem&) override { return {}; }
  void commit_tensor(const LoadPlan&, const ReadItem&, torch::Tensor) override {}

  std::string name = "weight";  // of the only item
  std::size_t plans_seen = 0;   // by the last global plan
  std::string finished;         // the item's name in the last finished plan

 private:
  Script& script_;
};

class ScriptedReader : public StorageReader {
 public:
  explicit ScriptedReader(Script& script) : script_(script), deliveries_(script) {}
  void reset(const std::string&) override { script_.hook("reader.reset"); }
  Metadata read_metadata() override {
    script_.hook("reader.read_metadata");
    Metadata metadata;
    metadata.save_id = script_.metadata_save_id;
    return metadata;
  }
  void set_up_storage_reader(const Metadata&, const StorageContext&) override { script_.hook("reader.set_up_storage_reader"); }
  LoadPlan prepare_local_plan(LoadPlan plan) override {
    script_.hook("reader.prepare_local_plan");
    return plan;
  }
  std::vector<LoadPlan> prepare_global_plan(std::vector<LoadPlan> plans) override {
    script_.hook("reader.prepare_global_plan");
    return plans;
  }
  Future<bool> read_data(const LoadPlan&, LoadPlanner&) override {
    script_.hook("reader.read_data");
    return deliveries_.fulfil("reader.read_data", true);
  }

 private:
  Script& script_;
  Deliveries deliveries_;
};

}  // namespace cairn::test
