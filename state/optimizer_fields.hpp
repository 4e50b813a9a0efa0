// The options and state of LibTorch's optimizers: their names in PyTorch, and the initial state.
// Internal.
//
// OptimizerKind<T> has for each optimizer T:
//   Options, State         LibTorch's types
//   visit_options, visit_state   call visit(name, field&) for each field, in PyTorch's order
//   others                 the options that only PyTorch has, with the values with which PyTorch
//                          trains as LibTorch does
//   keeps_state            whether a parameter has state under these options
//   begins_as_absent       whether training from the state of `begin_state` equals training without
//                          state
//   needs                  whether LibTorch creates this tensor in the first step
//   begins_with            the elements of such a tensor
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <typeinfo>
#include <utility>
#include <vector>

#include <c10/util/Type.h>
#include <torch/nn/module.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <cairn/base/error.hpp>
#include <cairn/state/adapters.hpp>
#include <cairn/state/state_dict.hpp>

namespace cairn {

inline torch::Tensor zeros_for(const torch::Tensor& parameter) {
  return torch::zeros_like(parameter.detach(), at::MemoryFormat::Preserve);
}

using OtherOptions = std::vector<std::pair<const char*, Value>>;

struct AnyOptimizerKind {
  static bool keeps_state(const torch::optim::OptimizerOptions&) { return true; }
  static bool begins_as_absent(const torch::optim::OptimizerOptions&) { return true; }
  static bool needs(const torch::optim::OptimizerOptions&, std::string_view) { return true; }
  static double begins_with(const torch::optim::OptimizerOptions&) { return 0; }
};

template <class Optimizer>
struct OptimizerKind;

template <class OptionsType, class StateType, bool kDecoupled>
struct AdamKind : AnyOptimizerKind {
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
  static bool needs(const Options& options, std::string_view field) { return field != "max_exp_avg_sq" || options.amsgrad(); }
};

template <>
struct OptimizerKind<torch::optim::Adam> : AdamKind<torch::optim::AdamOptions, torch::optim::AdamParamState, false> {};
template <>
struct OptimizerKind<torch::optim::AdamW> : AdamKind<torch::optim::AdamWOptions, torch::optim::AdamWParamState, true> {};

template <>
struct OptimizerKind<torch::optim::SGD> : AnyOptimizerKind {
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
};

template <>
struct OptimizerKind<torch::optim::RMSprop> : AnyOptimizerKind {
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
  static bool needs(const Options& options, std::string_view field) {
    return field == "momentum_buffer" ? options.momentum() > 0 : field != "grad_avg" || options.centered();
  }
};

template <>
struct OptimizerKind<torch::optim::Adagrad> : AnyOptimizerKind {
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
  static double begins_with(const Options& options) { return options.initial_accumulator_value(); }
};

// --- access to optimizers ------------------------------------------------------------------------

template <class Kind>
struct KindTag {
  using type = Kind;
};

// Calls `work` with the tag of the optimizer's kind.
// LibTorch's optimizers share no interface for their options and states. The tag gives the
// templates below the types.
template <class Work>
auto with_kind(torch::optim::Optimizer& optimizer, Work&& work) {
  if (dynamic_cast<torch::optim::Adam*>(&optimizer) != nullptr) return work(KindTag<OptimizerKind<torch::optim::Adam>>{});
  if (dynamic_cast<torch::optim::AdamW*>(&optimizer) != nullptr) return work(KindTag<OptimizerKind<torch::optim::AdamW>>{});
  if (dynamic_cast<torch::optim::SGD*>(&optimizer) != nullptr) return work(KindTag<OptimizerKind<torch::optim::SGD>>{});
  if (dynamic_cast<torch::optim::RMSprop*>(&optimizer) != nullptr) return work(KindTag<OptimizerKind<torch::optim::RMSprop>>{});
  if (dynamic_cast<torch::optim::Adagrad*>(&optimizer) != nullptr) return work(KindTag<OptimizerKind<torch::optim::Adagrad>>{});
  throw Error(ErrorCode::kUnsupported,
              "state of an optimizer: " + c10::demangle(typeid(optimizer).name()) +
                  " is not supported (Adam, AdamW, SGD, RMSprop and Adagrad are); wrap it in a Stateful object of your own");
}

template <class Kind>
typename Kind::Options& options_of(torch::optim::OptimizerParamGroup& group) {
  auto* options = group.has_options() ? dynamic_cast<typename Kind::Options*>(&group.options()) : nullptr;
  if (options == nullptr)
    throw Error(ErrorCode::kMismatch, "state of an optimizer: a parameter group has options of another optimizer's type");
  return *options;
}

struct NamedParameter {
  std::string name;
  torch::Tensor parameter;
};

// Returns the parameters by group. A parameter that is listed again, such as a tied one, counts
// only where it is listed first, because LibTorch keeps one state for it.
std::vector<std::vector<NamedParameter>> named_parameters(torch::optim::Optimizer& optimizer, const torch::nn::Module* module);
// Returns the list "params" of a group: names, or PyTorch's numbers.
List names_of(const std::vector<NamedParameter>& group, bool are_numbers);

inline Value option_value(double option) { return option; }
inline Value option_value(bool option) { return option; }
// Betas are a tuple in PyTorch.
inline Value option_value(const std::tuple<double, double>& option) {
  return c10::IValue(c10::ivalue::Tuple::create(std::get<0>(option), std::get<1>(option)));
}

template <class Kind>
Dict state_of(typename Kind::State& state, const torch::Tensor& parameter) {
  Dict dict;
  Kind::visit_state(state, [&](const char* name, auto& field) {
    if constexpr (std::is_same_v<std::decay_t<decltype(field)>, torch::Tensor>) {
      if (field.defined()) dict.insert(name, as_declared(field, parameter));
    } else {
      dict.insert(name, field);
    }
  });
  return dict;
}

// Returns the state that LibTorch creates in the first step.
template <class Kind>
std::unique_ptr<typename Kind::State> begin_state(const typename Kind::Options& options, const torch::Tensor& parameter) {
  auto state = std::make_unique<typename Kind::State>();
  Kind::visit_state(*state, [&](const char* name, auto& field) {
    if constexpr (std::is_same_v<std::decay_t<decltype(field)>, torch::Tensor>) {
      if (Kind::needs(options, name)) field = zeros_for(parameter).fill_(Kind::begins_with(options));
    } else {
      field = 0;
    }
  });
  return state;
}

// Returns a state dict with all of PyTorch's options. `state_for(parameter, options)` returns the
// state of a parameter, if it has one, and `others(group)` the options that LibTorch lacks.
template <class Kind, class StateFor, class Others>
Dict described_optimizer(torch::optim::Optimizer& optimizer, const std::vector<std::vector<NamedParameter>>& named,
                         bool are_numbers, const StateFor& state_for, const Others& others) {
  Dict state;
  List groups;
  for (std::size_t i = 0; i < named.size(); ++i) {
    auto& options = options_of<Kind>(optimizer.param_groups()[i]);
    for (const NamedParameter& one : named[i])
      if (std::optional<Dict> held = state_for(one, options)) state.insert(one.name, std::move(*held));
    Dict group{{"params", names_of(named[i], are_numbers)}};
    Kind::visit_options(options, [&](const char* name, auto& field) { group.insert(name, option_value(field)); });
    for (auto& [name, value] : Kind::others()) group.insert(name, if_stored(std::move(value)));
    for (const auto& [name, value] : others(i)) group[name] = value;
    groups.push_back(std::move(group));
  }
  return Dict{{"state", std::move(state)}, {"param_groups", std::move(groups)}};
}

// --- options that only PyTorch has ---------------------------------------------------------------

// Replaces an optimizer's `defaults()`, which LibTorch uses only to make options of new groups. So
// options that LibTorch lacks, such as "initial_lr", live as long as the optimizer.
template <class Options>
struct DefaultsWithOthers final : Options {
  explicit DefaultsWithOthers(const Options& defaults) : Options(defaults) {}
  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override { return std::make_unique<Options>(*this); }
  std::vector<std::pair<std::vector<const void*>, Dict>> groups;  // by the identities of the group's parameters
};

// LibTorch lets only derived classes replace the defaults.
struct DefaultsAccess : torch::optim::Optimizer {
  static std::unique_ptr<torch::optim::OptimizerOptions>& of(torch::optim::Optimizer& optimizer) {
    return optimizer.*(&DefaultsAccess::defaults_);
  }
};

inline std::vector<const void*> identities_of(const torch::optim::OptimizerParamGroup& group) {
  std::vector<const void*> identities;
  for (const torch::Tensor& parameter : group.params()) identities.push_back(parameter.unsafeGetTensorImpl());
  return identities;
}

// Keeps the given options, by group.
template <class Options>
void keep_other_options(torch::optim::Optimizer& optimizer, std::vector<Dict> others) {
  auto made = std::make_unique<DefaultsWithOthers<Options>>(static_cast<const Options&>(optimizer.defaults()));
  for (std::size_t i = 0; i < others.size(); ++i)
    made->groups.emplace_back(identities_of(optimizer.param_groups()[i]), std::move(others[i]));
  DefaultsAccess::of(optimizer) = std::move(made);
}

// Returns the options that are kept for group `i`, or nothing if the group's parameters have
// changed since.
template <class Options>
Dict other_options(torch::optim::Optimizer& optimizer, std::size_t i) {
  const auto* kept = dynamic_cast<const DefaultsWithOthers<Options>*>(&optimizer.defaults());
  if (kept == nullptr || i >= kept->groups.size()) return {};
  return kept->groups[i].first == identities_of(optimizer.param_groups()[i]) ? kept->groups[i].second : Dict();
}

}  // namespace cairn
