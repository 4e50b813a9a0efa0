#include <cairn/training/sharded_unit.hpp>

#include <algorithm>
#include <functional>
#include <utility>

#include <torch/torch.h>

#include <cairn/base/error.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/training/parallel_parameter.hpp>
#include <cairn/training/tensor_bytes.hpp>
#include <cairn/training/torch_compat.hpp>

namespace cairn::training {
namespace {

// Runs when autograd has stored a parameter's gradient.
class AfterAccumulation : public torch::autograd::FunctionPostHook {
 public:
  explicit AfterAccumulation(std::function<void()> work) : work_(std::move(work)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    work_();
    return outputs;
  }

 private:
  std::function<void()> work_;
};

}  // namespace

// --- making --------------------------------------------------------------------------------------

ShardedUnit::ShardedUnit(const torch::nn::Module& module, const ProcessMesh& mesh, const FullyShardOptions& options,
                         std::shared_ptr<UnitGroup> group)
    : module_name_(module.name()),
      mesh_(mesh),
      options_(options),
      shard_group_(mesh.axis(mesh.axes() - 1)),
      group_(std::move(group)) {
  if (options_.strategy == ShardingStrategy::kNoShard) {
    shard_group_ = ProcessGroup::single();
    replica_group_ = mesh.world();
  } else if (mesh.axes() == 2) {
    replica_group_ = mesh.axis(0);
  }
  // A group of one rank has nobody to exchange gradients with.
  if (replica_group_ && replica_group_->size() == 1) replica_group_.reset();
}

std::vector<torch::Tensor> ShardedUnit::make(const torch::nn::Module& module, const std::vector<FoundParameter>& found,
                                             const ProcessMesh& mesh, const FullyShardOptions& options,
                                             const std::shared_ptr<UnitGroup>& group) {
  install_gather_on_use();
  const torch::NoGradGuard no_grad;
  std::shared_ptr<ShardedUnit> unit(new ShardedUnit(module, mesh, options, group));
  std::vector<torch::Tensor> shards;
  for (const FoundParameter& parameter : found) shards.push_back(unit->add(parameter));
  group->add(*unit);
  return shards;
}

ShardedUnit::~ShardedUnit() {
  set_gathered_bytes(0);
  group()->remove(*this);
}

torch::Tensor ShardedUnit::add(const FoundParameter& found) {
  const torch::Tensor full = found.tensor;
  const std::size_t index = parameters_.size();
  const auto size = full.sizes().vec();
  Parameter parameter;
  parameter.name = found.name;
  parameter.full = full;
  parameter.type = full.scalar_type();
  parameter.place = options_.offload_to_host ? at::Device(at::kCPU) : full.device();
  const std::int64_t row_elements = full.numel() / std::max<std::int64_t>(size[0], 1);
  parameter.chunk_elements = (size[0] + shard_group_.size() - 1) / shard_group_.size() * row_elements;
  parameter.requires_grad = full.requires_grad();

  const Extents extents = extents_of(size);
  const bool cut = options_.strategy != ShardingStrategy::kNoShard;
  std::vector<Placement> placements(mesh_.axes(), Replicate{});
  if (cut) placements.back() = Shard{0};
  const int rank = mesh_.world().world_rank();
  const Box box = *local_box(extents, mesh_.mesh(), placements, rank);
  const torch::Tensor part = part_of(full, box.offsets, box.sizes);
  torch::Tensor shard =
      // A copy of its own: a view would keep the whole parameter in memory. Page-locked if it is
      // offloaded, which makes copies to the device faster.
      torch::empty(part.sizes(), part.options().device(parameter.place).pinned_memory(parameter.place != full.device()))
          .copy_(part);
  // Equal gradients alone would preserve initial differences between replicas.
  if (replica_group_) replica_group_->broadcast(shard, 0);
  parameter.shard_elements = shard.numel();
  parameter.shard = decltype(parameter.shard)(shard.getIntrusivePtr());
  shard_bytes_ += static_cast<std::int64_t>(shard.nbytes());
  own_shard(shard, {MemoryOwner::Role::kShard, weak_from_this(), index, found.name}, shared_from_this());
  shard.requires_grad_(parameter.requires_grad);
  declare_what_is_left(shard, full, mesh_, placements);

  const at::ScalarType type =
      full.is_floating_point() ? options_.mixed_precision.parameters.value_or(parameter.type) : parameter.type;
  const auto bytes = static_cast<std::size_t>(parameter.chunk_elements * shard_group_.size()) * c10::elementSize(type);
  full.mutable_grad() = torch::Tensor();
  torch::Tensor handle = full;
  // The parameter keeps its identity, because the module's members and autograd refer to it. Its
  // memory is gone until it is gathered.
  handle.set_data(tensor_without_memory(size, full.options().dtype(type), bytes,
                                        {MemoryOwner::Role::kParameter, weak_from_this(), index, found.name}));
  mark_as_sharded(full);
  const auto parallel = parallel_parameter_of(full);
  parameter.is_cut = shard_group_.size() > 1 || (parallel && parallel->group().size() > 1);
  if (parameter.is_cut) mark_as_sharded(shard);
  parameters_.push_back(std::move(parameter));
  if (full.requires_grad()) watch_gradient(index);
  return shard;
}

void ShardedUnit::watch_gradient(std::size_t index) {
  Parameter& parameter = parameters_[index];
  if (parameter.accumulator) return;
  const auto weak = weak_from_this();
  // Runs before the gradient is accumulated, and removes the placeholder from its place.
  parameter.full.register_hook([weak, index](const torch::Tensor&) {
    const auto unit = weak.lock();
    if (!unit) return;
    torch::Tensor& gradient = unit->parameters_[index].full.mutable_grad();
    if (memory_owner(gradient) != nullptr) gradient = torch::Tensor();
  });
  // Kept here, because autograd has only a weak reference to it, and it holds the hook.
  parameter.accumulator = torch::autograd::impl::grad_accumulator(parameter.full);
  parameter.accumulator->add_post_hook(std::make_unique<AfterAccumulation>([weak, index] {
    if (const auto unit = weak.lock()) unit->gradient_came(index);
  }));
}

torch::Tensor ShardedUnit::shard(std::size_t index) const {
  auto pointer = parameters_[index].shard.lock();
  return pointer ? torch::Tensor(std::move(pointer)) : torch::Tensor();
}

at::Device ShardedUnit::compute_device() const { return parameters_.front().full.device(); }

bool ShardedUnit::encloses(const ShardedUnit& other) const {
  for (auto outer = other.enclosing_.lock(); outer; outer = outer->enclosing_.lock()) {
    if (outer.get() == this) return true;
  }
  return false;
}

void ShardedUnit::enclose(const std::shared_ptr<ShardedUnit>& inner) {
  if (inner.get() != this && !inner->enclosing_.lock()) inner->enclosing_ = weak_from_this();
}

// --- gathering -----------------------------------------------------------------------------------

void ShardedUnit::use() {
  const auto group = this->group();
  if (in_backward_pass()) {
    group->note_backward();
    group->note_turn(*this);
    at_work_ = true;
    // Only the first use in a pass counts.
    if (!std::exchange(used_, true) && reduces() && !late_) group->note_used(*this);
  }
  // Before gathering, so that the peak is one unit and those around it.
  group->free_others(*this);
  gather();
}

void ShardedUnit::unpin() {
  --pins_;
  if (!group()->in_scope()) free();
}

// Moving or casting a module replaces memory without asking. Training would go on with stale
// shards.
void ShardedUnit::check_untouched() const {
  std::string changed;
  const auto say = [&](const Parameter& parameter, const char* what) { changed += "\n  \"" + parameter.name + "\" " + what; };
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = parameters_[i];
    const torch::Tensor own = shard(i);
    const MemoryOwner* const of_full = memory_owner(parameter.full);
    if (of_full == nullptr || of_full->index != i) {
      say(parameter, "got another memory in the module itself");
    } else if (!own.defined()) {
      say(parameter, "was registered anew: its shard is gone");
    } else if (own.scalar_type() != parameter.type) {
      say(parameter, "was cast");
    } else if (own.device() != parameter.place) {
      say(parameter, "was moved to another device");
    } else if (own.numel() != parameter.shard_elements || !own.is_contiguous() || memory_owner(own) == nullptr) {
      say(parameter, "got another memory");
    }
  }
  if (!changed.empty()) {
    throw Error(ErrorCode::kPrecondition, "the sharded module " + module_name_ +
                                              " was changed behind its unit's back; move, cast and " +
                                              "register before fully_shard, and change shards in place only:" + changed);
  }
}

