// Converts to a checkpoint for torch.distributed.checkpoint. Cairn's own writer writes the files of
// one rank after another.
//
//  1  Open the log, which contains the save id. Keep the files of ranks that it lists.
//  2  For each other rank, the last one first: write its files and add the rank to the log.
//  3  Open the attempt. From here on, another save to this place fences this one, and does not
//     remove its files.
//  4  Check that all files are still there, at full length.
//  5  Publish the record. Only now there is a checkpoint. Then remove the log.
//
// A crash before 5 leaves unreferenced files, and a log for the next run. After 3 it also leaves an
// open attempt, which the next run ends before it starts again. The lock of the log keeps other
// conversions from doing so. A crash in 5 may leave the log beside a complete checkpoint; the next
// run does not remove that checkpoint's files.
#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include <cairn/base/mutex.hpp>
#include <cairn/base/random.hpp>
#include <cairn/base/save_id.hpp>
#include <cairn/planning/pieces.hpp>
#include <cairn/state/device_mesh.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/storage/checkpoint_writer.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/publication.hpp>
#include <cairn/tools/commands.hpp>
#include <cairn/tools/conversion.hpp>
#include <cairn/tools/conversion_log.hpp>

namespace cairn::tools {
namespace {

constexpr const char* kLogName = ".cairn-convert.log";

// Assigns boxes of each tensor to ranks.
class Layout {
 public:
  explicit Layout(const Conversion& conversion) : metadata_(conversion.source().metadata()), wanted_(conversion.options().world) {
    if (wanted_) {
      world_ = *wanted_;
      return;
    }
    for (const FileInfo& file : metadata_.files) world_ = std::max(world_, rank_of_file(file.name).value_or(0) + 1);
    if (metadata_.commit) world_ = std::max(world_, metadata_.commit->world_size);
    if (world_ > kWorldSizeMax)
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("{} says that {} ranks wrote it, and {} is the most: lay it out over fewer with --world",
                              conversion.source().name(), world_, kWorldSizeMax));
  }

  int world() const { return world_; }

  // Returns the boxes, by rank.
  std::vector<std::vector<Box>> boxes_of(const ConvertedKey& key) const {
    std::vector<std::vector<Box>> boxes(static_cast<std::size_t>(world_));
    const TensorStorageMetadata& stored = key.stored;
    if (!wanted_) {
      for (std::size_t i = 0; i < stored.chunks.size(); ++i)
        boxes[i < stored.storage.size() ? rank_of(stored.storage[i]) : 0].push_back(stored.chunks[i]);
    } else if (stored.size.empty() || volume(stored.size) == 0) {
      boxes[0].push_back(Box::whole(stored.size));
    } else {
      const DeviceMesh mesh({world_});
      for (int rank = 0; rank < world_; ++rank) {
        const Box box = *local_box(stored.size, mesh, {Shard{0}}, rank);
        if (!box.empty()) boxes[static_cast<std::size_t>(rank)].push_back(box);
      }
    }
    return boxes;
  }

  std::size_t rank_of_value(const ConvertedKey& key) const {
    if (wanted_) return 0;
    const auto* stored = std::get_if<BytesStorageMetadata>(metadata_.find(key.source));
    return stored && stored->storage ? rank_of(*stored->storage) : 0;
  }

 private:
  std::size_t rank_of(const StorageInfo& storage) const {
    return static_cast<std::size_t>(rank_of_file(metadata_.files.at(storage.file).name).value_or(0));
  }

