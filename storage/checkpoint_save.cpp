#include <cairn/storage/checkpoint_save.hpp>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <set>
#include <utility>

#include <cairn/base/digest.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/base/save_id.hpp>
#include <cairn/base/utf8.hpp>
#include <cairn/base/version.hpp>
#include <cairn/formats/safetensors.hpp>
#include <cairn/formats/unicode.hpp>
#include <cairn/planning/require_coverage.hpp>
#include <cairn/storage/data_format.hpp>
#include <cairn/storage/engine/reusable_files.hpp>
#include <cairn/storage/engine/write_engine.hpp>
#include <cairn/storage/format/commit_head.hpp>
#include <cairn/storage/format/commit_record.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/format/streamed_item.hpp>
#include <cairn/storage/presence.hpp>
#include <cairn/storage/publication.hpp>
#include <cairn/storage/recorded_storage.hpp>
#include <cairn/storage/store_observer.hpp>

namespace cairn {
namespace {

// Limit on the wait for an answer about a directory beside the checkpoint. Such a directory may be
// unrelated to Cairn.
constexpr std::chrono::milliseconds kSiblingPatience = std::chrono::seconds(5);
// DCP's version of the metadata format that the record follows.
constexpr const char* kMetadataVersion = "1.0.0";
// Begins the text that accompanies a plan, if everything is to be written anew: a rank asks for
// that, and the coordinator orders it.
constexpr char kAnew = '!';

Error already_exists(const std::string& url) {
  return Error(ErrorCode::kAlreadyExists,
               "Checkpoint already exists at " + url + ", and overwrite is off: save to another place, or turn overwrite on");
}

// Throws if the checkpoint to replace has safetensors files. Clean-up would never remove them, and
// programs that read them by name would load the old state. Checked late, because only then is the
// old record read.
void require_own_files(const Store& store, const Metadata& replaced) {
  for (const FileInfo& file : replaced.files)
    if (ends_with(file.name, kSafetensorsEnd))
      throw Error(ErrorCode::kAlreadyExists, "cannot save to " + store.url() +
                                                 ": it holds a checkpoint in safetensors files, which " +
                                                 "a save does not replace. Remove that checkpoint first, or save to another place");
}

// The commit record stores these as Python strings. Checked before anything is written.
void require_readable_by_python(const char* what, const std::string& text) {
  if (is_utf8(text, Surrogates::kAllowed)) return;
  throw Error(ErrorCode::kInvalidArgument,
              std::string(what) + " \"" + printable(text) + "\" is not UTF-8: PyTorch could not read it back; choose another");
}

WriteEngineOptions engine_options(const CheckpointWriterOptions& options) {
  WriteEngineOptions engine{options.threads, options.bytes_in_flight_max, options.block_bytes, {options.zstd_level}};
  for (const std::string& descriptor : options.transforms) {
    const auto transform = find_stream_transform(descriptor);
    if (!transform)
      throw Error(ErrorCode::kInvalidArgument, "the transform \"" + descriptor + "\" is not known: register it with " +
                                                   "register_stream_transform; zstd is chosen by zstd_level");
    engine.changes.transforms.push_back(*transform);
  }
  return engine;
}

std::uint64_t count_in(const std::string& text) { return text.empty() ? 1 : std::strtoull(text.c_str(), nullptr, 10); }

// Cairn's own format. A rank's local plan says how many files it would like to write, and its
// arrangement how many it writes. Nothing stands for one.
class OwnFormat final : public DataFormat {
 public:
  OwnFormat(const CheckpointWriterOptions& options, bool compressed) : options_(options), compressed_(compressed) {}

