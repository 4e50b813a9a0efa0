#include <cairn/runtime/checkpoints/checkpointer.hpp>

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <map>
#include <set>
#include <utility>

#include <cairn/actors/rank_runtime.hpp>
#include <cairn/base/clock.hpp>
#include <cairn/base/log.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/base/profiler_range.hpp>
#include <cairn/base/wait.hpp>
#include <cairn/formats/unicode.hpp>
#include <cairn/runtime/checkpoints/async_save.hpp>
#include <cairn/runtime/checkpoints/call_options.hpp>
#include <cairn/runtime/checkpoints/divided_load.hpp>
#include <cairn/runtime/checkpoints/one_call.hpp>
#include <cairn/runtime/checkpoints/stateful_objects.hpp>
#include <cairn/runtime/observation/call_failure.hpp>
#include <cairn/runtime/observation/progress_display.hpp>
#include <cairn/runtime/observation/progress_hooks.hpp>
#include <cairn/runtime/worlds/caller_executor.hpp>
#include <cairn/state/call_hooks.hpp>
#include <cairn/state/staged_values.hpp>

namespace cairn {
namespace {

// An object of Cairn's own that is kept from call to call while its options stay the same.
template <class Object>
struct Kept {
  template <class Make>
  Object get(const Digest& wanted, const Make& make) {
    if (!object || options != wanted) object = make();
    options = wanted;
    return *object;
  }
  std::optional<Object> object{};
  Digest options{};
};

bool has_code(const FailureMap& failures, ErrorCode code) {
  return std::any_of(failures.begin(), failures.end(), [code](const auto& one) { return one.second.code == code; });
}

// For calls with `no_dist`.
Checkpointer alone() { return Checkpointer(World::single(), "default"); }

}  // namespace

struct Checkpointer::Implementation {
  Implementation(World of, std::string with_name) : world(std::move(of)), name(std::move(with_name)) {}

  // `slot`: the checkpointer name that the actors see.
  void fill(Call& call, const std::string& slot, const std::string& checkpoint_id, int coordinator_rank,
            const StatefulObjects& objects) {
    call.id.checkpointer = slot;
    call.id.ordinal = ++calls[slot];
    call.checkpoint_id = checkpoint_id;
    call.coordinator_rank = coordinator_rank;
    call.stateful_keys = objects.keys();
    call.longest_part = objects.longest();
  }

  SaveCall save_call(const std::string& slot, const std::string& checkpoint_id, const SaveOptions& options,
                     const StatefulObjects& objects) {
    SaveCall call;
    fill(call, slot, checkpoint_id, options.coordinator_rank, objects);
    // Only Cairn's own writer is known to use the id as a location.
    call.report_directory = world.report_directory(options.failure_directory, options.storage_writer ? "" : call.checkpoint_id);
    // Ranks compare it: different options fail the save, and do not mix two layouts.
    std::tie(call.options_digest, call.options_text) = shared_options(options);
    call.step = options.step;
    call.user_metadata = options.user_metadata;
    call.check_replicas = options.check_replicas;
    call.deadline = options.deadline;
    return call;
  }

  // Returns the name under which the actors run the save. They make one call at a time per name, so
  // saves that may overtake each other on some rank need several names. The choice depends only on
  // the earlier calls, so it is the same on all ranks.
  std::string slot_for(WhileInFlight policy) {
    if (policy == WhileInFlight::kWait) return name;
    const std::string slot = name + "~" + std::to_string(slots_taken++ % kSlots);
    if (slots.count(slot) == 0) world.claim_checkpointer(slot);
    slots.insert(slot);
    return slot;
  }

  void check_process() const {
    if (::getpid() != process)
      throw Error(ErrorCode::kPrecondition, "checkpointer '" + name +
                                                "' belongs to the parent of this forked process, which has none of the world's " +
                                                "threads and connections; make a world and a checkpointer in this process");
  }

  std::string busy() const {
    return "checkpointer '" + name + "' is busy with another save or load: a checkpointer makes one call at a time; use a second " +
           "one to run them side by side";
  }

  std::shared_ptr<AsyncStager> stager_for(const AsyncSaveOptions& options) {
    if (options.stager) return options.stager;
    const StagingOptions& wanted = options.staging;
    return stager.get(digest_of(wanted), [&]() -> std::shared_ptr<AsyncStager> {
      if (wanted.stream) return std::make_shared<StreamingStager>();
      return std::make_shared<DefaultStager>(
          wanted, [&actors = world.runtime(), rank = world.rank(), checkpointer = name](std::string_view what) {
            actors.note(what);
            write_log(LogLevel::kDebug, rank, std::string(what) + " by checkpointer '" + checkpointer + "'");
          });
    });
  }

