#include <cairn/training/state_dicts.hpp>

#include <algorithm>
#include <functional>
#include <set>

#include <torch/torch.h>

#include <cairn/base/error.hpp>
#include <cairn/state/optimizer_loading.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/training/parameter_layout.hpp>
#include <cairn/training/sharded_unit.hpp>

namespace cairn::training {
namespace {

using torch::nn::Module;

[[noreturn]] void refuse_options(const std::string& why) { throw Error(ErrorCode::kInvalidArgument, "state dict options: " + why); }

// Returns the group of ranks that together hold the model; a group of one rank if no parameter is
// wrapped or cut.
ProcessGroup world_of(const Module& module) {
  for (const auto& parameter : module.parameters()) {
    ProcessGroup world = world_behind(parameter);
    if (world.size() > 1) return world;
  }
  return ProcessGroup::single();
}

// Returns the submodules' prefixes in the model: "layers.0.".
std::vector<std::string> prefixes_of(const Module& model, const StateDictOptions& options) {
  std::vector<std::string> prefixes;
  for (const Module* wanted : options.submodules) {
    std::string found;
    for (const auto& named : model.named_modules()) {
      if (named.value().get() == wanted && !named.key().empty()) found = named.key() + '.';
    }
    if (found.empty()) refuse_options("a submodule is not one of the model's");
    prefixes.push_back(found);
  }
  if (!options.keep_submodule_prefixes && prefixes.size() != 1)
    refuse_options("names without the submodule's prefix need exactly one submodule");
  return prefixes;
}

void check_options(const StateDictOptions& options) {
  if (options.broadcast_from_rank0 && !options.full_state_dict) refuse_options("broadcast_from_rank0 needs full_state_dict");
}

// Returns the requested entries of the model's own state dict, under the names that the options ask
// for. `full_names` receives their names in the model, in the same order.
Dict selected(const Module& model, const StateDictOptions& options, std::vector<std::string>* full_names = nullptr) {
  check_options(options);
  const std::vector<std::string> prefixes = prefixes_of(model, options);
  std::set<std::string> frozen;
  if (options.ignore_frozen_params) {
    for (const auto& parameter : model.named_parameters()) {
      if (!parameter.value().requires_grad()) frozen.insert(parameter.key());
    }
  }
  Dict chosen;
  for (const auto& [name, value] : module_state_dict(model)) {
    const auto in = std::find_if(prefixes.begin(), prefixes.end(), [&](const auto& one) { return name.rfind(one, 0) == 0; });
    if (frozen.count(name) > 0 || (in == prefixes.end() && !prefixes.empty())) continue;
    chosen.insert(options.keep_submodule_prefixes ? name : name.substr(in->size()), value);
    if (full_names) full_names->push_back(name);
  }
  return chosen;
}

// Converts `value`, of a parameter or of state that follows it, to the form that the options ask
// for.
Value delivered(const Value& value, const torch::Tensor& parameter, const StateDictOptions& options, bool keeps) {
  const auto moved = [&](const torch::Tensor& tensor) { return options.cpu_offload ? tensor.detach().cpu() : tensor; };
  if (value.is_sharded()) {
    const ShardedTensor& sharded = value.sharded();
    const torch::Tensor local = sharded.local_shards().front().tensor;
    const auto unit = unit_behind(parameter);
    const StateDictType type = unit ? unit->state_dict_type() : StateDictType::kSharded;
    if (options.full_state_dict || type == StateDictType::kFull) {
      check_invariant(parameter.defined(), "a sharded entry of a state dict belongs to no parameter");
      // A collective: every rank calls it, in the same order, also those that keep nothing.
      const torch::Tensor whole = whole_like(parameter, local.detach());
      return keeps ? Value(moved(whole)) : Value();
    }
    if (type == StateDictType::kLocal) return options.cpu_offload ? Value(local.detach().cpu().clone()) : Value(local);
    if (!options.cpu_offload) return value;
    return sharded.with_local_tensors({local.detach().cpu().clone()});
  }
  if (!value.is_tensor()) return value;
  if (options.full_state_dict) return keeps ? Value(moved(value.tensor().detach()).clone()) : Value();
  return options.cpu_offload ? Value(moved(value.tensor()).clone()) : value;
}

// --- setting -------------------------------------------------------------------------------------

// Returns this rank's part of `given`, which is either that part or the whole tensor behind `live`;
// undefined if it is neither. With `local`, a part may be a plain tensor.
torch::Tensor part_for(const Value& live, const Value& given, bool local = false) {
  const auto to = part_in(live), from = part_in(given);
  if (!from || !from->can_replace(*from) || !to->can_replace(*to)) return {};
  if (from->can_replace(*to)) return from->tensor;
  if (given.is_sharded() || !live.is_sharded()) return {};
  if (local && from->size == to->box.sizes) return from->tensor;
  return from->size == to->size ? part_of(from->tensor, to->box.offsets, to->box.sizes) : torch::Tensor();
}

// Returns whether dicts hold this entry as a plain local part.
bool is_local(const Value& live) {
  const auto unit = live.is_sharded() ? unit_behind(part_in(live)->tensor) : nullptr;
  return unit && unit->state_dict_type() == StateDictType::kLocal;
}

[[noreturn]] void refuse_dict(const std::string& whose, const std::string& problems) {
  throw Error(ErrorCode::kMismatch, "set " + whose + " state dict: it does not fit; nothing was changed:" + problems);
}

std::string unexpected_names(const Dict& live, const Dict& state_dict) {
  std::string problems;
  for (const auto& [name, value] : state_dict) {
    if (!live.contains(name)) problems += "\n  \"" + name + "\" is not in the model";
  }
  return problems;
}

// Broadcasts a text that only rank 0 knows; may be empty.
std::string text_from_rank0(const std::string& text, const ProcessGroup& world) {
  // The length first, because the other ranks must make room for the text.
  torch::Tensor length = torch::full({1}, static_cast<std::int64_t>(text.size()), torch::kLong);
  world.broadcast(length, 0);
  torch::Tensor bytes = torch::empty({length.item<std::int64_t>()}, torch::kUInt8);
  if (world.rank() == 0) std::copy(text.begin(), text.end(), bytes.data_ptr<std::uint8_t>());
  world.broadcast(bytes, 0);
  return {bytes.data_ptr<std::uint8_t>(), bytes.data_ptr<std::uint8_t>() + bytes.numel()};
}

// Returns why rank 0 cannot send `given` for `live`, or "" if it can.
std::string why_not_whole(const Value& live, const Value& given) {
  const auto part = part_in(given);
  if (given.is_tensor() && part && part->can_replace(*part) && part->size == part_in(live)->size) return "";
  return " is " + describe_part(given) + " on rank 0, which has to have all of it: " + to_string(part_in(live)->size);
}

// Returns this rank's part of a whole tensor that rank 0 sends. `given` is read only there. The
// part may be a view of the whole tensor.
torch::Tensor part_from_rank0(const Value& live, const Value* given, const ProcessGroup& world) {
  const auto to = part_in(live);
  torch::Tensor whole = torch::empty(array_of(to->size), to->tensor.options().requires_grad(false));
  if (world.rank() == 0) whole.copy_(given->tensor());
  world.broadcast(whole, 0);
  return part_for(live, whole);
}

// Checks the dict of rank 0. The returned function sends each rank its part of the tensors; only
// one whole tensor is in memory at a time. Both are collectives.
std::function<void()> checked_from_rank0(const Dict& live, const Dict& state_dict, bool strict, const ProcessGroup& world) {
  torch::Tensor sent = torch::zeros({static_cast<std::int64_t>(live.size())}, torch::kUInt8);
  std::string problems;
  if (world.rank() == 0) {
    std::int64_t index = 0;
    for (const auto& [name, value] : live) {
      const Value* const given = state_dict.find(name);
      if (given == nullptr && strict) problems += "\n  \"" + name + "\" is missing on rank 0";
      const std::string why_not = given != nullptr ? why_not_whole(value, *given) : "";
      if (!why_not.empty()) problems += "\n  \"" + name + '"' + why_not;
      sent[index++].fill_(given != nullptr);
    }
    if (strict) problems += unexpected_names(live, state_dict);
  }
  // All ranks learn of a problem before any tensor is sent, so that none waits for one that does
  // not come.
  problems = text_from_rank0(problems, world);
  if (!problems.empty()) refuse_dict("a model's", problems);
  world.broadcast(sent, 0);
  return [live, &state_dict, sent, world] {
    std::int64_t index = 0;
    for (const auto& [name, value] : live) {
      // The flags come from rank 0, so that all ranks skip the same entries.
      if (sent[index++].item<int>() != 0) part_in(value)->tensor.copy_(part_from_rank0(value, state_dict.find(name), world));
    }
  };
}

// Checks a model's dict. The returned function sets the model, and borrows the arguments.
std::function<void()> checked_model_state(Module& model, const Dict& state_dict, const StateDictOptions& options) {
  const Dict live = selected(model, options);
  if (options.broadcast_from_rank0) return checked_from_rank0(live, state_dict, options.strict, world_of(model));
  std::string problems;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> copies;  // destination, source
  for (const auto& [name, value] : live) {
    const Value* const given = state_dict.find(name);
    if (given == nullptr) {
      if (options.strict) problems += "\n  \"" + name + "\" is missing";
      continue;
    }
    const torch::Tensor part = part_for(value, *given, is_local(value));
    const torch::Tensor to = part_in(value)->tensor;
    if (!part.defined()) {
      problems += "\n  \"" + name + "\" is " + describe_part(*given) + ", the model has " + describe_part(value);
    } else if (part.unsafeGetTensorImpl() != to.unsafeGetTensorImpl()) {
      copies.emplace_back(to, part);
    }
  }
  if (options.strict) problems += unexpected_names(live, state_dict);
  if (!problems.empty()) refuse_dict("a model's", problems);
  return [copies] {
    for (const auto& [to, from] : copies) torch::Tensor(to).copy_(from);
  };
}

}  // namespace

Dict get_model_state_dict(const Module& model, const StateDictOptions& options) {
  const auto parameters = model.named_parameters();
  const bool keeps = !(options.full_state_dict && options.cpu_offload) || world_of(model).rank() == 0;
  std::vector<std::string> full_names;  // by which parameters are found
  const Dict chosen = selected(model, options, &full_names);
  const torch::NoGradGuard no_grad;
  Dict dict;
  auto full_name = full_names.begin();
  for (const auto& [name, value] : chosen) {
    const torch::Tensor* const parameter = parameters.find(*full_name++);
    Value entry = delivered(value, parameter == nullptr ? torch::Tensor() : *parameter, options, keeps);
    if (keeps) dict.insert(name, std::move(entry));
  }
  return dict;
}

void set_state_dict_type(Module& module, StateDictType type) {
  for (const auto& unit : units_in(module)) unit->set_state_dict_type(type);
}

StateDictType state_dict_type(const Module& module) {
  const auto units = units_in(module);
  if (units.empty()) throw Error(ErrorCode::kPrecondition, "state dict type: nothing in " + module.name() + " is wrapped");
  const StateDictType type = units.front()->state_dict_type();
  for (const auto& unit : units)
    if (unit->state_dict_type() != type)
      throw Error(ErrorCode::kPrecondition, "state dict type: parts of " + module.name() + " have different ones");
  return type;
}

void set_model_state_dict(Module& model, const Dict& state_dict, const StateDictOptions& options) {
  const torch::NoGradGuard no_grad;
  checked_model_state(model, state_dict, options)();
}

// --- optimizers ----------------------------------------------------------------------------------

namespace {

// {"state.<name>.<field>": …, "param_groups.<name>.<option>": …}
Dict flattened(const Dict& nested) {
  Dict flat;
  for (const auto& [name, fields] : nested.at("state").dict()) {
    for (const auto& [field, value] : fields.dict()) flat.insert("state." + name + "." + field, value);
  }
  for (const Value& group : nested.at("param_groups").list()) {
    for (const Value& name : group.dict().at("params").list()) {
      for (const auto& [option, value] : group.dict()) {
        if (option != "params") flat.insert("param_groups." + name.to_text() + "." + option, value);
      }
    }
  }
  return flat;
}

// The inverse, guided by the optimizer's groups. `names` has its parameters. If `strict`, refuses
// keys of others.
Dict unflattened(const Dict& flat, const List& live_groups, const std::set<std::string>& names, bool strict) {
  Dict state, options;
  std::string problems;
  for (const auto& [key, value] : flat) {
    // "<kind>.<name>.<field>": the longest name that fits, because all parts may contain dots.
    const std::size_t begin = key.find('.') + 1;
    std::size_t end = key.rfind('.');
    while (end != std::string::npos && end > begin && names.count(key.substr(begin, end - begin)) == 0)
      end = key.rfind('.', end - 1);
    const bool is_state = key.compare(0, begin, "state.") == 0;
    if (end == std::string::npos || end <= begin || !(is_state || key.compare(0, begin, "param_groups.") == 0)) {
      problems += "\n  \"" + key + "\" belongs to no parameter of the optimizer";
    } else {
      (is_state ? state : options)[key.substr(begin, end - begin)][key.substr(end + 1)] = value;
    }
  }
  if (strict && !problems.empty()) refuse_dict("an optimizer's", problems);
  List groups;
  for (const Value& live_group : live_groups) {
    Dict group{{"params", live_group.dict().at("params")}};
    for (const Value& name : live_group.dict().at("params").list()) {
      const Value* const of_name = options.find(name.to_text());
      if (of_name == nullptr) continue;
      // LibTorch has options per group, the flat form per parameter: the first parameter that has
      // one decides.
      for (const auto& [option, value] : of_name->dict()) {
        if (!group.contains(option)) group.insert(option, value);
      }
    }
    groups.push_back(std::move(group));
  }
  return Dict{{"state", std::move(state)}, {"param_groups", std::move(groups)}};
}

// Returns {"state": …, "param_groups": …} of a dict of the form that `options` name. Without
// `strict`, leaves out the state of parameters that are not the optimizer's.
Dict nested_form(const Dict& state_dict, const Dict& live, const StateDictOptions& options) {
  const List& groups = live.at("param_groups").list();
  std::set<std::string> names;
  for (const Value& group : groups) {
    for (const Value& name : group.dict().at("params").list()) names.insert(name.to_text());
  }
  Dict nested = options.flatten_optimizer_state_dict ? unflattened(state_dict, groups, names, options.strict) : state_dict;
  Value* const state = nested.find("state");
  if (options.strict || state == nullptr || !state->is_dict()) return nested;
  for (const auto& item : Dict(state->dict())) {
    if (names.count(item.first) == 0) state->dict().erase(item.first);
  }
  return nested;
}

bool has_tensor(const Value& value) { return value.is_tensor() || value.is_sharded(); }

// Moves the tensors that `live` has as tensors, too, out of `given`. Returns their names,
// {name: {field: true}}. Throws if one is not whole.
Dict take_whole_tensors(Dict& given, const Dict& live) {
  Dict taken;
  std::string problems;
  Value* const state = given.find("state");
  if (state == nullptr) return taken;
  for (auto& [name, fields] : state->dict()) {
    Dict rest;
    for (const auto& [field, value] : fields.dict()) {
      const Value* const to = find_at(live, {"state", name, field});
      if (to == nullptr || !has_tensor(*to) || value.is_none()) {
        rest.insert(field, value);
        continue;
      }
      const std::string why_not = why_not_whole(*to, value);
      if (!why_not.empty()) problems += "\n  state[\"" + name + "\"][\"" + field + "\"]" + why_not;
      taken[name][field] = true;
    }
    fields = std::move(rest);
  }
  if (!problems.empty()) refuse_dict("an optimizer's", problems);
  return taken;
}

// Returns the state dict of rank 0 on all ranks, with this rank's parts of the tensors. Only one
// whole tensor is in memory at a time.
Dict optimizer_state_from_rank0(const Module& model, torch::optim::Optimizer& optimizer, const Dict& live, const Dict& state_dict,
                                const StateDictOptions& options, const ProcessGroup& world) {
  Dict whole;
  std::string failure, text;
  if (world.rank() == 0) {
    try {
      whole = nested_form(state_dict, live, options);
      Dict rest = whole;
      Dict taken = take_whole_tensors(rest, fit_optimizer_state(optimizer, whole, &model));
      for (const FlatEntry& entry : flatten(rest))
        if (entry.value.is_opaque())
          throw Error(ErrorCode::kUnsupported, "send an optimizer's state dict: " + describe_path(entry.path) + ": " +
                                                   entry.value.opaque().why());
      // Everything but the tensors, and the list of tensors that follow one by one.
      text = serialize_leaf(List{std::move(rest), std::move(taken)});
    } catch (const std::exception& error) {  // the other ranks wait for an answer
      failure = error.what();
    }
  }
  failure = text_from_rank0(failure, world);
  if (!failure.empty()) throw Error(ErrorCode::kMismatch, failure);
  Value sent = deserialize_leaf(text_from_rank0(text, world));
  Dict local = sent.list().at(0).dict();
  const Dict& taken = sent.list().at(1).dict();
  // The tensors stand for those of rank 0.
  for (const auto& [name, fields] : taken) {
    for (const auto& entry : fields.dict()) local["state"][name][entry.first] = torch::empty({0});
  }
  const Dict to_fill = fit_optimizer_state(optimizer, local, &model);
  for (const auto& [name, fields] : taken) {
    for (const auto& entry : fields.dict()) {
      const std::string& field = entry.first;
      const Value& to = to_fill.at("state")[name][field];
      const torch::Tensor part = part_from_rank0(to, find_at(whole, {"state", name, field}), world);
      // A copy of the part, because a view would keep the whole tensor in memory.
      local["state"][name][field] = to.is_sharded() ? part.clone() : part;
    }
  }
  return local;
}

}  // namespace

Dict get_optimizer_state_dict(const Module& model, torch::optim::Optimizer& optimizer, const StateDictOptions& options) {
  check_options(options);
  const auto parameters = model.named_parameters();
  const bool keeps = !(options.full_state_dict && options.cpu_offload) || world_of(model).rank() == 0;
  Dict dict = optimizer_state_dict(optimizer, &model);
  const torch::NoGradGuard no_grad;
  Dict state;
  for (const auto& [name, fields] : dict.at("state").dict()) {
    const torch::Tensor& parameter = parameters[name];
    if (options.ignore_frozen_params && !parameter.requires_grad()) continue;
    Dict entry;
    for (const auto& [field, value] : fields.dict()) entry.insert(field, delivered(value, parameter, options, keeps));
    state.insert(name, std::move(entry));
  }
  // Only now: the collectives above need every rank.
  if (!keeps) return {};
  dict["state"] = std::move(state);
  return options.flatten_optimizer_state_dict ? flattened(dict) : dict;
}

namespace {

// Checks an optimizer's dict. The returned function sets the optimizer, which it borrows.
std::function<void()> checked_optimizer_state(const Module& model, torch::optim::Optimizer& optimizer, const Dict& state_dict,
                                              const StateDictOptions& options) {
  check_options(options);
  const Dict live = optimizer_state_dict(optimizer, &model);
  Dict local = options.broadcast_from_rank0
                   ? optimizer_state_from_rank0(model, optimizer, live, state_dict, options, world_of(model))
                   : nested_form(state_dict, live, options);
  // The state that the optimizer will have, including parameters without state so far.
  const Dict to_fill = fit_optimizer_state(optimizer, local, &model);
  Value& state = local["state"];
  if (state.is_none()) state = Dict{};
  for (auto& [name, fields] : state.dict()) {
    if (!fields.is_dict()) continue;
    for (auto& [field, value] : fields.dict()) {
      // A whole tensor becomes this rank's part. The optimizer refuses what does not fit.
      const Value* const to = find_at(to_fill, {"state", name, field});
      if (to == nullptr || !has_tensor(*to) || !has_tensor(value)) continue;
      if (torch::Tensor part = part_for(*to, value); part.defined()) value = Value(std::move(part));
    }
  }
  for (const auto& [name, fields] : live.at("state").dict()) {
    if (!options.strict && !state.dict().contains(name)) state.dict().insert(name, fields);  // keeps its value
  }
  return prepare_optimizer_load(optimizer, local, &model, options.strict ? WithoutState::kRefused : WithoutState::kFresh);
}

}  // namespace

void set_optimizer_state_dict(const Module& model, torch::optim::Optimizer& optimizer, const Dict& state_dict,
                              const StateDictOptions& options) {
  const torch::NoGradGuard no_grad;
  checked_optimizer_state(model, optimizer, state_dict, options)();
}

std::pair<Dict, Dict> get_state_dict(const Module& model, torch::optim::Optimizer& optimizer, const StateDictOptions& options) {
  Dict of_model = get_model_state_dict(model, options);
  return {std::move(of_model), get_optimizer_state_dict(model, optimizer, options)};
}

void set_state_dict(Module& model, torch::optim::Optimizer& optimizer, const Dict& model_state_dict,
                    const Dict& optimizer_state_dict, const StateDictOptions& options) {
  const torch::NoGradGuard no_grad;
  const auto set_model = checked_model_state(model, model_state_dict, options);
  const auto set_optimizer = checked_optimizer_state(model, optimizer, optimizer_state_dict, options);
  set_model();
  set_optimizer();
}

}  // namespace cairn::training
