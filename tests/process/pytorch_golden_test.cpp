// Checkpoints that PyTorch 2.11 wrote, loaded by rank processes.
#include <string>

#include <cairn/runtime/cairn.hpp>
#include <cairn/runtime/testing/testing.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/tests/support/safetensors.hpp>
#include <cairn/tests/support/sample_state.hpp>

using namespace cairn;
using namespace cairn::testing;

TEST_CASE("PyTorch's checkpoints load on all ranks, cut by rows and by columns") {
  const int rank = world().rank();
  Checkpointer checkpointer(world());
  for (const char* const folder : {"single", "threads", "fsdp_even", "fsdp_uneven", "hsdp_2x2", "nested"}) {
    const std::string id = std::string(CAIRN_TEST_DATA) + "/pytorch-2.11/" + folder;
    const auto expected = read_safetensors(id + "/expected.safetensors");
    const Metadata metadata = read_metadata(id);
    for (const std::int64_t dim : {0, 1}) {
      CAPTURE(folder);
      CAPTURE(dim);
      StateDict state;
      for (const auto& [name, entry] : metadata.state_dict_metadata) {
        const auto* const tensor = std::get_if<TensorStorageMetadata>(&entry);
        if (tensor == nullptr) continue;
        const auto options = torch::dtype(*scalar_type_of(tensor->properties.dtype)).device(rank_device());
        if (static_cast<std::int64_t>(tensor->size.size()) > dim)
          state.insert(name, ShardedTensor::zeros(over_all_ranks(world().size(), dim), tensor->size, rank, options));
        else
          state.insert(name, torch::zeros(array_of(tensor->size), options));
      }
      CHECK(is_here(state));
      LoadOptions options;
      options.planning.flatten_state_dict = false;
      checkpointer.load(state, id, options);
      std::size_t compared = 0;
      for (const auto& [name, stored] : expected) {
        CAPTURE(name);
        const torch::Tensor whole = tensor_of(stored);
        const Value& value = state.at(name);
        if (value.is_tensor()) {
          CHECK(torch::equal(value.tensor().cpu(), whole));
        } else {
          for (const LocalShard& shard : value.sharded().local_shards())
            CHECK(torch::equal(shard.tensor.cpu(), part_of(whole, shard.offsets, extents_of(shard.tensor.sizes()))));
        }
        ++compared;
      }
      CHECK(compared > 0);
    }
  }
}
