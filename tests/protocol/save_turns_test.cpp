// The order of saves in flight on one rank. The simulation holds and cancels such saves.
#include <cairn/tests/support/plain.hpp>

#include <cairn/actors/protocol/save_turns.hpp>

namespace cairn::protocol {
namespace {

TEST_CASE("saves in flight take their turns in the order of the calls") {
  SaveTurns turns;
  for (const std::uint64_t number : {1, 2, 3}) turns.begin(number);
  CHECK(turns.take(2) == SaveTurn::kWaits);
  CHECK(turns.take(1) == SaveTurn::kTaken);
  turns.end(2);  // out of turn
  CHECK(turns.take(3) == SaveTurn::kWaits);
  turns.end(1);
  CHECK(turns.take(3) == SaveTurn::kTaken);
}

}  // namespace
}  // namespace cairn::protocol
