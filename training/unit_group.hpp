// The units of one model, and the lifetime of their gathered parameters.
//
// Gathered parameters stay gathered within a *scope*: the forward call of a model (ForwardScope), a
// backward pass, or, outside both, a single operation. Within a scope, gathering a unit frees all
// units except itself and those that enclose it. So at any time at most one path is gathered, from
// the outermost unit down to the one in use, plus a prefetched unit. Gathered parameters do not
// outlive their scope. Units that keep their parameters for backward are exceptions: they are freed
// when the next forward call begins. A gathered copy is therefore never older than the last values
// that an optimizer or a load wrote to the shards.
//
// All ranks send the same messages in the same order, whichever gradients each rank has and
// whenever they arrive. A unit's gradients are reduced when the pass reaches a unit that this unit
// does not enclose, or when the pass ends. If more gradients arrive later on any rank, the ranks
// agree to send them in an extra round; from then on that unit waits for the end of the pass.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace torch::nn {
class Module;
}

namespace cairn::training {

class ShardedUnit;

// The state that the units of one model share.
class UnitGroup : public std::enable_shared_from_this<UnitGroup> {
 public:
  // Returns the group that this one was merged into, or this one.
  std::shared_ptr<UnitGroup> current();
  void merge_into(const std::shared_ptr<UnitGroup>& other);
  void add(ShardedUnit& unit) { units_.push_back(&unit); }
  void remove(ShardedUnit& unit);  // called by the unit's destructor
  // Returns the units in the order in which they were wrapped. O(units): call it once per pass,
  // never per operation.
  std::vector<std::shared_ptr<ShardedUnit>> units() const;
  void note_wrapped(const torch::nn::Module& module) { wrapped_.push_back(&module); }
  bool has_wrapped(const torch::nn::Module& module) const;

  void enter_forward();
  void leave_forward();
  // Call it whenever something happens within a backward pass.
  void note_backward();
  // Call it for a unit that an operation of a backward pass is about to use. It ends the turns of
  // the units that do not enclose that unit.
  void note_turn(const ShardedUnit& unit);
  bool in_scope() const { return forward_depth_ > 0 || in_backward_; }
  // Frees all units except `unit` and those that enclose it.
  void free_others(const ShardedUnit& unit);
  bool is_alone(const ShardedUnit& unit) const { return units_.size() == 1 && units_.front() == &unit; }

  // Call it when `unit` has been gathered. Starts to gather the unit that is likely to be next.
  void note_gathered(ShardedUnit& unit);
  void note_freed(ShardedUnit& unit);
  // Call `note_used` at the first use of a unit in a backward pass if its gradients are to be
  // reduced at the next turn. Call `note_finished` when that reduction has started.
  void note_used(ShardedUnit& unit) { used_.push_back(&unit); }
  void note_finished(ShardedUnit& unit);
  void note_reducing(ShardedUnit& unit) { reducing_.push_back(&unit); }  // the next turn advances its reductions
  void count_gathered(std::int64_t bytes) { gathered_bytes_ += bytes; }  // may be negative
  std::int64_t gathered_peak() const { return gathered_peak_; }
  void reset_peak() { gathered_peak_ = gathered_bytes_; }

 private:
  // The order in which units are gathered in one kind of scope.
  struct Order {
    std::vector<ShardedUnit*> last;  // null: a unit that was destroyed
    std::vector<ShardedUnit*> now;
    bool as_last = true;  // `now` agrees with `last` so far

    void begin();
    ShardedUnit* next_after(ShardedUnit& unit);  // null: unknown
  };
  void drop_prefetched();
  void end_backward();
  void abandon_backward();  // cleans up after an earlier pass that threw

  std::shared_ptr<UnitGroup> merged_into_;
  // Each unit removes itself from these lists when it is destroyed. Single operations do not read
  // `units_`, which may be long.
  std::vector<ShardedUnit*> units_;
  std::vector<ShardedUnit*> gathered_;  // without units that stay gathered until backward
  std::vector<ShardedUnit*> used_;      // in this backward pass, in order of use, not finished yet
  std::vector<ShardedUnit*> reducing_;  // since the last turn
  std::vector<const torch::nn::Module*> wrapped_;
  int forward_depth_ = 0;
  bool in_backward_ = false;
  std::uint64_t passes_ = 0;           // backward passes that have begun
  const ShardedUnit* turn_ = nullptr;  // the unit whose turn it is in this backward pass; only compared, never dereferenced
  Order forward_, backward_;
  std::int64_t gathered_bytes_ = 0;  // of all units, now
  std::int64_t gathered_peak_ = 0;
};

}  // namespace cairn::training
