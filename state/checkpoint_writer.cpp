#include <cairn/base/error.hpp>
#include <cairn/base/process_name.hpp>
#include <cairn/base/random.hpp>
#include <cairn/state/checkpoint_writer.hpp>
#include <cairn/state/tensor_items.hpp>
#include <cairn/storage/data_format.hpp>
#include <cairn/storage/engine/read_engine.hpp>
#include <cairn/storage/format/trailer.hpp>
#include <cairn/storage/store_observer.hpp>

namespace cairn {

CheckpointWriter::CheckpointWriter(CheckpointWriterOptions options) : save_(std::move(options)) {}

CheckpointWriter::CheckpointWriter(CheckpointWriterOptions options, std::unique_ptr<DataFormat> format)
    : save_(std::move(options), std::move(format)) {}

CheckpointWriter::~CheckpointWriter() = default;

Future<WriteResults> CheckpointWriter::write_data(const SavePlan& plan, SavePlanner& planner) {
  return save_.write(plan, std::make_shared<PlannedSource>(plan, planner));
}

struct CheckpointReader::Implementation {
  explicit Implementation(CheckpointReaderOptions given)
      : options(std::move(given)), engine({options.threads, options.bytes_in_flight_max}) {}

  Store& opened() {
    if (!store) store = open_store(checkpoint_id);
    return *store;
  }

  const CheckpointReaderOptions options;
  ReadEngine engine;
  ReadOnce read_once = ReadOnce::kOff;
  std::function<std::string()> data_address;
  OpenStreams open_streams;
  std::optional<NeededNames> needed;

  // State of the current attempt:
  std::string checkpoint_id;
  StorageContext context;
  std::shared_ptr<Store> store;
  std::shared_ptr<const Metadata> metadata;
  std::shared_ptr<OpenedFiles> opened_files;
  bool has_read = false;

  ReadRequest request_for(const LoadPlan& plan) const {
    ReadRequest request;
    request.store = store;
    request.metadata = metadata;
    request.plan = &plan;
    request.rank = context.rank;
    request.verify = options.verify;
    request.verify_first = options.verify_first;
    return request;
  }
};

CheckpointReader::CheckpointReader(CheckpointReaderOptions options)
    : implementation_(std::make_unique<Implementation>(std::move(options))) {}

CheckpointReader::~CheckpointReader() = default;

bool CheckpointReader::validate_checkpoint_id(const std::string& checkpoint_id) const { return !checkpoint_id.empty(); }

void CheckpointReader::reset(const std::string& checkpoint_id) {
  Implementation& self = *implementation_;
  // First: a job of an attempt that failed may still use the store and the plan.
  self.engine.stop();
  self.checkpoint_id = checkpoint_id;
  self.context = {};
  self.store.reset();
  self.metadata.reset();
  self.opened_files.reset();
  self.needed.reset();
}

Store& CheckpointReader::opened() { return implementation_->opened(); }

Metadata CheckpointReader::read_metadata() {
  const auto needed = std::exchange(implementation_->needed, std::nullopt);
  return cairn::read_metadata(implementation_->opened(), needed ? &*needed : nullptr);
}

void CheckpointReader::expect(NeededNames needed) { implementation_->needed = std::move(needed); }

void CheckpointReader::set_up_storage_reader(const Metadata& metadata, const StorageContext& context) {
  Implementation& self = *implementation_;
  self.opened();
  // From here on. `read_metadata` runs before the context is known.
  self.store = observe_operations(self.store, context.store_observer);
  self.context = context;
  self.metadata = {std::shared_ptr<const void>(), &metadata};  // borrowed: a copy takes long
  self.opened_files = std::make_shared<OpenedFiles>(self.options.bytes_in_flight_max);
  self.has_read = false;
}

Future<bool> CheckpointReader::read_data(const LoadPlan& plan, LoadPlanner& planner) {
  Implementation& self = *implementation_;
  if (!self.metadata)
    throw Error(ErrorCode::kPrecondition, "the reader was not set up: call set_up_storage_reader before read_data");
  ReadRequest request = self.request_for(plan);
  request.destination = std::make_shared<PlannedDestination>(plan, planner);
  request.opened = self.opened_files;
  // A load reads once. Tools read one tensor after another.
  request.keep_blocks = std::exchange(self.has_read, true);
  request.shared = plan.shared;
  if (plan.shared) request.streams = self.open_streams(plan.shared);
  return self.engine.read(std::move(request));
}

void CheckpointReader::abandon() noexcept { implementation_->engine.stop(); }

void CheckpointReader::share_reads(ReadOnce wanted, std::function<std::string()> address, OpenStreams open) {
  implementation_->read_once = wanted;
  implementation_->data_address = std::move(address);
  implementation_->open_streams = std::move(open);
}

LoadPlan CheckpointReader::prepare_local_plan(LoadPlan plan) {
  const Implementation& self = *implementation_;
  // To check all bytes before any is changed, each rank reads them itself.
  if (self.read_once == ReadOnce::kOff || self.options.verify_first) return plan;
  const StoreTraits traits = self.store->traits();
  // The page cache of a host serves its ranks faster than streams do.
  const bool is_remote = traits.part_bytes_min > 0 || (traits.writes == ObjectWrites::kParallel && self.store->is_shared());
  const ReadOnce mode = self.read_once == ReadOnce::kAuto && is_remote ? ReadOnce::kHost : self.read_once;
  const std::string address = mode == ReadOnce::kAuto ? "" : self.data_address();
  if (!address.empty()) plan.offer = {mode, machine_name(), address, implementation_->engine.needs(self.request_for(plan))};
  return plan;
}

std::vector<LoadPlan> CheckpointReader::prepare_global_plan(std::vector<LoadPlan> plans) {
  std::vector<ReadOffer> offers(plans.size());
  for (std::size_t rank = 0; rank < plans.size(); ++rank) offers[rank] = std::exchange(plans[rank].offer, {});
  std::vector<SharedReads> parts = plan_read_once(offers, kChecksumBlockBytes);
  const std::uint64_t stream = system_random()->next();  // distinct among the loads that run at once
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    if (parts[rank].ranges.empty()) continue;
    parts[rank].stream = stream;
    plans[rank].shared = std::make_shared<const SharedReads>(std::move(parts[rank]));
  }
  return plans;
}

}  // namespace cairn