  SavePlan prepare(SavePlan plan, const Store& store) const override {
    const ObjectWrites writes = store.traits().writes;
    // For compressed files no space is reserved, and then direct writes are serial as well.
    const bool is_serial =
        writes == ObjectWrites::kSerial || (writes == ObjectWrites::kSerialIfCached && (!options_.direct_io || compressed_));
    if (!is_serial || !options_.single_file_per_rank) return plan;
    std::uint64_t bytes = 0;
    for (const WriteItem& item : *plan.items)
      if (item.type != WriteItemType::kByteIO) bytes += item.payload_bytes();
    const std::uint64_t files = std::min<std::uint64_t>(options_.threads, bytes / kFileBytesMin);
    if (files > 1) plan.storage_data = std::to_string(files);
    return plan;
  }
  std::vector<std::string> arrange(const std::vector<SavePlan>& plans) override {
    std::vector<std::string> arrangements;
    for (const SavePlan& plan : plans) {
      const std::uint64_t files = std::min<std::uint64_t>(count_in(plan.storage_data), options_.files_max / plans.size());
      arrangements.push_back(files > 1 ? std::to_string(files) : std::string());
    }
    return arrangements;
  }
  std::vector<FileLayout> layouts(const SavePlan& plan, const std::string& arrangement) const override {
    return layout_files(plan, options_.single_file_per_rank ? count_in(arrangement) : 0, compressed_);
  }
  ObjectName name(int rank, std::size_t file, std::size_t, const std::string&, const std::string& save_id) const override {
    return data_file_name(rank, static_cast<int>(file), save_id);
  }

 private:
  // A smaller file is written faster than another one is created.
  static constexpr std::uint64_t kFileBytesMin = 16u << 20;

  const CheckpointWriterOptions options_;
  const bool compressed_;
};

}  // namespace

// The plans of all ranks, on the coordinator.
struct PlannedRanks {
  std::string of;                         // of `repeats`; "" if the plans may not be repeated
  std::vector<PlannedFiles> files;        // by rank
  std::vector<std::string> arrangements;  // likewise
  std::string digest;
};

// A save on the coordinator, as far as one that repeats its plan needs it. About 400 bytes for each
// item, which are freed with the staging memory.
struct KeptSave {
  PlannedRanks planned;
  std::vector<WriteResults> results;  // by rank
  std::shared_ptr<const EncodedPlan> encoded;
};

// The state of one attempt.
struct SaveAttempt {
  std::string checkpoint_id;
  StorageContext context;
  std::shared_ptr<Store> store;
  std::shared_ptr<Store> run;  // on the coordinator only
  bool attempt_begun = false;
  bool settled = false;  // the attempt has ended and the checkpoint does not exist
  bool published = false;
  // This rank's files. Replaced, not emptied: a writing thread of an earlier attempt may still add
  // names.
  std::shared_ptr<WrittenNames> written = std::make_shared<WrittenNames>();
  PlannedRanks planned;              // on the coordinator only
  std::optional<KeptSave> repeated;  // likewise; its plans have been moved to this attempt
};

struct CheckpointSave::Implementation : SaveAttempt {
  explicit Implementation(CheckpointWriterOptions given, std::unique_ptr<DataFormat> given_format)
      : options(std::move(given)),
        has_own_format(!given_format),
        format(given_format ? std::move(given_format)
                            : std::make_unique<OwnFormat>(options, engine_options(options).changes.any())),
        engine(engine_options(options)) {
    if (options.reuse != Reuse::kOff)
      reuse = std::make_shared<ReusableFiles>(options.reuse == Reuse::kDigest, options.reuse_generations_max);
    if (options.retired_keep == 0)
      throw Error(ErrorCode::kInvalidArgument,
                  "retired_keep is 0, but the generation that a save replaces must stay until the next one: use 1 or more");
  }

  const CheckpointWriterOptions options;
  const bool has_own_format;
  const std::unique_ptr<DataFormat> format;
  std::shared_ptr<ReusableFiles> reuse;  // null: everything is written
  WriteEngine engine;
  CommitSequence sequence{options.threads > 0 ? std::optional(kSiblingPatience) : std::nullopt};

  // The last generation that this object published, and where. Lets the next save skip reading the
  // old record.
  std::string last_url;
  std::string last_run;
  std::optional<Metadata> last;  // only checkpoint id, save id, version, files and commit
  Mutex kept_mutex;              // `release_staging` may be called at any time
  std::optional<KeptSave> kept CAIRN_GUARDED_BY(kept_mutex);  // of the save that made `last`