  const Metadata& metadata_;
  const std::optional<int> wanted_;
  int world_ = 1;
};

// Reads data from the source when the writer asks for it.
class ConversionPlanner : public SavePlanner {
 public:
  explicit ConversionPlanner(Conversion& conversion) : conversion_(conversion) {
    for (const ConvertedKey& key : conversion.keys()) keys_[key.key] = &key;
  }
  void set_up_planner(const StateDict&, int, bool) override {}
  SavePlan create_local_plan() override { return {}; }
  GlobalSavePlan create_global_plan(std::vector<SavePlan>) override { return {}; }
  SavePlan finish_plan(SavePlan new_plan) override { return new_plan; }
  ResolvedData resolve_data(const SavePlan& plan, const WriteItem& item) override {
    const ConvertedKey& key = *keys_.at(plan.names[item.name]);
    const MutexLock one_at_a_time(mutex_);
    if (item.type == WriteItemType::kByteIO) return conversion_.source().read_bytes(key.source);
    return conversion_.read(key, item.chunk);
  }

 private:
  Conversion& conversion_;
  std::unordered_map<std::string, const ConvertedKey*> keys_;
  Mutex mutex_;  // a source is read by one thread at a time
};

// Returns the plan of each rank. Cuts boxes into chunks that fit into memory.
std::vector<SavePlan> plans_of(const Conversion& conversion, const Layout& layout) {
  std::vector<SavePlan> plans(static_cast<std::size_t>(layout.world()));
  for (const ConvertedKey& key : conversion.keys()) {
    const auto add = [&](SavePlan& plan, WriteItem item) {
      const bool is_new = !plan.names.find(key.key);
      item.name = plan.names.intern(key.key);
      if (is_new) plan.mappings.edit().emplace_back(item.name, key.path);
      plan.items.push_back(std::move(item));
    };
    if (!key.is_tensor) {
      add(plans[layout.rank_of_value(key)], {});
      continue;
    }
    const auto boxes = layout.boxes_of(key);
    for (std::size_t rank = 0; rank < boxes.size(); ++rank)
      for (const Box& box : boxes[rank]) {
        const auto add_chunk = [&](const Box& chunk) {
          WriteItem item;
          item.type = WriteItemType::kShard;
          item.properties = key.stored.properties;
          item.properties.dtype = key.dtype;
          item.size = key.stored.size;
          item.chunk = chunk;
          add(plans[rank], std::move(item));
        };
        if (box.empty()) add_chunk(box);
        for_each_piece(box.sizes, conversion.piece_elements(key), [&](const Box& piece, std::int64_t) {
          Box chunk = piece;
          for (std::size_t dim = 0; dim < box.offsets.size(); ++dim) chunk.offsets[dim] += box.offsets[dim];
          add_chunk(chunk);
        });
      }
  }
  // Bytes objects come last in a plan.
  for (SavePlan& plan : plans)
    std::stable_partition(plan.items.begin(), plan.items.end(),
                          [](const WriteItem& item) { return item.type != WriteItemType::kByteIO; });
  return plans;
}

Json log_entry(std::size_t rank, const WriteResults& results) {
  Json files = Json::array();
  for (const FileResult& file : results.files)
    files.push_back({{"name", file.name},
                     {"length", file.length_bytes},
                     {"crc32", file.crc32},
                     {"trailer", file.trailer_length_bytes},
                     {"values", file.bytes_item_lengths}});
  return {{"rank", rank}, {"files", std::move(files)}};
}

WriteResults results_of(const Json& entry) {
  WriteResults results;
  for (const Json& file : entry.at("files")) {
    FileResult result;
    file.at("name").get_to(result.name);
    file.at("length").get_to(result.length_bytes);
    file.at("crc32").get_to(result.crc32);
    file.at("trailer").get_to(result.trailer_length_bytes);
    file.at("values").get_to(result.bytes_item_lengths);
    results.files.push_back(std::move(result));
  }
  return results;
}

// Returns whether `metadata` refers to files of save `id`, as current or retired. Readers that
// opened the checkpoint before its record was replaced still read retired files.
bool needs(const Metadata& metadata, const std::string& id) {
  if (metadata.save_id == id) return true;
  if (metadata.commit && std::count(metadata.commit->retired.begin(), metadata.commit->retired.end(), id) > 0) return true;
  return std::any_of(metadata.files.begin(), metadata.files.end(),
                     [&](const FileInfo& file) { return save_id_of_file(file.name) == id; });
}

// Returns whether all files exist with the lengths that were written.
bool are_there(Store& store, const WriteResults& results) {
  return std::all_of(results.files.begin(), results.files.end(), [&](const FileResult& file) {
    return store.exists(file.name) && store.size_bytes(file.name) == file.length_bytes;
  });
}

class DcpConversion {
 public:
  DcpConversion(Conversion& conversion, Layout layout, const std::string& directory)
      : conversion_(conversion),
        directory_(directory),
        store_(open_store(directory)),
        layout_(std::move(layout)),
        log_((std::filesystem::path(directory) / kLogName).string(), identity()) {
    for (const Json& entry : log_.stale())
      if (entry.contains("save_id")) remove_files(entry.at("save_id"));
    const auto& entries = log_.entries();
    for (first_ = entries.size(); first_ > 0 && !entries[first_ - 1].contains("save_id");) --first_;
    if (first_ > 0) {
      entries[first_ - 1].at("save_id").get_to(save_id_);
      const Replaced there = end_attempt(save_id_);
      if (!there.generation || !needs(*there.generation, save_id_)) return;
    }
    save_id_ = make_save_id(random_hex(*system_random(), 128), "convert", 1);
    log_.add({{"save_id", save_id_}});
    first_ = entries.size();
  }

