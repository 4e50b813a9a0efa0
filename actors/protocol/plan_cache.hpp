// The save plans that one side keeps of its attempts, by digest: what makes a repeated save cost 32 bytes of plan.
//
// A digest leaves out what bytes objects hold, and so does what is kept: `refreshed` puts in the content of the attempt at hand.
// Plans hold no save id. Bounded: the last `kPlansKept`.
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

// Digests in the order of last use, newest last.
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
  std::shared_ptr<const SavePlan> find(const Digest& digest) const;  // nullptr if it is not kept
  void add(const Digest& digest, std::shared_ptr<const SavePlan> plan);

 private:
  std::deque<std::pair<Digest, std::shared_ptr<const SavePlan>>> plans_;
};

// What a digest leaves out of a plan, as columns: one entry per bytes object, in the order of the plan.
struct ContentColumns {
  std::vector<std::uint64_t> hashes;
  std::vector<std::uint64_t> bytes;
};
ContentColumns content_of(const SavePlan& plan);

// `kept` with the content of these columns; nullptr when they do not fit.
std::shared_ptr<const SavePlan> refreshed(std::shared_ptr<const SavePlan> kept, const std::vector<std::uint64_t>& hashes,
                                          const std::vector<std::uint64_t>& bytes);

// `kept`, a global plan, with the content that `local` has under the same names; nullptr when one of its bytes objects is not in
// `local`.
std::shared_ptr<const SavePlan> refreshed(std::shared_ptr<const SavePlan> kept, const SavePlan& local);

}  // namespace cairn::protocol