  Store& opened() const {
    if (!store) throw Error(ErrorCode::kPrecondition, "the writer was not set up: call set_up_storage_writer first");
    return *store;
  }

  // Calls `act` as the options say, and says what is wrong if there is a checkpoint.
  template <class Act>
  void refuse_or(const Act& act) {
    try {
      act(options.overwrite ? Overwrite::kAllowed : Overwrite::kRefused);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kAlreadyExists && !options.overwrite) throw already_exists(store->url());
      throw;
    }
  }

  // Named when it is asked, because plans may be prepared before the save id is known.
  ObjectName name_of(std::size_t rank, std::size_t file) const {
    return format->name(static_cast<int>(rank), file, planned.files[rank].files.size(), planned.arrangements[rank],
                        context.save_id);
  }
  void keep(std::optional<KeptSave> save) {
    const MutexLock lock(kept_mutex);
    kept = std::move(save);
  }
  void check_same_place() const;
  bool record(Metadata& metadata, const std::vector<WriteResults>& results) const;
  bool is_laid_out_like(const std::vector<WriteResults>& before, const std::vector<WriteResults>& results) const;
  bool finds_published() const;
  bool has_damaged_donor() const;
  bool may_remove_by_name() const;
  bool leaves_files() const;
  Replaced find_replaced();
  void publish(const EncodedPlan& encoded, const Metadata& metadata);
};

CheckpointSave::CheckpointSave(CheckpointWriterOptions options) : CheckpointSave(std::move(options), nullptr) {}

CheckpointSave::CheckpointSave(CheckpointWriterOptions options, std::unique_ptr<DataFormat> format)
    : implementation_(std::make_unique<Implementation>(std::move(options), std::move(format))) {}

CheckpointSave::~CheckpointSave() = default;

std::uint64_t CheckpointSave::staging_bytes() const { return implementation_->engine.staging_bytes(); }

void CheckpointSave::prepare_staging(std::uint64_t bytes) { implementation_->engine.prepare(bytes); }

void CheckpointSave::release_staging() noexcept {
  implementation_->engine.release();
  const MutexLock lock(implementation_->kept_mutex);
  implementation_->kept.reset();
}

void CheckpointSave::reset(const std::string& checkpoint_id) {
  Implementation& self = *implementation_;
  // First: a job of an attempt that failed may still write, and its files are not to be mixed with
  // those of the next.
  self.engine.stop();
  static_cast<SaveAttempt&>(self) = {};
  self.checkpoint_id = checkpoint_id;
}

void CheckpointSave::set_up(const StorageContext& context) {
  Implementation& self = *implementation_;
  if (!is_save_id(context.save_id))
    throw Error(ErrorCode::kInvalidArgument, "\"" + context.save_id + "\" is no save id: make one with make_save_id");
  self.context = context;
  const std::string& url = context.checkpoint_id.empty() ? self.checkpoint_id : context.checkpoint_id;
  require_readable_by_python("the checkpoint id", url);
  self.checkpoint_id = url;
  self.store = open_store(url);
  // Each process would write to a store of its own, and only the coordinator's would be published.
  if (!self.store->is_shared() && context.world_size > 1 && !context.one_process) {
    self.store.reset();
    throw Error(ErrorCode::kPrecondition,
                "cannot save to " + url + " from " + std::to_string(context.world_size) +
                    " processes: other processes do not see this store. Use a directory or a shared store");
  }
  self.store = observe_operations(std::move(self.store), context.store_observer);
  if (self.reuse) self.reuse->begin(url, self.store->url(), context.save_id, context.rank);
  // The code below runs before the coordinator answers any plan. No other rank writes before that
  // answer.
  if (!context.is_coordinator) return;
  if (is_part(url)) {
    const auto checkpoint = observe_operations(open_store(parent_url(url)), context.store_observer);
    if (checkpoint->exists(kCommitRecordName))
      throw Error(ErrorCode::kAlreadyExists,
                  "one checkpoint of all ranks exists at " + checkpoint->url() +
                      ", and a save with use_collectives off does not replace it: save to another place");
  }
  if (self.options.before_attempt) self.options.before_attempt(url, context.store_observer.get());
  self.store->create_root();
  // Opened now, so that a bad run URL is reported before anything is written.
  self.run =
      observe_operations(open_store(self.options.run_url.empty() ? parent_url(url) : self.options.run_url), context.store_observer);
  self.format->require_room(*self.store);
  self.refuse_or([&](Overwrite overwrite) { self.store->begin_attempt(context.save_id, overwrite); });
  self.attempt_begun = true;
}

