// Worlds in which one thing goes wrong, so that it is known what an explanation has to name.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <cairn/base/failure.hpp>
#include <cairn/tests/simulation/world.hpp>

namespace cairn::simulation {

struct OneFault {
  JobSpec job;           // a save that goes well, then the call in which it happens
  std::string what;      // "write_data throws", "a process is frozen"
  std::set<int> ranks;   // whom it befalls: both ends of a link that is cut
  bool is_slow = false;  // nothing breaks: somebody takes long
  // Of a fault in a hook. Otherwise it is where the rank stood when it happened, or the coordinator then or later.
  std::set<std::string> phases;
};
OneFault one_fault(Dice& dice, std::uint64_t& last_content);

// What really happened in such a world, seen from outside.
class FaultWitness : public World::Witness {
 public:
  explicit FaultWitness(const OneFault& fault) : fault_(fault) {}

  void befell(const VirtualTime& time, const std::string& state) override;
  void entered(const VirtualTime& time, int rank, protocol::CoordinatorMachine::State state) override;
  void reported(const Report& report) override;

  // Some rank was told of a failure.
  bool has_failed() const { return failed_; }
  // The phases in which a failure for that may be said to be.
  std::set<std::string> phases() const;

 private:
  const OneFault& fault_;
  Phase phase_of(protocol::CoordinatorMachine::State state) const;

  std::optional<Duration> happened_;
  std::string state_;  // of the rank then
  std::vector<std::pair<Duration, protocol::CoordinatorMachine::State>> states_;
  bool failed_ = false;
};

}  // namespace cairn::simulation
