// A writer that pauses after its first item until the test opens its gate.
#pragma once

#include <cstddef>

#include <cairn/tests/support/faulty_storage.hpp>
#include <cairn/tests/support/gate.hpp>

namespace cairn::testing {

// Resolves the first item of its plan at once, and the others after its gate opens. Stores nothing.
class HeldWriter : public FaultyWriter {
 public:
  explicit HeldWriter(int rank) : FaultyWriter({}, rank) {}
  Future<WriteResults> write_data(const SavePlan& plan, SavePlanner& planner) override {
    for (std::size_t i = 0; i < plan.items.size(); ++i) {
      if (i == 1) gate.pass();
      planner.resolve_data(plan, plan.items[i]);
    }
    return ready_future(WriteResults{});
  }
  Gate gate;
};

}  // namespace cairn::testing
