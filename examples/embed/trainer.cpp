// The trainer of the README. Each rank trains the same small model. Saves run in the background.
// After a restart, at any number of ranks, training resumes from the latest checkpoint.
//
//   cairn-launch -n 2 -- trainer RUN STEPS
#include <csignal>
#include <cstdlib>
#include <iostream>

#include <torch/torch.h>

#include <cairn/runtime/cairn.hpp>
#include <cairn/runtime/runs/checkpoint_manager.hpp>

using Net = torch::nn::LinearImpl;

void train_one_step(Net& model, torch::optim::Optimizer& optimizer) {
  optimizer.zero_grad();
  torch::mse_loss(model.forward(torch::ones({8, 4})), torch::zeros({8, 1})).backward();
  optimizer.step();
}

void train(const cairn::World& world, const std::string& run, std::int64_t steps) {
  torch::manual_seed(0);
  auto model = std::make_shared<Net>(4, 1);  // any torch::nn::Module; for a holder such as torch::nn::Linear, its ptr()
  auto optimizer = std::make_shared<torch::optim::Adam>(model->parameters(), 1e-3);
  cairn::StateDict state{{"model", cairn::stateful(model)}, {"optimizer", cairn::stateful(optimizer, model)}, {"step", 0}};

  cairn::CheckpointManagerOptions options;
  options.save_every_steps = 100;
  options.save_on_signal = {SIGTERM};  // schedulers send it before they end a job; should_save is then true on all ranks
  options.retention.keep_last = 3;
  cairn::CheckpointManager manager(world, run, options);
  manager.restore_latest(state);  // the checkpoint may come from any number of ranks; does nothing if there is no checkpoint
  std::int64_t step = state["step"].to_int();
  std::cout << "from step " << step << std::endl;

  while (step < steps && manager.signal() == 0) {
    train_one_step(*model, *optimizer);
    state["step"] = ++step;
    if (manager.should_save(step)) manager.async_save(step, state);  // copies the state, then saves the copy in the background
  }
  manager.wait_for_saves();  // throws the failure of a save
}

int main(int argc, char** argv) {
  if (argc < 3) {  // more arguments, such as a --resume of a job script, change nothing: it always resumes
    std::cerr << "usage: trainer RUN STEPS\n";
    return 2;
  }
  try {
    train(cairn::World::from_environment(), argv[1], std::atoll(argv[2]));  // torchrun's variables, or cairn-launch's
    return 0;
  } catch (const cairn::Error& error) {
    std::cerr << "trainer: " << error.what() << '\n';
    return 1;
  }
}
