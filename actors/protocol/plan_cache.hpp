// Keeps the save plans of the last attempts on a rank or its coordinator, by digest. With this
// cache, a repeated save sends a digest, with the hash and size of each bytes object, instead of a
// plan. Plans contain no save id, so a digest may stay the same from save to save. A digest does
// not cover the hashes and sizes of bytes objects, which change more often: `refreshed` puts those
// of the current attempt into a kept plan. At most `kPlansKept` plans are kept.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include <cairn/base/digest.hpp>
#include <cairn/planning/plan.hpp>

namespace cairn::protocol {

inline constexpr std::size_t kPlansKept = 2;
inline constexpr std::size_t kNamesSeen = 64;

// The last kPlansKept digests that were added, newest last.
class DigestSet {
 public:
  bool contains(const Digest& digest) const;
  void add(const Digest& digest);
  void remove(const Digest& digest);

 private:
  std::deque<Digest> digests_;
};

class PlanCache {
 public:
  std::shared_ptr<const SavePlan> find(const Digest& digest) const;  // null if the plan is not kept
  void add(const Digest& digest, std::shared_ptr<const SavePlan> plan);

 private:
  std::deque<std::pair<Digest, std::shared_ptr<const SavePlan>>> plans_;
};

// Makes plans of different ranks share memory for equal names and mappings, which take two thirds
// of a plan's memory. The ranks of a pipeline stage have the same names.
class SharedNames {
 public:
  // Returns `plan`, or an equal plan that shares memory with an earlier plan.
  std::shared_ptr<const SavePlan> share(std::shared_ptr<const SavePlan> plan);

 private:
  std::deque<SavePlan> seen_;  // without items, newest last; at most kNamesSeen
};

// The hashes and sizes that a digest does not cover, as columns: one entry per bytes object, in the
// order of the plan.
struct ContentColumns {
  std::vector<std::uint64_t> hashes;
  std::vector<std::uint64_t> bytes;
};
ContentColumns content_of(const SavePlan& plan);

// Returns `kept` with the hashes and sizes in these columns; null if the columns have too few or
// too many entries.
std::shared_ptr<const SavePlan> refreshed(std::shared_ptr<const SavePlan> kept, const std::vector<std::uint64_t>& hashes,
                                          const std::vector<std::uint64_t>& bytes);

// Returns `kept`, a global plan, with the hashes and sizes that `local` has for the same names;
// null if a bytes object of `kept` is not in `local`.
std::shared_ptr<const SavePlan> refreshed(std::shared_ptr<const SavePlan> kept, const SavePlan& local);

}  // namespace cairn::protocol
