// The group of the units of one model: gathering ahead, freeing, and the order of reductions.
#include <algorithm>
#include <utility>

#include <torch/torch.h>

#include <cairn/training/sharded_unit.hpp>
#include <cairn/training/torch_compat.hpp>

namespace cairn::training {
namespace {

using UnitPointer = std::shared_ptr<ShardedUnit>;

bool send_alike(const ShardedUnit& a, const ShardedUnit& b) {
  const auto& over = a.replica_group();
  const auto& other = b.replica_group();
  return a.shard_group().ranks() == b.shard_group().ranks() && over.has_value() == other.has_value() &&
         (!over || over->ranks() == other->ranks());
}

// Returns a number for each unit, above 0 if any rank has gradients of it left.
torch::Tensor gradients_left(const std::vector<UnitPointer>& units) {
  std::vector<float> own;
  for (const auto& unit : units) own.push_back(unit->has_gradients_left() ? 1 : 0);
  const ShardedUnit& first = *units.front();
  const torch::Tensor left = torch::tensor(own).to(first.full(0).device());
  // Sums over both groups, and so over all ranks that have a part or a copy of the units.
  if (first.shard_group().size() > 1) first.shard_group().all_reduce(left);
  if (first.replica_group()) first.replica_group()->all_reduce(left);
  return left;
}

// Waits for the reductions of all units, and stores gradients where any rank had one. `more`:
// numbers to copy to the host in the same transfer, because on devices a transfer waits for all
// queued work. Returns them.
std::vector<float> put_gradients(const std::vector<UnitPointer>& units, const std::vector<torch::Tensor>& more) {
  for (const auto& unit : units) unit->advance_reductions();
  std::vector<torch::Tensor> numbers;
  for (const auto& unit : units) numbers.push_back(unit->end_reductions());
  numbers.insert(numbers.end(), more.begin(), more.end());
  if (numbers.empty()) return {};
  const torch::Tensor on_host = torch::cat(numbers).cpu();
  const float* next = on_host.data_ptr<float>();
  const float* const end = next + on_host.numel();
  for (const auto& unit : units) next = unit->put_gradients(next);
  return {next, end};
}

template <class Element>
void append(std::vector<Element>& to, std::vector<Element>& from) {
  to.insert(to.end(), from.begin(), from.end());
  from.clear();
}

}  // namespace

std::shared_ptr<UnitGroup> UnitGroup::current() { return merged_into_ ? merged_into_->current() : shared_from_this(); }

void UnitGroup::merge_into(const std::shared_ptr<UnitGroup>& other) {
  if (other.get() == this) return;
  append(other->units_, units_);
  append(other->gathered_, gathered_);
  append(other->wrapped_, wrapped_);
  other->gathered_bytes_ += std::exchange(gathered_bytes_, 0);
  // Units ask for `current`, so that those of this group find the other one.
  merged_into_ = other;
}

void UnitGroup::remove(ShardedUnit& unit) {
  for (auto* const list : {&units_, &gathered_, &used_, &reducing_}) take_off(*list, unit);
  for (Order* const order : {&forward_, &backward_}) {
    // The orders of past calls must not point to a unit that is gone. A null pointer keeps the
    // places of the others.
    std::replace(order->last.begin(), order->last.end(), &unit, static_cast<ShardedUnit*>(nullptr));
    std::replace(order->now.begin(), order->now.end(), &unit, static_cast<ShardedUnit*>(nullptr));
  }
}

std::vector<UnitPointer> UnitGroup::units() const {
  std::vector<UnitPointer> alive;
  alive.reserve(units_.size());
  for (ShardedUnit* const unit : units_) alive.push_back(unit->shared_from_this());
  return alive;
}

bool UnitGroup::has_wrapped(const torch::nn::Module& module) const {
  return std::find(wrapped_.begin(), wrapped_.end(), &module) != wrapped_.end();
}

void UnitGroup::enter_forward() {
  // The last pass threw, and autograd has not dropped its callback yet.
  if (in_backward_ && !in_backward_pass()) abandon_backward();
  if (forward_depth_++ > 0 || in_backward_) return;
  for (const auto& unit : units()) {
    unit->free();
    // Parameters may have been frozen or unfrozen since the last call.
    unit->follow_requires_grad();
  }
  forward_.begin();
}

void UnitGroup::leave_forward() {
  if (--forward_depth_ > 0 || in_backward_) return;
  drop_prefetched();
  const bool backward_follows = torch::GradMode::is_enabled();
  for (const auto& unit : units()) {
    // Without a backward pass nobody would free them later.
    if (!backward_follows || !unit->keeps_until_backward()) unit->free();
  }
}

void UnitGroup::note_backward() {
  if (in_backward_) return;
  // A pass that throws never reaches its end, and autograd drops the end's callback, perhaps not
  // before the next pass has started. Dropping the callback abandons the pass.
  const std::shared_ptr<UnitGroup> pass(this, [group = shared_from_this(), number = ++passes_](UnitGroup*) {
    if (group->in_backward_ && group->passes_ == number) group->abandon_backward();
  });
  at_end_of_backward([pass] { pass->end_backward(); });
  in_backward_ = true;
  turn_ = nullptr;
  backward_.begin();
}

void UnitGroup::free_others(const ShardedUnit& unit) {
  for (std::size_t i = gathered_.size(); i-- > 0;) {
    ShardedUnit& other = *gathered_[i];
    if (&other != &unit && !other.encloses(unit)) other.free();  // removes it from the list, unless it is pinned
  }
}

void UnitGroup::note_turn(const ShardedUnit& unit) {
  if (turn_ == &unit) return;
  turn_ = &unit;
  for (ShardedUnit* const other : std::exchange(reducing_, {})) other->advance_reductions();  // started by earlier turns
  for (std::size_t i = 0; i < used_.size();) {
    ShardedUnit& other = *used_[i];
    if (&other == &unit || other.encloses(unit)) {
      ++i;
    } else {
      other.finish_backward();  // removes it from the list
    }
  }
}

void UnitGroup::Order::begin() {
  last = std::exchange(now, {});
  as_last = true;
}

ShardedUnit* UnitGroup::Order::next_after(ShardedUnit& unit) {
  const std::size_t place = now.size();
  now.push_back(&unit);
  // The last call predicts this one until they differ. A wrong guess would gather a unit for
  // nothing.
  as_last = as_last && place < last.size() && last[place] == &unit;
  return as_last && place + 1 < last.size() ? last[place + 1] : nullptr;
}

void UnitGroup::note_gathered(ShardedUnit& unit) {
  if (!unit.keeps_until_backward()) gathered_.push_back(&unit);
  if (in_scope() && unit.prefetches()) {
    ShardedUnit* const next = (in_backward_ ? backward_ : forward_).next_after(unit);
    if (next != nullptr) next->prefetch();
  }
  gathered_peak_ = std::max(gathered_peak_, gathered_bytes_);
}

void UnitGroup::drop_prefetched() {
  for (const auto& unit : units()) unit->drop_prefetched();
}

// Every rank sends the same messages here, whatever its own graph has used: units are taken in
// their order, and flags say who has gradients.
void UnitGroup::end_backward() {
  const auto alive = units();
  for (const auto& unit : alive) {
    const bool was_at_work = unit->reduces() ? unit->was_used() || is_alone(*unit) : unit->is_at_work();
    const bool takes_along = !unit->reduces() && unit->gradient_sync() && unit->has_gradients_left();
    if (was_at_work || takes_along) unit->finish_backward();
  }
  // Check for gradients that are left, in one message for all units that use the same ranks.
  std::vector<std::vector<UnitPointer>> alike;
  for (const auto& unit : alive) {
    if (!unit->reduces()) continue;
    const auto found = std::find_if(alike.begin(), alike.end(), [&](const auto& some) { return send_alike(*some.front(), *unit); });
    if (found == alike.end()) {
      alike.push_back({unit});
    } else {
      found->push_back(unit);
    }
  }
  std::vector<torch::Tensor> left;
  for (const auto& some : alike) left.push_back(gradients_left(some));
  const std::vector<float> any_left = put_gradients(alive, left);
  std::vector<UnitPointer> again;
  auto any = any_left.begin();
  for (const auto& some : alike) {
    for (const auto& unit : some) {
      if (*any++ > 0) again.push_back(unit);
    }
  }
  for (const auto& unit : again) {
    unit->reduce_gradients_left();
    unit->set_late();
  }
  if (!again.empty()) put_gradients(again, {});
  drop_prefetched();
  for (const auto& unit : alive) unit->free();  // also within a forward call, because an optimizer step may follow
  reducing_.clear();
  in_backward_ = false;
}

void UnitGroup::abandon_backward() {
  for (const auto& unit : units()) unit->abandon_backward();
  reducing_.clear();
  in_backward_ = false;
}

}  // namespace cairn::training
