#include <cairn/runtime/checkpointer.hpp>

#include <exception>
#include <mutex>
#include <optional>
#include <utility>

#include <cairn/actors/rank_runtime.hpp>
#include <cairn/base/digest.hpp>
#include <cairn/runtime/cairn.hpp>
#include <cairn/runtime/caller_executor.hpp>
#include <cairn/runtime/stateful_objects.hpp>

namespace cairn {
namespace {

// Options that all ranks must share, in one digest: a disagreement is found before anything is planned.
void add(DigestBuilder& digest, const CheckpointWriterOptions& options) {
  digest.add(std::uint64_t{options.single_file_per_rank})
      .add(std::uint64_t{options.sync_files})
      .add(std::uint64_t{options.overwrite});
  digest.add(ByteSpan(options.run_url)).add(std::uint64_t{options.retired_keep});
}

Digest digest_of(const SaveOptions& options) {
  DigestBuilder digest;
  digest.add(ByteSpan("save"));
  digest.add(std::uint64_t{options.planning.flatten_state_dict});
  digest.add(static_cast<std::uint64_t>(options.planning.global.dedup));
  digest.add(static_cast<std::uint64_t>(options.planning.global.rank_values));
  digest.add(options.planning.global.split_above_bytes);
  add(digest, options.writer);
  digest.add(std::uint64_t{options.step.has_value()}).add(options.step.value_or(0));
  for (const auto& [key, value] : options.user_metadata) digest.add(ByteSpan(key)).add(ByteSpan(value));
  digest.add(std::uint64_t{options.planner != nullptr}).add(std::uint64_t{options.storage_writer != nullptr});
  return digest.finish();
}

Digest digest_of(const LoadOptions& options, const std::vector<std::string>& prefixes) {
  DigestBuilder digest;
  digest.add(ByteSpan("load"));
  digest.add(std::uint64_t{options.planning.flatten_state_dict});
  digest.add(std::uint64_t{options.planning.allow_partial_load}).add(std::uint64_t{options.planning.allow_dtype_cast});
  digest.add(std::uint64_t{options.reader.verify}).add(std::uint64_t{options.reader.verify_first});
  digest.add(std::uint64_t{options.planner != nullptr}).add(std::uint64_t{options.storage_reader != nullptr});
  for (const auto& prefix : prefixes) digest.add(ByteSpan(prefix));
  return digest.finish();
}

bool changed_while_loading(const FailureMap& failures) {
  for (const auto& [rank, failure] : failures)
    if (failure.code == ErrorCode::kChanged) return true;
  return false;
}

}  // namespace

// Cairn's own planner and writer are kept between calls, for their memory of the last plan, their threads and staging blocks.
struct Checkpointer::Implementation {
  Implementation(World of, std::string with_name) : world(std::move(of)), name(std::move(with_name)) {}

  void fill(Call& call, const std::string& checkpoint_id, int coordinator_rank, CallerExecutor& executor) {
    call.id.checkpointer = name;
    call.id.ordinal = ++calls;
    call.checkpoint_id = checkpoint_id;
    call.coordinator_rank = coordinator_rank;
    call.executor = &executor;
  }

  std::shared_ptr<SavePlanner> planner_for(const SaveOptions& options) {
    if (options.planner) return options.planner;
    DigestBuilder digest;
    digest.add(std::uint64_t{options.planning.flatten_state_dict});
    digest.add(static_cast<std::uint64_t>(options.planning.global.dedup));
    digest.add(static_cast<std::uint64_t>(options.planning.global.rank_values));
    digest.add(options.planning.global.split_above_bytes);
    const Digest wanted = digest.finish();
    if (!planner || planner_options != wanted) planner = std::make_shared<DefaultSavePlanner>(options.planning);
    planner_options = wanted;
    return planner;
  }

