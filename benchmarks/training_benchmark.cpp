// The cost of sharding in a training step.
//
// Without arguments, runs one rank on the CPU. Compares `replicate` and `fully_shard` with the
// plain model, and measures the host's time per unit.
//
// With --cuda, runs as the ranks of cairn-launch, each on its own CUDA device. Trains a transformer
// of about a billion parameters in bfloat16 on one rank, fully sharded and replicated. Measures
// time and memory of a step, of saving and of resuming; fsdp2_step.py does the same in PyTorch.
// Before that, loads a replicated state with and without LoadOptions::replica_group.
//
// Rank 0 prints one JSON object per line: {name, value, unit, limit, ratio, goal, met}; values are
// medians. `--quick`: a smaller model, fewer steps. `--directory DIRECTORY`: where the checkpoint
// is written; default /dev/shm.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/torch.h>
#ifdef CAIRN_HAS_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#endif

#include <cairn/base/error.hpp>
#include <cairn/runtime/cairn.hpp>
#include <cairn/training/fully_shard.hpp>
#include <cairn/training/group_from_environment.hpp>
#include <cairn/training/replicate.hpp>
#include <cairn/training/state_dicts.hpp>

namespace cairn {
namespace {

using training::Hooked;
using training::ProcessGroup;
using training::ProcessMesh;

struct Shape {
  std::int64_t layers, width, heads, words, length, rows;  // rows: in the batch of a rank
};
constexpr Shape kLarge{18, 2048, 16, 32000, 512, 16};
constexpr Shape kQuick{4, 1024, 16, 8000, 256, 4};
constexpr Shape kSmall{4, 256, 4, 1000, 64, 2};

double seconds_of(const std::function<void()>& act) {
  const auto start = std::chrono::steady_clock::now();
  act();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// `limit` 0: none. `goal` is the maximum of value / limit; 0: none.
void print(const std::string& name, double value, const char* unit, double limit = 0, double goal = 0) {
  std::printf("{\"name\": \"%s\", \"value\": %.6g, \"unit\": \"%s\"", name.c_str(), value, unit);
  if (limit > 0) std::printf(", \"limit\": %.6g, \"ratio\": %.4g", limit, value / limit);
  if (goal > 0)
    std::printf(", \"goal\": \"at most %.4g x the limit\", \"met\": %s", goal, value <= goal * limit ? "true" : "false");
  std::printf("}\n");
  std::fflush(stdout);
}

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(const Shape& shape)
      : heads(shape.heads),
        before_attention(torch::nn::LayerNormOptions({shape.width})),
        before_mlp(torch::nn::LayerNormOptions({shape.width})),
        qkv(shape.width, 3 * shape.width),
        out(shape.width, shape.width),
        up(shape.width, 4 * shape.width),
        down(4 * shape.width, shape.width) {
    register_module("before_attention", before_attention);
    register_module("before_mlp", before_mlp);
    register_module("qkv", qkv);
    register_module("out", out);
    register_module("up", up);
    register_module("down", down);
  }
  // x has one row for each word of `rows` texts. LibTorch's C++ linear layers fuse the bias into
  // the product only for two dimensions; PyTorch's do for any number.
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& mask, std::int64_t rows) {
    const std::int64_t width = x.size(1), length = x.size(0) / rows;
    const auto parts = qkv(before_attention(x)).view({rows, length, 3, heads, width / heads}).permute({2, 0, 3, 1, 4}).unbind(0);
    const double scale = 1 / std::sqrt(static_cast<double>(width / heads));
    const torch::Tensor scores = torch::matmul(parts[0], parts[1].transpose(-1, -2)) * scale;
    const torch::Tensor mixed = torch::matmul(torch::softmax(scores + mask, -1), parts[2]);
    const torch::Tensor attended = x + out(mixed.transpose(1, 2).reshape({rows * length, width}));
    return attended + down(torch::gelu(up(before_mlp(attended))));
  }
  std::int64_t heads;
  torch::nn::LayerNorm before_attention, before_mlp;
  torch::nn::Linear qkv, out, up, down;
};
TORCH_MODULE(Block);

struct TransformerImpl : torch::nn::Module {
  explicit TransformerImpl(const Shape& shape)
      : words(shape.words, shape.width), places(shape.length, shape.width), scores(shape.width, shape.words) {
    register_module("words", words);
    register_module("places", places);
    for (std::int64_t i = 0; i < shape.layers; ++i) blocks->push_back(Block(shape));
    register_module("blocks", blocks);
    register_module("scores", scores);
    mask = register_buffer("mask", torch::full({shape.length, shape.length}, -1e4).triu(1));
  }
  torch::Tensor forward(const torch::Tensor& input) {
    torch::Tensor x = (words(input) + places(torch::arange(input.size(1), input.device()))).flatten(0, 1);
    const torch::Tensor in_type = mask.to(x.scalar_type());
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x, in_type, input.size(0));
    return scores(x);
  }
  torch::nn::Embedding words, places;
  torch::nn::ModuleList blocks;
  torch::nn::Linear scores;
  torch::Tensor mask;
};
TORCH_MODULE(Transformer);