  // Lets the caller cancel the call while the result lives.
  std::shared_ptr<void> watch_cancellation(const std::optional<Cancellation>& cancellation, std::uint64_t ticket) {
    if (!cancellation) return nullptr;
    return cancellation->watch([this, ticket](const std::string& why) { world.runtime().cancel(name, ticket, why); });
  }

  std::shared_ptr<SavePlanner> planner_for(const SaveOptions& options) {
    if (options.planner) return options.planner;
    SavePlannerOptions planning = options.planning;
    // Alone, there is nothing to compare with.
    planning.hash_tensors = options.check_replicas != CheckReplicas::kOff && world.size() > 1;
    planning.world_size = world.size();
    return planner.get(digest_of(planning), [&]() -> std::shared_ptr<SavePlanner> {
      return part_rank ? make_part_save_planner(planning, *part_rank) : std::make_shared<DefaultSavePlanner>(planning);
    });
  }
  Made<StorageWriter> writer_for(const SaveOptions& options, const AsyncSaveOptions* async_options = nullptr) {
    if (options.storage_writer) return {options.storage_writer, nullptr};
    CheckpointWriterOptions wanted = options.writer;
    if (async_options) {
      wanted.low_priority = wanted.low_priority || async_options->low_priority;
      // A streamed state is never copied as a whole. The writer's memory limits how much of it is
      // copied at once, and copying comes first because the trainer waits for it.
      wanted.copy_first = async_options->stager ? async_options->stager->streams() : async_options->staging.stream;
      if (wanted.copy_first) wanted.bytes_in_flight_max = async_options->staging.stream_bytes_max;
    }
    return writer.get(digest_of(wanted), [&] { return make_writer(wanted); });
  }

  // Returns the rules by which Cairn's planner plans a save (state/call_hooks.hpp). Call
  // `planner_for` before. What a user's planner or writer does is done anew in each save.
  std::string rules_of(const SaveOptions& options) const {
    return options.planner || options.storage_writer ? "" : to_hex(planner.options);
  }

  ShownCall what_to_show(bool is_save, const std::string& checkpoint_id) const {
    return {world.show_progress(), world.rank(), world.size(), is_save, checkpoint_id};
  }

