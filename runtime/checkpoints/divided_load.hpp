// The load of ranks that hold the same state: LoadOptions::replica_group. The ranks of a group
// divide the reading of large tensors, and pass on what they read through the group. Internal.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <cairn/base/clock.hpp>
#include <cairn/base/digest.hpp>
#include <cairn/base/failure.hpp>
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
  // that this rank reads. Throws kInvalidArgument if the group does not know this rank by `rank`.
  void divide(const Metadata& metadata, bool flatten_state_dict, StateDict& working);
  // Puts the whole tensors back.
  void undo(StateDict& working) const;
  // Fills in the rows that other ranks have read. Call it on all ranks of the world, once the load
  // has succeeded. Returns the failures, the same on all ranks: kMismatch if the ranks of a group
  // have different tensors or groups, and the errors of the groups. `deadline`: until all ranks
  // begin.
  CallResult pass_on(Agreement& agreement, const std::string& checkpoint_id, std::optional<Duration> deadline) const;

 private:
  // Rows of a tensor that one rank reads.
  struct Piece {
    torch::Tensor rows;
    int reader = 0;  // in the group
  };

  // Cuts a part of a tensor into pieces of `at_once` rows. Returns those that this rank reads.
  std::vector<LocalShard> cut(const LocalShard& part, std::int64_t at_once, DigestBuilder& digest);
  std::int64_t rows_at_once(const torch::Tensor& tensor) const;
  void exchange() const;

  const Collective& group_;
  const int world_rank_;
  std::vector<Piece> pieces_;
  std::map<const void*, std::int64_t> turns_;  // by memory: the turn in which a tensor's first piece is read
  std::vector<std::pair<Path, Value>> replaced_;
  Digest digest_{};  // of the tensors that this rank divides
};

}  // namespace cairn
