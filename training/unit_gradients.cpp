#include <algorithm>

#include <torch/torch.h>

#include <cairn/training/sharded_unit.hpp>
#include <cairn/training/tensor_bytes.hpp>
#include <cairn/training/torch_compat.hpp>

namespace cairn::training {
namespace {

// Returns whether sums may overflow the type although the mean would not.
bool divides_before(at::ScalarType type) { return type == torch::kHalf; }

// Cuts `flat` over the rows of `parts`, and pads the last rows with zeros.
void copy_in_parts(const torch::Tensor& parts, const torch::Tensor& flat) {
  if (parts.numel() == flat.numel()) {
    parts.copy_(flat.view(parts.sizes()));
    return;
  }
  for (std::int64_t row = 0, begin = 0; row < parts.size(0); ++row, begin += parts.size(1)) {
    const std::int64_t part = std::clamp<std::int64_t>(flat.numel() - begin, 0, parts.size(1));
    if (part > 0) parts[row].narrow(0, 0, part).copy_(flat.narrow(0, begin, part));
    if (part < parts.size(1)) parts[row].narrow(0, part, parts.size(1) - part).zero_();
  }
}

}  // namespace

// Collects the gradients of a unit and reduces them to the shards.

std::size_t ShardedUnit::gradients_expected() const {
  return static_cast<std::size_t>(
      std::count_if(parameters_.begin(), parameters_.end(), [](const Parameter& parameter) { return parameter.requires_grad; }));
}

int ShardedUnit::averaged() const { return shard_group_.size() * (replica_group_ ? replica_group_->size() : 1); }

void ShardedUnit::gradient_came(std::size_t index) {
  group()->note_backward();
  at_work_ = true;
  Parameter& parameter = parameters_[index];
  // Nested backward passes, as of checkpoint_activations, may bring a gradient more than once.
  if (parameter.gradient_came) return;
  parameter.gradient_came = true;
  ++gradients_come_;
  if (!reduces()) {
    // Nothing is sent, so the order of units does not matter.
    if (gradients_come_ == gradients_expected()) finish_backward();
  } else if (shard_group_.size() == 1 && group()->is_alone(*this) && !late_) {
    begin_complete_buckets();
  }
}

// For a unit that sends nothing else and has no other units beside it. Starts buckets in their
// fixed order, whatever the order of the gradients, so that all ranks send the same messages.
void ShardedUnit::begin_complete_buckets() {
  const torch::NoGradGuard no_grad;
  if (gradients_come_ == 1) make_buckets();
  while (buckets_begun_ < buckets_.size() && is_complete(buckets_[buckets_begun_]))
    reductions_.push_back(begin_reduction(buckets_[buckets_begun_++]));
}

// Starts the remaining messages and does not wait for them: they travel while autograd computes the
// next unit's gradients.
void ShardedUnit::finish_backward() {
  at_work_ = used_ = false;
  group()->note_finished(*this);
  gradients_come_ = 0;
  for (Parameter& parameter : parameters_) parameter.gradient_came = false;
  if (gradient_sync_ && gradients_expected() > 0) {
    const torch::NoGradGuard no_grad;
    if (averaged() == 1) {
      take_gradients_alone();
    } else {
      if (buckets_begun_ == 0) make_buckets();
      while (buckets_begun_ < buckets_.size()) reductions_.push_back(begin_reduction(buckets_[buckets_begun_++]));
      buckets_begun_ = 0;
      group()->note_reducing(*this);
    }
    stand_in_for_gradients();
  }
  free();
}

// A pass that threw leaves partial gradients, which must not mix with those of the next one.
void ShardedUnit::abandon_backward() {
  at_work_ = used_ = false;
  group()->note_finished(*this);
  gradients_come_ = 0;
  // The operations that had pinned the unit are gone with the pass.
  pins_ = 0;
  reductions_.clear();
  buckets_begun_ = 0;
  drop_prefetched();
  for (Parameter& parameter : parameters_) {
    parameter.gradient_came = false;
    parameter.full.mutable_grad() = torch::Tensor();
  }
  free();
}

void ShardedUnit::put_gradient(std::size_t index, const torch::Tensor& gradient) {
  const torch::Tensor own = shard(index);
  if (!own.defined()) return;  // nobody trains the shard any more
  torch::Tensor& held = own.mutable_grad();
  if (held.defined()) {
    held.add_(gradient.to(own.device()));
  } else if (own.device() != gradient.device()) {
    held = torch::empty(own.sizes(), own.options().requires_grad(false).pinned_memory(own.is_pinned())).copy_(gradient);
  } else {
    // Part of the message's memory, but not a view, because optimizers detach gradients in place.
    held = gradient.to(own.scalar_type()).variable_data();
  }
  if (parameters_[index].is_cut) mark_as_sharded(held);
}

void ShardedUnit::take_gradients_alone() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    torch::Tensor& gradient = parameters_[i].full.mutable_grad();
    if (!gradient.defined() || memory_owner(gradient) != nullptr) continue;
    if (gradient.is_sparse()) gradient = gradient.to_dense();
    const torch::Tensor own = shard(i);
    if (own.defined() && !own.grad().defined() && gradient.options().type_equal(own.options())) {
      // Takes the tensor over, which saves a copy.
      own.mutable_grad() = gradient.contiguous();
      if (parameters_[i].is_cut) mark_as_sharded(own.grad());
    } else {
      put_gradient(i, gradient);
    }
    gradient = torch::Tensor();
  }
}