  std::shared_ptr<StorageWriter> writer_for(const SaveOptions& options) {
    if (options.storage_writer) return options.storage_writer;
    DigestBuilder digest;
    add(digest, options.writer);
    digest.add(std::uint64_t{options.writer.threads}).add(options.writer.bytes_in_flight_max).add(options.writer.block_bytes);
    digest.add(std::uint64_t{options.writer.direct_io});
    const Digest wanted = digest.finish();
    if (!writer || writer_options != wanted) writer = std::make_shared<CheckpointWriter>(options.writer);
    writer_options = wanted;
    return writer;
  }

  void load(StateDict& state_dict, const std::string& checkpoint_id, const LoadOptions& options,
            const std::vector<std::string>& prefixes, const std::shared_ptr<LoadPlanner>& planner_of_call);

  // All ranks have loaded: what an object does with its state is its own rank's affair.
  void restore(const StatefulObjects& objects, const std::vector<std::string>& key_order, StateDict& working,
               const std::string& checkpoint_id) const {
    try {
      objects.restore(key_order, working);
    } catch (...) {
      FailureMap failures;
      failures.emplace(world.rank(), capture_failure(world.rank(), Phase::kRead, "trainer", std::current_exception()));
      throw CheckpointException("restoring Stateful objects from '" + checkpoint_id + "'", std::move(failures), Committed::kNo, "");
    }
  }

