// The load of ranks that hold the same state: LoadOptions::replica_group. Each reads some rows of
// each large tensor, and the ranks then pass them on through the trainer's group. Internal.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <cairn/base/clock.hpp>
#include <cairn/base/digest.hpp>
#include <cairn/planning/metadata.hpp>
#include <cairn/runtime/worlds/agreement.hpp>
#include <cairn/state/collective.hpp>
#include <cairn/state/state_dict.hpp>

namespace cairn {

class DividedLoad {
 public:
  // Borrows `group`. `rank`: in the world.
  DividedLoad(const Collective& group, int rank) : group_(group), world_rank_(rank) {}

  // Replaces each large tensor in `working` that the checkpoint has by a sharded tensor: the rows
  // that this rank reads. Throws kInvalidArgument if this rank is not in the group.
  void divide(const Metadata& metadata, bool flatten_state_dict, StateDict& working);
  // Puts the whole tensors back.
  void undo(StateDict& working) const;
  // Fills in the rows that other ranks have read. Call it on all ranks of the world, once the load
  // has succeeded. Throws CheckpointException, with the same map on all ranks: kMismatch if the
  // ranks of a group have different tensors, and the errors of their groups.
  void pass_on(Agreement& agreement, const std::string& checkpoint_id, std::optional<Duration> deadline) const;

 private:
  // A tensor of n ranks has n times `each` rows, and up to n - 1 more. Of these, rank `turn` of the
  // group reads the first one, and the next ranks the others.
  struct Divided {
    torch::Tensor tensor;
    std::int64_t each = 0;
    std::int64_t turn = 0;
  };

  std::vector<LocalShard> rows_of(const LocalShard& whole);
  void exchange() const;
  std::int64_t size() const { return static_cast<std::int64_t>(group_.ranks().size()); }

  const Collective& group_;
  const int world_rank_;
  std::int64_t rank_ = 0;  // in the group
  std::int64_t turn_ = 0;
  std::vector<Divided> divided_;
  std::vector<std::pair<Path, Value>> replaced_;
  Digest digest_{};  // of the tensors that this rank divides
};

}  // namespace cairn
