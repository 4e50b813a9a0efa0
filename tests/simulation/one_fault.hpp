// Worlds in which exactly one thing goes wrong, so that the test knows what an explanation must
// name.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <cairn/base/failure.hpp>
#include <cairn/tests/simulation/world.hpp>

namespace cairn::simulation {

struct OneFault {
  JobSpec job;           // a save that succeeds, then the call with the fault
  std::string what;      // "write_data throws", "a process is frozen"
  std::set<int> ranks;   // the ranks that the fault hits; for a cut link, both ends
  bool is_slow = false;  // nothing breaks, but one rank is slow
  // Phases that a diagnosis may name, set only for a fault in a hook. For other faults,
  // `FaultWitness` derives the phases from the rank's state at the fault and the coordinator's
  // states then and later.
  std::set<std::string> phases;
};
OneFault one_fault(Dice& dice, std::uint64_t& last_content);

// Records from outside what really happened in such a world.
class FaultWitness : public World::Witness {
 public:
  explicit FaultWitness(const OneFault& fault) : fault_(fault) {}

  void befell(const VirtualTime& time, RankState state) override;
  void entered(const VirtualTime& time, int rank, protocol::CoordinatorMachine::State state) override;
  void reported(const Report& report) override;

  // Returns whether any rank was told of a failure.
  bool has_failed() const { return failed_; }
  // Returns the phases that a failure caused by the fault may be attributed to.
  std::set<std::string> phases() const;

 private:
  const OneFault& fault_;
  Phase phase_of(protocol::CoordinatorMachine::State state) const;

  std::optional<Duration> happened_;
  RankState state_ = RankState::kIdle;  // the rank's state at the fault
  std::vector<std::pair<Duration, protocol::CoordinatorMachine::State>> states_;
  bool failed_ = false;
};

}  // namespace cairn::simulation
