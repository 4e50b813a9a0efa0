// Joins the local plans of all ranks: decides what each rank writes and builds the checkpoint's
// metadata. Deterministic: the same input gives the same plans, byte for byte.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <cairn/planning/metadata.hpp>
#include <cairn/planning/plan.hpp>

namespace cairn {

enum class Dedup : std::uint8_t {
  // A replicated chunk is written by one of its holders (the ranks that have the chunk): the one
  // with the fewest bytes to write so far. Large chunks are split by rows over their holders.
  kBalanced = 1,
  // A replicated chunk is written by the holder with the lowest rank (DCP's
  // dedup_save_to_lowest_rank).
  kLowestRank,
};

enum class RankValues : std::uint8_t {
  // Ranks with the same key must agree on its kind, size, dtype, bytes object and path. Otherwise
  // planning fails, and the error names the keys and ranks.
  kMustAgree = 1,
  // If ranks differ, the value of the lowest rank that has the key is saved, and there is no error,
  // as in DCP. That rank then writes each unsharded tensor and each bytes object whole, because
  // tensors that look equal in the plan may differ in value. Parts of a sharded tensor must still
  // agree on its size and dtype.
  kLowestRankWins,
};

// Reaction of a save to replicated tensors whose values differ between ranks.
enum class CheckReplicas : std::uint8_t {
  kOff = 1,  // does not compare them
  kWarn,     // warns, and saves the values of one rank
  kError,    // fails
};

struct GlobalPlanOptions {
  Dedup dedup = Dedup::kBalanced;
  RankValues rank_values = RankValues::kMustAgree;
  // Replicated chunks of at least this size in bytes are split over their holders. Each part has at
  // least about one eighth of this size. The split is by rows, or along the longest dimension if
  // there are too few rows. 0: never split.
  std::uint64_t split_above_bytes = 16u << 20;
};

struct GlobalSavePlan {
  // The plans by rank. Each item is an item of the rank's local plan, or a sub-box of one. Items
  // keep their order, except that bytes objects come last. `SavePlan::mappings` is empty in these
  // plans: the paths are in `metadata`. The name tables are those of the local plans.
  std::vector<SavePlan> plans;
  // Has planner_data and state_dict_metadata, but no storage. Entries are in the order of their
  // first appearance in the local plans: by rank, then by item. A tensor's chunks are those that
  // will be written, sorted by box; the parts of a split chunk take its place. A chunk is empty
  // only if its tensor has no elements.
  Metadata metadata;
  // "'w' differs between ranks: rank 0 has one value, rank 1 another; and 3 other tensors". Names
  // the first tensor whose chunks have several hashes. Empty if there is none.
  std::string differing_replicas;
};

// Returns `part_of_plan` of each rank's plans, or null for nothing.
std::vector<std::shared_ptr<const PlanPart>> parts_of_plans(const std::vector<std::shared_ptr<const SavePlan>>& local,
                                                            const std::vector<std::shared_ptr<const SavePlan>>& global);

// Returns on how many threads to work on so many items of plans.
unsigned threads_for_items(std::size_t items);

// Joins the local plans; `local_plans[r]` is the plan of rank r. O(items log items). Throws
// kMismatch, naming keys and ranks, if ranks differ in an entry's kind, size, dtype, bytes or path
// and RankValues does not allow that, or if several ranks use one name marked `per_rank`. Throws
// kInvalidArgument for an inconsistent plan. A chunk whose content hashes differ is written whole
// by its lowest holder, so that it never has elements of several ranks. Does not check whether
// chunks tile their tensors; see `check_coverage`. The result does not depend on the sizes of bytes
// objects, or on the number of threads; 0: `threads_for_items`.
GlobalSavePlan create_global_save_plan(std::vector<SavePlan> local_plans, const GlobalPlanOptions& options = {},
                                       unsigned threads = 0);

// One fault in how chunks cover a tensor.
struct CoverageFault {
  enum class Kind : std::uint8_t { kGap = 1, kOverlap, kOutside } kind = Kind::kGap;
  std::string fqn;
  // Overlap: one chunk. Outside: the chunk beyond the tensor. Gap: a box that contains the missing
  // part; if straight cuts separate that part from the chunks, exactly that part.
  Box first;
  Box second;  // overlap: the other chunk
};
std::string to_string(const CoverageFault& fault);

// Returns no faults if the chunks tile a tensor of `size` exactly, otherwise 1 to 1024 per tensor.
// Ignores empty chunks within the tensor. O(n log n) if straight cuts, made one after another, can
// separate all chunks, as they can for device meshes. Throws kInvalidArgument if an entry of `size`
// is negative, or if the number of elements overflows int64 and no single chunk is the whole
// tensor.
std::vector<CoverageFault> check_coverage(const std::string& fqn, const Extents& size, const std::vector<Box>& chunks);
std::vector<CoverageFault> check_coverage(const Metadata& metadata);

}  // namespace cairn
