#include <cairn/training/unit_group.hpp>

#include <algorithm>
#include <utility>

#include <torch/torch.h>

#include <cairn/training/sharded_unit.hpp>
#include <cairn/training/torch_compat.hpp>

namespace cairn::training {

std::shared_ptr<UnitGroup> UnitGroup::current() { return merged_into_ ? merged_into_->current() : shared_from_this(); }

void UnitGroup::merge_into(const std::shared_ptr<UnitGroup>& other) {
  if (other.get() == this) return;
  other->units_.insert(other->units_.end(), units_.begin(), units_.end());
  other->wrapped_.insert(other->wrapped_.end(), wrapped_.begin(), wrapped_.end());
  units_.clear();
  merged_into_ = other;
}

std::vector<std::shared_ptr<ShardedUnit>> UnitGroup::units() const {
  std::vector<std::shared_ptr<ShardedUnit>> alive;
  for (const auto& weak : units_) {
    if (auto unit = weak.lock()) alive.push_back(std::move(unit));
  }
  return alive;
}

bool UnitGroup::has_wrapped(const torch::nn::Module& module) const {
  return std::find(wrapped_.begin(), wrapped_.end(), &module) != wrapped_.end();
}

void UnitGroup::enter_forward() {
  if (in_backward_ && !in_backward_pass()) abandon_backward();
  if (forward_depth_++ > 0 || in_backward_) return;
  for (const auto& unit : units()) unit->free();
  forward_.begin();
}

void UnitGroup::leave_forward() {
  if (--forward_depth_ > 0 || in_backward_) return;
  drop_prefetched();
  const bool backward_follows = torch::GradMode::is_enabled();
  for (const auto& unit : units()) {
    if (!backward_follows || !unit->keeps_until_backward()) unit->free();
  }
}

void UnitGroup::note_backward() {
  if (in_backward_) return;
  at_end_of_backward([group = shared_from_this()] { group->end_backward(); });
  in_backward_ = true;
  backward_.begin();
}

void UnitGroup::free_others(const ShardedUnit& unit) {
  for (const auto& other : units()) {
    if (other.get() != &unit && other->is_gathered() && !other->encloses(unit) && !other->keeps_until_backward()) other->free();
  }
}

void UnitGroup::advance_other_reductions(const ShardedUnit& unit) {
  for (const auto& other : units()) {
    if (other.get() != &unit) other->advance_reductions();
  }
}

void UnitGroup::Order::begin() {
  last = std::exchange(now, {});
  as_last = true;
}

ShardedUnit* UnitGroup::Order::next_after(ShardedUnit& unit) {
  const std::size_t place = now.size();
  now.push_back(&unit);
  as_last = as_last && place < last.size() && last[place] == &unit;
  return as_last && place + 1 < last.size() ? last[place + 1] : nullptr;
}

void UnitGroup::note_gathered(ShardedUnit& unit) {
  if (in_scope() && unit.prefetches()) {
    ShardedUnit* const next = (in_backward_ ? backward_ : forward_).next_after(unit);
    for (const auto& alive : units()) {
      if (alive.get() == next) alive->prefetch();
    }
  }
  note_memory();
}

void UnitGroup::drop_prefetched() {
  for (const auto& unit : units()) unit->drop_prefetched();
}

void UnitGroup::note_memory() {
  std::int64_t gathered = 0;
  for (const auto& unit : units()) gathered += unit->memory().gathered;
  gathered_peak_ = std::max(gathered_peak_, gathered);
}

void UnitGroup::end_backward() {
  const auto alive = units();
  for (const auto& unit : alive) unit->finish_backward();
  for (const auto& unit : alive) unit->advance_reductions();
  // What each rank had comes to the host once for all units: on devices, that waits for all that was begun.
  std::vector<torch::Tensor> flags;
  for (const auto& unit : alive) flags.push_back(unit->end_reductions());
  const torch::Tensor had = flags.empty() ? torch::Tensor() : torch::cat(flags).cpu();
  const float* next = had.defined() ? had.data_ptr<float>() : nullptr;
  for (const auto& unit : alive) next = unit->put_gradients(next);
  drop_prefetched();
  if (forward_depth_ == 0) {
    for (const auto& unit : alive) unit->free();
  }
  in_backward_ = false;
}

void UnitGroup::abandon_backward() {
  for (const auto& unit : units()) unit->abandon_backward();
  in_backward_ = false;
}

}  // namespace cairn::training
