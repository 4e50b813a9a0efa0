// char_lm: trains a small character model, data-parallel, and can be stopped and resumed at any
// moment.
//
// A step has a fixed number of micro-batches, which are divided among the ranks. Their gradients
// are gathered and summed in the order of the micro-batches, on one thread. So the losses are
// bitwise equal at any number of ranks, before and after a restart. With --parallel, Cairn instead
// shards or replicates the model, or splits its layers. With --device cuda, each rank trains on a
// device of its own, and losses are equal up to rounding. Each mode can resume from the checkpoints
// of the others.
#include <cstdio>
#include <iostream>
#include <optional>
#include <stdexcept>

#include <torch/torch.h>
#include <CLI/CLI.hpp>

#include <cairn/runtime/cairn.hpp>
#include <cairn/runtime/testing/injection.hpp>
#include <cairn/training/group_from_environment.hpp>

#include "checkpoints.hpp"
#include "data_parallel.hpp"
#include "model.hpp"
#include "text.hpp"
#include "wrapped.hpp"

namespace char_lm {
namespace {

constexpr int kMicroBatches = 12;  // per step; divisible by 1, 2, 3, 4 and 6 ranks
constexpr double kLearningRate = 3e-3;

struct Arguments {
  std::int64_t steps = 50;
  std::int64_t save_every = 10;
  std::string directory = "char_lm_run";
  std::string text = "/usr/share/common-licenses/GPL-3";
  std::int64_t seed = 0;
  bool resume = false;
  bool async = false;
  bool allow_injection = false;
  std::uint32_t keep = 0;
  std::string parallel = "none";
  std::string device = "cpu";
};

// Returns the device on which this rank trains.
torch::Device device_of(const std::string& type, int local_rank) {
  if (type == "cpu") return torch::kCPU;
  const auto devices = static_cast<int>(torch::cuda::device_count());
  if (devices == 0) throw std::runtime_error("--device cuda: LibTorch finds no CUDA device");
  if (local_rank >= devices) {
    throw std::runtime_error("--device cuda: each rank needs its own device, but this machine has " + std::to_string(devices) +
                             " for local rank " + std::to_string(local_rank) + ": start fewer ranks");
  }
  return torch::Device(torch::kCUDA, static_cast<torch::DeviceIndex>(local_rank));
}

// Returns one row: the gradients of one micro-batch for all parameters, then its loss.
torch::Tensor gradient_row(CharModel& model, const Batch& batch) {
  model->zero_grad();
  const torch::Tensor scores = model->forward(batch.input);
  const torch::Tensor loss = torch::nn::functional::cross_entropy(scores.flatten(0, 1), batch.target.flatten());
  loss.backward();
  std::vector<torch::Tensor> parts;
  for (const auto& parameter : model->parameters()) parts.push_back(parameter.grad().flatten());
  parts.push_back(loss.detach().reshape({1}));
  return torch::cat(parts);
}

// Sets the mean gradients of all micro-batches and returns their mean loss.
float accumulate(CharModel& model, const torch::Tensor& rows) {
  torch::Tensor sum = rows[0].clone();
  for (std::int64_t i = 1; i < rows.size(0); ++i) sum += rows[i];
  sum /= static_cast<double>(rows.size(0));
  std::int64_t offset = 0;
  for (auto& parameter : model->parameters()) {
    parameter.mutable_grad() = sum.narrow(0, offset, parameter.numel()).view_as(parameter).clone();
    offset += parameter.numel();
  }
  return sum[offset].item<float>();
}

float train_step(CharModel& model, Training& training, const Text& text, const DataParallel& parallel) {
  const std::vector<std::int64_t> drawn = text.draw(*training.position, kMicroBatches);  // the same on all ranks
  std::vector<torch::Tensor> rows;
  for (int i = parallel.first(kMicroBatches); i < parallel.last(kMicroBatches); ++i) {
    rows.push_back(gradient_row(model, text.batch(drawn, i)));
  }
  std::int64_t row_size = 1;
  for (const auto& parameter : model->parameters()) row_size += parameter.numel();
  const torch::Tensor own =
      rows.empty() ? torch::empty({0, row_size}, model->parameters().front().options()) : torch::stack(rows);
  const float loss = accumulate(model, parallel.gather(own, kMicroBatches));
  training.optimizer->step();
  ++training.step;
  return loss;
}

void report(const std::optional<cairn::ValidCheckpoint>& restored, const std::string& directory, bool speaks) {
  if (!speaks) return;
  if (!restored) {
    std::printf("no checkpoint in %s: starting anew\n", directory.c_str());
    return;
  }
  std::printf("resumed from %s/%s\n", directory.c_str(), restored->checkpoint.name.c_str());
  for (const auto& [name, why] : restored->passed_over)
    std::fprintf(stderr, "char_lm: passed over %s: %s\n", name.c_str(), why.c_str());
}

void train(const Arguments& arguments) {
  torch::set_num_threads(1);
  torch::manual_seed(static_cast<std::uint64_t>(arguments.seed));
  const DataParallel parallel(cairn::training::process_group_from_environment());
  cairn::WorldOptions options;
  options.show_progress = cairn::ShowProgress::kTerminal;  // shows slow saves and loads
  cairn::CheckpointManager manager(parallel.size() > 1 ? cairn::World::from_environment(options) : cairn::World::single(options),
                                   arguments.directory, keeping(arguments.save_every, arguments.keep));
  const bool speaks = parallel.rank() == 0;

  const torch::Device device = device_of(arguments.device, manager.world().local_rank());
  const c10::DeviceGuard guard(device);
  const Text text(arguments.text, device);
  CharModel model(text.characters());
  model->to(device);
  if (speaks && device.is_cuda()) std::printf("training on %s\n", model->parameters().front().device().str().c_str());
  const bool wrapped = arguments.parallel != "none";
  if (wrapped) wrap(model, parallel, arguments.parallel);
  // With "tp", the ranks share layers, so they work on the same batches.
  const DataParallel of_batches = arguments.parallel == "tp" ? DataParallel(cairn::training::ProcessGroup::single()) : parallel;
  Training training{model.ptr(),
                    std::make_shared<torch::optim::Adam>(model->parameters(), torch::optim::AdamOptions(kLearningRate)),
                    std::make_shared<cairn::DataPosition>()};
  training.position->seed = arguments.seed;
  if (arguments.resume) report(resume(training, manager), arguments.directory, speaks);
  while (training.step < arguments.steps && manager.signal() == 0) {
    const float loss =
        wrapped ? wrapped_step(model, training, text, kMicroBatches, of_batches) : train_step(model, training, text, parallel);
    if (speaks) std::printf("step %lld loss %.9g\n", static_cast<long long>(training.step), static_cast<double>(loss));
    save_if_due(training, loss, manager, arguments.async);
  }
  manager.wait_for_saves();
  if (speaks && manager.signal() != 0)
    std::printf("stopped by signal %d after step %lld, which is saved\n", manager.signal(), static_cast<long long>(training.step));
}

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app{"Trains a small character model on a text, data-parallel over all ranks.", "char_lm"};
  app.add_option("--steps", arguments.steps, "Stop after this step")->check(CLI::NonNegativeNumber)->capture_default_str();
  app.add_option("--save-every", arguments.save_every,
                 "Steps from one checkpoint to the next, 0 for none but upon SIGTERM or SIGUSR1")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--dir", arguments.directory, "Checkpoints are DIR/step_<N>")->capture_default_str();
  app.add_option("--text", arguments.text, "The text to learn")->capture_default_str();
  app.add_option("--seed", arguments.seed, "Of the first weights and of the batches; a run that is resumed keeps its own")
      ->capture_default_str();
  app.add_option("--keep", arguments.keep, "Checkpoints to keep: the last ones; 0 for all")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  app.add_option("--parallel", arguments.parallel,
                 "none: whole models, losses equal to the last bit at any number of ranks; replicate, full, hybrid, tp: as Cairn's "
                 "trainers do")
      ->check(CLI::IsMember({"none", "replicate", "full", "hybrid", "tp"}))
      ->capture_default_str();
  app.add_option("--device", arguments.device, "Where to train; cuda: each rank on a device of its own")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  app.add_flag("--async", arguments.async, "Save in the background");
  app.add_flag("--allow-injection", arguments.allow_injection, "Meet the faults that cairn-launch --inject plants");
  app.add_flag("--resume", arguments.resume, "Go on from the latest checkpoint in DIR that is whole");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    if (arguments.allow_injection) cairn::allow_injection();
  } catch (const cairn::Error& error) {  // a malformed rule is wrong use, like an unknown option
    std::cerr << "char_lm: " << error.what() << '\n';
    return 2;
  }
  try {
    train(arguments);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "char_lm: " << error.what() << '\n';
    return 1;
  }
}

}  // namespace
}  // namespace char_lm

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // line-buffered even into the pipe to cairn-launch
  return char_lm::run(argc, argv);
}
