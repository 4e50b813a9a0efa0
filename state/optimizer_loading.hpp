// Checks state dicts of optimizers before anything changes. Internal.
#pragma once

#include <functional>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cairn/state/state_dict.hpp>

namespace cairn {

// Returns the state to fill from a checkpoint that holds `stored` of an optimizer: the state of
// those parameters that have one in `stored`, with the fields that are stored or that the stored
// options need, and all stored options. Fields that the optimizer lacks are new tensors; the others
// are its own. Of tensors in `stored`, only those among the options must have their size. Changes
// nothing. Throws kMismatch, listing everything that does not fit.
Dict fit_optimizer_state(torch::optim::Optimizer& optimizer, const Dict& stored, const torch::nn::Module* module);

// Tells what becomes of parameters of which a state dict has no state.
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
