#include <cairn/training/fully_shard.hpp>

#include <algorithm>
#include <map>
#include <set>

#include <torch/torch.h>

#include <cairn/base/digest.hpp>
#include <cairn/base/error.hpp>
#include <cairn/state/tensor_memory.hpp>
#include <cairn/training/parallel_parameter.hpp>
#include <cairn/training/parameter_layout.hpp>
#include <cairn/training/sharded_unit.hpp>
#include <cairn/training/torch_compat.hpp>

namespace cairn::training {
namespace {

using torch::nn::Module;
using UnitPointer = std::shared_ptr<ShardedUnit>;

[[noreturn]] void refuse_module(ErrorCode code, const Module& module, const std::string& why) {
  throw Error(code, "fully_shard of " + module.name() + ": " + why);
}

bool is_ignored(const Module& module, const FullyShardOptions& options) {
  const auto& ignored = options.ignored_modules;
  return std::find(ignored.begin(), ignored.end(), &module) != ignored.end();
}

// A place where a module registers a parameter.
struct Registration {
  Module* module;
  std::string key;
  std::string name;  // relative to the wrapped module
};

void collect_places(Module& module, const std::string& prefix, const FullyShardOptions& options,
                    std::vector<Registration>& places) {
  if (is_ignored(module, options)) return;
  for (const auto& item : registered_parameters(module)) {
    if (item.value().defined()) places.push_back({&module, item.key(), prefix + item.key()});
  }
  for (const auto& child : module.named_children()) collect_places(*child.value(), prefix + child.key() + '.', options, places);
}

void check_shardable(const Module& module, const std::string& name, const torch::Tensor& tensor) {
  const std::string the = "the parameter \"" + name + "\" ";
  if (tensor.layout() != at::kStrided || tensor.is_quantized())
    refuse_module(ErrorCode::kUnsupported, module, the + "is not strided");
  if (const std::string reason = why_without_memory(tensor); !reason.empty())
    refuse_module(ErrorCode::kUnsupported, module, the + reason);
  if (tensor.is_complex())
    refuse_module(ErrorCode::kUnsupported, module, the + "is complex: register its real view (view_as_real)");
  if (tensor.dim() == 0) refuse_module(ErrorCode::kUnsupported, module, the + "has no dimension to cut; give it one, of size 1");
  if (!tensor.is_leaf()) refuse_module(ErrorCode::kInvalidArgument, module, the + "is computed from others (it is no leaf)");
}

// Returns the norm of elements, or of the norms of parts: one element, of type double.
torch::Tensor norm_of(const torch::Tensor& tensor, double norm_type) {
  const at::ScalarType type = tensor.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  return at::linalg_vector_norm(tensor, norm_type, c10::nullopt, /*keepdim=*/false, type).to(torch::kDouble).reshape({1});
}

// Applies to modules that are not wrapped themselves.
void cast_buffers(Module& module, at::ScalarType type, const FullyShardOptions& options, const std::shared_ptr<UnitGroup>& group) {
  if (is_ignored(module, options)) return;
  for (auto& buffer : module.buffers(/*recurse=*/false)) {
    // Keeps the tensor's identity: the module's members refer to it.
    if (buffer.defined() && buffer.is_floating_point()) buffer.set_data(buffer.detach().to(type));
  }
  for (const auto& child : module.children()) {
    if (!group->has_wrapped(*child)) cast_buffers(*child, type, options, group);
  }
}

// Checks, before anything else is sent, that all ranks wrap the same modules.
void compare_with_others(const Module& module, const std::vector<FoundParameter>& found, const ProcessMesh& mesh,
                         const FullyShardOptions& options) {
  DigestBuilder digest;
  // Everything that decides which messages are sent. Ranks that differ would wait for one another
  // until the timeout.
  digest.add(static_cast<std::uint64_t>(options.strategy)).add(static_cast<std::uint64_t>(options.offload_to_host));
  digest.add(static_cast<std::uint64_t>(options.prefetch)).add(options.bucket_bytes);
  for (const std::int64_t size : mesh.mesh().shape()) digest.add(size);
  const auto& mixed = options.mixed_precision;
  digest.add(static_cast<std::int64_t>(mixed.parameters.value_or(at::ScalarType::Undefined)));
  digest.add(static_cast<std::int64_t>(mixed.reduction.value_or(at::ScalarType::Undefined)));
  digest.add(static_cast<std::int64_t>(mixed.buffers.value_or(at::ScalarType::Undefined)));
  for (const auto& parameter : found) {
    digest.add(ByteSpan(parameter.name)).add(static_cast<std::int64_t>(parameter.tensor.scalar_type()));
    digest.add(static_cast<std::int64_t>(parameter.tensor.requires_grad()));
    for (const std::int64_t size : parameter.tensor.sizes()) digest.add(size);
  }
  require_same(digest.finish(), mesh.world(), "fully_shard of " + module.name() + ": ",
               "passed a different module or different options", "the names, sizes and types of parameters and the options");
}

// Everything is checked before anything changes: a module that is only partly sharded could not be
// used or restored.
void shard_one(Module& module, const ProcessMesh& mesh, const FullyShardOptions& options) {
  if (mesh.axes() > 2) {
    refuse_module(ErrorCode::kInvalidArgument, module,
                  "the mesh has " + std::to_string(mesh.axes()) +
                      " axes; one shards, two replicate over the first and shard over the second");
  }
  std::vector<Registration> places;
  collect_places(module, "", options, places);

  std::vector<FoundParameter> found;
  std::map<const void*, std::size_t> position;  // index in `found`, by TensorImpl
  std::vector<UnitPointer> inner;
  for (const Registration& place : places) {
    const torch::Tensor& tensor = registered_parameters(*place.module)[place.key];
    // Wrapped already, as part of an inner module.
    if (UnitPointer unit = unit_behind(tensor)) {
      if (std::find(inner.begin(), inner.end(), unit) == inner.end()) inner.push_back(std::move(unit));
    } else if (position.emplace(tensor.unsafeGetTensorImpl(), found.size()).second) {
      check_shardable(module, place.name, tensor);
      found.push_back({tensor, place.name});
    }
  }
  // Several parameters may share one storage, as cuDNN stores those of recurrent layers.
  std::vector<torch::Tensor> tensors;
  tensors.reserve(found.size());
  for (const auto& parameter : found) tensors.push_back(parameter.tensor);
  for (const SharedMemory& shared : find_shared_memory(tensors)) {
    if (shared.first == shared.second) continue;
    refuse_module(
        ErrorCode::kInvalidArgument, module,
        "the parameter \"" + found[shared.second].name + "\" shares its memory with another; register one tensor in both places");
  }
  std::set<std::string> devices;
  for (const auto& parameter : found) devices.insert(parameter.tensor.device().str());
  for (const auto& unit : inner) {
    if (unit->group()->has_wrapped(module)) refuse_module(ErrorCode::kPrecondition, module, "it is fully sharded already");
    devices.insert(unit->compute_device().str());
  }
  if (devices.size() > 1) {
    refuse_module(ErrorCode::kUnsupported, module,
                  "its parameters are on several devices (" + *devices.begin() + ", " + *devices.rbegin() +
                      "); move them together, or ignore the modules that are elsewhere");
  }
  // After the local checks, and before any change.
  compare_with_others(module, found, mesh, options);

  const auto group = std::make_shared<UnitGroup>();
  // One model has one group: its units take turns in the memory for gathered parameters.
  for (const auto& unit : inner) unit->group()->merge_into(group);
  if (options.mixed_precision.buffers) cast_buffers(module, *options.mixed_precision.buffers, options, group);
  group->note_wrapped(module);
  std::vector<torch::Tensor> shards;
  if (!found.empty()) shards = ShardedUnit::make(module, found, mesh, options, group);
  for (const Registration& place : places) {
    torch::Tensor& registered = registered_parameters(*place.module)[place.key];
    const auto own = position.find(registered.unsafeGetTensorImpl());
    if (own != position.end()) {
      registered = shards[own->second];
    } else if (const MemoryOwner* owner = memory_owner(registered); owner->role == MemoryOwner::Role::kParameter) {
      registered = unit_behind(registered)->shard(owner->index);  // tied to a parameter of an inner unit
    }
  }
  if (shards.empty()) return;
  const UnitPointer made = unit_behind(shards.front());
  for (const auto& unit : inner) made->enclose(unit);
}

std::int64_t unwrapped_elements(Module& module, const FullyShardOptions& options) {
  std::vector<Registration> places;
  collect_places(module, "", options, places);
  std::set<const void*> seen;
  std::int64_t elements = 0;
  for (const Registration& place : places) {
    const torch::Tensor& tensor = registered_parameters(*place.module)[place.key];
    if (!unit_behind(tensor) && seen.insert(tensor.unsafeGetTensorImpl()).second) elements += tensor.numel();
  }
  return elements;
}

void shard_inside(Module& module, const ProcessMesh& mesh, const FullyShardOptions& options, std::set<const Module*>& seen) {
  for (const auto& child : module.named_children()) {
    Module& inner = *child.value();
    if (is_ignored(inner, options) || !seen.insert(&inner).second) continue;
    // Inner modules first: an outer one gets the parameters that they leave.
    shard_inside(inner, mesh, options, seen);
    const std::int64_t elements = unwrapped_elements(inner, options);
    if (elements > 0 && options.wrap_policy(inner, elements)) shard_one(inner, mesh, options);
  }
}

std::shared_ptr<UnitGroup> group_in(const Module& module) {
  for (const auto& parameter : module.parameters()) {
    if (const UnitPointer unit = unit_behind(parameter)) return unit->group();
  }
  return nullptr;
}

void check_is_shard(const torch::Tensor& shard, const char* what) {
  const MemoryOwner* const owner = memory_owner(shard);
  if (!is_parallel_handle(shard) && (owner == nullptr || owner->role == MemoryOwner::Role::kShard)) return;
  throw Error(ErrorCode::kInvalidArgument, std::string(what) + ": " + (owner != nullptr ? '"' + owner->name + '"' : "this one") +
                                               " was taken from the module's member; pass the shard from its parameters()");
}

}  // namespace

void fully_shard(Module& module, const ProcessMesh& mesh, const FullyShardOptions& options) {
  std::set<const Module*> seen;
  if (options.wrap_policy) shard_inside(module, mesh, options, seen);
  shard_one(module, mesh, options);
}

// --- scopes --------------------------------------------------------------------------------------

ForwardScope::ForwardScope(const Module& model) : ForwardScope(group_in(model)) {}
ForwardScope::ForwardScope(const std::shared_ptr<UnitGroup>& group) : group_(group ? group->current() : nullptr) {
  if (group_) group_->enter_forward();
}
ForwardScope::~ForwardScope() {
  if (group_) group_->leave_forward();
}

namespace detail {

void enter_boundary(Module& module, Boundary& boundary, const FullyShardOptions& options) {
  boundary.group = group_in(module);
  if (options.mixed_precision.cast_forward_inputs) boundary.input_type = options.mixed_precision.parameters;
}

}  // namespace detail

// --- training ------------------------------------------------------------------------------------

void set_gradient_sync(Module& module, bool on) {
  for (const auto& unit : units_in(module)) unit->set_gradient_sync(on);
}

double clip_grad_norm(Module& module, double max_norm, double norm_type) {
  if (!(norm_type > 0) || !(max_norm >= 0)) {
    throw Error(ErrorCode::kInvalidArgument,
                "clip_grad_norm: a norm of type " + std::to_string(norm_type) + " of at most " + std::to_string(max_norm));
  }
  const torch::NoGradGuard no_grad;
  // Norms of the parameters that are cut over the same ranks, in the order of the parameters, which
  // is the same on all ranks.
  struct Part {
    std::vector<ProcessGroup> groups;
    at::Device device;                 // of the first parameter
    std::vector<torch::Tensor> norms;  // stay on their devices, so that the host waits only once
  };
  std::vector<Part> parts;
  const auto part_of_groups = [&parts](const std::vector<ProcessGroup>& groups, at::Device device) -> Part& {
    const auto same = [](const ProcessGroup& a, const ProcessGroup& b) { return a.ranks() == b.ranks(); };
    for (Part& part : parts) {
      if (std::equal(part.groups.begin(), part.groups.end(), groups.begin(), groups.end(), same)) return part;
    }
    return parts.emplace_back(Part{groups, device, {}});
  };
  std::vector<torch::Tensor> gradients;
  std::set<const void*> seen;
  for (const auto& parameter : module.parameters()) {
    // Also for parameters without a gradient here: other ranks may have one, and all ranks must
    // send the same messages.
    Part& part = part_of_groups(groups_cutting(parameter), parameter.device());
    if (!parameter.grad().defined() || !seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    gradients.push_back(parameter.grad());
    // This rank's part is empty, but the clipping below must still know the tensor.
    if (parameter.grad().numel() == 0) continue;
    const torch::Tensor norm = norm_of(local_tensor(parameter.grad()), norm_type);
    part.norms.push_back(norm.to(part.device));
  }
  torch::Tensor norms = torch::zeros({1}, torch::kDouble);
  for (const Part& part : parts) {
    const auto options = torch::TensorOptions(torch::kDouble).device(part.device);
    torch::Tensor norm = part.norms.empty() ? torch::zeros({1}, options) : norm_of(torch::cat(part.norms), norm_type);
    for (const ProcessGroup& group : part.groups) {
      torch::Tensor all = torch::empty({group.size()}, options);
      group.all_gather(all, norm);
      norm = norm_of(all, norm_type);
    }
    norms = torch::cat({norms, norm.cpu()});
  }
  const double total = norm_of(norms, norm_type).item<double>();
  // As PyTorch computes it, so that training gives the same numbers.
  const double factor = max_norm / (total + 1e-6);
  if (factor < 1) {
    for (auto& gradient : gradients) gradient.mul_(factor);
  }
  return total;
}

torch::Tensor full_tensor(const torch::Tensor& shard) {
  check_is_shard(shard, "full_tensor");
  return whole_like(shard, shard.detach());
}

torch::Tensor local_tensor(const torch::Tensor& shard) {
  check_is_shard(shard, "local_tensor");
  return without_sharded_mark(shard);
}

torch::Tensor full_grad(const torch::Tensor& shard) {
  check_is_shard(shard, "full_grad");
  return shard.grad().defined() ? whole_like(shard, shard.grad().detach()) : torch::Tensor();
}

MemoryUse memory_use(const Module& module) {
  MemoryUse total;
  std::shared_ptr<UnitGroup> group;
  for (const auto& unit : units_in(module)) {
    total.shards += unit->shard_bytes();
    total.gathered += unit->gathered_bytes();
    total.gathers += unit->gathers();
    group = unit->group();
  }
  if (group) total.gathered_peak = group->gathered_peak();
  return total;
}

void reset_memory_peak(const Module& module) {
  if (const auto group = group_in(module)) group->reset_peak();
}

}  // namespace cairn::training