// Makes buckets of the parameters that have gradients. Sharded parameters share one message. Whole
// parameters go in several, last parameters first, because their gradients arrive first.
void ShardedUnit::make_buckets() {
  buckets_.assign(1, {});
  std::int64_t bytes = 0;
  for (std::size_t i = parameters_.size(); i-- > 0;) {
    if (!parameters_[i].requires_grad) continue;
    const auto more = static_cast<std::int64_t>(parameters_[i].full.nbytes());
    if (shard_group_.size() == 1 && bytes > 0 && bytes + more > options_.bucket_bytes) {
      buckets_.emplace_back();
      bytes = 0;
    }
    buckets_.back().push_back(i);
    bytes += more;
  }
}

bool ShardedUnit::is_complete(const std::vector<std::size_t>& bucket) const {
  return std::all_of(bucket.begin(), bucket.end(), [&](std::size_t i) { return parameters_[i].gradient_came; });
}

// Every rank contributes all members, with a flag per member: one if the rank has a gradient. If no
// rank has a gradient, the shard gets none either, like the parameter of a plain model.
ShardedUnit::Reduction ShardedUnit::begin_reduction(const std::vector<std::size_t>& members) {
  Reduction reduction;
  reduction.members = members;
  at::ScalarType type = parameters_[members.front()].type;
  for (const std::size_t i : members) type = c10::promoteTypes(type, parameters_[i].type);
  // One message has one type: the widest of its members, unless the caller wants another.
  type = options_.mixed_precision.reduction.value_or(type);
  for (const std::size_t i : members) reduction.elements += aligned(parameters_[i].chunk_elements, type);
  const int ranks = shard_group_.size();
  const std::int64_t row = reduction.elements + aligned(static_cast<std::int64_t>(members.size()), type);
  const auto options = torch::TensorOptions().dtype(type).device(compute_device());
  const torch::Tensor sent = torch::empty({ranks, row}, options);
  // The flags follow the elements in each row. They are summed along with them, so no second
  // message is needed.
  sent.narrow(1, reduction.elements, row - reduction.elements).fill_(1);
  std::int64_t offset = 0, flag = reduction.elements;
  for (const std::size_t i : members) {
    const Parameter& parameter = parameters_[i];
    const std::int64_t chunk = parameter.chunk_elements, room = aligned(chunk, type);
    const torch::Tensor parts = sent.narrow(1, offset, chunk);
    if (chunk < room) sent.narrow(1, offset + chunk, room - chunk).zero_();
    if (has_gradient_left(parameter)) {
      torch::Tensor& gradient = parameter.full.mutable_grad();
      if (gradient.is_sparse()) gradient = gradient.to_dense();
      copy_in_parts(parts, gradient.reshape({-1}));
      gradient = torch::Tensor();
    } else {
      parts.zero_();
      sent.select(1, flag).zero_();
    }
    offset += room;
    ++flag;
  }
  // Without the flags, which must stay whole numbers.
  if (divides_before(type)) sent.narrow(1, 0, reduction.elements).div_(averaged());
  if (ranks > 1) {
    reduction.sums = torch::empty({row}, options);
    reduction.pending = shard_group_.reduce_scatter_async(reduction.sums, sent.view({-1}));
  } else {
    reduction.sums = sent.view({-1});
    advance(reduction);
  }
  return reduction;
}