  void load(StateDict& state_dict, const std::string& checkpoint_id, const LoadOptions& options,
            const std::vector<std::string>* prefixes, const std::shared_ptr<LoadPlanner>& planner_of_call) {
    const ProfilerRange range("load");
    check_process();
    const OneCall one(running, busy());
    check_coordinator(options.coordinator_rank, world.size());
    saves.wait(std::nullopt);
    // A load may be of what an earlier save was still writing: that has ended by now.
    const auto made = options.storage_reader ? Made<StorageReader>{options.storage_reader, nullptr} : make_reader(options.reader);
    const auto& reader = made.storage;
    // Cairn's own reader, if it serves Cairn's own planner.
    const auto own_reader =
        !options.planner && !options.storage_reader ? std::dynamic_pointer_cast<CheckpointReader>(reader) : nullptr;
    if (own_reader && world.size() > 1) world.share_reads(*own_reader, options.read_once);
    const bool divides = options.replica_group && own_reader && !options.reader.verify_first && world.size() > 1;
    if (divides && !passing_on) passing_on.emplace(world, name + "~replicas");
    StatefulObjects objects(state_dict);

    // A checkpoint that is replaced during the load is read again, once. Every rank sees the same
    // outcome, so all ranks make the same decision.
    const MonotonicTime start = system_clock().now();
    const auto progress = std::make_shared<CallProgress>();
    CountingLoadPlanner counting(*planner_of_call, *progress, prefixes ? std::nullopt : part_rank);
    std::optional<ProgressDisplay> display;
    for (bool again : {true, false}) {
      StateDict working = state_dict;
      std::optional<DividedLoad> divided;
      if (divides) divided.emplace(*options.replica_group, world.rank());
      std::vector<std::string> agreed_order;
      CallerExecutor executor;
      LoadCall call;
      // With a new ordinal: to the actors, the second try is another call.
      fill(call, name, checkpoint_id, options.coordinator_rank, objects);
      call.executor = &executor;
      call.report_directory = world.report_directory(options.failure_directory, "");
      std::tie(call.options_digest, call.options_text) = shared_options(options, prefixes ? *prefixes : std::vector<std::string>());
      call.begin = [&](const std::vector<std::string>& key_order) {
        check_checkpoint_id(*reader, checkpoint_id);
        if (part_rank) require_part(checkpoint_id);
        agreed_order = key_order;
        objects.describe(key_order, working, world.rank());
        made.check();
        if (!own_reader || (prefixes ? prefixes->empty() : !options.planning.flatten_state_dict)) return;
        auto needed =
            prefixes ? std::optional(NeededNames{{}, *prefixes}) : objects.needed_names(working, part_rank.value_or(world.rank()));
        if (!needed) return;
        if (auto* own_planner = dynamic_cast<DefaultLoadPlanner*>(planner_of_call.get())) own_planner->expect(needed->names);
        own_reader->expect(*std::move(needed));
      };
      const auto fit = [&](const Metadata& metadata, const StorageContext& context) {
        objects.fit(metadata, *reader, context, part_rank.value_or(world.rank()), options.planning.keep_opaque, working);
        if (divided) divided->divide(metadata, options.planning.flatten_state_dict, working);
      };
      // The deadline covers both tries.
      const auto left = [&]() -> std::optional<Duration> {
        if (!options.deadline) return std::nullopt;
        return *options.deadline - (system_clock().now() - start);
      };
      call.deadline = left();
      call.hooks = make_load_hooks(working, options.planner && options.storage_reader ? *planner_of_call : counting, *reader, fit,
                                   own_reader && (options.read_once == ReadOnce::kOff || options.reader.verify_first));
      call.progress = progress;
      // The display follows this object over both tries.
      progress->restart();
      const auto ticket =
          world.runtime().load(std::move(call), [&executor](CallResult outcome) { executor.deliver(std::move(outcome)); });
      const auto watch = watch_cancellation(options.cancellation, ticket);
      // One display for both tries, which are one load to the user.
      if (!display) display.emplace(what_to_show(false, checkpoint_id), progress);
      CallResult outcome = executor.run();
      if (outcome.ok()) {
        if (divided) {
          divided->undo(working);
          const MonotonicTime began = system_clock().now();
          CallResult passed = divided->pass_on(*passing_on, checkpoint_id, left());
          world.runtime().note_last_step(name, ticket, "pass_on", "", system_clock().now() - began, passed);
          if (!passed.ok()) throw CheckpointException(loading(checkpoint_id), std::move(passed));
        }
        display->end(true);
        // Tensors were filled in place. Other leaves reach the caller only after all ranks have
        // succeeded.
        adopt_leaves(state_dict, working);
        restore(objects, agreed_order, working, checkpoint_id, ticket, std::move(outcome));
        return;
      }
      if (again && has_code(outcome.failures, ErrorCode::kChanged)) continue;
      // One of the files of the last save may be damaged: the next save writes all anew.
      if (has_code(outcome.failures, ErrorCode::kCorrupt)) writer.object.reset();
      throw CheckpointException(loading(checkpoint_id), std::move(outcome));
    }
  }

  // Runs after all ranks have loaded. So if an object throws, the call fails on its own rank only.
  void restore(const StatefulObjects& objects, const std::vector<std::string>& key_order, StateDict& working,
               const std::string& checkpoint_id, std::uint64_t ticket, CallResult outcome) const {
    const ProfilerRange range("restore");
    const MonotonicTime began = system_clock().now();
    std::string longest;
    try {
      longest = objects.restore(key_order, working, world.rank());
    } catch (...) {
      outcome.failures.emplace(world.rank(), capture_failure(world.rank(), Phase::kRead, "trainer", std::current_exception()));
    }
    world.runtime().note_last_step(name, ticket, "load_state_dict", longest, system_clock().now() - began, outcome);
    if (!outcome.ok()) throw CheckpointException("restoring Stateful objects from '" + checkpoint_id + "'", std::move(outcome));
  }

  // Returns the checkpointer for calls with `use_collectives` off.
  Checkpointer& for_own_part() {
    check_process();
    const OneCall one(running, busy());
    if (!own_part) {
      own_part = std::make_unique<Checkpointer>(world.alone(), name);
      own_part->implementation_->part_rank = world.rank();
    }
    return *own_part;
  }