void wait_for(at::Device device) {
  if (device.is_cuda()) torch::cuda::synchronize(device.index());
}

void reset_peak(at::Device device) {
#ifdef CAIRN_HAS_CUDA
  if (device.is_cuda()) c10::cuda::CUDACachingAllocator::resetPeakStats(device.index());
#endif
  (void)device;
}

double peak_mib(at::Device device) {
#ifdef CAIRN_HAS_CUDA
  if (device.is_cuda())
    return static_cast<double>(c10::cuda::CUDACachingAllocator::getDeviceStats(device.index()).allocated_bytes[0].peak) / (1 << 20);
#endif
  (void)device;
  return 0;
}

// A model in training. Every rank has different input.
class Trainer {
 public:
  Trainer(const Shape& shape, at::Device device, int rank, const std::function<void(Hooked<Transformer>&)>& wrap)
      : device_(device) {
    torch::manual_seed(0);
    model_ = Hooked<Transformer>(shape);
    model_->to(device);
    wrap(model_);
    optimizer_ = std::make_shared<torch::optim::AdamW>(model_->parameters(), 1e-4);
    torch::manual_seed(static_cast<std::uint64_t>(rank));
    input_ = torch::randint(shape.words, {shape.rows, shape.length}, torch::kLong).to(device);
  }

  // Returns the seconds of forward and backward, and those of the optimizer.
  std::pair<double, double> step() {
    const double pass = seconds_of([&] {
      optimizer_->zero_grad();
      torch::nn::functional::cross_entropy(model_(input_), input_.view(-1)).backward();
      wait_for(device_);
    });
    return {pass, seconds_of([&] {
              optimizer_->step();
              wait_for(device_);
            })};
  }

  Hooked<Transformer>& model() { return model_; }
  StateDict state() {
    const auto as_module = std::static_pointer_cast<torch::nn::Module>(model_.ptr());
    return {{"model", as_module}, {"optimizer", stateful(optimizer_, as_module)}};
  }

 private:
  at::Device device_;
  Hooked<Transformer> model_{nullptr};
  std::shared_ptr<torch::optim::AdamW> optimizer_;
  torch::Tensor input_;
};

// --- one rank on the CPU -------------------------------------------------------------------------

void measure_overhead(bool quick) {
  const ProcessGroup alone = ProcessGroup::single();
  const auto blocks = training::wrap_classes<BlockImpl>();
  Trainer plain(kSmall, at::kCPU, 0, [](auto&) {});
  Trainer replicated(kSmall, at::kCPU, 0, [&](auto& model) { training::replicate(*model, alone); });
  Trainer sharded(kSmall, at::kCPU, 0, [&](auto& model) {
    training::FullyShardOptions options;
    options.wrap_policy = blocks;
    training::fully_shard(model, ProcessMesh(alone), options);
  });
  std::vector<double> of_plain, of_replicated, of_sharded;
  for (int i = 0; i < (quick ? 7 : 41); ++i) {  // alternating, so that other load on the machine affects all equally
    for (const auto& [trainer, times] : {std::pair{&plain, &of_plain}, {&replicated, &of_replicated}, {&sharded, &of_sharded}}) {
      const auto [pass, rest] = trainer->step();
      if (i > 1) times->push_back(pass + rest);
    }
  }
  print("training_step_cpu_replicate_1_rank", median(of_replicated), "s", median(of_plain), 1.05);
  print("training_step_cpu_fully_shard_1_rank", median(of_sharded), "s", median(of_plain), 1.05);
}