  Converted run() {
    std::vector<SavePlan> local = plans_of(conversion_, layout_);
    GlobalPlanOptions as_they_are;
    as_they_are.split_above_bytes = 0;
    GlobalSavePlan global = create_global_save_plan(std::move(local), as_they_are);

    CheckpointWriterOptions options;
    options.overwrite = conversion_.options().force;
    options.bytes_in_flight_max = std::clamp<std::uint64_t>(conversion_.options().memory / 2, 16u << 20, 256u << 20);
    CheckpointWriter coordinator(options);
    coordinator.reset(directory_);
    global.plans = coordinator.prepare_global_plan(std::move(global.plans));

    const std::vector<WriteResults> results = write_all(global.plans, options);
    StorageContext context = context_of(0);
    context.is_coordinator = true;
    coordinator.set_up_storage_writer(context);
    try {
      for (const WriteResults& one : results)
        if (!are_there(*store_, one))
          throw Error(ErrorCode::kChanged, fmt::format("files in {} were removed while the conversion ran", printable(directory_)));
      coordinator.finish(std::move(global.metadata), results);
    } catch (...) {
      coordinator.abandon();
      coordinator.discard(true);
      throw;
    }
    log_.remove();
    for (const WriteResults& one : results)
      for (const FileResult& file : one.files) converted_.bytes += file.length_bytes;
    for (const ConvertedKey& key : conversion_.keys()) ++(key.is_tensor ? converted_.tensors : converted_.values);
    return converted_;
  }

  // Returns whether the log has progress that the next run can resume.
  bool has_progress() const { return log_.entries().size() > first_; }
  void clean_up() noexcept {
    try {
      remove_files(save_id_);
      log_.remove();
      store_->remove_root();
    } catch (const std::exception&) {  // the next run removes the rest
    }
  }

 private:
  Json identity() const {
    Json identity = conversion_.identity();
    identity["ranks"] = layout_.world();
    return identity;
  }

  StorageContext context_of(int rank) const {
    StorageContext context;
    context.checkpoint_id = directory_;
    context.save_id = save_id_;
    context.rank = rank;
    context.world_size = layout_.world();
    context.is_coordinator = false;
    context.one_process = true;
    if (const auto& commit = conversion_.source().metadata().commit) {
      context.step = commit->step;
      context.user_metadata = commit->user_metadata;
    }
    return context;
  }

