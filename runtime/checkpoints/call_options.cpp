#include <cairn/runtime/checkpoints/call_options.hpp>

#include <algorithm>
#include <set>
#include <type_traits>
#include <utility>

#include <cairn/base/rank_text.hpp>
#include <cairn/base/utf8.hpp>
#include <cairn/planning/global_plan.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/read_metadata.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {
namespace {

// Builds the digest by which ranks compare their options, and a text that names the option that
// differs. The text is bounded, because every rank sends it.
class OptionList {
 public:
  OptionList& add(const char* name, const std::string& value) {
    constexpr std::size_t kValueMax = 64, kTextMax = 2048;
    digest_.add(ByteSpan(name)).add(ByteSpan(value));
    if (text_.size() < kTextMax)
      text_ += name + (' ' + printable_utf8(value.substr(0, kValueMax))) + (value.size() > kValueMax ? "…\n" : "\n");
    return *this;
  }
  template <class Number, std::enable_if_t<std::is_arithmetic_v<Number> || std::is_enum_v<Number>, int> = 0>
  OptionList& add(const char* name, Number value) {
    if constexpr (std::is_same_v<Number, bool>) return add(name, std::string(value ? "on" : "off"));
    return add(name, std::to_string(static_cast<std::int64_t>(value)));
  }
  SharedOptions finish() { return {digest_.finish(), std::move(text_)}; }

 private:
  DigestBuilder digest_;
  std::string text_;
};

void add(OptionList& list, const SavePlannerOptions& options) {
  list.add("flatten_state_dict", options.flatten_state_dict).add("dedup", options.global.dedup);
  list.add("rank_values", options.global.rank_values).add("split_above_bytes", options.global.split_above_bytes);
  list.add("hash_tensors", options.hash_tensors);
}

// Only options that must be equal on all ranks. Threads, memory and direct I/O may differ.
void add(OptionList& list, const CheckpointWriterOptions& options) {
  list.add("single_file_per_rank", options.single_file_per_rank).add("sync_files", options.sync_files);
  list.add("overwrite", options.overwrite).add("run_url", options.run_url).add("retired_keep", options.retired_keep);
  list.add("reuse", options.reuse).add("reuse_generations_max", options.reuse_generations_max);
  list.add("zstd_level", options.zstd_level).add("transforms", options.transforms.size());
  for (const std::string& transform : options.transforms) list.add("transform", transform);
}

template <class Own, class Base, class Options>
Made<Base> make_storage(const Options& options) {
  try {
    return {std::make_shared<Own>(options), nullptr};
  } catch (...) {
    return {std::make_shared<Own>(), std::current_exception()};
  }
}

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

SharedOptions shared_options(const SaveOptions& options) {
  OptionList list;
  list.add("step", options.step ? std::to_string(*options.step) : "none");
  list.add("check_replicas", options.check_replicas);
  add(list, options.planning);
  add(list, options.writer);
  for (const auto& [key, value] : options.user_metadata) list.add("user_metadata key", key).add("user_metadata value", value);
  // Users' objects cannot be compared. Whether each rank has them can.
  list.add("own planner", options.planner != nullptr).add("own storage_writer", options.storage_writer != nullptr);
  return list.finish();
}

SharedOptions shared_options(const LoadOptions& options, const std::vector<std::string>& prefixes) {
  OptionList list;
  const LoadPlannerOptions& planning = options.planning;
  list.add("flatten_state_dict", planning.flatten_state_dict).add("allow_partial_load", planning.allow_partial_load);
  list.add("allow_dtype_cast", planning.allow_dtype_cast).add("refuse_absent_ranks", planning.refuse_absent_ranks);
  for (const auto& name : planning.keep_opaque) list.add("keep_opaque", name);
  list.add("read_once", options.read_once).add("replica_group", options.replica_group != nullptr);
  list.add("verify", options.reader.verify).add("verify_first", options.reader.verify_first);
  list.add("own planner", options.planner != nullptr).add("own storage_reader", options.storage_reader != nullptr);
  for (const auto& prefix : prefixes) list.add("prefix", prefix);
  return list.finish();
}

Digest digest_of(const SavePlannerOptions& options) {
  OptionList list;
  add(list, options);
  return list.finish().first;
}

Digest digest_of(const CheckpointWriterOptions& options) {
  OptionList list;
  add(list, options);
  // The writer is kept with its threads and memory, so these count as well.
  list.add("threads", options.threads).add("bytes", options.bytes_in_flight_max).add("block", options.block_bytes);
  list.add("files", options.files_max).add("direct_io", options.direct_io).add("copy_first", options.copy_first);
  return list.add("low_priority", options.low_priority).finish().first;
}

Digest digest_of(const StagingOptions& options) {
  OptionList list;
  list.add("stream", options.stream).add("cached", options.cache_staged_state_dict);
  return list.add("pinned", options.use_pinned_memory).add("bytes_max", options.bytes_max).finish().first;
}

Made<StorageWriter> make_writer(const CheckpointWriterOptions& options) {
  return make_storage<CheckpointWriter, StorageWriter>(options);
}

Made<StorageReader> make_reader(const CheckpointReaderOptions& options) {
  return make_storage<CheckpointReader, StorageReader>(options);
}

void check_step(const SaveOptions& options, bool is_own_part) {
  if (is_own_part && !options.step)
    throw Error(ErrorCode::kInvalidArgument,
                "with use_collectives off, set SaveOptions::step: only the step tells which parts of the ranks belong together");
  if (options.step && *options.step < 0)
    throw Error(ErrorCode::kInvalidArgument, "SaveOptions::step is " + std::to_string(*options.step) + ": steps are not negative");
}

void check_coordinator(int coordinator_rank, int world_size) {
  if (world_size == 1 && coordinator_rank != 0)
    throw Error(ErrorCode::kInvalidArgument,
                "coordinator_rank " + std::to_string(coordinator_rank) + " is not a rank of a world of 1");
}

// --- parts of ranks ------------------------------------------------------------------------------

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
