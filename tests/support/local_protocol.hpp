// Runs saves and loads of N ranks in one thread, without actors. Calls every hook of planners,
// writers and readers in the protocol's order.
#pragma once

#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <cairn/base/save_id.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/state/storage.hpp>

namespace cairn::testing {

// The inputs of one rank. Planners and writers must outlive the call.
struct LocalSaver {
  const StateDict* state = nullptr;
  SavePlanner* planner = nullptr;
  StorageWriter* writer = nullptr;
};

struct LocalLoader {
  StateDict* state = nullptr;
  LoadPlanner* planner = nullptr;
  StorageReader* reader = nullptr;
};

struct LocalSave {
  std::string checkpoint_id;
  std::string save_id;
  int coordinator = 0;
  bool one_process = true;  // false: the writers behave as those of several processes
  std::optional<std::int64_t> step = {};
  std::map<std::string, std::string> user_metadata = {};
  // If not null: the global plans of the last save, which this one repeats if the writer can, and
  // then its own.
  std::vector<std::shared_ptr<const SavePlan>>* last_plans = nullptr;
  std::string planned_of = "the same";
};

// Returns a save id that no real world uses. It depends only on `counter`.
inline std::string local_save_id(std::uint64_t counter) {
  return make_save_id("00112233445566778899aabbccddeeff", "test", counter);
}

// Runs one save; `ranks[r]` is rank r. If a hook throws, calls `abandon` on every writer and
// `discard` on the coordinator's, and rethrows. The other writers discard only if the checkpoint
// certainly does not exist.
inline void save_locally(const LocalSave& save, const std::vector<LocalSaver>& ranks) {
  const int world_size = static_cast<int>(ranks.size());
  const auto coordinator = static_cast<std::size_t>(save.coordinator);
  try {
    for (const LocalSaver& rank : ranks) rank.writer->reset(save.checkpoint_id);
    std::vector<SavePlan> plans;
    for (int r = 0; r < world_size; ++r) {
      const LocalSaver& rank = ranks[static_cast<std::size_t>(r)];
      StorageContext context;
      context.checkpoint_id = save.checkpoint_id;
      context.save_id = save.save_id;
      context.rank = r;
      context.world_size = world_size;
      context.is_coordinator = r == save.coordinator;
      context.one_process = save.one_process;
      context.step = save.step;
      context.user_metadata = save.user_metadata;
      rank.planner->set_up_planner(*rank.state, r, context.is_coordinator);
      rank.writer->set_up_storage_writer(context);
      plans.push_back(rank.writer->prepare_local_plan(rank.planner->create_local_plan()));
    }
    GlobalSavePlan global;
    if (save.last_plans && ranks[coordinator].writer->repeats(save.planned_of, *save.last_plans)) {
      plans.clear();
      for (const auto& plan : *save.last_plans) plans.push_back(*plan);
    } else {
      global = ranks[coordinator].planner->create_global_plan(std::move(plans));
      plans = ranks[coordinator].writer->prepare_global_plan(std::move(global.plans));
      if (save.last_plans) {
        save.last_plans->clear();
        for (const SavePlan& plan : plans) save.last_plans->push_back(std::make_shared<const SavePlan>(plan));
      }
    }
    for (std::size_t r = 0; r < ranks.size(); ++r) plans[r] = ranks[r].planner->finish_plan(std::move(plans[r]));

    // The writes run concurrently, as in a real save. All must end before plans and planners are
    // destroyed.
    std::vector<Future<WriteResults>> futures;
    std::exception_ptr error;
    std::vector<WriteResults> results;
    for (std::size_t r = 0; r < ranks.size() && !error; ++r) {
      try {
        futures.push_back(ranks[r].writer->write_data(plans[r], *ranks[r].planner));
      } catch (...) {
        error = std::current_exception();
      }
    }
    for (const auto& future : futures) {
      try {
        results.push_back(future.get());
      } catch (...) {
        if (!error) error = std::current_exception();
      }
    }
    if (error) std::rethrow_exception(error);
    ranks[coordinator].writer->finish(std::move(global.metadata), std::move(results));
  } catch (...) {
    for (const LocalSaver& rank : ranks) rank.writer->abandon();
    const bool is_told = ranks[coordinator].writer->committed(save.save_id) == Committed::kNo;
    for (std::size_t r = 0; r < ranks.size(); ++r)
      if (is_told || r == coordinator) ranks[r].writer->discard(r == coordinator);
    throw;
  }
}

// Runs one load; `ranks[r]` is rank r.
inline void load_locally(const std::string& checkpoint_id, const std::vector<LocalLoader>& ranks, int coordinator = 0) {
  const int world_size = static_cast<int>(ranks.size());
  for (const LocalLoader& rank : ranks) rank.reader->reset(checkpoint_id);
  std::vector<Metadata> metadata;  // planners and readers refer to it until the end
  std::vector<LoadPlan> plans;
  for (const LocalLoader& rank : ranks) metadata.push_back(rank.reader->read_metadata());
  for (int r = 0; r < world_size; ++r) {
    const LocalLoader& rank = ranks[static_cast<std::size_t>(r)];
    StorageContext context;
    context.checkpoint_id = checkpoint_id;
    context.rank = r;
    context.world_size = world_size;
    context.is_coordinator = r == coordinator;
    context.one_process = true;
    const Metadata& own = metadata[static_cast<std::size_t>(r)];
    rank.planner->set_up_planner(*rank.state, own, r, context.is_coordinator);
    rank.reader->set_up_storage_reader(own, context);
    plans.push_back(rank.reader->prepare_local_plan(rank.planner->create_local_plan()));
  }
  const LocalLoader& leader = ranks[static_cast<std::size_t>(coordinator)];
  plans = leader.reader->prepare_global_plan(leader.planner->create_global_plan(std::move(plans)));
  for (std::size_t r = 0; r < ranks.size(); ++r) plans[r] = ranks[r].planner->finish_plan(std::move(plans[r]));

  std::vector<Future<bool>> futures;
  std::exception_ptr error;
  for (std::size_t r = 0; r < ranks.size() && !error; ++r) {
    try {
      futures.push_back(ranks[r].reader->read_data(plans[r], *ranks[r].planner));
    } catch (...) {
      error = std::current_exception();
    }
  }
  for (const auto& future : futures) {
    try {
      future.get();
    } catch (...) {
      if (!error) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

// Runs the same save with Cairn's own planner on each rank and one writer from `make()` per rank.
inline void save_locally(const LocalSave& save, const std::vector<const StateDict*>& states,
                         const std::function<std::unique_ptr<StorageWriter>()>& make, const SavePlannerOptions& options = {}) {
  std::vector<std::unique_ptr<StorageWriter>> writers;
  std::vector<std::unique_ptr<DefaultSavePlanner>> planners;
  std::vector<LocalSaver> ranks;
  for (const StateDict* state : states) {
    writers.push_back(make());
    planners.push_back(std::make_unique<DefaultSavePlanner>(options));
    ranks.push_back({state, planners.back().get(), writers.back().get()});
  }
  save_locally(save, ranks);
}

inline void load_locally(const std::string& checkpoint_id, const std::vector<StateDict*>& states,
                         const std::function<std::unique_ptr<StorageReader>()>& make, const LoadPlannerOptions& options = {}) {
  std::vector<std::unique_ptr<StorageReader>> readers;
  std::vector<std::unique_ptr<DefaultLoadPlanner>> planners;
  std::vector<LocalLoader> ranks;
  for (StateDict* state : states) {
    readers.push_back(make());
    planners.push_back(std::make_unique<DefaultLoadPlanner>(options));
    ranks.push_back({state, planners.back().get(), readers.back().get()});
  }
  load_locally(checkpoint_id, ranks);
}

// A reader that is set up to read data of the checkpoint at `url`.
template <class Reader>
struct OpenReader {
  template <class... Options>
  explicit OpenReader(const std::string& url, const Options&... options) : reader(options...) {
    reader.reset(url);
    metadata = reader.read_metadata();
    StorageContext context;
    context.checkpoint_id = url;
    reader.set_up_storage_reader(metadata, context);
  }
  const TensorStorageMetadata& stored(const std::string& fqn) const {
    return std::get<TensorStorageMetadata>(*metadata.find(fqn));
  }
  Reader reader;
  Metadata metadata;
};

}  // namespace cairn::testing
