// The trainer's state besides module and optimizer: learning-rate schedulers, random number
// generators, data positions.
#include <limits>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/serialize/archive.h>

#include <cairn/base/error.hpp>
#include <cairn/state/adapters.hpp>
#include <cairn/state/fields.hpp>
#include <cairn/state/tensor_types.hpp>

namespace cairn {
namespace {

// LibTorch exposes the number of steps only to derived classes. Deriving gives access to that of
// any scheduler.
struct SchedulerAccess : torch::optim::LRScheduler {
  // A pointer to a protected member may be formed through the derived class, and then used on any
  // object of the base.
  static unsigned& step_count(torch::optim::LRScheduler& scheduler) { return scheduler.*(&SchedulerAccess::step_count_); }
  static std::vector<double> learning_rates(const torch::optim::LRScheduler& scheduler) {
    return (scheduler.*(&SchedulerAccess::get_current_lrs))();
  }
};

class SchedulerState final : public Stateful {
 public:
  explicit SchedulerState(std::shared_ptr<torch::optim::LRScheduler> scheduler) : scheduler_(std::move(scheduler)) {}

  Dict state_dict() override {
    const std::int64_t steps = SchedulerAccess::step_count(*scheduler_);
    List learning_rates;
    for (const double rate : SchedulerAccess::learning_rates(*scheduler_)) learning_rates.emplace_back(rate);
    return {{"last_epoch", steps - 1}, {"_step_count", steps}, {"_last_lr", std::move(learning_rates)}};
  }

  void load_state_dict(const Dict& state_dict) override {
    const Value* const last = state_dict.find("last_epoch");
    if (!last || !last->is_ivalue() || !last->ivalue().isInt() || last->to_int() < -1 ||
        last->to_int() >= std::numeric_limits<unsigned>::max())
      throw Error(ErrorCode::kMismatch, std::string("load a learning-rate scheduler: \"last_epoch\" ") +
                                            (last ? "is not a number of steps" : "is missing") + "; the scheduler was not changed");
    // PyTorch counts from -1: its constructor makes the first step.
    SchedulerAccess::step_count(*scheduler_) = static_cast<unsigned>(last->to_int() + 1);
  }

 private:
  const std::shared_ptr<torch::optim::LRScheduler> scheduler_;
};

// Marks the values and not the dict, so that a checkpoint has one entry per rank for each of them.
Dict marked(Dict dict, Held held) {
  if (held == Held::kByEachRank)
    for (auto& item : dict) item.second = per_rank(std::move(item.second));
  return dict;
}

// Returns a line for an error text unless `loaded` is a tensor with the size and type of `now`.
std::string problem_of(const std::string& name, const Value* loaded, const torch::Tensor& now) {
  if (!loaded) return "\n  \"" + name + "\" is missing";
  if (loaded->is_tensor() && loaded->tensor().defined() && loaded->tensor().sizes() == now.sizes() &&
      loaded->tensor().scalar_type() == now.scalar_type())
    return "";
  return "\n  \"" + name + "\" is not a tensor of size " + to_string(extents_of(now.sizes())) + " " +
         c10::toString(now.scalar_type());
}

torch::Tensor generator_state(at::Generator& generator) {
  // Generators are shared by all threads of the process. LibTorch leaves the locking to the caller.
  const std::lock_guard lock(generator.mutex());
  return generator.get_state().clone();
}

// A state to be set in a generator.
struct NewState {
  std::string name;
  at::Generator generator;
  const Value* loaded = nullptr;
};

// Sets all states or none.
void set_states(std::vector<NewState> states) {
  std::string problems;
  // Sizes of states differ between devices and versions of LibTorch; the generator itself knows its
  // own.
  for (NewState& state : states) problems += problem_of(state.name, state.loaded, generator_state(state.generator));
  if (!problems.empty())
    throw Error(ErrorCode::kMismatch,
                "load the states of random number generators: they do not fit; no generator was changed:" + problems);
  for (NewState& state : states) {
    const std::lock_guard lock(state.generator.mutex());
    with_torch("set the random number generator \"" + state.name + "\"",
               [&] { state.generator.set_state(state.loaded->tensor().to(torch::kCPU).contiguous()); });
  }
}

class DefaultGenerators final : public Stateful {
 public:
  explicit DefaultGenerators(Held held) : held_(held) {}

  Dict state_dict() override {
    return with_torch("ask for the states of the random number generators", [&] {
      at::Generator on_cpu = at::globalContext().defaultGenerator(torch::kCPU);
      Dict dict{{"cpu", generator_state(on_cpu)}};
      List on_devices;
      for (at::Generator& generator : cuda()) on_devices.emplace_back(generator_state(generator));
      if (!on_devices.empty()) dict.insert("cuda", std::move(on_devices));
      return marked(std::move(dict), held_);
    });
  }

