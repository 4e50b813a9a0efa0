#include <cairn/tests/support/torch.hpp>
// torch first
#include <cairn/base/error.hpp>
#include <cairn/storage/checkpoint_writer.hpp>
#include <cairn/tests/simulation/rank_hooks.hpp>
#include <cairn/tests/support/sample_state.hpp>

namespace cairn::simulation {
namespace {

using protocol::Hook;
using protocol::HookValue;
using protocol::Operation;

// Fewer rows than the largest worlds have ranks, and prime: some ranks hold nothing, and shards are
// uneven.
constexpr std::int64_t kRows = 7;
constexpr std::uint64_t kBlockBytes = std::uint64_t{128} << 10;

torch::Tensor sharded_values(const Version& version) {
  return testing::counting({kRows, 3}, static_cast<double>(version.content) * 100);
}

torch::Tensor replicated_values(const Version& version) {
  return testing::counting({4, 2}, static_cast<double>(version.content) * 100 + 50, torch::kInt64);
}

std::string text_of(const Version& version) {
  return std::string(1 + version.content % 37, static_cast<char>('a' + version.content % 26));
}

std::string replicated_key(int layout) { return "replicated." + std::to_string(layout); }

template <class T>
T take(HookValue& value) {
  return std::move(*std::get<std::shared_ptr<T>>(value));
}

StorageContext context_of(const protocol::RunHook& hook, const RunningCall& call) {
  StorageContext context;
  context.checkpoint_id = call.checkpoint_id;
  if (hook.operation == Operation::kSave) context.save_id = hook.save_id;
  context.rank = call.rank;
  context.world_size = call.world_size;
  context.is_coordinator = hook.is_coordinator;
  return context;
}

HookValue run_for_save(protocol::RunHook& hook, RunningCall& call) {
  StorageWriter& writer = call.background ? call.background->writer : *call.tools->writer;
  SavePlanner& planner = call.background ? call.background->planner : *call.tools->save_planner;
  switch (hook.hook) {
    case Hook::kReset:
      writer.reset(call.checkpoint_id);
      return {};
    case Hook::kSetUpPlanner:
      planner.set_up_planner(call.state, call.rank, hook.is_coordinator);
      return {};
    case Hook::kSetUpStorage:
      writer.set_up_storage_writer(context_of(hook, call));
      return {};
    case Hook::kCreateLocalPlan:
      return std::make_shared<SavePlan>(planner.create_local_plan());
    case Hook::kPrepareLocalPlan:
      return std::make_shared<SavePlan>(writer.prepare_local_plan(take<SavePlan>(hook.argument)));
    case Hook::kCreateGlobalPlan:
      return std::make_shared<GlobalSavePlan>(planner.create_global_plan(take<std::vector<SavePlan>>(hook.argument)));
    case Hook::kPrepareGlobalPlan:
      return std::make_shared<std::vector<SavePlan>>(writer.prepare_global_plan(take<std::vector<SavePlan>>(hook.argument)));
    case Hook::kFinishPlan:
      return std::make_shared<SavePlan>(planner.finish_plan(take<SavePlan>(hook.argument)));
    case Hook::kMoveData:
      return std::make_shared<WriteResults>(writer.write_data(*std::get<std::shared_ptr<SavePlan>>(hook.argument), planner).get());
    case Hook::kFinish: {
      auto& arguments = std::get<protocol::FinishArguments>(hook.argument);
      writer.finish(std::move(*arguments.metadata), std::move(*arguments.results));
      return {};
    }
    case Hook::kAskCommitted:
      return writer.committed(hook.save_id);
    case Hook::kAbandon:
      writer.abandon();
      [[fallthrough]];
    case Hook::kRelease: {
      const auto* const committed = std::get_if<Committed>(&hook.argument);
      if (committed && (*committed == Committed::kNo || hook.is_coordinator)) writer.discard(hook.is_coordinator);
      return {};
    }
    default:
      return {};
  }
}

HookValue run_for_load(protocol::RunHook& hook, RunningCall& call) {
  Tools& tools = *call.tools;
  switch (hook.hook) {
    case Hook::kReset:
      tools.reader->reset(call.checkpoint_id);
      return {};
    case Hook::kReadMetadata:
      call.metadata = tools.reader->read_metadata();
      return call.metadata->save_id;
    case Hook::kSetUpPlanner:
      tools.load_planner->set_up_planner(call.state, *call.metadata, call.rank, hook.is_coordinator);
      return {};
    case Hook::kSetUpStorage:
      tools.reader->set_up_storage_reader(*call.metadata, context_of(hook, call));
      return {};
    case Hook::kCreateLocalPlan:
      return std::make_shared<LoadPlan>(tools.load_planner->create_local_plan());
    case Hook::kPrepareLocalPlan:
      return std::make_shared<LoadPlan>(tools.reader->prepare_local_plan(take<LoadPlan>(hook.argument)));
    case Hook::kCreateGlobalPlan:
      return std::make_shared<std::vector<LoadPlan>>(
          tools.load_planner->create_global_plan(take<std::vector<LoadPlan>>(hook.argument)));
    case Hook::kPrepareGlobalPlan:
      return std::make_shared<std::vector<LoadPlan>>(tools.reader->prepare_global_plan(take<std::vector<LoadPlan>>(hook.argument)));
    case Hook::kFinishPlan:
      return std::make_shared<LoadPlan>(tools.load_planner->finish_plan(take<LoadPlan>(hook.argument)));
    case Hook::kMoveData:
      tools.reader->read_data(*std::get<std::shared_ptr<LoadPlan>>(hook.argument), *tools.load_planner).get();
      return {};
    default:
      return {};
  }
}

}  // namespace

StateDict state_of(const Version& version, int rank, int world_size) {
  return {{"sharded", ShardedTensor::distribute(sharded_values(version), testing::over_all_ranks(world_size), rank)},
          {replicated_key(version.layout), replicated_values(version)},
          {"step", static_cast<std::int64_t>(version.content)},
          {"text", text_of(version)}};
}

StateDict empty_state(int layout, int rank, int world_size) {
  return {{"sharded", ShardedTensor::zeros(testing::over_all_ranks(world_size), {kRows, 3}, rank)},
          {replicated_key(layout), torch::zeros({4, 2}, torch::kInt64)},
          {"step", 0},
          {"text", ""}};
}

bool holds(const StateDict& state, const Version& version, int rank, int world_size) {
  const auto expected = state_of(version, rank, world_size);
  const auto& parts = expected.at("sharded").sharded().local_shards();
  const auto& found = state.at("sharded").sharded().local_shards();
  if (parts.size() != found.size()) return false;
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (!torch::equal(parts[i].tensor, found[i].tensor)) return false;
  const Value* replicated = state.find(replicated_key(version.layout));
  return replicated != nullptr && torch::equal(replicated->tensor(), replicated_values(version)) &&
         state.at("step").to_int() == static_cast<std::int64_t>(version.content) && state.at("text").to_text() == text_of(version);
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

protocol::HookValue run_hook(protocol::RunHook& hook, RunningCall& call) {
  if (hook.hook == Hook::kDecide) {
    std::string all;
    for (const std::string& text : std::get<protocol::AgreementTexts>(hook.argument).texts) all += text;
    return protocol::AgreementTexts{{all}};
  }
  return hook.operation == Operation::kSave ? run_for_save(hook, call) : run_for_load(hook, call);
}

}  // namespace cairn::simulation
