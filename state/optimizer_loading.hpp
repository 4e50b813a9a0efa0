// Fits objects, such as optimizers, to what a checkpoint has for them, before anything changes.
// Internal.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cairn/state/state_dict.hpp>

namespace cairn {

// An object whose state depends on what a checkpoint has for it.
class FittedStateful : public Stateful {
 public:
  // Returns whether `fit` needs the stored value at `path`, which is relative to the object.
  virtual bool needs(const Path& path) const = 0;
  struct Fitted {
    Dict state;                              // to fill, in place of that of `state_dict`
    std::function<void(const Dict&)> load;   // takes `state`, filled, in place of `load_state_dict`
  };
  // Called in a load, before any rank changes anything. `stored` is nested as saved, with empty
  // containers where nothing is stored: tensors are on the meta device, and values for which
  // `needs` returned false are 0. Must change nothing. Throws if what is stored does not fit.
  virtual Fitted fit(const Dict& stored) = 0;
};

// Returns the state to fill from a checkpoint that holds `stored` for an optimizer: all stored
// options, and the state of each parameter that has state in `stored`. The state has the fields
// that are stored or that the stored options need. Fields that the optimizer lacks are new tensors.
// The others are the optimizer's own. Tensors in `stored` need not have their size, except those
// among the options. Changes nothing. Throws kMismatch, listing everything that does not fit.
Dict fit_optimizer_state(torch::optim::Optimizer& optimizer, const Dict& stored, const torch::nn::Module* module);

// Returns the names in a "params" list: texts, or PyTorch's positions. Returns nothing for any
// other value.
std::optional<std::set<std::string>> names_in(const Value& value);

// Decides what happens to parameters without state in a state dict.
enum class WithoutState : std::uint8_t {
  kFresh = 1,  // they start afresh; turning on momentum in a dict without any state is an error
  kFitted,     // they start afresh: `fit_optimizer_state` has seen that the checkpoint has none
  kRefused,    // kMismatch, if LibTorch has state for them
};

// Checks as `load_optimizer_state_dict` does, and returns the function that then stores the state.
// That function borrows the optimizer. Uses tensors of `fitted` that are in `state_dict`, instead
// of copying them.
std::function<void()> prepare_optimizer_load(torch::optim::Optimizer& optimizer, const Dict& state_dict,
                                             const torch::nn::Module* module, WithoutState without_state, const Dict& fitted = {});

}  // namespace cairn
