#include "checkpoints.hpp"

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

// The name of the complete checkpoint that was committed last; by commit sequence, for clocks and step counts may go back.
std::string newest_checkpoint(const std::string& directory) {
  std::string newest;
  std::uint64_t newest_sequence = 0;
  const std::string record = std::string("/") + cairn::kCommitRecordName;
  for (const auto& object : cairn::open_store(directory)->list("step_")) {
    const auto end = object.name.find(record);
    if (end == std::string::npos || end + record.size() != object.name.size()) continue;
    const std::string name = object.name.substr(0, end);
    const auto metadata = cairn::read_metadata(cairn::child_url(directory, name));
    if (metadata.commit && metadata.commit->sequence > newest_sequence) {
      newest = name;
      newest_sequence = metadata.commit->sequence;
    }
  }
  return newest;
}

}  // namespace

void save_checkpoint(const Training& training, cairn::Checkpointer& checkpointer, const std::string& directory) {
  const cairn::World& world = checkpointer.world();
  cairn::StateDict state{{"model", shard_rows(cairn::module_state_dict(*training.model), world)},
                         {"optimizer", shard_rows(cairn::optimizer_state_dict(*training.optimizer, training.model.get()), world)},
                         {"step", training.step}};
  cairn::SaveOptions options;
  options.step = training.step;
  checkpointer.save(state, cairn::child_url(directory, "step_" + std::to_string(training.step)), options);
}

std::string resume(Training& training, cairn::Checkpointer& checkpointer, const std::string& directory) {
  const std::string name = newest_checkpoint(directory);
  if (name.empty()) return name;
  // Whole tensors this time: a load may ask for any layout.
  cairn::StateDict state{
      {"model", training.model}, {"optimizer", cairn::stateful(training.optimizer, training.model)}, {"step", training.step}};
  checkpointer.load(state, cairn::child_url(directory, name));
  training.step = state["step"].to_int();
  return name;
}

}  // namespace char_lm
