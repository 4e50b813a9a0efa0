#include <cairn/training/unit_group.hpp>

#include <algorithm>

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
}

void UnitGroup::leave_forward() {
  if (--forward_depth_ > 0 || in_backward_) return;
  const bool backward_follows = torch::GradMode::is_enabled();
  for (const auto& unit : units()) {
    if (!backward_follows || !unit->keeps_until_backward()) unit->free();
  }
}

void UnitGroup::note_backward() {
  if (in_backward_) return;
  at_end_of_backward([group = shared_from_this()] { group->end_backward(); });
  in_backward_ = true;
}

void UnitGroup::free_others(const ShardedUnit& unit) {
  for (const auto& other : units()) {
    if (other.get() != &unit && other->is_gathered() && !other->encloses(unit) && !other->keeps_until_backward()) other->free();
  }
}

void UnitGroup::note_memory() {
  std::int64_t gathered = 0;
  for (const auto& unit : units()) gathered += unit->memory().gathered;
  gathered_peak_ = std::max(gathered_peak_, gathered);
}

void UnitGroup::end_backward() {
  for (const auto& unit : units()) unit->finish_backward();
  if (forward_depth_ == 0) {
    for (const auto& unit : units()) unit->free();
  }
  in_backward_ = false;
}

void UnitGroup::abandon_backward() {
  for (const auto& unit : units()) unit->abandon_backward();
  in_backward_ = false;
}

}  // namespace cairn::training
