// The units of one model, and how long what they gather stays.
//
// What is gathered stays so within a *scope*: the forward call of a model (ForwardScope), a backward pass, or, outside both, a single
// operation. Within a scope, gathering a unit frees those that neither are it nor enclose it: of a model at most one way from the
// outermost unit down to the one at work is there at a time. No gathered parameter outlives its scope, unless the unit keeps it for
// the backward pass; those go when the next forward call begins. So a gathered copy is never older than what the optimizer, or a load,
// last wrote to the shards.
//
// Ranks send the same messages in the same order, whichever gradients each of them has, and whenever those come: a unit's are reduced when
// the pass comes to a unit that it does not enclose, or ends. What comes to it later, on any rank, goes in a round of its own, of which the
// ranks tell each other; from then on that unit waits for the end of the pass.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace torch::nn {
class Module;
}

namespace cairn::training {

class ShardedUnit;

// The units of one model: what they know of each other.
class UnitGroup : public std::enable_shared_from_this<UnitGroup> {
 public:
  // Follows the groups that this one was merged into.
  std::shared_ptr<UnitGroup> current();
  void merge_into(const std::shared_ptr<UnitGroup>& other);
  void add(ShardedUnit& unit) { units_.push_back(&unit); }
  void remove(ShardedUnit& unit);  // called by its destructor
  // Returns the units in the order in which they were wrapped. O(units): call it once per pass, never per operation.
  std::vector<std::shared_ptr<ShardedUnit>> units() const;
  void note_wrapped(const torch::nn::Module& module) { wrapped_.push_back(&module); }
  bool has_wrapped(const torch::nn::Module& module) const;

  void enter_forward();
  void leave_forward();
  // To be called by whatever happens within a backward pass.
  void note_backward();
  // To be called by a unit that an operation of a backward pass is to use: the parts that others have in it are over.
  void note_turn(const ShardedUnit& unit);
  bool in_scope() const { return forward_depth_ > 0 || in_backward_; }
  bool in_backward() const { return in_backward_; }
  // Frees units that neither are `unit` nor enclose it.
  void free_others(const ShardedUnit& unit);
  bool is_alone(const ShardedUnit& unit) const { return units_.size() == 1 && units_.front() == &unit; }

  // To be called when `unit` has been gathered: begins to gather what is likely to be next.
  void note_gathered(ShardedUnit& unit);
  void note_freed(ShardedUnit& unit);
  // Call `note_used` at the first use of a unit in a backward pass, if its gradients are to be reduced at the next turn; call
  // `note_finished` when their reduction has begun.
  void note_used(ShardedUnit& unit) { used_.push_back(&unit); }
  void note_finished(ShardedUnit& unit);
  void note_reducing(ShardedUnit& unit) { reducing_.push_back(&unit); }  // the next turn advances its reductions
  void count_gathered(std::int64_t bytes) { gathered_bytes_ += bytes; }  // may be negative
  std::int64_t gathered_peak() const { return gathered_peak_; }
  void reset_peak() { gathered_peak_ = gathered_bytes_; }

 private:
  // In which order units are gathered in one kind of scope.
  struct Order {
    std::vector<ShardedUnit*> last;  // null: a unit that is gone
    std::vector<ShardedUnit*> now;
    bool as_last = true;  // so far

    void begin();
    ShardedUnit* next_after(ShardedUnit& unit);  // null: unknown
  };
  void drop_prefetched();
  void end_backward();
  void abandon_backward();  // an earlier pass that threw

  std::shared_ptr<UnitGroup> merged_into_;
  // Each unit removes itself from these lists when it is destroyed. Single operations do not read `units_`, which may be long.
  std::vector<ShardedUnit*> units_;
  std::vector<ShardedUnit*> gathered_;  // without units that stay gathered until backward
  std::vector<ShardedUnit*> used_;      // in this backward pass, in order of use, and not finished yet
  std::vector<ShardedUnit*> reducing_;  // since the last turn
  std::vector<const torch::nn::Module*> wrapped_;
  int forward_depth_ = 0;
  bool in_backward_ = false;
  std::uint64_t passes_ = 0;           // backward passes that have begun
  const ShardedUnit* turn_ = nullptr;  // in this backward pass; to compare with
  Order forward_, backward_;
  std::int64_t gathered_bytes_ = 0;  // of all units, at this moment
  std::int64_t gathered_peak_ = 0;
};

}  // namespace cairn::training