void ShardedUnit::follow_requires_grad() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    const torch::Tensor own = shard(i);
    if (!own.defined() || !training::follow_requires_grad(parameter.full, own, parameter.requires_grad)) continue;
    if (parameter.requires_grad) watch_gradient(i);
  }
}

std::int64_t ShardedUnit::bytes_per_rank(const Parameter& parameter) const {
  const at::ScalarType type = parameter.full.scalar_type();
  return aligned(parameter.chunk_elements, type) * static_cast<std::int64_t>(c10::elementSize(type));
}

void ShardedUnit::begin_gathering() {
  check_untouched();
  if (!in_backward_pass()) follow_requires_grad();
  const torch::NoGradGuard no_grad;
  Gathering gathering;
  const int ranks = shard_group_.size();
  if (ranks == 1) {
    gathering_ = std::move(gathering);
    return;
  }
  std::int64_t bytes = 0;
  for (const Parameter& parameter : parameters_) bytes += bytes_per_rank(parameter);
  const auto options = torch::TensorOptions().dtype(torch::kUInt8).device(compute_device());
  // One message for all parameters of the unit: many small ones would cost the latency of each.
  const torch::Tensor own = torch::empty({bytes}, options);
  gathering.parts = torch::empty({ranks, bytes}, options);
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::ScalarType type = parameters_[i].full.scalar_type();
    const torch::Tensor part = without_sharded_mark(shard(i)).detach().to(compute_device()).view(-1);
    const auto part_bytes = part.numel() * static_cast<std::int64_t>(c10::elementSize(type));
    if (part_bytes > 0) own.narrow(0, offset, part_bytes).view(type).copy_(part);
    offset += bytes_per_rank(parameters_[i]);
  }
  gathering.pending = shard_group_.all_gather_async(gathering.parts, own);
  gathering_ = std::move(gathering);
}

