// From the plans of all ranks to what each rank writes, and to the checkpoint's metadata. Pure: the same input gives the same
// plans, byte for byte.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <cairn/planning/metadata.hpp>
#include <cairn/planning/plan.hpp>

namespace cairn {

enum class Dedup : std::uint8_t {
  kBalanced = 1,  // each replicated chunk goes to the holder with the fewest bytes; large ones are split by rows over their holders
  kLowestRank,    // each replicated chunk goes to its lowest holder (DCP's dedup_save_to_lowest_rank)
};

enum class RankValues : std::uint8_t {
  kMustAgree = 1,    // values that differ between ranks under one key are an error that names key and ranks
  // As DCP: silently the lowest rank's. That rank then writes every plain tensor and bytes object whole, since what looks alike to the
  // plan may differ in value. Parts of sharded tensors must still agree on size and dtype.
  kLowestRankWins,
};

struct GlobalPlanOptions {
  Dedup dedup = Dedup::kBalanced;
  RankValues rank_values = RankValues::kMustAgree;
  // Replicated chunks of at least this size are split by rows (or along the longest dimension, where there are too few rows) over
  // their holders, into parts of at least about a quarter of this size. 0: never.
  std::uint64_t split_above_bytes = 16u << 20;
};

struct GlobalSavePlan {
  // By rank; items are subsets or sub-boxes of the local plan's, in its order, bytes objects last. Without mappings: the metadata has
  // them. Names that lost all their items are gone.
  std::vector<SavePlan> plans;
  // state_dict_metadata, in the order in which ranks first name things, and planner_data; no storage. A tensor's chunks are exactly
  // those that will be written, by box. Empty chunks vanish, but a tensor without elements keeps one.
  Metadata metadata;
};

// Joins the local plans (index = rank). O(items log items). Throws kMismatch, naming key and ranks, when ranks disagree on a tensor's
// size or dtype, on tensor versus bytes, on a value, or on how a name nests; kInvalidArgument on a plan that contradicts itself. Whether
// the chunks tile their tensors is judged by `check_coverage`. Sizes of bytes objects do not influence the result.
GlobalSavePlan create_global_save_plan(std::vector<SavePlan> local_plans, const GlobalPlanOptions& options = {});

// What is wrong with the chunks of a tensor: every fault, not the first.
struct CoverageFault {
  enum class Kind : std::uint8_t { kGap = 1, kOverlap, kOutside } kind = Kind::kGap;
  std::string fqn;
  Box first;   // overlap: one chunk; outside: the chunk; gap: the bounding box of what is missing, when known
  Box second;  // overlap: the other chunk
};
std::string to_string(const CoverageFault& fault);

// Whether the chunks tile a tensor of this size exactly. O(n log n) for chunks that straight cuts separate, as those of meshes. Empty
// chunks count for nothing. Of one tensor at most about a thousand faults are listed. Throws kInvalidArgument on an impossible `size`.
std::vector<CoverageFault> check_coverage(const std::string& fqn, const Extents& size, const std::vector<Box>& chunks);
std::vector<CoverageFault> check_coverage(const Metadata& metadata);

}  // namespace cairn
