// A module holder that can act before and after each call. Use `Hooked<Net>` in place of the holder
// Net that TORCH_MODULE(Net) defines. The actions, such as freeing gathered parameters or casting
// inputs, apply only to calls through the holder, `model(input)`, not to `model->forward(input)`.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include <c10/core/GradMode.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

namespace cairn::training {

class UnitGroup;

// See checkpoint_activations.hpp.
struct ActivationCheckpointOptions {
  bool preserve_rng_state = true;  // backward repeats the random draws of the call, such as dropout's
};

// The actions around the calls of one module. Copies of the module's holder share one Boundary.
struct Boundary {
  std::shared_ptr<UnitGroup> group;          // the group of its sharded units; may be null
  std::optional<at::ScalarType> input_type;  // floating-point inputs are cast to this type
  std::optional<ActivationCheckpointOptions> checkpoint;
};

// While a ForwardScope exists, gathered parameters of the model may stay gathered; the scope's
// destructor frees them. Use it for calls that do not go through a Hooked. With neither a scope nor
// a Hooked, every operation gathers its own parameters, which is correct but slow. If an optimizer
// or a load writes to shards inside a scope, the model sees the new values after the next backward
// pass or after the scope, whichever comes first. Scopes may nest.
class ForwardScope {
 public:
  explicit ForwardScope(const torch::nn::Module& model);
  explicit ForwardScope(const std::shared_ptr<UnitGroup>& group);
  ~ForwardScope();
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;

 private:
  std::shared_ptr<UnitGroup> group_;
};

namespace detail {

// Casts floating-point tensors to `type`, including those in vectors and optionals.
torch::Tensor cast_tensor(const torch::Tensor& tensor, at::ScalarType type);
std::vector<torch::Tensor> cast_tensor(const std::vector<torch::Tensor>& tensors, at::ScalarType type);
std::optional<torch::Tensor> cast_tensor(const std::optional<torch::Tensor>& tensor, at::ScalarType type);
// Returns any other argument unchanged.
template <class Argument>
decltype(auto) cast_input(Argument&& argument, at::ScalarType type) {
  using Plain = std::decay_t<Argument>;
  constexpr bool kHasTensors = std::is_same_v<Plain, torch::Tensor> || std::is_same_v<Plain, std::vector<torch::Tensor>> ||
                               std::is_same_v<Plain, std::optional<torch::Tensor>>;
  if constexpr (kHasTensors) {
    return cast_tensor(argument, type);
  } else {
    return std::forward<Argument>(argument);
  }
}

// A call of the module as a function of its tensor arguments.
using Forward = std::function<torch::Tensor(const std::vector<torch::Tensor>&)>;
// Calls `forward` without a graph. When gradients arrive, calls it again with a graph.
torch::Tensor call_checkpointed(const Forward& forward, const std::vector<torch::Tensor>& inputs,
                                const ActivationCheckpointOptions& options);
[[noreturn]] void refuse_checkpoint(const char* returned);

// Move the tensors out of the arguments and back in.
inline void take_tensor(torch::Tensor& argument, std::vector<torch::Tensor>& tensors) { tensors.push_back(std::move(argument)); }
template <class Argument>
void take_tensor(Argument&, std::vector<torch::Tensor>&) {}
inline void put_tensor(torch::Tensor& argument, const std::vector<torch::Tensor>& tensors, std::size_t& next) {
  argument = tensors[next++];
}
template <class Argument>
void put_tensor(Argument&, const std::vector<torch::Tensor>&, std::size_t&) {}

template <class Module, class = void>
struct ContainedOf {
  using type = Module;
};
template <class Module>
struct ContainedOf<Module, std::void_t<typename Module::ContainedType>> {
  using type = typename Module::ContainedType;
};

}  // namespace detail

// `Module` is a module class (NetImpl) or a holder of one (torch::nn::Linear).
template <class Module>
class Hooked : public torch::nn::ModuleHolder<typename detail::ContainedOf<Module>::type> {
 public:
  using Contained = typename detail::ContainedOf<Module>::type;
  using torch::nn::ModuleHolder<Contained>::ModuleHolder;
  Hooked() = default;
  Hooked(const torch::nn::ModuleHolder<Contained>& plain) : torch::nn::ModuleHolder<Contained>(plain.ptr()) {}  // NOLINT

  template <class... Arguments>
  auto operator()(Arguments&&... arguments) {
    const ForwardScope scope(boundary_->group);
    using Result = decltype(this->get()->forward(std::forward<Arguments>(arguments)...));
    if (boundary_->checkpoint && c10::GradMode::is_enabled()) {
      if constexpr (std::is_same_v<std::decay_t<Result>, torch::Tensor>) {
        return checkpointed(std::forward<Arguments>(arguments)...);
      } else {
        detail::refuse_checkpoint(typeid(Result).name());
      }
    }
    return plain(*this->get(), *boundary_, std::forward<Arguments>(arguments)...);
  }

  const std::shared_ptr<Boundary>& boundary() const { return boundary_; }

 private:
  template <class... Arguments>
  static auto plain(Contained& module, const Boundary& boundary, Arguments&&... arguments) {
    if (!boundary.input_type) return module.forward(std::forward<Arguments>(arguments)...);
    // The cast arguments need names, because `forward` may take lvalue references.
    std::tuple<decltype(detail::cast_input(std::forward<Arguments>(arguments), *boundary.input_type))...> cast(
        detail::cast_input(std::forward<Arguments>(arguments), *boundary.input_type)...);
    return std::apply(
        [&module](auto&... inputs) { return module.forward(static_cast<Passed<Arguments, decltype(inputs)>>(inputs)...); }, cast);
  }
  // Restores the value category in which `Argument` was passed.
  template <class Argument, class Input>
  using Passed = std::conditional_t<std::is_lvalue_reference_v<Argument>, Input, std::remove_reference_t<Input>&&>;

  template <class... Arguments>
  torch::Tensor checkpointed(Arguments&&... arguments) {
    std::tuple<std::decay_t<Arguments>...> kept(std::forward<Arguments>(arguments)...);
    std::vector<torch::Tensor> inputs;
    std::apply([&](auto&... argument) { (detail::take_tensor(argument, inputs), ...); }, kept);
    detail::Forward forward = [module = this->ptr(), boundary = boundary_, kept](const std::vector<torch::Tensor>& tensors) {
      auto given = kept;
      std::size_t next = 0;
      return std::apply(
          [&](auto&... argument) {
            (detail::put_tensor(argument, tensors, next), ...);
            return plain(*module, *boundary, argument...);
          },
          given);
    };
    return detail::call_checkpointed(forward, inputs, *boundary_->checkpoint);
  }

  std::shared_ptr<Boundary> boundary_ = std::make_shared<Boundary>();
};

}  // namespace cairn::training