// Returns the memory of each parameter.
std::vector<torch::Tensor> ShardedUnit::end_gathering() {
  const torch::NoGradGuard no_grad;
  Gathering gathering = *std::exchange(gathering_, std::nullopt);
  gathering.pending.wait();
  const int ranks = shard_group_.size();
  std::vector<torch::Tensor> memories;
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = parameters_[i];
    if (ranks == 1) {
      memories.push_back(without_sharded_mark(shard(i)).detach().to(compute_device()).to(parameter.full.scalar_type()));
      continue;
    }
    const torch::Tensor memory = torch::empty({ranks * parameter.chunk_elements}, parameter.full.options().requires_grad(false));
    const auto part = static_cast<std::int64_t>(memory.nbytes()) / ranks;
    if (part > 0)
      // Messages are ordered by rank, parameters need their rows together. The copy reorders them.
      as_wide_rows(bytes_of(memory).view({ranks, part}), part).copy_(as_wide_rows(gathering.parts.narrow(1, offset, part), part));
    memories.push_back(memory);
    offset += bytes_per_rank(parameter);
  }
  return memories;
}

void ShardedUnit::gather() {
  if (gathered_) return;
  if (!gathering_) begin_gathering();
  set_gathered_bytes(0);
  const std::vector<torch::Tensor> memories = end_gathering();
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    set_memory(parameters_[i].full, memories[i]);
    if (shard_group_.size() > 1 || memories[i].data_ptr() != shard(i).data_ptr())
      bytes += static_cast<std::int64_t>(memories[i].nbytes());
  }
  set_gathered_bytes(bytes);
  gathered_ = true;
  ++gathers_;
  group()->note_gathered(*this);
}

// The all-gather runs while the present unit computes.
void ShardedUnit::prefetch() {
  if (gathered_ || gathering_) return;
  begin_gathering();
  set_gathered_bytes(static_cast<std::int64_t>(gathering_->parts.nbytes()));
}

void ShardedUnit::drop_prefetched() {
  if (!gathering_) return;
  gathering_.reset();
  set_gathered_bytes(0);
}

// The group counts the sum over its units, for memory_use.
void ShardedUnit::set_gathered_bytes(std::int64_t bytes) {
  group()->count_gathered(bytes - gathered_bytes_);
  gathered_bytes_ = bytes;
}

void ShardedUnit::free() {
  // An operation is using the memory. `unpin` frees it afterwards.
  if (!gathered_ || pins_ > 0) return;
  const auto alive = shared_from_this();  // freeing the memory may drop the last reference to this unit
  for (const Parameter& parameter : parameters_) {
    // If a tensor's memory was replaced meanwhile, the next gathering reports it.
    if (memory_owner(parameter.full) != nullptr) set_memory(parameter.full, {});
  }
  gathered_ = false;
  set_gathered_bytes(0);
  group()->note_freed(*this);
}

// For state dicts, one parameter at a time. Training gathers all parameters of a unit at once.
torch::Tensor ShardedUnit::whole(std::size_t index, const torch::Tensor& local) const {
  const Parameter& parameter = parameters_[index];
  const int ranks = shard_group_.size();
  if (ranks == 1) return local.clone();
  torch::Tensor own = torch::zeros({parameter.chunk_elements}, local.options());
  own.narrow(0, 0, local.numel()).copy_(local.reshape({-1}));
  torch::Tensor all = torch::empty({ranks * parameter.chunk_elements}, local.options());
  shard_group_.all_gather(all, own);
  return all.narrow(0, 0, parameter.full.numel()).view(parameter.full.sizes()).clone();
}

std::shared_ptr<ShardedUnit> unit_behind(const torch::Tensor& tensor) {
  const MemoryOwner* const owner = memory_owner(tensor);
  return owner == nullptr ? nullptr : owner->unit.lock();
}

std::vector<std::shared_ptr<ShardedUnit>> units_in(const torch::nn::Module& module) {
  std::vector<std::shared_ptr<ShardedUnit>> units;
  for (const auto& parameter : module.parameters()) {
    auto unit = unit_behind(parameter);
    if (unit && std::find(units.begin(), units.end(), unit) == units.end()) units.push_back(std::move(unit));
  }
  return units;
}

}  // namespace cairn::training