SavePlan CheckpointSave::prepare_local_plan(SavePlan plan) {
  const Implementation& self = *implementation_;
  for (const std::string& name : plan.names.all()) require_readable_by_python("the key", name);
  const bool is_anew = self.reuse && self.reuse->mark(plan);
  plan = self.format->prepare(std::move(plan), implementation_->opened());
  if (is_anew || (self.context.is_coordinator && self.has_damaged_donor())) plan.storage_data.insert(0, 1, kAnew);
  return plan;
}

// Returns whether a restore has found damage, or may have, in a checkpoint that shares files with
// the last one.
bool CheckpointSave::Implementation::has_damaged_donor() const try {
  return reuse && std::any_of(reuse->places().begin(), reuse->places().end(), [](const std::string& place) {
           return open_store(place)->exists(kFindingName);
         });
} catch (const Error&) {
  return true;
}

std::vector<SavePlan> CheckpointSave::prepare_global_plan(std::vector<SavePlan> plans) {
  Implementation& self = *implementation_;
  std::uint64_t items = 0;
  for (const SavePlan& plan : plans) items += plan.items.size();
  // Before any rank writes: a save must not fail after its last byte was written because its record
  // is too long.
  check_commit_record_fits(items);
  self.planned.files.clear();
  self.planned.files.reserve(plans.size());
  std::string digests, order;
  // All ranks do so in one save: then two checkpoints either share files or share none.
  for (SavePlan& plan : plans)
    if (self.reuse && plan.storage_data[0] == kAnew) {
      plan.storage_data.erase(0, 1);
      order = kAnew;
    }
  self.planned.arrangements = self.format->arrange(plans);
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    SavePlan& plan = plans[rank];
    const std::string& arrangement = self.planned.arrangements[rank];
    self.planned.files.push_back(keep_plan(plan, self.format->layouts(plan, arrangement)));
    // Tells the rank which plan the coordinator knows.
    const std::string digest = to_hex(plan_digest(plan, DigestOf::kItems));
    plan.storage_data = digest + order + arrangement;
    digests += digest;
  }
  self.planned.digest = to_hex(sha256(digests));
  return plans;
}

// The plans carry the digests that `prepare_global_plan` gave them.
bool CheckpointSave::repeats(const std::string& of, const std::vector<std::shared_ptr<const SavePlan>>& plans) {
  Implementation& self = *implementation_;
  self.planned.of = of;
  const MutexLock lock(self.kept_mutex);
  if (!self.kept || !self.last) return false;
  const PlannedRanks& kept = self.kept->planned;
  if (kept.of != of || plans.size() != kept.arrangements.size()) return false;
  const std::size_t digest_bytes = to_hex(Digest()).size();
  std::string digests;
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    const std::string& text = plans[rank]->storage_data;
    if (text.size() < digest_bytes || text.substr(digest_bytes) != kept.arrangements[rank]) return false;
    digests += text.substr(0, digest_bytes);
  }
  if (to_hex(sha256(digests)) != kept.digest) return false;
  self.repeated = std::exchange(self.kept, std::nullopt);
  self.planned = std::move(self.repeated->planned);
  return true;
}

