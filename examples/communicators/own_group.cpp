// A trainer that has a c10d store and a c10d group of its own. The ranks of Cairn meet in that
// store, and a sharded model trains through that group, without other connections for collectives.
//
//   cairn-launch -n 2 -- own_group RUN STEPS
#include <cstdlib>
#include <iostream>

#include <torch/torch.h>
#include <torch/version.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cairn/runtime/cairn.hpp>
#include <cairn/training/fully_shard.hpp>

struct Communication {
  int rank, size;
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo;
};

int number_in(const char* variable) {
  const char* const text = std::getenv(variable);
  if (text == nullptr)
    throw std::runtime_error(std::string(variable) + " is not set: start this program with cairn-launch or torchrun");
  return std::atoi(text);
}

// As any trainer on c10d does it.
Communication communicate() {
  Communication made;
  made.rank = number_in("RANK");
  made.size = number_in("WORLD_SIZE");
  c10d::TCPStoreOptions store;
  store.port = static_cast<std::uint16_t>(number_in("MASTER_PORT"));
  store.isServer = made.rank == 0;
  store.waitWorkers = false;
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
  store.useLibUV = false;  // some builds of LibTorch lack libuv, such as Debian's
#endif
  made.store = c10::make_intrusive<c10d::TCPStore>(std::getenv("MASTER_ADDR"), store);
  auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::minutes(5));
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  made.gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(c10::make_intrusive<c10d::PrefixStore>("gloo", made.store), made.rank,
                                                          made.size, options);
  return made;
}

void train(const Communication& own, const std::string& run, std::int64_t steps) {
  const cairn::World world = cairn::World::from_store(own.store, own.rank, own.size);
  cairn::training::C10dGroups groups;
  groups.on_host = own.gloo;
  const auto group = cairn::training::ProcessGroup::from_c10d(groups);

  torch::manual_seed(0);
  cairn::training::Hooked<torch::nn::Linear> model(4, 8);
  cairn::training::fully_shard(model, cairn::training::ProcessMesh(group));
  auto optimizer = std::make_shared<torch::optim::Adam>(model->parameters(), 1e-2);
  cairn::StateDict state{
      {"model", cairn::stateful(model.ptr())}, {"optimizer", cairn::stateful(optimizer, model.ptr())}, {"step", 0}};

  cairn::CheckpointManagerOptions options;
  options.save_every_steps = 10;
  cairn::CheckpointManager manager(world, run, options);
  manager.restore_latest(state);
  std::int64_t step = state["step"].to_int();
  if (own.rank == 0) std::cout << "from step " << step << std::endl;

  while (step < steps) {
    optimizer->zero_grad();
    const torch::Tensor loss = torch::mse_loss(model(torch::ones({2, 4})), torch::zeros({2, 8}));
    loss.backward();
    optimizer->step();
    std::vector<torch::Tensor> sum{loss.detach()};
    own.gloo->allreduce(sum)->wait();  // the trainer goes on using its group
    state["step"] = ++step;
    if (own.rank == 0 && step % 10 == 0) std::cout << "step " << step << " loss " << sum[0].item<float>() / own.size << std::endl;
    if (manager.should_save(step)) manager.save(step, state);
  }
  // Rank 0 hosts the store: it ends last.
  own.gloo->barrier()->wait();
}

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: own_group RUN STEPS\n";
    return 2;
  }
  try {
    train(communicate(), argv[1], std::atoll(argv[2]));
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "own_group: " << error.what() << '\n';
    return 1;
  }
}
