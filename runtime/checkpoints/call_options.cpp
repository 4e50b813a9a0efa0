#include <cairn/runtime/checkpoints/call_options.hpp>

#include <exception>
#include <utility>

#include <cairn/runtime/checkpoints/own_part.hpp>

namespace cairn {
namespace {

void add(DigestBuilder& digest, const SavePlannerOptions& options) {
  digest.add(std::uint64_t{options.flatten_state_dict});
  digest.add(static_cast<std::uint64_t>(options.global.dedup));
  digest.add(static_cast<std::uint64_t>(options.global.rank_values));
  digest.add(options.global.split_above_bytes);
}

// Only options that must be equal on all ranks. Threads, memory and direct I/O may differ.
void add(DigestBuilder& digest, const CheckpointWriterOptions& options) {
  digest.add(std::uint64_t{options.single_file_per_rank})
      .add(std::uint64_t{options.sync_files})
      .add(std::uint64_t{options.overwrite});
  digest.add(ByteSpan(options.run_url)).add(std::uint64_t{options.retired_keep});
  digest.add(static_cast<std::uint64_t>(options.zstd_level)).add(std::uint64_t{options.transforms.size()});
  for (const std::string& transform : options.transforms) digest.add(ByteSpan(transform));
}

// Stands in for Cairn's own writer or reader if that cannot be made from its options. Its hooks
// throw the error.
class UnmadeWriter final : public StorageWriter {
 public:
  explicit UnmadeWriter(std::exception_ptr why) : why_(std::move(why)) {}
  void reset(const std::string&) override { refuse(); }
  void set_up_storage_writer(const StorageContext&) override { refuse(); }
  SavePlan prepare_local_plan(SavePlan) override { refuse(); }
  std::vector<SavePlan> prepare_global_plan(std::vector<SavePlan>) override { refuse(); }
  Future<WriteResults> write_data(const SavePlan&, SavePlanner&) override { refuse(); }
  void finish(Metadata, std::vector<WriteResults>) override { refuse(); }
  Committed committed(const std::string&) override { return Committed::kNo; }  // nothing is published without this rank's results

 private:
  [[noreturn]] void refuse() const { std::rethrow_exception(why_); }
  const std::exception_ptr why_;
};

class UnmadeReader final : public StorageReader {
 public:
  explicit UnmadeReader(std::exception_ptr why) : why_(std::move(why)) {}
  void reset(const std::string&) override { refuse(); }
  Metadata read_metadata() override { refuse(); }
  void set_up_storage_reader(const Metadata&, const StorageContext&) override { refuse(); }
  LoadPlan prepare_local_plan(LoadPlan) override { refuse(); }
  std::vector<LoadPlan> prepare_global_plan(std::vector<LoadPlan>) override { refuse(); }
  Future<bool> read_data(const LoadPlan&, LoadPlanner&) override { refuse(); }

 private:
  [[noreturn]] void refuse() const { std::rethrow_exception(why_); }
  const std::exception_ptr why_;
};

// Returns an `Own` made from its options, or an `Unmade` if its constructor throws.
template <class Own, class Unmade, class Base, class Options>
std::shared_ptr<Base> make_storage(const Options& options) {
  try {
    return std::make_shared<Own>(options);
  } catch (...) {
    return std::make_shared<Unmade>(std::current_exception());
  }
}

}  // namespace

Digest digest_of(const SaveOptions& options) {
  DigestBuilder digest;
  digest.add(ByteSpan("save"));
  add(digest, options.planning);
  add(digest, options.writer);
  digest.add(std::uint64_t{options.step.has_value()}).add(options.step.value_or(0));
  for (const auto& [key, value] : options.user_metadata) digest.add(ByteSpan(key)).add(ByteSpan(value));
  // Users' objects cannot be compared. Whether each rank has them can.
  digest.add(std::uint64_t{options.planner != nullptr}).add(std::uint64_t{options.storage_writer != nullptr});
  return digest.finish();
}

Digest digest_of(const LoadOptions& options, const std::vector<std::string>& prefixes) {
  DigestBuilder digest;
  digest.add(ByteSpan("load"));
  digest.add(std::uint64_t{options.planning.flatten_state_dict});
  digest.add(std::uint64_t{options.planning.allow_partial_load}).add(std::uint64_t{options.planning.allow_dtype_cast});
  digest.add(std::uint64_t{options.planning.refuse_absent_ranks});
  for (const auto& name : options.planning.keep_opaque) digest.add(ByteSpan("keep")).add(ByteSpan(name));
  digest.add(std::uint64_t{options.reader.verify}).add(std::uint64_t{options.reader.verify_first});
  digest.add(std::uint64_t{options.planner != nullptr}).add(std::uint64_t{options.storage_reader != nullptr});
  for (const auto& prefix : prefixes) digest.add(ByteSpan(prefix));
  return digest.finish();
}

std::shared_ptr<SavePlanner> OwnSaveParts::planner_for(const SavePlannerOptions& options, std::optional<int> part_rank) {
  DigestBuilder digest;
  add(digest, options);
  const Digest wanted = digest.finish();
  // Kept from save to save, because it holds its last plan.
  if (!planner_ || planner_options_ != wanted)
    planner_ = part_rank ? make_part_save_planner(options, *part_rank) : std::make_shared<DefaultSavePlanner>(options);
  planner_options_ = wanted;
  return planner_;
}

std::shared_ptr<StorageWriter> OwnSaveParts::writer_for(const CheckpointWriterOptions& options, bool low_priority) {
  // An asynchronous save lowers it whatever the writer's options say.
  low_priority = low_priority || options.low_priority;
  DigestBuilder digest;
  add(digest, options);
  // The writer is kept for the next save with its threads and memory, so these count as well.
  digest.add(std::uint64_t{options.threads}).add(options.bytes_in_flight_max).add(options.block_bytes);
  digest.add(std::uint64_t{options.files_max});
  digest.add(std::uint64_t{options.direct_io}).add(std::uint64_t{options.copy_first}).add(std::uint64_t{low_priority});
  const Digest wanted = digest.finish();
  // A new writer starts new threads and allocates staging blocks, so the old one is kept if it
  // fits.
  if (!writer_ || writer_options_ != wanted) {
    CheckpointWriterOptions own = options;
    own.low_priority = low_priority;
    writer_ = make_storage<CheckpointWriter, UnmadeWriter, StorageWriter>(own);
  }
  writer_options_ = wanted;
  return writer_;
}

std::shared_ptr<StorageReader> make_reader(const CheckpointReaderOptions& options) {
  return make_storage<CheckpointReader, UnmadeReader, StorageReader>(options);
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

}  // namespace cairn