Future<WriteResults> CheckpointSave::write(const SavePlan& plan, std::shared_ptr<ItemSource> source) {
  Implementation& self = *implementation_;
  self.opened();
  // The coordinator computes all offsets from the plan that it knows.
  const std::string digest = to_hex(plan_digest(plan, DigestOf::kItems));
  if (plan.storage_data.compare(0, digest.size(), digest) != 0)
    throw Error(ErrorCode::kMismatch, "the planner of rank " + std::to_string(self.context.rank) +
                                          " has changed more of its plan than planner_data in finish_plan: the other ranks have " +
                                          "planned with it");

  WriteRequest request;
  request.store = self.store;
  request.plan = &plan;
  request.source = std::move(source);
  request.save_id = self.context.save_id;
  request.rank = self.context.rank;
  request.sync = self.options.sync_files;
  request.direct = self.options.direct_io;
  request.copy_first = self.options.copy_first;
  request.low_priority = self.options.low_priority && self.options.threads > 0;
  std::string arrangement = plan.storage_data.substr(digest.size());
  if (self.reuse && self.store->traits().has_links) request.reuse = self.reuse;
  if (self.reuse && arrangement[0] == kAnew) {
    arrangement.erase(0, 1);
    self.reuse->forget();
  }
  std::vector<FileLayout> layouts = self.format->layouts(plan, arrangement);
  for (std::size_t i = 0; i < layouts.size(); ++i)
    request.files.push_back(
        {self.format->name(self.context.rank, i, layouts.size(), arrangement, self.context.save_id), std::move(layouts[i])});
  // Listed before the files are created, so that `discard` removes them even if a creation fails
  // half-way. A name that another save may use is listed only when this rank has created the file.
  const bool names_are_unique = self.format->names_are_unique();
  std::vector<ObjectName> names;
  for (const WriteFile& file : request.files) names.push_back(file.name);
  if (names_are_unique) {
    self.written->add(names);
    names.clear();
  }
  if (!request.files.empty()) self.check_same_place();

  auto promise = std::make_shared<Promise<WriteResults>>();
  const Future<WriteResults> future = promise->future();
  self.engine.write(std::move(request)).on_ready([=, listed = self.written](const auto& written) {
    WriteResults results;
    try {
      results.files = written.get();
      listed->add(names);
    } catch (...) {
      promise->set_exception(std::current_exception());
      return;
    }
    promise->set_value(std::move(results));
  });
  return future;
}

// Throws if this rank does not see the attempt that the coordinator opened before it answered any
// plan. Without this check, ranks that see different directories could publish a checkpoint that
// lacks files.
void CheckpointSave::Implementation::check_same_place() const {
  if (context.is_coordinator || context.one_process || context.world_size == 1) return;
  // A network file system's client may have cached the directory. Opening the directory refreshes
  // the cache.
  if (store->has_attempt(context.save_id) || has_name(store->open_attempts(), context.save_id)) return;
  throw Error(ErrorCode::kNotFound,
              "this rank does not see the attempt that the coordinator has opened at " + store->url() +
                  ": the directory is not the same on all machines, or another save has removed the attempt. Save to a directory " +
                  "that all ranks share");
}

// Returns whether the same items lie at the same places. A trailer may have another length, because
// it has the save id.
bool CheckpointSave::Implementation::is_laid_out_like(const std::vector<WriteResults>& before,
                                                      const std::vector<WriteResults>& results) const {
  const auto has_same = [](const FileResult& a, const FileResult& b) {
    return a.length_bytes - a.trailer_length_bytes == b.length_bytes - b.trailer_length_bytes &&
           a.bytes_item_lengths == b.bytes_item_lengths;
  };
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    const std::vector<FileResult>& files = results[rank].files;
    if (!std::equal(files.begin(), files.end(), before[rank].files.begin(), before[rank].files.end(), has_same)) return false;
    for (std::size_t i = 0; i < files.size(); ++i)
      if (files[i].name != name_of(rank, i)) return false;
  }
  return true;
}

