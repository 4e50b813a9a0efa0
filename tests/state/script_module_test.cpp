#include <cairn/tests/support/torch.hpp>

#include <cairn/state/adapters.hpp>
#include <cairn/state/script_module.hpp>
#include <cairn/tests/support/scripted.hpp>
#include <cairn/tests/support/thrown.hpp>

using namespace cairn;
using namespace cairn::testing;

TEST_CASE("script module: forward refuses a result that is not one tensor, run returns it") {
  torch::jit::Module pair("Pair");
  pair.define("def forward(self, x):\n  return x, x\n");
  ScriptModule module(pair);
  CHECK(thrown_by([&] { module->forward(torch::ones({1})); }).code == ErrorCode::kUnsupported);
  CHECK(module->run({torch::ones({1})}).isTuple());
  torch::jit::Module scaled("Scaled");
  scaled.define("def forward(self, x, factor: float):\n  return x * factor\n");
  CHECK(ScriptModule(scaled)(torch::ones({1}), std::vector<c10::IValue>{3.0}).item<float>() == 3);
}

TEST_CASE("script module: names, state dicts and training are those of the eager module") {
  torch::manual_seed(0);
  torch::nn::Sequential eager(torch::nn::Linear(4, 6), torch::nn::ReLU(), torch::nn::Linear(6, 2));
  torch::jit::Module script = scripted_chain({4, 6, 2});
  ScriptModule model(script);
  CHECK((model->named_parameters().keys() == std::vector<std::string>{"net1.weight", "net1.bias", "net2.weight", "net2.bias"}));
  CHECK((model->named_buffers().keys() == std::vector<std::string>{"calls"}));
  CHECK(model->named_parameters()["net1.weight"].is_same(script.attr("net1").toModule().attr("weight").toTensor()));
  load_module_state_dict(*model, {{"net1.weight", eager[0]->as<torch::nn::Linear>()->weight},
                                  {"net1.bias", eager[0]->as<torch::nn::Linear>()->bias},
                                  {"net2.weight", eager[2]->as<torch::nn::Linear>()->weight},
                                  {"net2.bias", eager[2]->as<torch::nn::Linear>()->bias},
                                  {"calls", torch::full({1}, 5.0)}});
  CHECK(script.attr("calls").toTensor().item<double>() == 5);

  torch::optim::Adam eager_optimizer(eager->parameters(), 0.01), optimizer(model->parameters(), 0.01);
  const torch::Tensor input = torch::randn({3, 4});
  for (int step = 0; step < 5; ++step) {  // several steps, because the interpreter recompiles after some calls
    eager_optimizer.zero_grad();
    optimizer.zero_grad();
    const torch::Tensor expected = torch::relu(eager->forward(input)).sum(), loss = model(input).sum();
    CHECK(loss.item<double>() == doctest::Approx(expected.item<double>()).epsilon(1e-6));
    expected.backward();
    loss.backward();
    eager_optimizer.step();
    optimizer.step();
  }
  CHECK(model->named_buffers()["calls"].item<double>() == 10);  // the script counts calls in training mode
  const auto parameters = eager->parameters(), scripted = model->parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) CHECK(torch::allclose(parameters[i], scripted[i], 1e-5, 1e-6));

  const Dict of_optimizer = optimizer_state_dict(optimizer, model.get());
  CHECK(of_optimizer.at("state")["net2.bias"]["step"].to_int() == 5);
  model->eval();
  CHECK_FALSE(script.is_training());
  model(input);
  CHECK(script.attr("calls").toTensor().item<double>() == 10);
}