// Measures the host time that each unit adds to forward and backward, in a chain of small layers
// that are units.
void measure_units(bool quick) {
  const ProcessMesh alone(ProcessGroup::single());
  double of_few = 0;
  for (const int units : {16, 64, 256, 1024}) {
    const auto chain = [&] {
      torch::nn::Sequential made;
      for (int i = 0; i < units; ++i) made->push_back(torch::nn::Linear(8, 8));
      return made;
    };
    torch::nn::Sequential plain = chain(), sharded = chain();
    for (const auto& layer : sharded->children()) training::fully_shard(*layer, alone);
    training::fully_shard(*sharded, alone);
    const torch::Tensor input = torch::randn({4, 8});
    std::vector<double> of_plain, of_sharded;
    for (int i = 0; i < (quick ? 5 : 21); ++i) {
      of_plain.push_back(seconds_of([&] { plain->forward(input).sum().backward(); }));
      of_sharded.push_back(seconds_of([&] {
        const auto forward = [&] {
          const training::ForwardScope scope(*sharded);
          return sharded->forward(input);
        };
        forward().sum().backward();
      }));
    }
    const double added = (median(of_sharded) - median(of_plain)) / units;
    if (of_few == 0) of_few = added;
    print("training_host_time_per_unit_of_" + std::to_string(units), added, "s", of_few, 1.5);
  }
}

// --- ranks on CUDA devices -----------------------------------------------------------------------

struct Measured {
  double pass, optimizer, peak;
};

Measured measure_steps(Trainer& trainer, at::Device device, int steps) {
  for (int i = 0; i < 4; ++i) trainer.step();
  reset_peak(device);
  std::vector<double> passes, rests;
  for (int i = 0; i < steps; ++i) {
    const auto [pass, rest] = trainer.step();
    passes.push_back(pass);
    rests.push_back(rest);
  }
  return {median(passes), median(rests), peak_mib(device)};
}

// Runs the same computation without other ranks.
double measure_alone(const Shape& shape, at::Device device, int rank, int steps) {
  Trainer plain(shape, device, rank, [](auto& model) { model->to(at::kBFloat16); });
  return measure_steps(plain, device, steps).pass;
}

void print_steps(const std::string& name, const Measured& measured, int ranks) {
  const std::string of = name + "_" + std::to_string(ranks) + "_ranks";
  print("training_pass_cuda_" + of, measured.pass, "s");
  print("training_step_cuda_" + of, measured.pass + measured.optimizer, "s");
  print("training_peak_cuda_" + of, measured.peak, "MiB");
}

// Loads a state that every rank needs whole: each reads all of it, or a part and gets the rest from
// the group.
void measure_replicas(World& world, const ProcessGroup& group, at::Device device, bool quick, const std::string& directory) {
  constexpr int kTensors = 32;
  const std::int64_t rows = quick ? 256 : 8192;  // 256 MiB or 8 GiB in all
  StateDict state;
  for (int i = 0; i < kTensors; ++i)
    state["layer." + std::to_string(i)] = torch::full({rows, 8192}, i + 1, torch::TensorOptions(torch::kInt32).device(device));
  const std::string where = directory + "/cairn_replicas_benchmark";
  Checkpointer checkpointer(world);
  checkpointer.save(state, where);
  LoadOptions alone, together;
  together.replica_group = std::make_shared<ProcessGroup>(group);
  const auto load = [&](const LoadOptions& options) {
    for (auto& [key, value] : state) value.tensor().zero_();
    group.barrier();
    const double seconds = seconds_of([&] {
      checkpointer.load(state, where, options);
      group.barrier();
    });
    for (int i = 0; i < kTensors; ++i)
      if (!state.at("layer." + std::to_string(i)).tensor().eq(i + 1).all().item<bool>()) throw InternalError("wrong values");
    return seconds;
  };
  std::vector<double> off, on;
  for (int repeat = 0; repeat < 6; ++repeat) {
    const double seconds[] = {load(alone), load(together)};
    if (repeat == 0) continue;  // connects the ranks, and fills the page cache
    off.push_back(seconds[0]);
    on.push_back(seconds[1]);
  }
  if (group.rank() != 0) return;
  print("load_" + std::string(quick ? "256_mib" : "8_gib") + "_replicated_" + std::to_string(group.size()) + "_gpus_replica_group",
        median(on), "s", median(off), 0.5);
  std::filesystem::remove_all(where);
}

