// Converts to a checkpoint for torch.distributed.checkpoint: a save by Cairn's own writer, of one
// rank after another, with the steps of storage/publication.hpp. A conversion that is killed leaves
// an open attempt with files. The next conversion or save to this place removes them.
#include <algorithm>
#include <filesystem>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include <cairn/base/mutex.hpp>
#include <cairn/base/random.hpp>
#include <cairn/base/save_id.hpp>
#include <cairn/planning/device_mesh.hpp>
#include <cairn/planning/global_plan.hpp>
#include <cairn/planning/pieces.hpp>
#include <cairn/storage/checkpoint_save.hpp>
#include <cairn/storage/engine/strided_bytes.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/publication.hpp>
#include <cairn/storage/read_metadata.hpp>
#include <cairn/tools/commands.hpp>
#include <cairn/tools/conversion.hpp>

namespace cairn::tools {
namespace {

// Returns the number of ranks to lay the output out over.
int world_of(const Conversion& conversion) {
  if (conversion.options().world) return *conversion.options().world;
  const Metadata& metadata = conversion.source().metadata();
  int world = metadata.commit ? std::max(1, metadata.commit->world_size) : 1;
  for (const FileInfo& file : metadata.files) world = std::max(world, rank_of_file(file.name).value_or(0) + 1);
  if (world > kWorldSizeMax)
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{} says that {} ranks wrote it, and {} is the most: lay it out over fewer with --world",
                            conversion.source().name(), world, kWorldSizeMax));
  return world;
}

// Returns the rank that is to write what lies in a place of the source.
std::size_t rank_for(const Conversion& conversion, const std::optional<StorageInfo>& storage) {
  if (!storage || conversion.options().world) return 0;
  return static_cast<std::size_t>(rank_of_file(conversion.source().metadata().files.at(storage->file).name).value_or(0));
}

// Returns the boxes of a tensor, by rank.
std::vector<std::vector<Box>> boxes_of(const Conversion& conversion, const TensorStorageMetadata& stored, int world) {
  std::vector<std::vector<Box>> boxes(static_cast<std::size_t>(world));
  if (!conversion.options().world) {
    for (std::size_t i = 0; i < stored.chunks.size(); ++i)
      boxes[i < stored.storage.size() ? rank_for(conversion, stored.storage[i]) : 0].push_back(stored.chunks[i]);
  } else if (stored.size.empty() || volume(stored.size) == 0) {
    boxes[0].push_back(Box::whole(stored.size));
  } else {
    const DeviceMesh mesh({world});
    for (int rank = 0; rank < world; ++rank) {
      const Box box = *local_box(stored.size, mesh, {Shard{0}}, rank);
      if (!box.empty()) boxes[static_cast<std::size_t>(rank)].push_back(box);
    }
  }
  return boxes;
}

// Reads data from the source when the writer asks for it.
class ConversionSource final : public ItemSource {
 public:
  ConversionSource(Conversion& conversion, const SavePlan& plan) : conversion_(conversion), plan_(plan) {
    for (const ConvertedKey& key : conversion.keys()) keys_[key.key] = &key;
  }
  std::shared_ptr<void> enter_thread() const override { return nullptr; }
  std::shared_ptr<const ElementRun> elements_of(const WriteItem& item) override {
    const MutexLock one_at_a_time(mutex_);
    const auto bytes = std::make_shared<Bytes>(conversion_.read(key_of(item), item.chunk));
    const Extents length{static_cast<std::int64_t>(bytes->size())};
    return {new StridedBytes(bytes->data(), length, {1}, 1), [bytes](const StridedBytes* run) { delete run; }};
  }
  Bytes bytes_of(const WriteItem& item) override {
    const MutexLock one_at_a_time(mutex_);
    return conversion_.source().read_bytes(key_of(item).source);
  }

 private:
  const ConvertedKey& key_of(const WriteItem& item) const { return *keys_.at(plan_.names[item.name]); }

