// State dicts of LibTorch's optimizers.
#include <cmath>
#include <set>
#include <tuple>
#include <typeinfo>
#include <unordered_map>

#include <c10/util/Type.h>

#include <cairn/base/error.hpp>
#include <cairn/state/adapters.hpp>
#include <cairn/state/libtorch_compat.hpp>
#include <cairn/state/optimizer_fields.hpp>
#include <cairn/state/tensor_types.hpp>

namespace cairn {
namespace {

using torch::optim::Optimizer;

template <class Kind>
struct KindTag {
  using type = Kind;
};

// Calls `work` with the tag of the optimizer's kind.
// LibTorch's optimizers share no interface for their options and states. The tag gives the
// templates below the types.
template <class Work>
auto with_kind(Optimizer& optimizer, Work&& work) {
  if (dynamic_cast<torch::optim::Adam*>(&optimizer) != nullptr) return work(KindTag<OptimizerKind<torch::optim::Adam>>{});
  if (dynamic_cast<torch::optim::AdamW*>(&optimizer) != nullptr) return work(KindTag<OptimizerKind<torch::optim::AdamW>>{});
  if (dynamic_cast<torch::optim::SGD*>(&optimizer) != nullptr) return work(KindTag<OptimizerKind<torch::optim::SGD>>{});
  if (dynamic_cast<torch::optim::RMSprop*>(&optimizer) != nullptr) return work(KindTag<OptimizerKind<torch::optim::RMSprop>>{});
  if (dynamic_cast<torch::optim::Adagrad*>(&optimizer) != nullptr) return work(KindTag<OptimizerKind<torch::optim::Adagrad>>{});
  throw Error(ErrorCode::kUnsupported,
              "state of an optimizer: " + c10::demangle(typeid(optimizer).name()) +
                  " is not known; wrap it in a Stateful object of your own (Adam, AdamW, SGD, RMSprop and Adagrad are)");
}

template <class Kind>
typename Kind::Options& options_of(torch::optim::OptimizerParamGroup& group) {
  auto* options = group.has_options() ? dynamic_cast<typename Kind::Options*>(&group.options()) : nullptr;
  if (options == nullptr)
    throw Error(ErrorCode::kMismatch, "state of an optimizer: a parameter group has options of another optimizer's type");
  return *options;
}

// Returns the parameters' names by group.
std::vector<std::vector<std::string>> parameter_names(Optimizer& optimizer, const torch::nn::Module* module) {
  // Compares identities: an optimizer holds the module's own tensors and does not know their names.
  // The first name of a tied parameter counts.
  std::unordered_map<const void*, std::string> known;
  if (module != nullptr) {
    for (const auto& parameter : module->named_parameters())
      known.emplace(parameter.value().unsafeGetTensorImpl(), parameter.key());
  }
  std::vector<std::vector<std::string>> names;
  std::size_t count = 0;
  for (const auto& group : optimizer.param_groups()) {
    names.emplace_back();
    for (const torch::Tensor& parameter : group.params()) {
      const std::size_t position = count++;
      // PyTorch numbers parameters across all groups.
      if (module == nullptr) {
        names.back().push_back(std::to_string(position));
        continue;
      }
      const auto found = known.find(parameter.unsafeGetTensorImpl());
      if (found == known.end()) {
        throw Error(ErrorCode::kMismatch, "state of an optimizer: its parameter " + std::to_string(position) +
                                              " is not one of the module's; pass the module that the optimizer trains, or none");
      }
      names.back().push_back(found->second);
    }
  }
  return names;
}

Value option_value(double option) { return option; }
Value option_value(bool option) { return option; }
// Betas are a tuple in PyTorch.
Value option_value(const std::tuple<double, double>& option) {
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

// --- reading values back -------------------------------------------------------------------------

// Returns the single tensor or part in a value; undefined if there is none.
torch::Tensor tensor_in(const Value& value) {
  if (value.is_tensor()) return value.tensor();
  if (value.is_sharded() && value.sharded().local_shards().size() == 1) return value.sharded().local_shards().front().tensor;
  return {};
}

std::optional<double> number_in(const Value& value) {
  // PyTorch stores an optimizer's `step` as a tensor with one element.
  if (value.is_tensor() && value.tensor().defined() && value.tensor().numel() == 1 && !value.tensor().is_complex()) {
    return value.tensor().item<double>();
  }
  if (!value.is_ivalue()) return std::nullopt;
  if (value.ivalue().isInt()) return static_cast<double>(value.ivalue().toInt());
  if (value.ivalue().isDouble()) return value.ivalue().toDouble();
  return std::nullopt;
}

bool read(const Value& value, double& field) {
  const auto number = number_in(value);
  if (number) field = *number;
  return number.has_value();
}

bool read(const Value& value, std::int64_t& field) {
  if (value.is_ivalue() && value.ivalue().isInt()) {
    field = value.ivalue().toInt();
    return true;
  }
  const auto number = number_in(value);
  // 9.0e18 is below 2^63, so that the cast is defined.
  if (!number || std::trunc(*number) != *number || std::fabs(*number) > 9.0e18) return false;
  field = static_cast<std::int64_t>(*number);
  return true;
}

bool read(const Value& value, bool& field) {
  if (!value.is_ivalue() || !value.ivalue().isBool()) return false;
  field = value.ivalue().toBool();
  return true;
}

bool read(const Value& value, std::tuple<double, double>& field) {
  List elements;
  if (value.is_list()) elements = value.list();
  if (value.is_ivalue() && value.ivalue().isTuple()) {
    for (const c10::IValue& element : value.ivalue().toTupleRef().elements()) elements.emplace_back(element);
  } else if (value.is_ivalue() && value.ivalue().isList()) {
    for (const c10::IValue& element : value.ivalue().toListRef()) elements.emplace_back(element);
  }
  return elements.size() == 2 && read(elements[0], std::get<0>(field)) && read(elements[1], std::get<1>(field));
}

// Returns the names in a "params" list: texts, or PyTorch's positions. Returns nothing for any
// other value.
std::optional<std::multiset<std::string>> names_in(const Value& value) {
  List elements;
  if (value.is_list()) {
    elements = value.list();
  } else if (value.is_ivalue() && value.ivalue().isList()) {
    for (const c10::IValue& element : value.ivalue().toListRef()) elements.emplace_back(element);
  } else {
    return std::nullopt;
  }
  std::multiset<std::string> names;
  for (const Value& element : elements) {
    if (!element.is_ivalue()) return std::nullopt;
    if (element.ivalue().isString()) {
      names.insert(element.to_text());
    } else if (element.ivalue().isInt()) {
      names.insert(std::to_string(element.to_int()));
    } else {
      return std::nullopt;
    }
  }
  return names;
}

bool is_on(const Dict& dict, const char* key) {
  const Value* value = dict.find(key);
  return value != nullptr && value->is_ivalue() && value->ivalue().isBool() && value->ivalue().toBool();
}

// --- loading -------------------------------------------------------------------------------------

// Checks a whole state dict against an optimizer, then loads it.
// The constructor checks and changes nothing; `apply` then only has to store.
template <class Kind>
class Loading {
 public:
  using Options = typename Kind::Options;
  using State = typename Kind::State;

  Loading(Optimizer& optimizer, const Dict& state_dict, std::vector<std::vector<std::string>> names)
      : optimizer_(optimizer), names_(std::move(names)) {
    static const Dict kNone;
    const Value* state = state_dict.find("state");  // PyTorch does not store empty dicts
    if (state != nullptr && !state->is_dict()) problem(std::string("\"state\" is ") + state->type_name() + ", not a dict");
    state_ = state != nullptr && state->is_dict() ? &state->dict() : &kNone;
    const Value* groups = state_dict.find("param_groups");
    if (groups == nullptr || !groups->is_list()) {
      problem("\"param_groups\" is " + std::string(groups == nullptr ? "missing" : groups->type_name()) +
              "; it must be a list of dicts");
    } else if (groups->list().size() != names_.size()) {
      problem("it has " + std::to_string(groups->list().size()) + " parameter groups, the optimizer " +
              std::to_string(names_.size()));
    } else {
      check(groups->list());
    }
    if (problems_.empty()) return;
    throw Error(ErrorCode::kMismatch,
                "load an optimizer's state dict: it does not fit the optimizer; nothing was changed:" + problems_);
  }

  void apply() {
    for (std::size_t i = 0; i < names_.size(); ++i) {
      auto& group = optimizer_.param_groups()[i];
      options_of<Kind>(group) = options_[i];
      for (std::size_t k = 0; k < names_[i].size(); ++k) take_over(group.params()[k], options_[i], names_[i][k]);
    }
  }

 private:
  void problem(const std::string& text) { problems_ += "\n  " + text; }

  void check(const List& groups) {
    std::set<std::string> known;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      known.insert(names_[i].begin(), names_[i].end());
      const std::string where = "param_groups[" + std::to_string(i) + "]";
      // Starts from the present options: those that the state dict lacks stay as they are.
      options_.push_back(options_of<Kind>(optimizer_.param_groups()[i]));
      if (groups[i].is_dict()) {
        check_group(groups[i].dict(), where, names_[i]);
      } else {
        problem(where + " is " + groups[i].type_name() + ", not a dict");
      }
      // The initial state of an empty parameter shows which fields the options require.
      const auto needed = Kind::begin(options_[i], torch::empty({0}));
      const auto& parameters = optimizer_.param_groups()[i].params();
      for (std::size_t k = 0; k < parameters.size(); ++k) {
        if (const Value* entry = entry_of(names_[i][k])) check_state(*entry, names_[i][k], parameters[k], *needed);
      }
    }
    for (const auto& [name, entry] : *state_) {
      if (known.count(name) == 0) problem("state[\"" + name + "\"] belongs to no parameter of the optimizer");
    }
  }

  void check_group(const Dict& given, const std::string& where, const std::vector<std::string>& names) {
    Kind::visit_options(options_.back(), [&](const char* name, auto& field) {
      const Value* value = given.find(name);
      if (value != nullptr && !read(*value, field)) problem(where + "[\"" + name + "\"] is " + value->type_name());
    });
    if (const Value* params = given.find("params")) {
      const auto listed = names_in(*params);
      if (!listed) {
        problem(where + "[\"params\"] is not a list of names");
      // The order within a group does not matter, because state is found by name.
      } else if (*listed != std::multiset<std::string>(names.begin(), names.end())) {
        problem(where + "[\"params\"] names other parameters than the optimizer's group has");
      }
    }
    // Options of PyTorch's that LibTorch lacks. Most only select an implementation; these change
    // the result.
    if (is_on(given, "maximize")) problem(where + " maximizes, which LibTorch's optimizers cannot");
    if (is_on(given, "decoupled_weight_decay") && std::is_same_v<Options, torch::optim::AdamOptions>) {
      problem(where + " decouples weight decay: use AdamW");
    }
  }

  // Returns the stored state of a parameter; nullptr if it has none. Before the first step,
  // PyTorch's SGD stores {"momentum_buffer": None}.
  const Value* entry_of(const std::string& name) const {
    const Value* entry = state_->find(name);
    if (entry == nullptr || !entry->is_dict()) return entry;
    for (const auto& [key, value] : entry->dict()) {
      if (!value.is_none()) return entry;
    }
    return nullptr;
  }

  void check_state(const Value& entry, const std::string& name, const torch::Tensor& parameter, State& needed) {
    const std::string where = "state[\"" + name + "\"]";
    if (!entry.is_dict()) return problem(where + " is " + entry.type_name() + ", not a dict");
    std::set<std::string> known;
    State blank;
    Kind::visit_state(blank, [&](const char* field_name, auto& field) {
      known.insert(field_name);
      const Value* value = entry.dict().find(field_name);
      const std::string place = where + "[\"" + field_name + "\"]";
      if (value == nullptr || value->is_none()) {
        if (is_needed(needed, field_name)) problem(place + " is missing, but the group's options need it");
      } else if constexpr (std::is_same_v<std::decay_t<decltype(field)>, torch::Tensor>) {
        const torch::Tensor tensor = tensor_in(*value);
        if (!tensor.defined()) {
          problem(place + " is " + value->type_name() + ", not one tensor or part");
        } else if (tensor.sizes() != parameter.sizes()) {
          problem(place + " has the size " + to_string(extents_of(tensor.sizes())) + ", the parameter " +
                  to_string(extents_of(parameter.sizes())));
        }
      } else if (!read(*value, field)) {
        problem(place + " is " + value->type_name() + ", not a whole number");
      }
    });
    for (const auto& [key, value] : entry.dict()) {
      if (known.count(key) == 0) problem(where + "[\"" + key + "\"] is not state of this kind of optimizer");
    }
  }

  // A field is needed if LibTorch's first step would create it.
  static bool is_needed(State& begun, const char* wanted) {
    bool needed = false;
    Kind::visit_state(begun, [&](const char* name, auto& field) {
      if (std::string_view(name) != wanted) return;
      if constexpr (std::is_same_v<std::decay_t<decltype(field)>, torch::Tensor>) {
        needed = field.defined();
      } else {
        needed = true;
      }
    });
    return needed;
  }

  // Leaves the optimizer as if it had made the steps itself: with state, without, or with a fresh
  // one.
  void take_over(const torch::Tensor& parameter, const Options& options, const std::string& name) {
    auto& states = optimizer_.state();
    const OptimizerStateKey key = optimizer_state_key(parameter);
    const auto held = states.find(key);
    const Value* entry = entry_of(name);
    if (entry == nullptr) {
      if (held != states.end()) states.erase(held);
      if (Kind::keeps_state(options) && Kind::begins_as_absent(options)) states[key] = Kind::begin(options, parameter);
      return;
    }
    const bool is_new = held == states.end();
    // Existing state is filled in place. New state joins the optimizer only when it is whole.
    auto fresh = is_new ? std::make_unique<State>() : nullptr;
    State& state = is_new ? *fresh : static_cast<State&>(*held->second);
    bool all_zero = true;
    Kind::visit_state(state, [&](const char* field_name, auto& field) {
      const Value* value = entry->dict().find(field_name);
      if (value == nullptr || value->is_none()) return;
      if constexpr (std::is_same_v<std::decay_t<decltype(field)>, torch::Tensor>) {
        fill(field, tensor_in(*value), parameter);
        // Only then: the test waits for the device.
        if (!Kind::begins_as_absent(options)) all_zero = all_zero && field.count_nonzero().template item<std::int64_t>() == 0;
      } else {
        read(*value, field);
      }
    });
    // Zeros mean "no step yet" if training from zeros differs from training without state.
    if (!Kind::begins_as_absent(options) && all_zero) {
      if (!is_new) states.erase(held);
    } else if (is_new) {
      states[key] = std::move(fresh);
    }
  }

  // The given tensor may have another device or other strides; copy_ converts both.
  static void fill(torch::Tensor& field, const torch::Tensor& given, const torch::Tensor& parameter) {
    if (field.defined() && field.unsafeGetTensorImpl() == given.unsafeGetTensorImpl()) return;  // already loaded in place
    if (!field.defined()) field = torch::empty_like(parameter.detach(), at::MemoryFormat::Preserve);
    field.copy_(given);
  }

  Optimizer& optimizer_;
  std::vector<std::vector<std::string>> names_;
  const Dict* state_ = nullptr;
  std::vector<Options> options_;  // the new options, by group
  std::string problems_;
};

class OptimizerState final : public Stateful {
 public:
  OptimizerState(std::shared_ptr<Optimizer> optimizer, std::shared_ptr<torch::nn::Module> module)
      : optimizer_(std::move(optimizer)), module_(std::move(module)) {}
  Dict state_dict() override { return optimizer_state_dict(*optimizer_, module_.get()); }
  void load_state_dict(const Dict& state_dict) override { load_optimizer_state_dict(*optimizer_, state_dict, module_.get()); }