  std::vector<WriteResults> write_all(const std::vector<SavePlan>& plans, const CheckpointWriterOptions& options) {
    std::vector<WriteResults> results(plans.size());
    std::vector<bool> done(plans.size(), false);
    for (std::size_t i = first_; i < log_.entries().size(); ++i) {
      const Json& entry = log_.entries()[i];
      const auto rank = entry.at("rank").get<std::size_t>();
      WriteResults written = results_of(entry);
      if (rank >= plans.size() || !are_there(*store_, written)) continue;
      results[rank] = std::move(written);
      done[rank] = converted_.resumed = true;
    }
    ConversionPlanner planner(conversion_);
    for (std::size_t rank = plans.size(); rank-- > 0;) {
      if (done[rank]) continue;
      store_->remove(data_file_name(static_cast<int>(rank), 0, save_id_));  // may be a partial file of an interrupted run
      CheckpointWriter writer(options);
      writer.reset(directory_);
      writer.set_up_storage_writer(context_of(static_cast<int>(rank)));
      results[rank] = writer.write_data(plans[rank], planner).get();
      log_.add(log_entry(rank, results[rank]));
    }
    return results;
  }

  // Ends the attempt of a save. Only the holder of the log's lock may begin such a save, so
  // `save_id` is not open after the return. The returned state of the record then tells whether the
  // save was published.
  Replaced end_attempt(const std::string& save_id) const {
    const auto is_among = [&](const std::vector<std::string>& ids) { return std::count(ids.begin(), ids.end(), save_id) > 0; };
    if (is_among(store_->open_attempts())) store_->fence(save_id);
    Replaced there = generation_to_replace(*store_);
    if (is_among(store_->fenced_attempts())) store_->clear_attempt(save_id);
    return there;
  }

  // Removes the files of a save that was not published. Keeps all files if it was published, or if
  // that is unknown.
  void remove_files(const std::string& save_id) const {
    if (!is_save_id(save_id)) return;
    const Replaced there = end_attempt(save_id);
    if (!there.is_known || (there.generation && needs(*there.generation, save_id))) return;
    for (const ObjectInfo& file : store_->list("__"))
      if (save_id_of_file(file.name) == save_id) store_->remove(file.name);
  }

  Conversion& conversion_;
  const std::string directory_;
  const std::shared_ptr<Store> store_;
  const Layout layout_;
  ConversionLog log_;
  std::size_t first_ = 0;  // index of the first log entry after the one that names this save
  std::string save_id_;
  Converted converted_;
};

}  // namespace

Converted convert_to_dcp(Conversion& conversion) {
  const ConvertOptions& options = conversion.options();
  if (options.destination.empty()) throw WrongUse("the name of the directory to write is empty");
  if (options.destination.find("://") != std::string::npos)
    throw WrongUse(fmt::format("{} is a URL: the destination must be a directory's path", printable(options.destination)));
  const std::filesystem::path path = std::filesystem::absolute(options.destination);
  std::error_code error;
  if (std::filesystem::exists(path, error) && !std::filesystem::is_directory(path, error))
    throw Error(ErrorCode::kAlreadyExists, fmt::format("{} is no directory", printable(path.string())));
  if (!std::filesystem::is_directory(path.lexically_normal().parent_path(), error))
    throw WrongUse(fmt::format("cannot write {}: there is no directory above it", printable(options.destination)));
  const auto store = open_store(path.string());
  if (store->exists(kCommitRecordName) && !options.force)
    throw Error(ErrorCode::kAlreadyExists,
                fmt::format("a checkpoint exists already at {}; --force replaces it", printable(store->url())));
  conversion.leave_out([&](const ConvertedKey& key) { return conversion.source().why_not_convertible(key.source); });
  Layout layout(conversion);
  conversion.require_room();
  store->create_root();
  DcpConversion dcp(conversion, std::move(layout), path.string());
  try {
    return dcp.run();
  } catch (const Error& failed) {
    const bool may_pass = failed.code() == ErrorCode::kNoSpace || failed.code() == ErrorCode::kUnavailable;
    if (may_pass && dcp.has_progress())
      throw Error(failed.code(), fmt::format("{}. The same command goes on from where it came to", failed.what()));
    dcp.clean_up();
    throw;
  }
}

}  // namespace cairn::tools