void measure_ranks(bool quick, const std::string& directory) {
  const char* const local_rank = std::getenv("LOCAL_RANK");
  const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(local_rank == nullptr ? 0 : std::atoi(local_rank)));
  const c10::DeviceGuard guard(device);
  const ProcessGroup group = training::process_group_from_environment();
  World world = World::from_environment();
  const bool tells = group.rank() == 0;
  const Shape& shape = quick ? kQuick : kLarge;
  const int steps = quick ? 5 : 15;
  const auto wrap = [&](training::ShardingStrategy strategy) {
    return [&, strategy](Hooked<Transformer>& model) {
      training::FullyShardOptions options;
      options.wrap_policy = training::wrap_classes<BlockImpl>();
      options.strategy = strategy;
      options.mixed_precision.parameters = at::kBFloat16;
      options.mixed_precision.reduction = at::kFloat;
      training::fully_shard(model, ProcessMesh(group), options);
    };
  };
  measure_replicas(world, group, device, quick, directory);
  const double alone = measure_alone(shape, device, group.rank(), steps);
  group.barrier();
  if (tells) print("training_pass_cuda_alone", alone, "s");
  {
    Trainer sharded(shape, device, group.rank(), wrap(training::ShardingStrategy::kFull));
    std::int64_t parameters = 0;
    for (const auto& parameter : sharded.model()->parameters()) parameters += parameter.numel();
    const Measured measured = measure_steps(sharded, device, steps);
    if (tells) {
      print("training_parameters_of_rank_0", static_cast<double>(parameters), "elements");
      print_steps("fully_shard", measured, group.size());
    }

    Checkpointer checkpointer(world);
    const std::string where = directory + "/cairn_training_benchmark";
    const double save = seconds_of([&] { checkpointer.save(sharded.state(), where); });
    Trainer resumed(shape, device, group.rank(), wrap(training::ShardingStrategy::kFull));
    StateDict state = resumed.state();
    const double load = seconds_of([&] { checkpointer.load(state, where); });
    const double first = resumed.step().first;
    group.barrier();
    if (tells) {
      print("training_save_cuda", save, "s");
      print("training_resume_cuda_load", load, "s");
      print("training_resume_cuda_first_pass", first, "s");
      std::filesystem::remove_all(where);
    }
  }
  Trainer replicated(shape, device, group.rank(), wrap(training::ShardingStrategy::kNoShard));
  const Measured measured = measure_steps(replicated, device, steps);
  if (tells) print_steps("replicate", measured, group.size());
  world.shutdown(std::chrono::seconds(30));
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  bool quick = false, cuda = false;
  std::string directory = "/dev/shm";
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--quick") {
      quick = true;
    } else if (std::string_view(argv[i]) == "--cuda") {
      cuda = true;
    } else if (std::string_view(argv[i]) == "--directory" && i + 1 < argc) {
      directory = argv[++i];
    } else {
      std::fprintf(stderr, "usage: %s [--quick] [--cuda [--directory DIRECTORY]]\n", argv[0]);
      return 2;
    }
  }
  try {
    if (cuda) {
      cairn::measure_ranks(quick, directory);
    } else {
      torch::set_num_threads(1);
      cairn::measure_overhead(quick);
      cairn::measure_units(quick);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
