// Adapters for schedulers, random number generators, samplers and positions in the data.
#include <cairn/base/error.hpp>
#include <cairn/state/adapters.hpp>
#include <cairn/tests/state/memory_checkpoint.hpp>
//
#include <torch/data/samplers/distributed.h>
#include <torch/data/samplers/random.h>
#include <torch/data/samplers/sequential.h>

using namespace cairn;
using namespace cairn::test;

namespace {

// Passes the state through a checkpoint, as if one process saved it and a fresh one loaded it.
void pass_on(Stateful& from, Stateful& to) {
  const MemoryCheckpoint checkpoint = save({StateDict{{"it", from.state_dict()}}});
  StateDict state{{"it", to.state_dict()}};
  load(checkpoint, state);
  to.load_state_dict(state.at("it").dict());
}

struct Scheduled {
  explicit Scheduled(double learning_rate = 1.0)
      : optimizer({torch::zeros({1}).requires_grad_()}, torch::optim::SGDOptions(learning_rate)),
        scheduler(std::make_shared<torch::optim::StepLR>(optimizer, 3, 0.5)) {}
  double learning_rate() { return static_cast<torch::optim::SGDOptions&>(optimizer.param_groups()[0].options()).lr(); }
  torch::optim::SGD optimizer;
  std::shared_ptr<torch::optim::StepLR> scheduler;
};

using Drawn = std::vector<std::vector<std::size_t>>;

Drawn rest_of(torch::data::samplers::Sampler<>& sampler) {
  Drawn drawn;
  while (auto batch = sampler.next(3)) drawn.push_back(*batch);
  return drawn;
}

template <class Sampler>
void check_sampler_goes_on(const std::function<std::shared_ptr<Sampler>()>& make) {
  const auto sampler = make();
  sampler->reset();
  sampler->next(3);
  sampler->next(3);
  const auto object = stateful(std::shared_ptr<torch::data::samplers::Sampler<>>(sampler));
  const auto fresh = make();
  fresh->reset();
  const auto other = stateful(std::shared_ptr<torch::data::samplers::Sampler<>>(fresh));
  for (const auto& item : object->state_dict()) CHECK(item.second.is_per_rank());
  const Dict saved = object->state_dict();
  const Drawn expected = rest_of(*sampler);
  CHECK(expected.size() >= 2);
  other->load_state_dict(saved);
  CHECK(rest_of(*fresh) == expected);
}

}  // namespace

TEST_CASE("a restored scheduler continues at its step, with the optimizer's learning rate") {
  for (const int steps : {0, 1, 3, 4, 7}) {
    CAPTURE(steps);
    Scheduled trained;
    for (int i = 0; i < steps; ++i) trained.scheduler->step();
    Scheduled fresh(trained.learning_rate());
    const auto from = stateful(trained.scheduler);
    const Dict state = from->state_dict();
    CHECK(state.at("last_epoch").to_int() == steps - 1);
    CHECK(state.at("_step_count").to_int() == steps);
    CHECK(state.at("_last_lr").list().at(0).to_double() == trained.learning_rate());
    pass_on(*from, *stateful(fresh.scheduler));
    for (int i = 0; i < 10; ++i) {
      trained.scheduler->step();
      fresh.scheduler->step();
      CHECK(fresh.learning_rate() == trained.learning_rate());
    }
  }
}

TEST_CASE("a scheduler's state that is none is refused") {
  Scheduled scheduled;
  scheduled.scheduler->step();
  const auto object = stateful(scheduled.scheduler);
  for (const Dict& wrong :
       {Dict{}, Dict{{"last_epoch", "three"}}, Dict{{"last_epoch", -2}}, Dict{{"last_epoch", std::int64_t{1} << 40}}})
    CHECK(code_of([&] { object->load_state_dict(wrong); }) == ErrorCode::kMismatch);
  CHECK(object->state_dict().at("_step_count").to_int() == 1);
  CHECK(code_of([] { stateful(std::shared_ptr<torch::optim::LRScheduler>()); }) == ErrorCode::kInvalidArgument);
}

TEST_CASE("random numbers go on where they were") {
  torch::manual_seed(5);
  torch::rand({7});
  torch::randn({3});  // leaves half of a pair of normal numbers in the generator
  const auto rng = stateful_rng(Held::kByAllAlike);
  const Dict state = rng->state_dict();
  CHECK((state.at("cpu").tensor().scalar_type() == torch::kUInt8));
  CHECK(state.at("cpu").tensor().dim() == 1);
  CHECK_FALSE(state.at("cpu").is_per_rank());
  CHECK(state.contains("cuda") == torch::cuda::is_available());
  CHECK(stateful_rng()->state_dict().at("cpu").is_per_rank());
  const MemoryCheckpoint checkpoint = save({StateDict{{"rng", state}}});
  const torch::Tensor expected = torch::randn({100});
  torch::manual_seed(9);
  StateDict loaded{{"rng", rng->state_dict()}};
  load(checkpoint, loaded);
  rng->load_state_dict(loaded.at("rng").dict());
  CHECK(torch::equal(torch::randn({100}), expected));
}

