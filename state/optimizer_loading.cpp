#include <cairn/state/optimizer_loading.hpp>

#include <algorithm>
#include <cmath>

#include <cairn/state/libtorch_compat.hpp>
#include <cairn/state/optimizer_fields.hpp>
#include <cairn/state/staged_values.hpp>
#include <cairn/state/tensor_memory.hpp>
#include <cairn/state/tensor_types.hpp>

namespace cairn {
namespace {

using torch::optim::Optimizer;

// --- reading values back -------------------------------------------------------------------------

std::optional<double> number_in(const Value& value) {
  // PyTorch stores an optimizer's `step` as a tensor with one element.
  if (value.is_tensor() && value.tensor().defined() && value.tensor().numel() == 1 && !value.tensor().is_complex()) {
    if (value.tensor().is_meta()) return 1;  // not read yet: any number will do
    if (!why_without_memory(value.tensor()).empty()) return std::nullopt;
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

// Returns the elements of a list or tuple; nothing for any other value.
std::optional<List> elements_in(const Value& value) {
  if (value.is_list()) return value.list();
  if (!value.is_ivalue()) return std::nullopt;
  const c10::IValue& plain = value.ivalue();
  List elements;
  if (plain.isTuple())
    for (const c10::IValue& element : plain.toTupleRef().elements()) elements.emplace_back(element);
  else if (plain.isList())
    for (const c10::IValue& element : plain.toListRef()) elements.emplace_back(element);
  else
    return std::nullopt;
  return elements;
}

bool read(const Value& value, std::tuple<double, double>& field) {
  const auto elements = elements_in(value);
  return elements && elements->size() == 2 && read((*elements)[0], std::get<0>(field)) && read((*elements)[1], std::get<1>(field));
}

// Returns the names that `other` lacks, for an error text.
std::string names_missing_in(const std::set<std::string>& other, const std::set<std::string>& names) {
  constexpr std::size_t kLengthMax = 200;
  std::string text;
  for (const std::string& name : names) {
    if (text.size() > kLengthMax) return text + ", …";
    if (other.count(name) == 0) text += (text.empty() ? "\"" : ", \"") + name + '"';
  }
  return text;
}

// --- loading -------------------------------------------------------------------------------------

// Checks a whole state dict against an optimizer, then loads it.
// The constructor checks and changes nothing; `apply` then only has to store.
template <class Kind>
class Loading {
 public:
  using Options = typename Kind::Options;
  using State = typename Kind::State;

  // Without `without_state`, `state_dict` describes the contents of a checkpoint.
  Loading(Optimizer& optimizer, const Dict& state_dict, const torch::nn::Module* module, std::optional<WithoutState> without_state,
          const Dict& fitted)
      : optimizer_(optimizer),
        named_(named_parameters(optimizer, module)),
        are_numbers_(module == nullptr),
        without_state_(without_state),
        fitted_(fitted) {
    static const Dict none;
    const Value* state = state_dict.find("state");  // PyTorch does not store empty dicts
    if (state != nullptr && !state->is_dict()) problem(std::string("\"state\" is ") + state->type_name() + ", not a dict");
    state_ = state != nullptr && state->is_dict() ? &state->dict() : &none;
    const Value* groups = state_dict.find("param_groups");
    if (groups == nullptr || !groups->is_list()) {
      problem("\"param_groups\" is " + std::string(groups == nullptr ? "missing" : groups->type_name()) +
              "; it must be a list of dicts");
    } else if (groups->list().size() != named_.size()) {
      problem("it has " + std::to_string(groups->list().size()) + " parameter groups, the optimizer " +
              std::to_string(named_.size()));
    } else {
      check(groups->list());
    }
    if (problems_.empty()) return;
    // A load may have filled tensors already, so the error speaks only of this call.
    throw Error(ErrorCode::kMismatch, std::string("load an optimizer's state dict: it does not fit the optimizer; ") +
                                          (is_stored() ? "nothing was changed:" : "this call changed nothing:") + problems_);
  }

  Dict to_fill() {
    auto next = next_.begin();
    const auto state_for = [&](const NamedParameter& named, const Options&) {
      const Next& one = *next++;
      return one.is_stored ? std::optional<Dict>(state_of<Kind>(*one.state, named.parameter)) : std::nullopt;
    };
    return described_optimizer<Kind>(optimizer_, named_, are_numbers_, state_for,
                                     [&](std::size_t group) { return others_[group]; });
  }

  void apply() {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < named_.size(); ++i) options_of<Kind>(optimizer_.param_groups()[i]) = options_[i];
    keep_other_options<Options>(optimizer_, std::move(others_));
    for (Next& next : next_) take_over(next);
  }

 private:
  struct Next {
    torch::Tensor parameter;
    std::unique_ptr<State> state;  // null if the parameter will have none
    bool is_stored = false;
    bool zero_is_absent = false;
    std::vector<std::pair<torch::Tensor, torch::Tensor>> copies;  // destination, source
  };

  bool is_stored() const { return !without_state_; }
  void problem(const std::string& text) { problems_ += "\n  " + text; }

  void check(const List& groups) {
    std::set<std::string> known;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const std::string where = "param_groups[" + std::to_string(i) + "]";
      // Starts from the present options: those that the state dict lacks stay as they are.
      options_.push_back(options_of<Kind>(optimizer_.param_groups()[i]));
      const bool kept_state = Kind::keeps_state(options_[i]);
      others_.emplace_back();
      if (groups[i].is_dict()) {
        check_group(groups[i].dict(), where, i);
      } else {
        problem(where + " is " + groups[i].type_name() + ", not a dict");
      }
      for (const NamedParameter& named : named_[i]) {
        known.insert(named.name);
        next_.push_back(next_of(named, options_[i]));
      }
      if (without_state_ == WithoutState::kFresh && state_->empty() && !kept_state && Kind::keeps_state(options_[i])) {
        problem(where + " turns momentum on, but there are no momentum buffers; load into cairn::stateful(optimizer), " +
                "or make the optimizer with momentum");
      }
    }
    for (const auto& [name, entry] : *state_) {
      if (known.count(name) == 0) problem("state[\"" + name + "\"] belongs to no parameter of the optimizer");
    }
  }

  void check_group(const Dict& given, const std::string& where, std::size_t i) {
    Options& options = options_.back();
    std::set<std::string> own{"params"};
    Kind::visit_options(options, [&](const char* name, auto& field) {
      own.insert(name);
      const Value* value = given.find(name);
      if (value != nullptr && !read(*value, field)) problem(where + "[\"" + name + "\"] is " + value->type_name());
    });
    if (const Value* params = given.find("params")) {
      const auto listed = names_in(*params);
      std::set<std::string> names;
      for (const NamedParameter& named : named_[i]) names.insert(named.name);
      // The order within a group does not matter, because state is found by name.
      if (!listed) {
        problem(where + "[\"params\"] is not a list of names");
      } else if (*listed != names) {
        const std::string more = names_missing_in(names, *listed), fewer = names_missing_in(*listed, names);
        problem(where + "[\"params\"] names other parameters than the optimizer's group has" +
                (more.empty() ? "" : "; only it has " + more) + (fewer.empty() ? "" : "; only the group has " + fewer));
      }
    }
    // Options of PyTorch's that LibTorch lacks. Most only select an implementation; these change
    // the result.
    const auto differs = [&](const char* name, bool ours) {
      const Value* value = given.find(name);
      return value != nullptr && value->is_ivalue() && value->ivalue().isBool() && value->ivalue().toBool() != ours;
    };
    if (differs("maximize", false)) problem(where + " maximizes, which LibTorch's optimizers do not support");
    constexpr bool kIsAdamW = std::is_same_v<Options, torch::optim::AdamWOptions>;
    constexpr bool kIsOne = kIsAdamW || std::is_same_v<Options, torch::optim::AdamOptions>;
    if (kIsOne && options.weight_decay() != 0 && differs("decoupled_weight_decay", kIsAdamW)) {
      problem(where + (kIsAdamW ? " does not decouple weight decay: use Adam" : " decouples weight decay: use AdamW"));
    }
    for (const auto& [name, value] : given) {
      if (own.count(name) > 0) continue;
      Value kept = if_stored(value);
      // The load fills these tensors.
      replace_tensors(kept, name, [](const std::string&, const torch::Tensor& tensor) {
        return tensor.is_meta() ? torch::empty_like(tensor, torch::kCPU) : tensor;
      });
      others_.back().insert(name, std::move(kept));
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

  Next next_of(const NamedParameter& named, const Options& options) {
    Next next;
    next.parameter = named.parameter;
    next.zero_is_absent = !Kind::begins_as_absent(options);
    const auto held = optimizer_.state().find(optimizer_state_key(named.parameter));
    const auto* present = held == optimizer_.state().end() ? nullptr : static_cast<const State*>(held->second.get());
    if (const Value* entry = entry_of(named.name)) {
      next.is_stored = true;
      // The tensors of the present state are filled in place.
      next.state = present != nullptr ? std::make_unique<State>(*present) : std::make_unique<State>();
      check_state(*entry, named, options, next);
      return next;
    }
    if (!Kind::keeps_state(options)) return next;
    if (without_state_ == WithoutState::kRefused && named.parameter.requires_grad()) {
      problem("the state of \"" + named.name + "\" is missing; without StateDictOptions::strict it stays as it is");
    } else if (!is_stored() && !next.zero_is_absent && (present != nullptr || named.parameter.requires_grad())) {
      next.state = begin_state<Kind>(options, named.parameter);
    }
    return next;
  }

  void check_state(const Value& entry, const NamedParameter& named, const Options& options, Next& next) {
    const std::string where = "state[\"" + named.name + "\"]";
    if (!entry.is_dict()) return problem(where + " is " + entry.type_name() + ", not a dict");
    std::set<std::string> known;
    Kind::visit_state(*next.state, [&](const char* field_name, auto& field) {
      known.insert(field_name);
      const Value* value = entry.dict().find(field_name);
      if (value != nullptr && value->is_none()) value = nullptr;
      const std::string place = where + "[\"" + field_name + "\"]";
      const bool is_missing = value == nullptr && Kind::needs(options, field_name);
      // The planner reports what a checkpoint lacks.
      if (is_missing && !is_stored()) return problem(place + " is missing, but the group's options need it");
      if constexpr (std::is_same_v<std::decay_t<decltype(field)>, torch::Tensor>) {
        if (value != nullptr || is_missing) {
          take_tensor(field, value, place, named, field_name, next);
        } else {
          field = torch::Tensor();
        }
      } else if (value != nullptr && !read(*value, field)) {
        problem(place + " is " + value->type_name() + ", not a whole number");
      }
    });
    for (const auto& [key, value] : entry.dict()) {
      if (known.count(key) == 0) problem(where + "[\"" + key + "\"] is not state of this kind of optimizer");
    }
  }

  void take_tensor(torch::Tensor& field, const Value* value, const std::string& place, const NamedParameter& named,
                   const char* field_name, Next& next) {
    const auto given = value != nullptr ? part_in(*value) : std::nullopt;
    // The planner compares what a checkpoint has.
    if (!is_stored()) {
      // Equal sizes are not enough for parts: those of other ranks have them, too.
      const Value own = value->is_sharded() ? as_declared(named.parameter, named.parameter) : Value(named.parameter);
      const auto place_of_own = part_in(own);  // nothing on a rank outside of the mesh
      if (!given || !place_of_own || !given->can_replace(*place_of_own))
        return problem(place + " is " + describe_part(*value) + ", the parameter " + describe_part(own));
    }
    if (!field.defined()) {
      const Value* const found = find_at(fitted_, {"state", named.name, field_name});
      const auto fitted = found != nullptr ? part_in(*found) : std::nullopt;
      field = fitted && fitted->tensor.is_same(given->tensor) ? given->tensor : zeros_for(named.parameter);
    }
    const std::string fault = why_without_memory(field);
    if (!fault.empty()) return problem("the optimizer's " + place + " " + fault);
    // Equal tensors were filled in place by the load.
    if (!is_stored() && !field.is_same(given->tensor)) next.copies.emplace_back(field, given->tensor);
  }

  // Leaves the optimizer as if it had made the steps itself. A parameter has the given state, fresh
  // state or none.
  void take_over(Next& next) {
    auto& states = optimizer_.state();
    const OptimizerStateKey key = optimizer_state_key(next.parameter);
    const auto held = states.find(key);
    // The given tensor may have another device or other strides; copy_ converts both.
    for (auto& [to, from] : next.copies) to.copy_(from);
    // Zeros mean "no step yet" if training from zeros differs from training without state.
    if (!next.state || (next.zero_is_absent && is_zero(state_of<Kind>(*next.state, next.parameter)))) {
      if (held != states.end()) states.erase(held);
    } else if (held != states.end()) {
      static_cast<State&>(*held->second) = *next.state;
    } else {
      states[key] = std::move(next.state);
    }
  }

  static bool is_zero(const Dict& state) {
    return std::all_of(state.begin(), state.end(), [](const Dict::Item& field) {
      const auto part = part_in(field.second);
      return !part || part->tensor.count_nonzero().item<std::int64_t>() == 0;
    });
  }

  Optimizer& optimizer_;
  const std::vector<std::vector<NamedParameter>> named_;
  const bool are_numbers_;
  const std::optional<WithoutState> without_state_;
  const Dict& fitted_;            // borrowed by the constructor
  const Dict* state_ = nullptr;   // borrowed by the constructor
  std::vector<Options> options_;  // the new options, by group
  std::vector<Dict> others_;      // the options that LibTorch lacks, by group
  std::vector<Next> next_;        // in the order of `named_`
  std::string problems_;
};

}  // namespace

std::optional<std::set<std::string>> names_in(const Value& value) {
  const auto elements = elements_in(value);
  if (!elements) return std::nullopt;
  std::set<std::string> names;
  for (const Value& element : *elements) {
    if (!element.is_ivalue() || !(element.ivalue().isString() || element.ivalue().isInt())) return std::nullopt;
    names.insert(element.ivalue().isString() ? element.to_text() : std::to_string(element.to_int()));
  }
  return names;
}

Dict fit_optimizer_state(Optimizer& optimizer, const Dict& stored, const torch::nn::Module* module) {
  return with_kind(optimizer, [&](auto tag) {
    const torch::NoGradGuard no_grad;
    return with_torch("fit an optimizer to a checkpoint",
                      [&] { return Loading<typename decltype(tag)::type>(optimizer, stored, module, std::nullopt, {}).to_fill(); });
  });
}

std::function<void()> prepare_optimizer_load(Optimizer& optimizer, const Dict& state_dict, const torch::nn::Module* module,
                                             WithoutState without_state, const Dict& fitted) {
  return with_kind(optimizer, [&](auto tag) -> std::function<void()> {
    const torch::NoGradGuard no_grad;
    const auto loading = with_torch("load an optimizer's state dict", [&] {
      return std::make_shared<Loading<typename decltype(tag)::type>>(optimizer, state_dict, module, without_state, fitted);
    });
    return [loading] { with_torch("load an optimizer's state dict", [&] { loading->apply(); }); };
  });
}

}  // namespace cairn
