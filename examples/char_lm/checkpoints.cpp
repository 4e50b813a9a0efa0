#include "checkpoints.hpp"

#include <csignal>

namespace char_lm {
namespace {

// The same state with each tensor cut along its first dimension: the rows of this rank, as views.
cairn::Value shard_rows(const cairn::Value& value, const cairn::World& world) {
  if (value.is_dict()) {
    cairn::Dict shards;
    for (const auto& [key, inner] : value.dict()) shards.insert(key, shard_rows(inner, world));
    return shards;
  }
  if (!value.is_tensor() || value.tensor().dim() == 0) return value;
  const torch::Tensor& whole = value.tensor();
  const cairn::Extents size(whole.sizes().vec());
  const cairn::DeviceMesh mesh({world.size()});
  const cairn::Box rows = *cairn::local_box(size, mesh, {cairn::Shard{0}}, world.rank());
  return cairn::ShardedTensor::from_local(whole.narrow(0, rows.offsets[0], rows.sizes[0]), size, mesh, {cairn::Shard{0}},
                                          world.rank());
}

cairn::StateDict state_of(const Training& training, const cairn::World& world) {
  return {{"model", shard_rows(cairn::module_state_dict(*training.model), world)},
          {"optimizer", shard_rows(cairn::optimizer_state_dict(*training.optimizer, training.model.get()), world)},
          {"position", cairn::stateful(training.position)},
          {"rng", cairn::stateful_rng(cairn::Held::kByAllAlike)},
          {"step", training.step}};
}

}  // namespace

cairn::CheckpointManagerOptions keeping(std::int64_t save_every, std::uint32_t keep) {
  cairn::CheckpointManagerOptions options;
  options.save_every_steps = save_every;
  options.save_on_signal = {SIGTERM, SIGUSR1};  // schedulers send these before they end a job
  if (keep > 0) options.retention.keep_last = keep;
  return options;
}

void save_if_due(const Training& training, float loss, cairn::CheckpointManager& manager, bool in_background) {
  if (!manager.should_save(training.step)) return;
  const cairn::StateDict state = state_of(training, manager.world());
  cairn::Annotations annotations;
  annotations.metrics["loss"] = loss;
  if (!in_background || manager.signal() != 0) {  // after a signal there is no training left to overlap with
    manager.save(training.step, state, annotations);
    return;
  }
  cairn::AsyncSaveOptions options;
  options.staging.cache_staged_state_dict = true;
  manager.async_save(training.step, state, annotations, options);
}

std::optional<cairn::ValidCheckpoint> resume(Training& training, cairn::CheckpointManager& manager) {
  // Whole tensors this time: a load may ask for any layout.
  cairn::StateDict state{{"model", training.model},
                         {"optimizer", cairn::stateful(training.optimizer, training.model)},
                         {"position", cairn::stateful(training.position)},
                         {"rng", cairn::stateful_rng(cairn::Held::kByAllAlike)},
                         {"step", training.step}};
  auto restored = manager.restore_latest(state);
  if (restored) training.step = state["step"].to_int();
  return restored;
}

}  // namespace char_lm
