#include <cairn/training/replicate.hpp>

#include <torch/torch.h>

#include <cairn/base/error.hpp>
#include <cairn/training/sharded_unit.hpp>

namespace cairn::training {

// Replication uses units that are not cut: nothing is gathered, and gradients go in several
// messages.
void replicate(torch::nn::Module& module, const ProcessGroup& group, const ReplicateOptions& options) {
  for (const auto& unit : units_in(module))
    if (unit->group()->has_wrapped(module))
      throw Error(ErrorCode::kPrecondition,
                  "Cannot apply replicate to " + module.name() + ": it is fully sharded or replicated already");
  FullyShardOptions whole;
  whole.strategy = ShardingStrategy::kNoShard;
  whole.bucket_bytes = options.bucket_bytes;
  whole.ignored_modules = options.ignored_modules;
  fully_shard(module, ProcessMesh(group), whole);
}

std::vector<std::string> replicated_parameters(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& parameter : module.named_parameters()) {
    const auto unit = unit_behind(parameter.value());
    if (unit && unit->options().strategy == ShardingStrategy::kNoShard) names.push_back(parameter.key());
  }
  return names;
}

}  // namespace cairn::training
