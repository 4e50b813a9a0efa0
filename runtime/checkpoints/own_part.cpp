#include <cairn/runtime/checkpoints/own_part.hpp>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include <cairn/base/error.hpp>
#include <cairn/base/rank_text.hpp>
#include <cairn/planning/global_plan.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/read_metadata.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {
namespace {

// Plans as this rank of the real world, which the world of one does not know. The rank names values
// marked by `per_rank`.
class PartSavePlanner final : public DefaultSavePlanner {
 public:
  PartSavePlanner(const SavePlannerOptions& options, int rank)
      : DefaultSavePlanner(options), global_options_(options.global), flatten_(options.flatten_state_dict), rank_(rank) {}
  void set_up_planner(const StateDict& state_dict, int, bool is_coordinator) override {
    DefaultSavePlanner::set_up_planner(state_dict, rank_, is_coordinator);
    state_dict_ = &state_dict;
  }
  // Also lists the sharded tensors of which this rank holds nothing, so that a load of the part
  // finds them.
  SavePlan create_local_plan() override {
    SavePlan plan = DefaultSavePlanner::create_local_plan();
    std::set<NameId> held;
    for (const WriteItem& item : plan.items) held.insert(item.name);
    for (const FlatEntry& entry : flatten_ ? flatten(*state_dict_) : flatten_top_level(*state_dict_)) {
      if (!entry.value.is_sharded() || entry.value.is_per_rank()) continue;
      const ShardedTensor& tensor = entry.value.sharded();
      WriteItem item;
      item.name = plan.names.intern(entry.fqn);
      if (held.count(item.name) > 0 || tensor.size().empty() || volume(tensor.size()) == 0) continue;
      item.type = WriteItemType::kShard;
      item.properties.dtype = tensor.dtype();
      item.size = tensor.size();
      item.chunk = Box::whole(tensor.size());
      item.chunk.sizes = Extents::filled(tensor.size().size(), 0);
      plan.items.push_back(std::move(item));
    }
    return plan;
  }
  // Unlike the default, allows gaps, which the other ranks' parts fill.
  GlobalSavePlan create_global_plan(std::vector<SavePlan> all_plans) override {
    return create_global_save_plan(std::move(all_plans), global_options_);
  }

 private:
  const GlobalPlanOptions global_options_;
  const bool flatten_;
  const int rank_;
  const StateDict* state_dict_ = nullptr;
};

template <class Options, class Storage>
Options in_world_of_one(Options options, const Storage& users_storage) {
  if (options.planner || users_storage)
    throw Error(ErrorCode::kInvalidArgument,
                "with use_collectives off, Cairn plans and stores by itself: leave planner, "
                "storage_writer and storage_reader empty");
  options.world.reset();
  options.use_collectives = true;
  options.coordinator_rank = 0;
  return options;
}

bool has_record(Store& store, const ObjectName& place) { return store.exists(place + "/" + kCommitRecordName); }

}  // namespace

std::string place_of_part(const std::string& checkpoint_id, const World& world) {
  // The call refuses an empty id.
  return checkpoint_id.empty() ? "" : child_url(checkpoint_id, part_name(world.rank(), world.size()));
}

void require_part(const std::string& place) {
  const auto store = open_store(parent_url(place));
  if (store->exists(kCommitRecordName))
    throw Error(ErrorCode::kMismatch, "one checkpoint of all ranks is at " + store->url() + ": load it with use_collectives on");
  const std::string own = place.substr(place.rfind('/') + 1);
  if (has_record(*store, own)) return;
  if (!rank_records(*store).empty())
    throw Error(ErrorCode::kMismatch, "PyTorch wrote one record for each rank at " + store->url() +
                                          " (use_collectives=False): load it with use_collectives on, on any number of ranks");
  const PartName wanted = part_of_name(own).value();
  std::vector<int> ranks;
  int other_size = 0;
  for (const ObjectName& child : store->children()) {
    const auto part = part_of_name(child);
    if (!part || !has_record(*store, child)) continue;
    if (part->world_size == wanted.world_size)
      ranks.push_back(part->rank);
    else
      other_size = part->world_size;
  }
  std::sort(ranks.begin(), ranks.end());
  if (!ranks.empty())
    throw Error(ErrorCode::kNotFound, "rank " + std::to_string(wanted.rank) + " has no part of the checkpoint at " + store->url() +
                                          ", only " + name_ranks(ranks) + " finished a save there: load an earlier one");
  if (other_size != 0)
    throw Error(ErrorCode::kMismatch, std::to_string(other_size) + " ranks have saved a part each at " + store->url() +
                                          ", and this world has " + std::to_string(wanted.world_size) + ": " + kMergeAdvice +
                                          ", which any number of ranks loads with use_collectives on");
}

std::shared_ptr<SavePlanner> make_part_save_planner(const SavePlannerOptions& options, int rank) {
  return std::make_shared<PartSavePlanner>(options, rank);
}

SaveOptions options_of_part(SaveOptions options, const std::string& checkpoint_id, const World& world) {
  options = in_world_of_one(options, options.storage_writer);
  options.failure_directory = world.report_directory(options.failure_directory, checkpoint_id);
  options.user_metadata[kPartWorldKey] = world.incarnation();
  return options;
}

LoadOptions options_of_part(LoadOptions options, const World& world) {
  options = in_world_of_one(options, options.storage_reader);
  options.failure_directory = world.report_directory(options.failure_directory, "");
  return options;
}

}  // namespace cairn
