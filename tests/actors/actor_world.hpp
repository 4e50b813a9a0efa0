// A world of ranks in one process, without trainers. Their calls run the hooks of
// scripted_hooks.hpp.
#pragma once

#include <cairn/tests/support/torch.hpp>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <cairn/actors/links/links.hpp>
#include <cairn/actors/rank_runtime.hpp>
#include <cairn/state/call_hooks.hpp>
#include <cairn/tests/actors/scripted_hooks.hpp>
#include <cairn/tests/support/failure_maps.hpp>
#include <cairn/tests/support/gate.hpp>

namespace cairn::test {

using testing::Gate;
using testing::ranks_of;

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
  // Makes the next `posts` posts throw. The actor that posts dies.
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

// One rank of the world, with the objects that the calls of one checkpointer use.
struct Rank {
  Script script;
  SerialExecutor executor;
  StateDict state;
  ScriptedSavePlanner save_planner{script};
  ScriptedWriter writer{script};
  ScriptedLoadPlanner load_planner{script};
  ScriptedReader reader{script};
};

// A test's arguments for a call. Every rank gets the same ones unless the test says otherwise.
struct CallSettings {
  std::string checkpointer = "main";
  std::string checkpoint_id = "step_100";
  int coordinator_rank = 0;
  Digest options_digest{};
  std::vector<std::string> stateful_keys;
  std::uint64_t ordinal = 0;  // 0: the next ordinal of the rank
  bool keeps_local_plans = false;
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
  call.hooks = make_save_hooks(own.state, own.save_planner, own.writer, "rules");
  return call;
}

inline RankConfig config_of(int rank, int world_size, const RuntimeOptions& options = {}) {
  RankConfig config;
  config.rank = rank;
  config.world_size = world_size;
  config.incarnation = "0123456789abcdef0123456789abcdef";
  config.options = options;
  return config;
}

class ActorWorld {
 public:
  // `links`: null means memory links.
  explicit ActorWorld(int size, RuntimeOptions options = {}, unsigned threads = 2, std::shared_ptr<LinksFactory> links = nullptr)
      : system_(ActorSystem::create(threads)),
        links_(links ? std::move(links) : make_memory_links(size)),
        ordinals_(static_cast<std::size_t>(size)) {
    options.trace_ring_bytes = 1u << 20;
    for (int rank = 0; rank < size; ++rank) {
      runtimes_.push_back(std::make_unique<RankRuntime>(system_, config_of(rank, size, options), size > 1 ? links_ : nullptr));
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
    call.hooks = make_load_hooks(own.state, own.load_planner, own.reader, {}, settings.keeps_local_plans);
    return call;
  }

  Future<CallResult> start_save(int index, const CallSettings& settings = {}) {
    auto promise = std::make_shared<Promise<CallResult>>();
    runtime(index).save(save_call(index, settings), [promise](CallResult outcome) { promise->set_value(std::move(outcome)); });
    return promise->future();
  }
  Future<CallResult> start_load(int index, const CallSettings& settings = {}) {
    auto promise = std::make_shared<Promise<CallResult>>();
    runtime(index).load(load_call(index, settings), [promise](CallResult outcome) { promise->set_value(std::move(outcome)); });
    return promise->future();
  }

  // Runs a save on every rank. Returns the outcomes by rank.
  std::vector<CallResult> save(const CallSettings& settings = {}) {
    std::vector<Future<CallResult>> futures;
    for (int index = 0; index < size(); ++index) futures.push_back(start_save(index, settings));
    return collect(futures);
  }
  std::vector<CallResult> load(const CallSettings& settings = {}) {
    std::vector<Future<CallResult>> futures;
    for (int index = 0; index < size(); ++index) futures.push_back(start_load(index, settings));
    return collect(futures);
  }
  static std::vector<CallResult> collect(const std::vector<Future<CallResult>>& futures) {
    std::vector<CallResult> outcomes;
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

// Returns whether every rank has the same outcome.
inline bool all_equal(const std::vector<CallResult>& outcomes) {
  for (const auto& outcome : outcomes)
    if (outcome.failures != outcomes.front().failures || outcome.committed != outcomes.front().committed ||
        outcome.save_id != outcomes.front().save_id)
      return false;
  return true;
}

}  // namespace cairn::test