// Completes `metadata`, which are empty in a save that repeats a plan. Returns whether they lack
// their entries, because these are the same again.
bool CheckpointSave::Implementation::record(Metadata& metadata, const std::vector<WriteResults>& results) const {
  const bool is_same = repeated && results.size() == planned.files.size() && is_laid_out_like(repeated->results, results);
  if (is_same) {
    metadata.files.clear();
    for (const WriteResults& of_rank : results)
      for (const FileResult& file : of_rank.files)
        metadata.files.push_back({file.name, file.length_bytes, file.crc32, file.trailer_length_bytes, ""});
  } else {
    if (repeated) metadata = decode_metadata(encode_section(repeated->encoded->entries, *last));
    std::vector<std::string> of_tensors = options.transforms;
    if (options.zstd_level != 0) of_tensors.emplace_back(kZstdTransform);
    record_storage(
        metadata, planned.files, results, [this](std::size_t rank, std::size_t file) { return name_of(rank, file); }, of_tensors,
        options.transforms);
    // Only the parts of all ranks together cover the tensors.
    if (!is_part(store->url())) require_coverage(metadata, "cannot publish the checkpoint");
  }

  metadata.checkpoint_id = checkpoint_id;
  metadata.save_id = context.save_id;
  metadata.version = kMetadataVersion;
  CommitInfo commit;
  commit.step = context.step;
  commit.world_size = context.world_size;
  commit.plan_digest = planned.digest;
  commit.writer_version = kVersion;
  commit.user_metadata = context.user_metadata;
  std::set<std::string> writers;
  for (const FileInfo& file : metadata.files)
    if (!file.written_by.empty()) writers.insert(file.written_by);
  commit.shares_with.assign(writers.begin(), writers.end());
  metadata.commit = std::move(commit);
  return is_same;
}

Replaced CheckpointSave::Implementation::find_replaced() {
  if (!options.overwrite) return {};  // the publication is refused if there is anything to replace
  if (last && last_url == store->url()) {
    try {
      const auto head = read_commit_head(*store);
      // The few bytes of the head show that nobody has saved here since. The whole record may have
      // two gigabytes.
      if (head && head->save_id == last->save_id) return {last};
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kCorrupt) throw;  // reading the whole record decides
    }
  }
  return generation_to_replace(*store);
}

void CheckpointSave::Implementation::publish(const EncodedPlan& encoded, const Metadata& metadata) {
  const Bytes record = encode_commit_record(encoded, metadata);
  refuse_or([&](Overwrite overwrite) { store->publish(context.save_id, record, overwrite); });
  // From here on no file of this attempt may be removed.
  published = true;
}

void CheckpointSave::finish(Metadata metadata, const std::vector<WriteResults>& results) {
  Implementation& self = *implementation_;
  self.opened();
  if (!self.run)
    throw Error(ErrorCode::kPrecondition, "only the coordinator's writer can finish a save; this one was set up otherwise");
  const bool is_same = self.record(metadata, results);
  const std::function<void()> clean_up = self.format->complete(self.store, self.checkpoint_id, metadata, *self.written);
  const auto encoded = is_same ? self.repeated->encoded : std::make_shared<const EncodedPlan>(metadata);
  metadata.state_dict_metadata = {};  // as large as all plans
  metadata.planner_data = {};
  // Before the record at this place is read, because looking through a large run may take long.
  // A part is not ordered among the checkpoints of a run, and must not read the other ranks' parts.
  std::uint64_t next_in_run = 1;
  if (!is_part(self.store->url())) {
    next_in_run = self.sequence.next(self.run, self.store->url(), self.context.rank);
    // The last checkpoint of this object may be gone from the run by now. The sequence must grow
    // all the same.
    if (self.last && self.last_run == self.run->url()) next_in_run = std::max(next_in_run, commit_sequence_after({self.last}));
  }
  // Done last, so that this save replaces whatever another job has published here meanwhile.
  const Replaced replaced = self.find_replaced();
  if (replaced.generation) require_own_files(*self.store, *replaced.generation);
  metadata.commit->sequence = std::max(next_in_run, commit_sequence_after(replaced));
  metadata.commit->retired = retired_generations(*self.store, replaced.generation, self.options.retired_keep);
  self.publish(*encoded, metadata);

  // The checkpoint exists now. The next save cleans up what fails from here on.
  try {
    if (clean_up) clean_up();
    if (replaced.is_known) remove_leftovers(*self.store, metadata, replaced.generation, self.options.retired_keep);
    metadata.reindex();  // without the index of the names
    self.last = std::move(metadata);
    self.last_url = self.store->url();
    self.last_run = self.run->url();
    // With `reuse`, what files hold depends on more than the plan.
    std::optional<KeptSave> kept;
    if (!self.planned.of.empty() && !self.reuse && self.has_own_format) kept = KeptSave{std::move(self.planned), results, encoded};
    self.keep(std::move(kept));
    self.planned = {};  // as large as all plans
  } catch (...) {
    // The next save reads the record from the store.
    self.last.reset();
    self.keep(std::nullopt);
  }
}