  World world;
  std::string name;
  std::mutex running;
  std::uint64_t calls = 0;
  std::shared_ptr<SavePlanner> planner;
  Digest planner_options{};
  std::shared_ptr<StorageWriter> writer;
  Digest writer_options{};
};

namespace {

std::unique_lock<std::mutex> only_one(std::mutex& running, const std::string& name) {
  std::unique_lock lock(running, std::try_to_lock);
  if (!lock.owns_lock())
    throw Error(ErrorCode::kPrecondition, "checkpointer '" + name +
                                              "' is busy with another save or load: a checkpointer makes one " +
                                              "call at a time; use a second one to run them side by side");
  return lock;
}

// In larger worlds the ranks find out together, so that none waits for one that never came.
void check_coordinator(int coordinator_rank, const World& world) {
  if (world.size() == 1 && coordinator_rank != 0)
    throw Error(ErrorCode::kInvalidArgument, "coordinator_rank " + std::to_string(coordinator_rank) +
                                                 " is not a rank of a world of 1");
}

// What is wrong with one rank's own arguments is reported after the ranks have joined, so that all of them fail alike and none
// waits for one that never came.
struct FoundObjects {
  explicit FoundObjects(const StateDict& state_dict) {
    try {
      objects.emplace(state_dict);
    } catch (...) {
      refusal = std::current_exception();
    }
  }
  std::vector<std::string> keys() const { return objects ? objects->keys() : std::vector<std::string>{}; }
  const StatefulObjects& get() const {
    if (refusal) std::rethrow_exception(refusal);
    return *objects;
  }
  std::optional<StatefulObjects> objects;
  std::exception_ptr refusal;
};

template <class Storage>
void check_checkpoint_id(const Storage& storage, const std::string& checkpoint_id) {
  if (!storage.validate_checkpoint_id(checkpoint_id))
    throw Error(ErrorCode::kInvalidArgument, "'" + checkpoint_id +
                                                 "' is not a checkpoint id that the storage can handle: give a path " +
                                                 "or a URL of a registered scheme");
}

}  // namespace

Checkpointer::Checkpointer(World world, std::string name) {
  world.claim_checkpointer(name);
  implementation_ = std::make_unique<Implementation>(std::move(world), std::move(name));
}

Checkpointer::~Checkpointer() {
  if (implementation_) implementation_->world.release_checkpointer(implementation_->name);
}

Checkpointer::Checkpointer(Checkpointer&&) noexcept = default;

Checkpointer& Checkpointer::operator=(Checkpointer&& other) noexcept {
  std::swap(implementation_, other.implementation_);
  return *this;
}

const World& Checkpointer::world() const { return implementation_->world; }

void Checkpointer::save(const StateDict& state_dict, const std::string& checkpoint_id, const SaveOptions& options) {
  if (options.no_dist && implementation_->world.size() > 1) return cairn::save(state_dict, checkpoint_id, options);
  auto& self = *implementation_;
  const auto lock = only_one(self.running, self.name);
  check_coordinator(options.coordinator_rank, self.world);

  const auto planner = self.planner_for(options);
  const auto writer = self.writer_for(options);
  const FoundObjects objects(state_dict);
  StateDict working = state_dict;
  CallerExecutor executor;

  SaveCall call;
  self.fill(call, checkpoint_id, options.coordinator_rank, executor);
  call.options_digest = digest_of(options);
  call.stateful_keys = objects.keys();
  call.step = options.step;
  call.user_metadata = options.user_metadata;
  call.begin = [&](const std::vector<std::string>& key_order) {
    check_checkpoint_id(*writer, checkpoint_id);
    objects.get().describe(key_order, working);
  };
  call.state_dict = &working;
  call.planner = planner.get();
  call.writer = writer.get();
  self.world.runtime().save(std::move(call), [&executor](Outcome outcome) { executor.finish(std::move(outcome)); });
  Outcome outcome = executor.run();
  if (!outcome.ok())
    throw CheckpointException("saving '" + checkpoint_id + "'", std::move(outcome.failures), outcome.committed, outcome.save_id);
}

void Checkpointer::Implementation::load(StateDict& state_dict, const std::string& checkpoint_id, const LoadOptions& options,
                                        const std::vector<std::string>& prefixes,
                                        const std::shared_ptr<LoadPlanner>& planner_of_call) {
  const auto lock = only_one(running, name);
  check_coordinator(options.coordinator_rank, world);
  const std::shared_ptr<StorageReader> reader =
      options.storage_reader ? options.storage_reader : std::make_shared<CheckpointReader>(options.reader);
  const FoundObjects objects(state_dict);

  // A checkpoint that is replaced while it is read is read again, once: every rank sees the same outcome, so all of them decide
  // alike.
  for (bool again : {true, false}) {
    StateDict working = state_dict;
    std::vector<std::string> agreed_order;
    CallerExecutor executor;
    LoadCall call;
    fill(call, checkpoint_id, options.coordinator_rank, executor);
    call.options_digest = digest_of(options, prefixes);
    call.stateful_keys = objects.keys();
    call.begin = [&](const std::vector<std::string>& key_order) {
      check_checkpoint_id(*reader, checkpoint_id);
      agreed_order = key_order;
      objects.get().describe(key_order, working);
    };
    call.state_dict = &working;
    call.planner = planner_of_call.get();
    call.reader = reader.get();
    world.runtime().load(std::move(call), [&executor](Outcome outcome) { executor.finish(std::move(outcome)); });
    Outcome outcome = executor.run();
    if (outcome.ok()) {
      adopt_leaves(state_dict, working);
      restore(objects.get(), agreed_order, working, checkpoint_id);
      return;
    }
    if (!again || !changed_while_loading(outcome.failures))
      throw CheckpointException("loading '" + checkpoint_id + "'", std::move(outcome.failures), outcome.committed, outcome.save_id);
  }
}

void Checkpointer::load(StateDict& state_dict, const std::string& checkpoint_id, const LoadOptions& options) {
  if (options.no_dist && implementation_->world.size() > 1) return cairn::load(state_dict, checkpoint_id, options);
  const auto planner = options.planner ? options.planner : std::make_shared<DefaultLoadPlanner>(options.planning);
  implementation_->load(state_dict, checkpoint_id, options, {}, planner);
}

StateDict Checkpointer::load_by_keys(const std::string& checkpoint_id, const std::vector<std::string>& prefixes,
                                     const LoadOptions& options) {
  if (options.no_dist && implementation_->world.size() > 1) return cairn::load_by_keys(checkpoint_id, prefixes, options);
  if (options.planner)
    throw Error(ErrorCode::kInvalidArgument, "load_by_keys plans by itself: leave LoadOptions::planner empty, or call load");
  StateDict state_dict;
  implementation_->load(state_dict, checkpoint_id, options, prefixes,
                        std::shared_ptr<LoadPlanner>(make_key_load_planner(prefixes)));
  return state_dict;
}

}  // namespace cairn
