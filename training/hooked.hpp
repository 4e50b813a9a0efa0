// A module holder whose calls can be told of: `Hooked<Net>` is to NetImpl what TORCH_MODULE's Net is, and is used like it. What is done
// around a call, such as freeing what was gathered or casting inputs, is there for calls through the holder, `model(input)`, and not for
// `model->forward(input)`.
#pragma once

#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/nn/pimpl.h>
#include <torch/types.h>

namespace cairn::training {

class UnitGroup;

// What is done around the calls of one module. Shared by copies of its holder.
struct Boundary {
  std::shared_ptr<UnitGroup> group;          // of sharded units; may be null
  std::optional<at::ScalarType> input_type;  // floating inputs become it
};

namespace detail {

class BoundaryScope {
 public:
  explicit BoundaryScope(const Boundary& boundary);
  ~BoundaryScope();
  BoundaryScope(const BoundaryScope&) = delete;
  BoundaryScope& operator=(const BoundaryScope&) = delete;

 private:
  std::shared_ptr<UnitGroup> group_;
};

// Floating tensors, also those in vectors and optionals, as `type`; anything else as it is.
torch::Tensor cast_input(const torch::Tensor& tensor, at::ScalarType type);
inline torch::Tensor cast_input(torch::Tensor& tensor, at::ScalarType type) {
  return cast_input(static_cast<const torch::Tensor&>(tensor), type);
}
inline torch::Tensor cast_input(torch::Tensor&& tensor, at::ScalarType type) {
  return cast_input(static_cast<const torch::Tensor&>(tensor), type);
}
std::vector<torch::Tensor> cast_input(const std::vector<torch::Tensor>& tensors, at::ScalarType type);
template <class Argument>
Argument&& cast_input(Argument&& argument, at::ScalarType) {
  return std::forward<Argument>(argument);
}

template <class Module, class = void>
struct ContainedOf {
  using type = Module;
};
template <class Module>
struct ContainedOf<Module, std::void_t<typename Module::ContainedType>> {
  using type = typename Module::ContainedType;
};

}  // namespace detail

// `Module`: a module class (NetImpl), or a holder of one (torch::nn::Linear).
template <class Module>
class Hooked : public torch::nn::ModuleHolder<typename detail::ContainedOf<Module>::type> {
 public:
  using Contained = typename detail::ContainedOf<Module>::type;
  using torch::nn::ModuleHolder<Contained>::ModuleHolder;
  Hooked() = default;
  Hooked(const torch::nn::ModuleHolder<Contained>& plain) : torch::nn::ModuleHolder<Contained>(plain.ptr()) {}  // NOLINT

  template <class... Arguments>
  auto operator()(Arguments&&... arguments) {
    const detail::BoundaryScope scope(*boundary_);
    if (!boundary_->input_type) return this->get()->forward(std::forward<Arguments>(arguments)...);
    const at::ScalarType type = *boundary_->input_type;
    return this->get()->forward(detail::cast_input(std::forward<Arguments>(arguments), type)...);
  }

  const std::shared_ptr<Boundary>& boundary() const { return boundary_; }

 private:
  std::shared_ptr<Boundary> boundary_ = std::make_shared<Boundary>();
};

}  // namespace cairn::training