Committed CheckpointSave::committed(const std::string& save_id) {
  Implementation& self = *implementation_;
  try {
    // Fences the attempt, so that a "no" stays true.
    if (settle_attempt(self.opened(), save_id)) return Committed::kYes;
    self.settled = save_id == self.context.save_id;
    return Committed::kNo;
  } catch (const Error&) {
    return Committed::kUnknown;
  }
}

// Returns whether the checkpoint exists. Fences the attempt if it may be open, so that the answer
// is final.
bool CheckpointSave::Implementation::finds_published() const {
  if (!attempt_begun && !has_name(store->open_attempts(), context.save_id)) {
    const auto metadata = published_metadata(*store);
    return metadata && metadata->save_id == context.save_id;
  }
  return settle_attempt(*store, context.save_id);
}

// Returns whether the names of this rank's files can only mean its own. Another save may have given
// its files the same names while this rank was frozen.
bool CheckpointSave::Implementation::may_remove_by_name() const {
  if (format->names_are_unique()) return true;
  if (store->is_taken(kCommitRecordName)) return false;
  std::vector<std::string> attempts = store->open_attempts();
  for (std::string& id : store->fenced_attempts()) attempts.push_back(std::move(id));
  return std::all_of(attempts.begin(), attempts.end(), [this](const std::string& id) { return id == context.save_id; });
}

// Returns whether files of this save are left, such as those of a rank that was lost, or files that
// readers would mistake for a checkpoint. The attempt then stays, to tell clean-ups and readers
// that these files are not a checkpoint.
bool CheckpointSave::Implementation::leaves_files() const {
  const auto objects = store->list(format->names_are_unique() ? kDataFilePrefix : "");
  return std::any_of(objects.begin(), objects.end(), [&](const auto& object) {
    return format->needs_no_record(object.name) || save_id_of_file(object.name) == context.save_id;
  });
}

void CheckpointSave::abandon() noexcept { implementation_->engine.stop(); }

void CheckpointSave::discard(bool ends_attempt) noexcept {
  Implementation& self = *implementation_;
  if (!self.store || self.published) return;
  // If the coordinator began no attempt, no rank has written. A successor does not know whether the
  // coordinator began one.
  if (self.context.is_coordinator ? !self.attempt_begun : !ends_attempt && self.written->all().empty()) {
    if (self.reuse) self.reuse->fail();
    return;
  }
  try {
    const std::string& save_id = self.context.save_id;
    // Files may be removed only when the attempt can never be published. Either the outcome says
    // so, or this rank settles it now.
    if (ends_attempt && !self.settled) {
      if (self.finds_published()) return;
      self.settled = true;
    }
    if (self.reuse) self.reuse->fail();
    // Checks the store once more: the data of a published checkpoint must never be removed.
    if (const auto head = read_commit_head(*self.store); head && head->save_id == save_id) return;
    const bool may_remove_by_name = self.may_remove_by_name();
    const std::vector<ObjectName> written = self.written->all();
    // The last first: an index goes before the files that it names. Then programs find no model, as
    // before the save; in the other order they would find one that lacks files. A crash in between
    // leaves files without record and index, which Cairn's reader refuses.
    for (auto name = written.rbegin(); name != written.rend(); ++name)
      if (may_remove_by_name || save_id_of_file(*name)) self.store->remove(*name);
    self.written = std::make_shared<WrittenNames>();
    // The fence is removed last, because only the fence tells clean-ups that files of other ranks
    // are dead. If files are left, the next clean-up removes the files and the fence. One rank
    // looks, unless all ranks have files of fixed names.
    if ((ends_attempt || !self.format->names_are_unique()) && !self.leaves_files()) self.store->clear_attempt(save_id);
  } catch (...) {
    // The next successful save removes what is left.
  }
}

}  // namespace cairn
