#include "wrapped.hpp"

#include <stdexcept>

#include <torch/torch.h>

#include <cairn/training/fully_shard.hpp>
#include <cairn/training/parallelize.hpp>
#include <cairn/training/replicate.hpp>

namespace char_lm {

namespace sharding = cairn::training;

void wrap(CharModel& model, const DataParallel& parallel, const std::string& how) {
  if (how == "replicate") return sharding::replicate(*model, parallel.group());
  if (how == "tp") {
    return sharding::parallelize(
        *model, sharding::ProcessMesh(parallel.group()),
        {{"embedding", sharding::RowwiseParallel{}}, {"scores", sharding::ColwiseParallel{/*gather_output=*/true}}});
  }
  sharding::FullyShardOptions options;
  options.wrap_policy = [](const torch::nn::Module&, std::int64_t) { return true; };  // each layer is a unit
  if (how == "hybrid") {
    const int size = parallel.size();
    if (size % 2 != 0) throw std::runtime_error("--parallel hybrid needs an even number of ranks, not " + std::to_string(size));
    return sharding::fully_shard(*model, sharding::ProcessMesh(parallel.group(), {2, size / 2}, {"replicas", "shards"}), options);
  }
  sharding::fully_shard(*model, sharding::ProcessMesh(parallel.group()), options);
}

float wrapped_step(CharModel& model, Training& training, const Text& text, int micro_batches, const DataParallel& parallel) {
  if (micro_batches % parallel.size() != 0) {
    throw std::runtime_error(std::to_string(micro_batches) + " micro-batches cannot be dealt out evenly to " +
                             std::to_string(parallel.size()) + " ranks: use another number of ranks, or --parallel none");
  }
  const std::vector<std::int64_t> drawn = text.draw(*training.position, micro_batches);  // the same on all ranks
  training.optimizer->zero_grad();
  torch::Tensor sum = torch::zeros({1}, model->parameters().front().device());
  const int first = parallel.first(micro_batches), last = parallel.last(micro_batches);
  for (int i = first; i < last; ++i) {
    sharding::set_gradient_sync(*model, i + 1 == last);
    const Batch batch = text.batch(drawn, i);
    const sharding::ForwardScope scope(*model);
    const torch::Tensor scores = model->forward(batch.input);
    const torch::Tensor loss = torch::nn::functional::cross_entropy(scores.flatten(0, 1), batch.target.flatten());
    (loss / (last - first)).backward();
    sum += loss.detach();
  }
  parallel.group().all_reduce(sum);
  training.optimizer->step();
  ++training.step;
  return (sum / micro_batches).item<float>();
}

}  // namespace char_lm
