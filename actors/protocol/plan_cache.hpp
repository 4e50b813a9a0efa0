// The coordinator keeps the save plans of the last attempt: the local plan of each rank and the
// global plans. A rank whose plan is the same in the next save sends a digest, with the hash and
// size of each bytes object, instead of the plan, and the hash of each tensor if those are
// compared. Plans contain no save id, so a digest may stay the same from save to save. A digest
// does not cover hashes and sizes of bytes objects, which change more often: `refreshed` puts those
// of the current attempt into a kept plan.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <cairn/base/digest.hpp>
#include <cairn/planning/plan.hpp>

namespace cairn::protocol {

struct KeptPlan {
  Digest digest{};
  std::shared_ptr<const SavePlan> plan;  // null: none

  // Returns the plan, or null if it has another digest.
  std::shared_ptr<const SavePlan> find(const Digest& of) const { return of == digest ? plan : nullptr; }
};

// The hashes and sizes that a digest does not cover, as columns in the order of the plan: one entry
// per bytes object. If any tensor has a hash, `hashes` has one entry per item.
struct ContentColumns {
  std::vector<std::uint64_t> hashes;
  std::vector<std::uint64_t> bytes;
};
ContentColumns content_of(const SavePlan& plan);

// Returns `kept` with the hashes and sizes in these columns; null if the columns have too few or
// too many entries.
std::shared_ptr<const SavePlan> refreshed(std::shared_ptr<const SavePlan> kept, const std::vector<std::uint64_t>& hashes,
                                          const std::vector<std::uint64_t>& bytes);

}  // namespace cairn::protocol