void ShardedUnit::advance(Reduction& reduction) {
  if (reduction.scattered) return;
  reduction.pending.wait();
  reduction.scattered = true;
  if (replica_group_) reduction.pending = replica_group_->all_reduce_async(reduction.sums);
}

void ShardedUnit::advance_reductions() {
  const torch::NoGradGuard no_grad;
  for (Reduction& reduction : reductions_) advance(reduction);
}

torch::Tensor ShardedUnit::end_reductions() {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> had{torch::empty({0}, torch::TensorOptions().dtype(torch::kFloat).device(compute_device()))};
  for (Reduction& reduction : reductions_) {
    reduction.pending.wait();
    const auto count = static_cast<std::int64_t>(reduction.members.size());
    // Flags of all reductions go to the host in one transfer; see put_gradients in unit_group.cpp.
    had.push_back(reduction.sums.narrow(0, reduction.elements, count).to(torch::kFloat));
    if (!divides_before(reduction.sums.scalar_type())) reduction.sums.div_(averaged());
    // Convert here, while devices still work in parallel with the host.
    std::int64_t offset = 0;
    for (const std::size_t i : reduction.members) {
      const Parameter& parameter = parameters_[i];
      const torch::Tensor own = shard(i);
      reduction.gradients.push_back(
          own.defined() ? reduction.sums.narrow(0, offset, parameter.shard_elements).view(own.sizes()).to(own.scalar_type())
                        : torch::Tensor());
      offset += aligned(parameter.chunk_elements, reduction.sums.scalar_type());
    }
  }
  return torch::cat(had);
}

const float* ShardedUnit::put_gradients(const float* had) {
  const torch::NoGradGuard no_grad;
  for (const Reduction& reduction : reductions_) {
    for (std::size_t i = 0; i < reduction.members.size(); ++i) {
      // Above 0 if any rank had a gradient.
      if (*had++ > 0 && reduction.gradients[i].defined()) put_gradient(reduction.members[i], reduction.gradients[i]);
    }
  }
  reductions_.clear();
  return had;
}

bool ShardedUnit::has_gradient_left(const Parameter& parameter) {
  const torch::Tensor& gradient = parameter.full.grad();
  return parameter.requires_grad && gradient.defined() && memory_owner(gradient) == nullptr;
}

bool ShardedUnit::has_gradients_left() const { return std::any_of(parameters_.begin(), parameters_.end(), has_gradient_left); }

// For gradients that came after the unit had finished.
void ShardedUnit::reduce_gradients_left() {
  const torch::NoGradGuard no_grad;
  make_buckets();
  for (const auto& bucket : buckets_) reductions_.push_back(begin_reduction(bucket));
  stand_in_for_gradients();
}

void ShardedUnit::stand_in_for_gradients() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    if (!parameter.requires_grad || has_gradient_left(parameter)) continue;
    if (!parameter.no_gradient.defined()) {
      parameter.no_gradient = tensor_without_memory(parameter.full.sizes(), parameter.full.options(), parameter.full.nbytes(),
                                                    {MemoryOwner::Role::kGradient, weak_from_this(), i, parameter.name});
      mark_as_sharded(parameter.no_gradient);
    }
    parameter.full.mutable_grad() = parameter.no_gradient;
  }
}

}  // namespace cairn::training
