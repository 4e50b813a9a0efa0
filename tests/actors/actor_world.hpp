// A world of ranks in one process, with planners, writers and readers that do nothing but keep a record and fail where they are
// told to.
#pragma once

#include <cairn/tests/support/torch.hpp>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <cairn/actors/links/links.hpp>
#include <cairn/actors/rank_runtime.hpp>

namespace cairn::test {

// One thread that runs the hooks of one rank, as a trainer's thread does.
class SerialExecutor : public TrainerExecutor {
 public:
  SerialExecutor() : thread_([this] { run(); }) {}
  ~SerialExecutor() override {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  void post(std::function<void()> task) override {
    if (refusals_ > 0 && refusals_-- > 0) throw std::runtime_error("the executor refuses");
    {
      std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    changed_.notify_all();
  }
  // The next posts throw: the actor that posts dies.
  void refuse(int posts) { refusals_ = posts; }

 private:
  void run() {
    for (;;) {
      std::function<void()> task;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stop_ || !tasks_.empty(); });
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool stop_ = false;
  std::atomic<int> refusals_{0};
  std::thread thread_;
};

// Opened once, by whoever a test makes wait.
class Gate {
 public:
  void open() {
    std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

// What the hooks of one rank did, and what they are to do.
class Script {
 public:
  // Called by every hook with its name ("planner.finish_plan"): keeps it, runs what is planned for it.
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

  std::atomic<std::uint64_t> content{1};      // of the rank's bytes object
  std::atomic<int> plan_version{0};           // other versions have other plans
  std::string metadata_save_id = "one save";  // that this rank's reader sees
  Committed committed = Committed::kUnknown;  // the writer's answer
  bool asynchronous = false;                  // data futures are fulfilled by another thread

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
    plan.mappings.emplace_back(bytes.name, Path{std::string("position")});
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

// Fulfils a future at once, or later on a thread of its own.
template <class T>
Future<T> fulfil(Script& script, const std::string& hook, std::vector<std::thread>& threads, T value) {
  if (!script.asynchronous) {
    script.hook(hook + ".future");
    return ready_future(std::move(value));
  }
  auto promise = std::make_shared<Promise<T>>();
  auto future = promise->future();
  threads.emplace_back([&script, hook, promise, value]() mutable {
    try {
      script.hook(hook + ".future");
      promise->set_value(std::move(value));
    } catch (...) {
      promise->set_exception(std::current_exception());
    }
  });
  return future;
}

class ScriptedWriter : public StorageWriter {
 public:
  explicit ScriptedWriter(Script& script) : script_(script) {}
  ~ScriptedWriter() override {
    for (auto& thread : threads_) thread.join();
  }
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
  Future<WriteResults> write_data(const SavePlan& plan, SavePlanner&) override {
    script_.hook("writer.write_data");
    written.push_back(plan.items.at(1).content_hash);
    WriteResults results;
    results.files.push_back({"file_" + std::to_string(contexts.back().rank), 70, 8, 9, {}});
    return fulfil(script_, "writer.write_data", threads_, std::move(results));
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

  std::vector<StorageContext> contexts;
  std::vector<std::uint64_t> written;
  std::vector<WriteResults> finished_with;
  std::string version_seen;
  std::string asked_for;

 private:
  Script& script_;
  std::vector<std::thread> threads_;
};

class ScriptedLoadPlanner : public LoadPlanner {
 public:
  explicit ScriptedLoadPlanner(Script& script) : script_(script) {}
  void set_up_planner(StateDict&, const Metadata& metadata, int, bool) override {
    version_seen = metadata.version;
    script_.hook("planner.set_up_planner");
  }
  LoadPlan create_local_plan() override {
    script_.hook("planner.create_local_plan");
    LoadPlan plan;
    ReadItem item;
    item.dest_name = item.storage_name = plan.names.intern("weight");
    item.dest_chunk_offset = item.dest_offsets = item.storage_chunk_offset = item.storage_offsets = {0};
    item.lengths = {4};
    plan.items.push_back(item);
    return plan;
  }
  std::vector<LoadPlan> create_global_plan(std::vector<LoadPlan> plans) override {
    script_.hook("planner.create_global_plan");
    return plans;
  }
  LoadPlan finish_plan(LoadPlan plan) override {
    script_.hook("planner.finish_plan");
    return plan;
  }
  void load_bytes(const LoadPlan&, const ReadItem&, Bytes) override {}
  torch::Tensor resolve_tensor(const LoadPlan&, const ReadItem&) override { return {}; }
  void commit_tensor(const LoadPlan&, const ReadItem&, torch::Tensor) override {}

  std::string version_seen;

 private:
  Script& script_;
};

class ScriptedReader : public StorageReader {
 public:
  explicit ScriptedReader(Script& script) : script_(script) {}
  ~ScriptedReader() override {
    for (auto& thread : threads_) thread.join();
  }
  void reset(const std::string&) override { script_.hook("reader.reset"); }
  Metadata read_metadata() override {
    script_.hook("reader.read_metadata");
    Metadata metadata;
    metadata.save_id = script_.metadata_save_id;
    metadata.version = "of the reader";
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
  Future<bool> read_data(const LoadPlan& plan, LoadPlanner&) override {
    script_.hook("reader.read_data");
    items_read += plan.items.size();
    return fulfil(script_, "reader.read_data", threads_, true);
  }

  std::size_t items_read = 0;

 private:
  Script& script_;
  std::vector<std::thread> threads_;
};

// One rank of the world, with the objects that its calls of one checkpointer use.
struct Rank {
  Script script;
  SerialExecutor executor;
  StateDict state;
  ScriptedSavePlanner save_planner{script};
  ScriptedWriter writer{script};
  ScriptedLoadPlanner load_planner{script};
  ScriptedReader reader{script};
};

// What a test passes for a call; the same on all ranks unless it says otherwise.
struct CallSettings {
  std::string checkpointer = "main";
  std::string checkpoint_id = "step_100";
  int coordinator_rank = 0;
  Digest options_digest{};
  std::vector<std::string> stateful_keys;
  std::uint64_t ordinal = 0;  // 0: the next one
};

inline void fill_call(Call& call, Rank& own, const CallSettings& settings, std::uint64_t ordinal) {
  call.id = {settings.checkpointer, settings.ordinal != 0 ? settings.ordinal : ordinal};
  call.checkpoint_id = settings.checkpoint_id;
  call.coordinator_rank = settings.coordinator_rank;
  call.options_digest = settings.options_digest;
  call.stateful_keys = settings.stateful_keys;
  call.executor = &own.executor;
  call.begin = [&own](const std::vector<std::string>& order) {
    std::string keys;
    for (const auto& key : order) keys += "," + key;
    own.script.hook("begin" + keys);
  };
}

inline SaveCall save_call_of(Rank& own, const CallSettings& settings, std::uint64_t ordinal) {
  SaveCall call;
  fill_call(call, own, settings, ordinal);
  call.state_dict = &own.state;
  call.planner = &own.save_planner;
  call.writer = &own.writer;
  return call;
}

class ActorWorld {
 public:
  explicit ActorWorld(int size, RuntimeOptions options = {}, unsigned threads = 2)
      : system_(ActorSystem::create(threads)), links_(make_memory_links(size)), ordinals_(static_cast<std::size_t>(size)) {
    options.trace_ring_bytes = 1u << 20;
    for (int rank = 0; rank < size; ++rank) {
      RankConfig config;
      config.rank = rank;
      config.world_size = size;
      config.incarnation = "0123456789abcdef0123456789abcdef";
      config.options = options;
      runtimes_.push_back(std::make_unique<RankRuntime>(system_, config, size > 1 ? links_ : nullptr));
      ranks_.push_back(std::make_unique<Rank>());
    }
  }
  ~ActorWorld() {
    shut_down();
    system_.reset();  // waits for every actor
  }

  int size() const { return static_cast<int>(ranks_.size()); }
  Rank& rank(int index) { return *ranks_.at(static_cast<std::size_t>(index)); }
  RankRuntime& runtime(int index) { return *runtimes_.at(static_cast<std::size_t>(index)); }
  void shut_down() {
    for (auto& runtime : runtimes_) runtime->shutdown(std::chrono::minutes(1));
  }

  SaveCall save_call(int index, const CallSettings& settings) { return save_call_of(rank(index), settings, next_ordinal(index)); }
  LoadCall load_call(int index, const CallSettings& settings) {
    LoadCall call;
    Rank& own = rank(index);
    fill_call(call, own, settings, next_ordinal(index));
    call.state_dict = &own.state;
    call.planner = &own.load_planner;
    call.reader = &own.reader;
    return call;
  }

  Future<Outcome> start_save(int index, const CallSettings& settings = {}) {
    auto promise = std::make_shared<Promise<Outcome>>();
    runtime(index).save(save_call(index, settings), [promise](Outcome outcome) { promise->set_value(std::move(outcome)); });
    return promise->future();
  }
  Future<Outcome> start_load(int index, const CallSettings& settings = {}) {
    auto promise = std::make_shared<Promise<Outcome>>();
    runtime(index).load(load_call(index, settings), [promise](Outcome outcome) { promise->set_value(std::move(outcome)); });
    return promise->future();
  }

  // On every rank; the outcomes by rank.
  std::vector<Outcome> save(const CallSettings& settings = {}) {
    std::vector<Future<Outcome>> futures;
    for (int index = 0; index < size(); ++index) futures.push_back(start_save(index, settings));
    return collect(futures);
  }
  std::vector<Outcome> load(const CallSettings& settings = {}) {
    std::vector<Future<Outcome>> futures;
    for (int index = 0; index < size(); ++index) futures.push_back(start_load(index, settings));
    return collect(futures);
  }
  static std::vector<Outcome> collect(const std::vector<Future<Outcome>>& futures) {
    std::vector<Outcome> outcomes;
    for (const auto& future : futures) outcomes.push_back(future.get());
    return outcomes;
  }
  void clear_scripts() {
    for (auto& own : ranks_) own->script.clear();
  }

 private:
  std::uint64_t next_ordinal(int index) { return ++ordinals_[static_cast<std::size_t>(index)]; }

  std::shared_ptr<ActorSystem> system_;
  std::shared_ptr<LinksFactory> links_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<std::unique_ptr<RankRuntime>> runtimes_;
  std::vector<std::atomic<std::uint64_t>> ordinals_;  // of each rank's last call
};

// The ranks in a failure map.
inline std::set<int> ranks_of(const FailureMap& failures) {
  std::set<int> ranks;
  for (const auto& [rank, failure] : failures) ranks.insert(rank);
  return ranks;
}

// Every rank has the same outcome.
inline bool all_equal(const std::vector<Outcome>& outcomes) {
  for (const auto& outcome : outcomes)
    if (outcome.failures != outcomes.front().failures || outcome.committed != outcomes.front().committed ||
        outcome.save_id != outcomes.front().save_id)
      return false;
  return true;
}

}  // namespace cairn::test