  Conversion& conversion_;
  const SavePlan& plan_;
  std::unordered_map<std::string, const ConvertedKey*> keys_;
  Mutex mutex_;  // a source is read by one thread at a time
};

// Returns the plan of each rank. Cuts boxes into chunks that fit into memory.
std::vector<SavePlan> plans_of(const Conversion& conversion, int world) {
  std::vector<SavePlan> plans(static_cast<std::size_t>(world));
  for (const ConvertedKey& key : conversion.keys()) {
    const auto add = [&](SavePlan& plan, WriteItem item) {
      const bool is_new = !plan.names.find(key.key);
      item.name = plan.names.intern(key.key);
      if (is_new) plan.mappings.edit().emplace_back(item.name, key.path);
      plan.items.push_back(std::move(item));
    };
    if (!key.is_tensor) {
      const auto* const stored = std::get_if<BytesStorageMetadata>(conversion.source().metadata().find(key.source));
      add(plans[rank_for(conversion, stored->storage)], {});
      continue;
    }
    const auto boxes = boxes_of(conversion, key.stored, world);
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

Converted write_checkpoint(Conversion& conversion, int world, const std::string& directory, Store& store) {
  StorageContext context;
  context.checkpoint_id = directory;
  context.save_id = make_save_id(random_hex(*system_random(), 128), "convert", 1);
  context.world_size = world;
  context.is_coordinator = true;
  context.one_process = true;
  if (const auto& commit = conversion.source().metadata().commit) {
    context.step = commit->step;
    context.user_metadata = commit->user_metadata;
  }
  std::vector<SavePlan> local = plans_of(conversion, world);
  GlobalPlanOptions as_they_are;
  as_they_are.split_above_bytes = 0;
  GlobalSavePlan global = create_global_save_plan(std::move(local), as_they_are);

  CheckpointWriterOptions options;
  options.overwrite = conversion.options().force;
  options.bytes_in_flight_max = std::clamp<std::uint64_t>(conversion.options().memory / 2, 16u << 20, 256u << 20);
  CheckpointSave coordinator(options);
  coordinator.reset(directory);
  Converted converted;
  try {
    coordinator.set_up(context);
    global.plans = coordinator.prepare_global_plan(std::move(global.plans));
    std::vector<WriteResults> results;
    for (const SavePlan& plan : global.plans) {
      CheckpointSave writer(options);
      writer.reset(directory);
      StorageContext own = context;
      own.rank = static_cast<int>(results.size());
      own.is_coordinator = false;
      writer.set_up(own);
      results.push_back(writer.write(plan, std::make_shared<ConversionSource>(conversion, plan)).get());
      for (const FileResult& file : results.back().files) converted.bytes += file.length_bytes;
    }
    coordinator.finish(std::move(global.metadata), std::move(results));
  } catch (...) {
    discard_save(store, context.save_id);
    throw;
  }
  for (const ConvertedKey& key : conversion.keys()) ++(key.is_tensor ? converted.tensors : converted.values);
  return converted;
}

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
  if (is_torch_checkpointing(*store) || (!store->exists(kCommitRecordName) && !rank_records(*store).empty()))
    throw Error(ErrorCode::kAlreadyExists,
                fmt::format("{} holds a checkpoint of PyTorch's, which would be hidden", printable(store->url())));
  if (store->exists(kCommitRecordName) && !options.force)
    throw Error(ErrorCode::kAlreadyExists,
                fmt::format("a checkpoint exists already at {}; --force replaces it", printable(store->url())));
  conversion.leave_out([&](const ConvertedKey& key) { return conversion.source().why_not_convertible(key.source); });
  const int world = world_of(conversion);
  const bool starts_over = remove_unfinished(*store);
  conversion.require_room();
  Converted converted = write_checkpoint(conversion, world, path.string(), *store);
  converted.starts_over = starts_over;
  return converted;
}

}  // namespace cairn::tools
