// The C++ half of check_training.py: ranks that train with fully sharded parameters.
//
//   cairn-launch -n 4 -- train_sample train DIR
//       for each kind of optimizer: trains two steps, saves to DIR/<kind>, and writes the whole
//       parameters after four and six steps to DIR/<kind>.json: {"4": {name: [numbers]}, "6": …}
//   cairn-launch -n 2 -- train_sample resume DIR
//       resumes each run DIR/runs/<kind>, into which PyTorch has saved step_4, and trains on; exits
//       with 0 if the parameters after six steps are those of the file
#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <cairn/runtime/cairn.hpp>
#include <cairn/runtime/runs/checkpoint_manager.hpp>
#include <cairn/tests/support/sample_state.hpp>
#include <cairn/training/fully_shard.hpp>
#include <cairn/training/group_from_environment.hpp>
#include <cairn/training/state_dicts.hpp>

using namespace cairn;
using cairn::testing::counting;

namespace {

using Model = training::Hooked<torch::nn::Sequential>;

// PyTorch's and LibTorch's kernels round differently.
constexpr double kDifferenceMax = 1e-5;

// Sizes that four ranks cannot share evenly. check_training.py has the same model and input.
Model sharded_model(const training::ProcessGroup& group) {
  Model model(torch::nn::Linear(5, 7), torch::nn::Tanh(), torch::nn::Linear(7, 3));
  {
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& parameter : model->parameters()) parameter.copy_(counting(parameter.sizes().vec()).mul(0.01));
  }
  training::fully_shard(*model, training::ProcessMesh(group));
  return model;
}

double largest_difference(const nlohmann::json& expected, const nlohmann::json& found) {
  double largest = 0;
  for (const auto& [name, numbers] : expected.items()) {
    const auto a = numbers.get<std::vector<double>>(), b = found.at(name).get<std::vector<double>>();
    for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::fabs(a[i] - b.at(i)));
  }
  return largest;
}

template <class Optimizer>
struct Trainee {
  template <class Options>
  Trainee(const training::ProcessGroup& group, const Options& options)
      : model(sharded_model(group)), optimizer(model->parameters(), options) {}

  void train_two_steps() {
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      model(counting({4, 5}).mul(0.1)).pow(2).mean().backward();
      optimizer.step();
    }
  }

  StateDict state() {
    const auto [of_model, of_optimizer] = training::get_state_dict(*model, optimizer);
    return {{"model", of_model}, {"optim", of_optimizer}};
  }

  // A collective: returns the whole parameters on all ranks.
  nlohmann::json parameters() const {
    training::StateDictOptions whole;
    whole.full_state_dict = true;
    nlohmann::json by_name;
    for (const auto& [name, value] : training::get_model_state_dict(*model, whole)) {
      const torch::Tensor flat = value.tensor().flatten().contiguous();
      by_name[name] = std::vector<float>(flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel());
    }
    return by_name;
  }

  Model model;
  Optimizer optimizer;
};

// Calls visit(kind, trainee), with a new trainee of each kind.
template <class Visit>
void for_each_kind(const training::ProcessGroup& group, Visit&& visit) {
  namespace optim = torch::optim;
  visit("Adam", Trainee<optim::Adam>(group, optim::AdamOptions(0.01).betas({0.8, 0.95}).weight_decay(0.1)));
  visit("AdamW", Trainee<optim::AdamW>(group, optim::AdamWOptions(0.01).amsgrad(true)));
  visit("SGD", Trainee<optim::SGD>(group, optim::SGDOptions(0.05).momentum(0.9)));
  visit("RMSprop", Trainee<optim::RMSprop>(group, optim::RMSpropOptions(0.01).centered(true).momentum(0.5)));
  visit("Adagrad", Trainee<optim::Adagrad>(group, optim::AdagradOptions(0.05).lr_decay(0.01)));
}

void train(const World& world, const training::ProcessGroup& group, const std::string& directory) {
  for_each_kind(group, [&](const std::string& kind, auto trainee) {
    trainee.train_two_steps();
    Checkpointer(world).save(trainee.state(), directory + "/" + kind);
    nlohmann::json expected;
    for (const char* step : {"4", "6"}) {
      trainee.train_two_steps();
      expected[step] = trainee.parameters();
    }
    if (world.rank() == 0) std::ofstream(directory + "/" + kind + ".json") << expected.dump();
  });
}

bool resume(const World& world, const training::ProcessGroup& group, const std::string& directory) {
  bool is_right = true;
  for_each_kind(group, [&](const std::string& kind, auto trainee) {
    CheckpointManagerOptions options;
    options.name = kind;
    CheckpointManager manager(world, directory + "/runs/" + kind, options);
    StateDict state = trainee.state();
    const auto restored = manager.restore_latest(state);
    const bool is_found = restored && restored->checkpoint.name == "step_4";
    if (is_found) training::set_state_dict(*trainee.model, trainee.optimizer, state["model"].dict(), state["optim"].dict());
    trainee.train_two_steps();
    const nlohmann::json found = trainee.parameters();
    nlohmann::json expected;
    std::ifstream(directory + "/" + kind + ".json") >> expected;
    const double difference = largest_difference(expected.at("6"), found);
    const bool is_equal = is_found && difference < kDifferenceMax;
    is_right = is_right && is_equal;
    if (world.rank() == 0)
      std::cout << kind << ": " << (is_equal ? "Cairn goes on" : "Cairn does not go on")
                << " where PyTorch stopped; the difference is " << difference << "\n";
  });
  return is_right;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string command = argc == 3 ? argv[1] : "";
  if (command != "train" && command != "resume") {
    std::cerr << "cairn-launch -n 4 -- train_sample train|resume DIR\n";
    return 2;
  }
  const auto group = training::process_group_from_environment();
  const World world = World::from_environment();
  if (command == "resume") return resume(world, group, argv[2]) ? 0 : 1;
  train(world, group, argv[2]);
  return 0;
}
