#include <cairn/tests/support/torch.hpp>
// torch first
#include <cairn/state/checkpoint_writer.hpp>
#include <cairn/tests/simulation/hooks.hpp>

namespace cairn::simulation {
namespace {

constexpr std::uint64_t kBlockBytes = std::uint64_t{128} << 10;

// Data hooks fail in two ways: by an exception before they begin, and by their future.
template <class Result, class Act>
Future<Result> watched_data(HookWatcher& watcher, Act act) {
  try {
    watcher.hook_begins(Hook::kMoveData);
  } catch (...) {
    watcher.hook_fails(Hook::kMoveData, std::current_exception());
    throw;
  }
  Promise<Result> promise;
  auto future = promise.future();
  try {
    auto result = act();
    watcher.hook_ends(Hook::kMoveData);
    promise.set_value(std::move(result));
  } catch (...) {
    watcher.hook_fails(Hook::kMoveData, std::current_exception());
    promise.set_exception(std::current_exception());
  }
  return future;
}

}  // namespace

std::string name_of(Hook hook, bool is_load) {
  static constexpr const char* kNames[] = {"reset",
                                           "begin",
                                           "read_metadata",
                                           "set_up_planner",
                                           "set_up_storage_writer",
                                           "create_local_plan",
                                           "prepare_local_plan",
                                           "create_global_plan",
                                           "prepare_global_plan",
                                           "finish_plan",
                                           "write_data",
                                           "finish",
                                           "committed",
                                           "abandon",
                                           "discard",
                                           "decide"};
  if (is_load && hook == Hook::kSetUpStorage) return "set_up_storage_reader";
  if (is_load && hook == Hook::kMoveData) return "read_data";
  return kNames[static_cast<int>(hook) - 1];
}

bool is_coordinators(Hook hook) {
  return hook == Hook::kCreateGlobalPlan || hook == Hook::kPrepareGlobalPlan || hook == Hook::kFinish || hook == Hook::kDecide ||
         hook == Hook::kAskCommitted;
}

Tools::Tools() {
  CheckpointWriterOptions writing;
  writing.threads = 0;
  writing.bytes_in_flight_max = writing.block_bytes = kBlockBytes;
  writing.direct_io = false;
  CheckpointReaderOptions reading;
  reading.threads = 0;
  reading.bytes_in_flight_max = kBlockBytes;
  save_planner = std::make_shared<DefaultSavePlanner>();
  load_planner = std::make_shared<DefaultLoadPlanner>();
  writer = std::make_shared<CheckpointWriter>(writing);
  reader = std::make_shared<CheckpointReader>(reading);
}

void WatchedWriter::set_up_storage_writer(const StorageContext& context) {
  watched(watcher_, Hook::kSetUpStorage, [&] {
    watcher_.save_begins(context.save_id);
    writer_.set_up_storage_writer(context);
  });
}

Future<WriteResults> WatchedWriter::write_data(const SavePlan& plan, SavePlanner& planner) {
  return watched_data<WriteResults>(watcher_, [&] { return writer_.write_data(plan, planner).get(); });
}

Committed WatchedWriter::committed(const std::string& save_id) {
  return watched(watcher_, Hook::kAskCommitted, [&] {
    const Committed committed = writer_.committed(save_id);
    watcher_.save_settles(committed);
    return committed;
  });
}

void WatchedWriter::abandon() noexcept {
  watched(watcher_, Hook::kAbandon, [&] { writer_.abandon(); });
}

void WatchedWriter::discard(bool ends_attempt) noexcept {
  watched(watcher_, Hook::kDiscard, [&] { writer_.discard(ends_attempt); });
}

Metadata WatchedReader::read_metadata() {
  return watched(watcher_, Hook::kReadMetadata, [&] {
    Metadata metadata = reader_.read_metadata();
    watcher_.load_begins(metadata.save_id);
    return metadata;
  });
}

Future<bool> WatchedReader::read_data(const LoadPlan& plan, LoadPlanner& planner) {
  return watcher_.read_ends(watched_data<bool>(watcher_, [&] { return reader_.read_data(plan, planner).get(); }));
}

void WatchedReader::abandon() noexcept {
  watched(watcher_, Hook::kAbandon, [&] { reader_.abandon(); });
}

}  // namespace cairn::simulation