TEST_CASE("a trainer's own generator continues where it was, and changes no other") {
  torch::Generator trained = at::detail::createCPUGenerator();
  trained.set_current_seed(3);
  torch::Generator fresh = at::detail::createCPUGenerator();
  torch::randint(100, {10}, trained);
  const auto from = stateful(trained, Held::kByAllAlike);
  const auto to = stateful(fresh, Held::kByAllAlike);
  const torch::Tensor others = at::globalContext().defaultGenerator(torch::kCPU).get_state();
  pass_on(*from, *to);
  CHECK(torch::equal(torch::randint(100, {10}, trained), torch::randint(100, {10}, fresh)));
  CHECK(torch::equal(at::globalContext().defaultGenerator(torch::kCPU).get_state(), others));
  CHECK(code_of([] { stateful(at::Generator()); }) == ErrorCode::kInvalidArgument);
}

TEST_CASE("states that no generator has are refused, and no generator changes") {
  const auto rng = stateful_rng();
  const Dict before = rng->state_dict();
  std::string text;
  for (const Dict& wrong : {Dict{}, Dict{{"cpu", 3}}, Dict{{"cpu", torch::zeros({5}, torch::kUInt8)}},
                            Dict{{"cpu", torch::zeros_like(before.at("cpu").tensor()).to(torch::kInt8)}}})
    CHECK(code_of([&] { rng->load_state_dict(wrong); }, &text) == ErrorCode::kMismatch);
  CHECK(has(text, "\"cpu\" is not a tensor of"));
  // A tensor of the right size that is not a generator's state.
  Dict spoiled = before;
  spoiled["cpu"] = torch::full_like(before.at("cpu").tensor(), 255);
  CHECK(code_of([&] { rng->load_state_dict(spoiled); }) == ErrorCode::kPrecondition);
  CHECK(torch::equal(rng->state_dict().at("cpu").tensor(), before.at("cpu").tensor()));
}

TEST_CASE("a place in the data is three numbers") {
  const auto position = std::make_shared<DataPosition>(DataPosition{4, 2, 96});
  const auto fresh = std::make_shared<DataPosition>();
  pass_on(*stateful(position), *stateful(fresh));
  CHECK(fresh->seed == 4);
  CHECK(fresh->epoch == 2);
  CHECK(fresh->index == 96);
  CHECK(code_of([] { stateful(std::shared_ptr<DataPosition>()); }) == ErrorCode::kInvalidArgument);
}

TEST_CASE("samplers of LibTorch's go on where they were") {
  namespace samplers = torch::data::samplers;
  check_sampler_goes_on<samplers::SequentialSampler>([] { return std::make_shared<samplers::SequentialSampler>(20); });
  check_sampler_goes_on<samplers::RandomSampler>([] { return std::make_shared<samplers::RandomSampler>(20); });
  check_sampler_goes_on<samplers::DistributedRandomSampler>([] {
    const auto sampler = std::make_shared<samplers::DistributedRandomSampler>(40, 2, 1);
    sampler->set_epoch(3);
    return sampler;
  });
  check_sampler_goes_on<samplers::DistributedSequentialSampler>(
      [] { return std::make_shared<samplers::DistributedSequentialSampler>(40, 2, 1); });
}

TEST_CASE("a sampler's state through a checkpoint; what does not fit is refused") {
  namespace samplers = torch::data::samplers;
  const auto make = [](std::int64_t size) {
    return stateful(std::shared_ptr<samplers::Sampler<>>(std::make_shared<samplers::RandomSampler>(size)), Held::kByAllAlike);
  };
  const auto sampler = make(20);
  pass_on(*sampler, *make(20));
  CHECK(thrown_by([&] { make(21)->load_state_dict(sampler->state_dict()); }) ==
        Saying{ErrorCode::kMismatch, "is not a tensor of size [21]"});
  CHECK(code_of([&] { make(20)->load_state_dict({}); }) == ErrorCode::kMismatch);

  struct Odd : samplers::SequentialSampler {
    Odd() : SequentialSampler(5) {}
    void save(torch::serialize::OutputArchive& archive) const override { archive.write("text", c10::IValue(std::string("odd"))); }
  };
  const auto odd = stateful(std::shared_ptr<samplers::Sampler<>>(std::make_shared<Odd>()));
  CHECK(thrown_by([&] { odd->state_dict(); }) == Saying{ErrorCode::kUnsupported, "\"text\""});
  CHECK(code_of([] { stateful(std::shared_ptr<samplers::Sampler<>>()); }) == ErrorCode::kInvalidArgument);
}
