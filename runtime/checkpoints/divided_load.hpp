// The load of ranks that hold the same state: LoadOptions::replica_group. Each reads some rows of
// each large tensor, and the ranks then pass them on through the trainer's group. Internal.
#pragma once

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
  // Rows of a tensor that one rank reads.
  struct Piece {
    torch::Tensor rows;
    int reader = 0;  // in the group
  };

  // Cuts the part of a tensor into pieces. Returns those that this rank reads.
  std::vector<LocalShard> cut(const LocalShard& part);
  void exchange() const;

  const Collective& group_;
  const int world_rank_;
  int rank_ = 0;  // in the group
  std::vector<Piece> pieces_;
  std::vector<std::pair<Path, Value>> replaced_;
  Digest digest_{};  // of the tensors that this rank divides
};

}  // namespace cairn