 private:
  std::shared_ptr<Optimizer> optimizer_;
  std::shared_ptr<torch::nn::Module> module_;
};

}  // namespace

Dict optimizer_state_dict(Optimizer& optimizer, const torch::nn::Module* module) {
  return with_kind(optimizer, [&](auto tag) {
    using Kind = typename decltype(tag)::type;
    const torch::NoGradGuard no_grad;
    const auto names = parameter_names(optimizer, module);
    Dict state;
    List groups;
    std::int64_t position = 0;
    for (std::size_t i = 0; i < names.size(); ++i) {
      auto& group = optimizer.param_groups()[i];
      auto& options = options_of<Kind>(group);
      List params;
      for (std::size_t k = 0; k < names[i].size(); ++k, ++position) {
        params.push_back(module != nullptr ? Value(names[i][k]) : Value(position));
        const torch::Tensor& parameter = group.params()[k];
        auto& states = optimizer.state();
        const OptimizerStateKey key = optimizer_state_key(parameter);
        auto held = states.find(key);
        std::unique_ptr<typename Kind::State> apart;  // kept outside the optimizer, where it would change the training
        if (held == states.end() && parameter.requires_grad() && Kind::keeps_state(options)) {
          apart = with_torch("begin the state of \"" + names[i][k] + '"', [&] { return Kind::begin(options, parameter); });
          // From here on the optimizer uses these tensors, so that a load can fill them in place.
          if (Kind::begins_as_absent(options)) held = states.emplace(key, std::move(apart)).first;
        }
        if (held != states.end()) {
          state.insert(names[i][k], state_of<Kind>(static_cast<typename Kind::State&>(*held->second), parameter));
        } else if (apart) {
          state.insert(names[i][k], state_of<Kind>(*apart, parameter));
        }
      }
      Dict described;
      described.insert("params", std::move(params));
      Kind::visit_options(options, [&](const char* name, auto& field) { described.insert(name, option_value(field)); });
      for (auto& [name, value] : Kind::others()) described.insert(name, if_stored(std::move(value)));
      groups.push_back(std::move(described));
    }
    Dict dict;
    dict.insert("state", std::move(state));
    dict.insert("param_groups", std::move(groups));
    return dict;
  });
}

void load_optimizer_state_dict(Optimizer& optimizer, const Dict& state_dict, const torch::nn::Module* module) {
  with_kind(optimizer, [&](auto tag) {
    const torch::NoGradGuard no_grad;
    with_torch("load an optimizer's state dict",
               [&] { Loading<typename decltype(tag)::type>(optimizer, state_dict, parameter_names(optimizer, module)).apply(); });
  });
}

std::shared_ptr<Stateful> stateful(std::shared_ptr<Optimizer> optimizer, std::shared_ptr<torch::nn::Module> module) {
  if (!optimizer) throw Error(ErrorCode::kInvalidArgument, "state dict: an optimizer is a null pointer; leave its key out");
  return std::make_shared<OptimizerState>(std::move(optimizer), std::move(module));
}

Value::Value(std::shared_ptr<Optimizer> optimizer) : Value(cairn::stateful(std::move(optimizer))) {}

}  // namespace cairn
