// Rank processes that save training state in the background while they train.
#include <array>
#include <string>
#include <utility>

#include <cairn/runtime/cairn.hpp>
#include <cairn/runtime/testing/testing.hpp>
#include <cairn/tests/support/sample_state.hpp>
#include <cairn/tests/support/thrown.hpp>
#include <cairn/tests/support/torch.hpp>
#include <cairn/tests/support/training.hpp>

using namespace cairn;
using namespace cairn::testing;

namespace {

// A user's object that holds a tensor.
struct Object : Stateful {
  explicit Object(double start) : tensor(here(counting({10, 10}, start))) {}
  Dict state_dict() override { return {{"tensor", tensor}}; }
  void load_state_dict(const Dict&) override { ++loads; }
  torch::Tensor tensor;
  int loads = 0;
};

// The state that a trainer keeps besides model and optimizer.
struct TrainState {
  torch::Tensor step = torch::zeros({1}, torch::kInt32);
  torch::Tensor loss = torch::zeros({1});
  std::vector<double> history;

  Blob losses() const { return {Bytes(reinterpret_cast<const char*>(history.data()), history.size() * sizeof(double))}; }
};

struct Run {
  explicit Run(std::uint64_t seed) : trained(seed), object(std::make_shared<Object>(static_cast<double>(seed))) {}

  void train(int steps) {
    trained.train(steps);
    train_state.step += steps;
    train_state.loss.uniform_();  // `train` sets the seed, so the value is the same on all ranks
    train_state.history.push_back(train_state.loss.item<double>());
  }
  Dict own_state() const {
    return {{"step", train_state.step}, {"current_loss", train_state.loss}, {"losses", train_state.losses()}};
  }
  // Shards model and optimizer state by hand, as views of the live tensors.
  StateDict state() {
    const int rank = world().rank();
    const int size = world().size();
    return {{"model", sharded_views(module_state_dict(*trained.model), rank, size)},
            {"optimizer", sharded_views(optimizer_state_dict(*trained.optimizer, trained.model.get()), rank, size)},
            {"object", std::shared_ptr<Stateful>(object)},
            {"train_state", own_state()}};
  }
  Trained trained;
  std::shared_ptr<Object> object;
  TrainState train_state;
};

void check_same_weights(const Trained& left, const Trained& right) {
  const auto others = right.model->named_parameters();
  for (const auto& entry : left.model->named_parameters()) CHECK(torch::equal(entry.value(), others[entry.key()]));
}

void check_resumes(bool cached, const std::string& id) {
  Checkpointer checkpointer(world());
  AsyncSaveOptions background;
  background.staging.cache_staged_state_dict = cached;
  for (int round = 0; round < 2; ++round) {
    CAPTURE(round);
    Run run(0);
    run.train(2);
    const TrainState saved{run.train_state.step.clone(), run.train_state.loss.clone(), run.train_state.history};
    const StateDict state_to_save = run.state();
    for (const char* part : {"model", "optimizer", "object"}) CHECK(is_here(state_to_save.at(part)));
    const AsyncSaveResponse saving = checkpointer.async_save(state_to_save, id, {}, background);
    // The training continues during the save.
    Run reference(0);
    reference.train(2);
    run.train(3);
    run.object->tensor.zero_();
    while (!saving.done()) saving.wait(std::chrono::milliseconds(1));
    saving.result();

    Run fresh(7);
    StateDict state{{"model", module_state_dict(*fresh.trained.model)},
                    {"optimizer", cairn::stateful(fresh.trained.optimizer, fresh.trained.model)},
                    {"object", std::shared_ptr<Stateful>(fresh.object)},
                    {"train_state", fresh.own_state()}};
    checkpointer.load(state, id);
    check_same_weights(fresh.trained, reference.trained);
    CHECK(torch::equal(fresh.object->tensor, here(counting({10, 10}))));
    CHECK(fresh.object->loads == 1);
    CHECK(torch::equal(state.at("train_state")["step"].tensor(), saved.step));
    CHECK(torch::equal(state.at("train_state")["current_loss"].tensor(), saved.loss));
    CHECK((state.at("train_state")["losses"].blob() == saved.losses()));
    // One more step gives the same result.
    fresh.trained.train(1);
    reference.trained.train(1);
    check_same_weights(fresh.trained, reference.trained);
  }
}

}  // namespace

TEST_CASE("B2.4 training state saved in the background resumes, without kept memory") {
  check_resumes(false, shared_directory() + "/plain");
}

TEST_CASE("B2.4 training state saved in the background resumes, with kept memory") {
  check_resumes(true, shared_directory() + "/cached");
}

// Waits for all other ranks in its hooks, and records the calls.
struct Meeting : Stateful {
  Meeting(std::string with_name, std::string& into) : name(std::move(with_name)), calls(into) {}
  Dict state_dict() override {
    barrier();
    calls += " save " + name;
    return {};
  }
  void load_state_dict(const Dict&) override {
    barrier();
    calls += " load " + name;
  }
  const std::string name;
  std::string& calls;
};

TEST_CASE("B2.5 Stateful hooks run in one order on all ranks, in asynchronous saves too") {
  std::string calls;
  StateDict state;
  for (const char* name : world().rank() == 0 ? std::array<const char*, 2>{"A", "B"} : std::array<const char*, 2>{"B", "A"})
    state.insert(name, std::shared_ptr<Stateful>(std::make_shared<Meeting>(name, calls)));
  Checkpointer checkpointer(world());
  checkpointer.async_save(state, shared_directory() + "/ordered").result();
  checkpointer.load(state, shared_directory() + "/ordered");
  CHECK(calls == " save A save B save A save B load A load B");  // a load first asks each object for its state as the target
}

TEST_CASE("B2.9 async_save is refused on every rank where only NCCL is configured") {
  WorldOptions options;
  options.backends = "nccl";
  const World only_nccl = World::from_environment(options);
  CHECK(only_nccl.has_backend_for("cuda"));
  CHECK_FALSE(only_nccl.has_backend_for("cpu"));
  Checkpointer checkpointer(only_nccl);
  const auto refused = thrown_by([&] { checkpointer.async_save({}, shared_directory() + "/refused"); });
  CHECK(refused.code == ErrorCode::kPrecondition);
  CHECK(refused.what.find("A CPU backend must be enabled for async save; ") == 0);
}