  World world;
  std::string name;
  const pid_t process = ::getpid();
  Mutex running;                               // held by the one call that runs
  std::map<std::string, std::uint64_t> calls;  // by slot
  std::set<std::string> slots;                 // other than `name`
  std::uint64_t slots_taken = 0;
  static constexpr std::uint64_t kSlots = 16;
  // Cairn's own, for saves. They depend on `part_rank` too, which never changes.
  Kept<std::shared_ptr<SavePlanner>> planner;
  Kept<Made<StorageWriter>> writer;
  Kept<std::shared_ptr<AsyncStager>> stager;
  std::optional<Agreement> passing_on;  // of loads with a replica group; made when first needed
  std::uint64_t async_saves = 0;
  AsyncQueue saves;
  std::unique_ptr<Checkpointer> own_part;  // in a world of this rank alone; null until needed
  std::optional<int> part_rank;            // set in `own_part`: the rank in the real world
};

Checkpointer::Checkpointer(World world, std::string name) {
  world.claim_checkpointer(name);
  implementation_ = std::make_unique<Implementation>(std::move(world), std::move(name));
}

Checkpointer::~Checkpointer() {
  if (!implementation_) return;
  if (::getpid() != implementation_->process) {
    implementation_.release();  // NOLINT: a forked child does not have the threads to wait for
    return;
  }
  // Shared: a save whose hook does not return keeps it alive after this destructor.
  const std::shared_ptr<Implementation> self = std::move(implementation_);
  try {
    self->saves.close(self->world.shutdown_deadline(), self);
  } catch (...) {  // out of memory: nothing can be logged
  }
  // After the saves, which the actors know by these names.
  self->passing_on.reset();
  for (const auto& slot : self->slots) self->world.release_checkpointer(slot);
  self->world.release_checkpointer(self->name);
}

Checkpointer::Checkpointer(Checkpointer&&) noexcept = default;

Checkpointer& Checkpointer::operator=(Checkpointer&& other) noexcept {
  std::swap(implementation_, other.implementation_);
  return *this;
}

const World& Checkpointer::world() const { return implementation_->world; }

void Checkpointer::save(const StateDict& state_dict, const std::string& checkpoint_id, const SaveOptions& options) {
  if (options.no_dist && implementation_->world.size() > 1) return alone().save(state_dict, checkpoint_id, options);
  if (!options.use_collectives)
    return implementation_->for_own_part().save(state_dict, place_of_part(checkpoint_id, world()),
                                                options_of_part(options, checkpoint_id, world()));
  const ProfilerRange range("save");
  auto& self = *implementation_;
  self.check_process();
  const OneCall one(self.running, self.busy());
  check_coordinator(options.coordinator_rank, self.world.size());
  // Earlier saves end first, so that checkpoints appear in the order of the calls.
  self.saves.wait(std::nullopt);

  const auto planner = self.planner_for(options);
  const auto writer = self.writer_for(options);
  StatefulObjects objects(state_dict);
  StateDict working;  // with the dicts of objects in their places
  if (!objects.empty()) working = state_dict;
  CallerExecutor executor;

  SaveCall call = self.save_call(self.name, checkpoint_id, options, objects);
  call.executor = &executor;
  call.begin = [&](const std::vector<std::string>& key_order) {
    check_step(options, self.part_rank.has_value());
    check_checkpoint_id(*writer.storage, checkpoint_id);
    objects.describe(key_order, working, self.world.rank());
    writer.check();
  };
  const auto progress = std::make_shared<CallProgress>();
  CountingSavePlanner counting(*planner, *progress);
  // A user's own planner and storage may depend on each other's types, so no counting planner is
  // put between them.
  call.hooks =
      make_save_hooks(objects.empty() ? state_dict : working, options.planner && options.storage_writer ? *planner : counting,
                      *writer.storage, self.rules_of(options));
  call.progress = progress;
  auto what_to_show = self.what_to_show(true, checkpoint_id);
  const auto ticket =
      self.world.runtime().save(std::move(call), [&executor](CallResult outcome) { executor.deliver(std::move(outcome)); });
  const auto watch = self.watch_cancellation(options.cancellation, ticket);
  ProgressDisplay display(std::move(what_to_show), progress);
  CallResult outcome = executor.run();
  display.end(outcome.ok());
  if (!outcome.ok()) throw CheckpointException(saving(checkpoint_id), std::move(outcome));
  // Last, so that the error can say that this save has succeeded.
  if (const auto unread = self.saves.take_unread(saving(checkpoint_id) + " has succeeded, but")) std::rethrow_exception(unread);
}

AsyncSaveResponse Checkpointer::async_save(const StateDict& state_dict, const std::string& checkpoint_id,
                                           const SaveOptions& options, const AsyncSaveOptions& async_options) {
  if (options.no_dist && implementation_->world.size() > 1) {
    const auto checkpointer = std::make_shared<Checkpointer>(alone());
    AsyncSaveResponse response = checkpointer->async_save(state_dict, checkpoint_id, options, async_options);
    response.checkpointer_ = checkpointer;
    return response;
  }
  if (!options.use_collectives)
    return implementation_->for_own_part().async_save(state_dict, place_of_part(checkpoint_id, world()),
                                                      options_of_part(options, checkpoint_id, world()), async_options);
  const ProfilerRange range("async_save");
  auto& self = *implementation_;
  self.check_process();
  const OneCall one(self.running, self.busy());
  check_coordinator(options.coordinator_rank, self.world.size());
  if (!self.world.has_backend_for("cpu"))
    throw Error(ErrorCode::kPrecondition,
                "A CPU backend must be enabled for async save; the staged state is on the CPU: initialize the process group with "
                "'cpu:gloo,cuda:nccl', and say so in WorldOptions::backends");

  const WhileInFlight policy = async_options.while_in_flight;
  AsyncSave::Parts parts;
  // By reference: a save that outlives the checkpointer keeps its world.
  parts.start = [&actors = self.world.runtime()](SaveCall call, std::function<void(CallResult)> done) {
    return actors.save(std::move(call), std::move(done));
  };
  parts.end = [&actors = self.world.runtime()](const std::string& slot, std::uint64_t ticket, const std::string& why) {
    actors.cancel(slot, ticket, why);
  };
  parts.note_staging = [&actors = self.world.runtime()](const std::string& slot, std::uint64_t ticket, Duration duration) {
    actors.note_operation(slot, ticket, "stage", duration);
  };
  parts.shown = self.what_to_show(true, checkpoint_id);
  parts.shutdown_deadline = self.world.shutdown_deadline();
  parts.order = self.saves.order();
  parts.slot = self.slot_for(policy);
  const bool refused = policy == WhileInFlight::kRefuse && self.saves.any_in_flight();
  if (policy == WhileInFlight::kReplace) self.saves.replace("'" + checkpoint_id + "' is saved in its place");
  // The actors run one call of a slot at a time. Slots are used in turn, so a save long before this
  // one may still hold it.
  self.saves.wait(std::nullopt, policy == WhileInFlight::kWait ? nullptr : &parts.slot);

  parts.number = ++self.async_saves;
  parts.planner = self.planner_for(options);
  parts.planner_is_users = options.planner != nullptr;
  parts.rules = self.rules_of(options);
  const auto writer = self.writer_for(options, &async_options);
  parts.writer = writer.storage;
  parts.stager = self.stager_for(async_options);
  parts.cancellation = options.cancellation;
  parts.options = async_options;

  StatefulObjects objects(state_dict);
  SaveCall call = self.save_call(parts.slot, checkpoint_id, options, objects);
  const auto save = std::make_shared<AsyncSave>(std::move(parts));
  save->begin(std::move(call), [&](const std::vector<std::string>& key_order) {
    check_step(options, self.part_rank.has_value());
    check_checkpoint_id(*writer.storage, checkpoint_id);
    StateDict working = state_dict;
    objects.describe(key_order, working, self.world.rank());
    writer.check();
    // Thrown only after `describe`: Stateful hooks may use collectives, so they must run on every
    // rank or on none.
    if (refused)
      throw Error(ErrorCode::kPrecondition,
                  "rank " + std::to_string(self.world.rank()) +
                      " has an asynchronous save in flight: wait for it, or choose another WhileInFlight");
    return working;
  });
  const auto unread = self.saves.take_unread(saving(checkpoint_id) + " goes on in the background, but");
  // Before the failure of an earlier save is thrown, because this one goes on.
  self.saves.add(save);
  if (unread) std::rethrow_exception(unread);
  return AsyncSaveResponse(save);
}

void Checkpointer::prepare(const StateDict& state_dict, const AsyncSaveOptions& async_options, const SaveOptions& options) {
  auto& self = *implementation_;
  if (!options.use_collectives)
    return self.for_own_part().prepare(state_dict, async_options, options_of_part(options, "", world()));
  self.check_process();
  const OneCall one(self.running, self.busy());
  StatefulObjects objects(state_dict);
  StateDict working = state_dict;
  try {
    objects.describe(objects.keys(), working, world().rank());
  } catch (const PlacedException& placed) {
    std::rethrow_exception(placed.exception);
  }
  const auto stager = self.stager_for(async_options);
  stager->prepare(working);
  if (!stager->streams()) return;
  std::uint64_t bytes = 0;
  Value tensors(std::move(working));
  replace_tensors(tensors, "", [&bytes](const std::string&, const torch::Tensor& tensor) {
    if (tensor.defined()) bytes += static_cast<std::uint64_t>(tensor.numel()) * tensor.element_size();
    return tensor;
  });
  self.writer_for(options, &async_options).storage->prepare_staging(bytes);
}

void Checkpointer::release() {
  auto& self = *implementation_;
  const OneCall one(self.running, self.busy());
  if (self.stager.object) (*self.stager.object)->release();
  if (self.writer.object) self.writer.object->storage->release_staging();
  if (self.own_part) self.own_part->release();
}

bool Checkpointer::wait_for_saves(std::optional<std::chrono::milliseconds> deadline) {
  auto& self = *implementation_;
  self.check_process();
  const OneCall one(self.running, self.busy());
  const MonotonicTime start = system_clock().now();
  if (!self.saves.wait(deadline)) return false;
  if (deadline)
    deadline = std::chrono::duration_cast<std::chrono::milliseconds>(bounded_wait(*deadline) - (system_clock().now() - start));
  if (self.own_part && !self.own_part->wait_for_saves(deadline)) return false;
  if (const auto unread = self.saves.take_unread("waiting for asynchronous saves")) std::rethrow_exception(unread);
  return true;
}

LoadReport Checkpointer::load(StateDict& state_dict, const std::string& checkpoint_id, const LoadOptions& options) {
  if (options.no_dist && implementation_->world.size() > 1) return alone().load(state_dict, checkpoint_id, options);
  if (!options.use_collectives)
    return implementation_->for_own_part().load(state_dict, place_of_part(checkpoint_id, world()),
                                                options_of_part(options, world()));
  const auto& part_rank = implementation_->part_rank;
  LoadPlannerOptions planning = options.planning;
  planning.world_size = part_rank ? 0 : world().size();
  if (part_rank) planning.refuse_absent_ranks = false;  // a part has the values of one rank
  if (options.planner) {
    implementation_->load(state_dict, checkpoint_id, options, nullptr, options.planner);
    return options.planner->report();
  }
  const auto planner = std::make_shared<DefaultLoadPlanner>(planning);
  implementation_->load(state_dict, checkpoint_id, options, nullptr, planner);
  return planner->take_report();
}

StateDict Checkpointer::load_by_keys(const std::string& checkpoint_id, const std::vector<std::string>& prefixes,
                                     const LoadOptions& options) {
  if (options.no_dist && implementation_->world.size() > 1) return alone().load_by_keys(checkpoint_id, prefixes, options);
  if (!options.use_collectives)
    return implementation_->for_own_part().load_by_keys(place_of_part(checkpoint_id, world()), prefixes,
                                                        options_of_part(options, world()));
  if (options.planner)
    throw Error(ErrorCode::kInvalidArgument, "load_by_keys plans by itself: leave LoadOptions::planner empty, or call load");
  StateDict state_dict;
  const std::shared_ptr<LoadPlanner> planner = make_key_load_planner(prefixes, options.planning.keep_opaque);
  LoadOptions whole = options;
  whole.replica_group = nullptr;
  implementation_->load(state_dict, checkpoint_id, whole, &prefixes, planner);
  std::string left_out;
  for (const std::string& name : planner->report().opaque) left_out += "\n  " + printable(name);
  if (!left_out.empty() && world().rank() == 0)
    write_log(LogLevel::kWarning, 0,
              "load_by_keys: values of classes that only Python has were left out of " + checkpoint_id +
                  "; LoadPlannerOptions::keep_opaque keeps those of a checkpoint:" + left_out);
  return state_dict;
}

}  // namespace cairn
