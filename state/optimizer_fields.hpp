// The options and state of LibTorch's optimizers: their names in PyTorch, and the initial state.
//
// OptimizerKind<T> has for each optimizer T:
//   Options, State         LibTorch's types
//   visit_options, visit_state   call visit(name, field&) for each field, in PyTorch's order
//   others                 the options that only PyTorch has, with the values with which PyTorch
//                          trains as LibTorch does
//   keeps_state            whether a parameter has state under these options
//   begins_as_absent       whether training from the state of `begin` equals training without state
//   begin                  the state that LibTorch creates in the first step
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <cairn/state/state_dict.hpp>

namespace cairn {

inline torch::Tensor zeros_for(const torch::Tensor& parameter) {
  return torch::zeros_like(parameter.detach(), at::MemoryFormat::Preserve);
}

using OtherOptions = std::vector<std::pair<const char*, Value>>;

template <class Optimizer>
struct OptimizerKind;

template <class OptionsType, class StateType, bool kDecoupled>
struct AdamKind {
  using Options = OptionsType;
  using State = StateType;

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("lr", options.lr());
    visit("betas", options.betas());
    visit("eps", options.eps());
    visit("weight_decay", options.weight_decay());
    visit("amsgrad", options.amsgrad());
  }
  static OtherOptions others() {
    return {{"maximize", false},       {"foreach", Value()}, {"capturable", false},
            {"differentiable", false}, {"fused", Value()},   {"decoupled_weight_decay", kDecoupled}};
  }
  template <class Visit>
  static void visit_state(State& state, Visit&& visit) {
    visit("step", state.step());
    visit("exp_avg", state.exp_avg());
    visit("exp_avg_sq", state.exp_avg_sq());
    visit("max_exp_avg_sq", state.max_exp_avg_sq());
  }
  static bool keeps_state(const Options&) { return true; }
  static bool begins_as_absent(const Options&) { return true; }
  static std::unique_ptr<State> begin(const Options& options, const torch::Tensor& parameter) {
    auto state = std::make_unique<State>();
    state->step(0);
    state->exp_avg(zeros_for(parameter));
    state->exp_avg_sq(zeros_for(parameter));
    if (options.amsgrad()) state->max_exp_avg_sq(zeros_for(parameter));
    return state;
  }
};

template <>
struct OptimizerKind<torch::optim::Adam> : AdamKind<torch::optim::AdamOptions, torch::optim::AdamParamState, false> {};
template <>
struct OptimizerKind<torch::optim::AdamW> : AdamKind<torch::optim::AdamWOptions, torch::optim::AdamWParamState, true> {};

template <>
struct OptimizerKind<torch::optim::SGD> {
  using Options = torch::optim::SGDOptions;
  using State = torch::optim::SGDParamState;

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("lr", options.lr());
    visit("momentum", options.momentum());
    visit("dampening", options.dampening());
    visit("weight_decay", options.weight_decay());
    visit("nesterov", options.nesterov());
  }
  static OtherOptions others() {
    return {{"maximize", false}, {"foreach", Value()}, {"differentiable", false}, {"fused", Value()}};
  }
  template <class Visit>
  static void visit_state(State& state, Visit&& visit) {
    visit("momentum_buffer", state.momentum_buffer());
  }
  static bool keeps_state(const Options& options) { return options.momentum() != 0; }
  // Without state, the first step uses the whole gradient; with state, the dampened one.
  static bool begins_as_absent(const Options& options) { return options.dampening() == 0; }
  static std::unique_ptr<State> begin(const Options&, const torch::Tensor& parameter) {
    auto state = std::make_unique<State>();
    state->momentum_buffer(zeros_for(parameter));
    return state;
  }
};

template <>
struct OptimizerKind<torch::optim::RMSprop> {
  using Options = torch::optim::RMSpropOptions;
  using State = torch::optim::RMSpropParamState;

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("lr", options.lr());
    visit("momentum", options.momentum());
    visit("alpha", options.alpha());
    visit("eps", options.eps());
    visit("centered", options.centered());
    visit("weight_decay", options.weight_decay());
  }
  static OtherOptions others() {
    return {{"capturable", false}, {"foreach", Value()}, {"maximize", false}, {"differentiable", false}};
  }
  template <class Visit>
  static void visit_state(State& state, Visit&& visit) {
    visit("step", state.step());
    visit("square_avg", state.square_avg());
    visit("momentum_buffer", state.momentum_buffer());
    visit("grad_avg", state.grad_avg());
  }
  static bool keeps_state(const Options&) { return true; }
  static bool begins_as_absent(const Options&) { return true; }
  static std::unique_ptr<State> begin(const Options& options, const torch::Tensor& parameter) {
    auto state = std::make_unique<State>();
    state->step(0);
    state->square_avg(zeros_for(parameter));
    if (options.momentum() > 0) state->momentum_buffer(zeros_for(parameter));
    if (options.centered()) state->grad_avg(zeros_for(parameter));
    return state;
  }
};

template <>
struct OptimizerKind<torch::optim::Adagrad> {
  using Options = torch::optim::AdagradOptions;
  using State = torch::optim::AdagradParamState;

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("lr", options.lr());
    visit("lr_decay", options.lr_decay());
    visit("weight_decay", options.weight_decay());
    visit("initial_accumulator_value", options.initial_accumulator_value());
    visit("eps", options.eps());
  }
  static OtherOptions others() {
    return {{"foreach", Value()}, {"maximize", false}, {"differentiable", false}, {"fused", Value()}};
  }
  template <class Visit>
  static void visit_state(State& state, Visit&& visit) {
    visit("step", state.step());
    visit("sum", state.sum());
  }
  static bool keeps_state(const Options&) { return true; }
  static bool begins_as_absent(const Options&) { return true; }
  static std::unique_ptr<State> begin(const Options& options, const torch::Tensor& parameter) {
    auto state = std::make_unique<State>();
    state->step(0);
    state->sum(torch::full_like(parameter.detach(), options.initial_accumulator_value(), at::MemoryFormat::Preserve));
    return state;
  }
};

}  // namespace cairn
