// Metadata with every field set, for tests of its codecs.
#pragma once

#include <string>

#include <cairn/planning/metadata.hpp>

namespace cairn::testing {

inline Metadata sample_metadata() {
  Metadata metadata;
  TensorStorageMetadata weight;
  weight.properties.dtype = DType::kBFloat16;
  weight.properties.requires_grad = true;
  weight.properties.memory_format = MemoryFormat::kChannelsLast;
  weight.size = {4, 6};
  weight.chunks = {{{0, 0}, {2, 6}}, {{2, 0}, {2, 6}}};
  weight.storage = {{0, 0, 900, 448, {}}, {1, 0, 900, 448, {}}};
  TensorStorageMetadata scalar;
  scalar.properties.dtype = DType::kInt64;
  scalar.chunks = {{{}, {}}};
  scalar.storage = {{1, 900, 800, 1344, {"zstd", "xor"}}};
  TensorStorageMetadata unplaced;
  unplaced.size = {3};
  unplaced.chunks = {{{0}, {3}}};
  metadata.state_dict_metadata = {{"model.weight", weight},
                                  {"model.größe", scalar},
                                  {"unplaced", unplaced},
                                  {"epoch", BytesStorageMetadata{StorageInfo{1, 1700, 500, 1700, {}}}},
                                  {"nowhere", BytesStorageMetadata{}}};
  metadata.files = {{"__0_0_x.distcp", 5000, 1, 10}, {"__1_0_x.distcp", 6000, 2, 20, "0123-abc-0"}};
  metadata.planner_data = {{"model.weight", {std::string("model"), std::string("weight")}},
                           {"model.größe", {std::string("model"), std::int64_t{3}, std::string("größe")}}};
  metadata.checkpoint_id = "/run/step_1";
  metadata.save_id = "0123-abc-1";
  metadata.version = "1.0.0";
  CommitInfo commit;
  commit.sequence = 7;
  commit.step = 100;
  commit.world_size = 2;
  commit.plan_digest = std::string(64, 'a');
  commit.writer_version = "0.1.0";
  commit.retired = {"0123-abc-0"};
  commit.user_metadata = {{"note", "text"}};
  metadata.commit = commit;
  metadata.reindex();
  return metadata;
}

}  // namespace cairn::testing
