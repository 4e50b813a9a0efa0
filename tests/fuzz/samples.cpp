#include <cairn/tests/fuzz/samples.hpp>

#include <memory>
#include <utility>

namespace cairn::testing {

using namespace protocol;

Trailer sample_trailer() {
  Trailer trailer;
  trailer.save_id = "cairn-00112233445566778899aabbccddeeff-01234567-1";
  trailer.rank = 3;
  trailer.content_bytes = 300'000;
  trailer.block_crc32 = {1, 0xffffffff, 3};
  TrailerItem tensor;
  tensor.fqn = "model.weight";
  tensor.dtype = DType::kFloat16;
  tensor.size = {1000, 200};
  tensor.chunk = {{500, 0}, {500, 100}};
  tensor.length = 200'000;
  tensor.payload_offset = 4096;
  tensor.payload_bytes = 100'000;
  tensor.payload_crc32 = 77;
  TrailerItem bytes;
  bytes.fqn = "step";
  bytes.is_bytes = true;
  bytes.offset = bytes.payload_offset = 200'000;
  bytes.length = bytes.payload_bytes = 100'000;
  bytes.payload_crc32 = 78;
  trailer.items = {tensor, bytes};
  return trailer;
}

SavePlan sample_save_plan() {
  SavePlan plan;
  WriteItem shard;
  shard.name = plan.names.intern("model.weight");
  plan.mappings.edit().emplace_back(shard.name, Path{std::string("model"), std::string("weight")});
  shard.type = WriteItemType::kShard;
  shard.properties.dtype = DType::kBFloat16;
  shard.properties.requires_grad = true;
  shard.size = {1000, 6};
  shard.chunk = {{500, 0}, {500, 6}};
  WriteItem tensor = shard;
  tensor.name = plan.names.intern("a.name.not.made.of.its.path");
  plan.mappings.edit().emplace_back(tensor.name, Path{std::string("a"), std::int64_t{-1}});
  tensor.type = WriteItemType::kTensor;
  tensor.size = {};
  tensor.chunk = {{}, {}};
  WriteItem bytes;
  bytes.name = plan.names.intern("step");
  bytes.content_hash = 0x0123456789abcdef;
  bytes.content_bytes = 900;
  bytes.per_rank = true;
  plan.items = {shard, tensor, bytes};
  plan.planner_data = "planner";
  plan.storage_data = "storage";
  return plan;
}

LoadPlan sample_load_plan() {
  LoadPlan plan;
  ReadItem tensor;
  tensor.dest_name = plan.names.intern("here");
  tensor.storage_name = plan.names.intern("there");
  tensor.storage_chunk = 1;
  tensor.dest_chunk_offset = {0, 0};
  tensor.dest_offsets = {500, 1};
  tensor.storage_chunk_offset = {500, 0};
  tensor.storage_offsets = {0, 1};
  tensor.lengths = {100, 5};
  ReadItem bytes;
  bytes.type = LoadItemType::kByteIO;
  bytes.dest_name = bytes.storage_name = plan.names.intern("step");
  plan.items = {tensor, bytes};
  plan.planner_data = "planner";
  plan.storage_data = "storage";
  return plan;
}

WriteResults sample_write_results() {
  WriteResults results;
  results.files = {{"__0_0_x.distcp", 1'000'000, 0xdeadbeef, 300, {5, 0, 700}}};
  WriteResult item;
  item.index = {"model.weight", Extents{500, 0}};
  item.size_bytes = 6000;
  item.relative_path = "elsewhere/x";
  item.offset_bytes = 10;
  item.length_bytes = 7000;
  item.user_data = "user";
  results.items = {item};
  return results;
}

namespace {

StatusReply sample_standing(const Failure& failure) {
  StatusReply status;
  status.inquiry = 7;
  status.kind = RankStatus::kOrphaned;
  status.coordinator_rank = 2;
  status.ticket = 4;
  status.ordinal = 2;
  status.checkpoint_id = "/run/step_1";
  status.delivered = true;
  status.lost = failure;
  status.failure = failure;
  return status;
}

}  // namespace

std::vector<Envelope> sample_envelopes() {
  Digest digest{};
  digest.fill(0x5a);
  Failure failure;
  failure.rank = 2;
  failure.phase = Phase::kWrite;
  failure.code = ErrorCode::kNoSpace;
  failure.type = "cairn::Error";
  failure.what = "cannot write";
  failure.actor = "storage";
  failure.trace_position = 12;
  const auto save_plan = std::make_shared<const SavePlan>(sample_save_plan());
  const auto load_plan = std::make_shared<const LoadPlan>(sample_load_plan());
  const std::vector<Message> bodies{
      Join{4, 2, Operation::kSave, "/run/step_1", digest, {"model", "optimizer"}, 9, 4, 0, "a text"},
      Begin{4, {"model", "optimizer"}},
      LocalSavePlan{save_plan, digest},
      SameSavePlan{digest, {1, 2}, {3, 4}},
      NeedLocalPlan{digest},
      GlobalSavePlan{save_plan, digest, true},
      UseCachedPlan{digest, true},
      NeedGlobalPlan{digest},
      Written{std::make_shared<const WriteResults>(sample_write_results())},
      LocalLoadPlan{load_plan, "an id"},
      GlobalLoadPlan{load_plan},
      ReadDone{},
      PhaseFailed{failure},
      Outcome{4, make_ending({{2, failure}}, Committed::kUnknown, "an id", "an answer")},
      Cancel{4, failure},
      CoordinatorDown{failure, 4},
      StopPhase{},
      PhaseStopped{},
      Withdraw{4},
      Unreadable{failure},
      sample_standing(failure),
      StatusRequest{7, 2, 2, Operation::kSave, "/run/step_1"},
      FollowOther{3},
      Progress{4, {10, 3, 4096, 1024}},
      JobProgress{4, Phase::kWrite, 1, {40, 13, 16384, 5000}, 2, {10, 3, 4096, 1024}},
  };
  static_assert(std::variant_size_v<Message> == 25, "a new message wants a sample");
  std::vector<Envelope> envelopes;
  for (const Message& body : bodies) envelopes.push_back({{"00112233445566778899aabbccddeeff", "checkpointer", 3}, 1, 5, 6, body});
  return envelopes;
}

}  // namespace cairn::testing