  void load_state_dict(const Dict& state_dict) override {
    std::vector<NewState> states{{"cpu", at::globalContext().defaultGenerator(torch::kCPU), state_dict.find("cpu")}};
    const Value* const on_devices = state_dict.find("cuda");
    std::size_t device = 0;
    for (const at::Generator& generator : cuda()) {
      // Devices are matched by position. States of further devices are left out.
      const bool is_there = on_devices && on_devices->is_list() && device < on_devices->list().size();
      states.push_back({"cuda." + std::to_string(device), generator, is_there ? &on_devices->list()[device] : nullptr});
      ++device;
    }
    set_states(std::move(states));
  }

 private:
  static std::vector<at::Generator> cuda() {
    std::vector<at::Generator> generators;
    if (!at::globalContext().hasCUDA()) return generators;
    const auto devices = c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).deviceCount();
    for (int i = 0; i < static_cast<int>(devices); ++i)
      generators.push_back(
          at::globalContext().defaultGenerator(c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(i))));
    return generators;
  }

  const Held held_;
};

class OneGenerator final : public Stateful {
 public:
  OneGenerator(at::Generator generator, Held held) : generator_(std::move(generator)), held_(held) {}
  Dict state_dict() override {
    return with_torch("ask for the state of a random number generator", [&] {
      return marked({{"state", generator_state(generator_)}}, held_);
    });
  }
  void load_state_dict(const Dict& state_dict) override { set_states({{"state", generator_, state_dict.find("state")}}); }

 private:
  at::Generator generator_;
  const Held held_;
};

// LibTorch's samplers can only write to and read from archives, so the state takes a detour through
// one.
class SamplerState final : public Stateful {
 public:
  SamplerState(std::shared_ptr<torch::data::samplers::Sampler<>> sampler, Held held) : sampler_(std::move(sampler)), held_(held) {}

  Dict state_dict() override {
    return with_torch("ask a sampler for its state", [&] {
      torch::serialize::OutputArchive written;
      sampler_->save(written);
      torch::serialize::InputArchive archive = reread(written);
      Dict dict;
      for (const std::string& key : archive.keys()) {
        torch::Tensor tensor;
        if (!archive.try_read(key, tensor, /*is_buffer=*/true))
          throw Error(ErrorCode::kUnsupported, "a sampler has written \"" + key + "\", which is not a tensor, to its archive");
        dict.insert(key, tensor.clone());
      }
      return marked(std::move(dict), held_);
    });
  }

  void load_state_dict(const Dict& state_dict) override {
    // The sampler's present state says which tensors it expects.
    const Dict now = this->state_dict();
    std::string problems;
    for (const auto& [name, value] : now) problems += problem_of(name, state_dict.find(name), value.tensor());
    if (!problems.empty())
      throw Error(ErrorCode::kMismatch, "load a sampler: what was loaded does not fit; the sampler was not changed:" + problems);
    with_torch("load a sampler", [&] {
      torch::serialize::OutputArchive written;
      for (const auto& item : now) written.write(item.first, state_dict.at(item.first).tensor().clone(), /*is_buffer=*/true);
      torch::serialize::InputArchive archive = reread(written);
      sampler_->load(archive);
    });
  }

 private:
  // An OutputArchive can be read only after it has been serialised to bytes.
  static torch::serialize::InputArchive reread(torch::serialize::OutputArchive& written) {
    std::stringstream bytes;
    written.save_to(bytes);
    torch::serialize::InputArchive archive;
    archive.load_from(bytes);
    return archive;
  }

  const std::shared_ptr<torch::data::samplers::Sampler<>> sampler_;
  const Held held_;
};

[[noreturn]] void refuse_null(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, "state dict: a " + what + " is null; leave its key out");
}

}  // namespace

std::shared_ptr<Stateful> stateful(std::shared_ptr<torch::optim::LRScheduler> scheduler) {
  if (!scheduler) refuse_null("learning-rate scheduler");
  return std::make_shared<SchedulerState>(std::move(scheduler));
}

Value::Value(std::shared_ptr<torch::optim::LRScheduler> scheduler) : Value(cairn::stateful(std::move(scheduler))) {}

std::shared_ptr<Stateful> stateful_rng(Held held) { return std::make_shared<DefaultGenerators>(held); }

std::shared_ptr<Stateful> stateful(at::Generator generator, Held held) {
  if (!generator.defined()) refuse_null("random number generator");
  return std::make_shared<OneGenerator>(std::move(generator), held);
}

std::shared_ptr<Stateful> stateful(std::shared_ptr<DataPosition> position) {
  return stateful(std::move(position),
                  {{"seed", &DataPosition::seed}, {"epoch", &DataPosition::epoch}, {"index", &DataPosition::index}});
}

std::shared_ptr<Stateful> stateful(std::shared_ptr<torch::data::samplers::Sampler<>> sampler, Held held) {
  if (!sampler) refuse_null("sampler");
  return std::make_shared<SamplerState>(std::move(sampler), held);
}

}  // namespace cairn
