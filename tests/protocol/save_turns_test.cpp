#include <cairn/tests/support/plain.hpp>

#include <cairn/actors/protocol/save_turns.hpp>

namespace cairn::protocol {
namespace {

TEST_CASE("saves in flight take their turns in the order of the calls") {
  SaveTurns turns;
  CHECK(!turns.any());
  turns.begin(1);
  turns.begin(2);
  turns.begin(3);
  CHECK(turns.count() == 3);
  CHECK(turns.take(2) == SaveTurn::kWaits);
  CHECK(turns.take(1) == SaveTurn::kTaken);
  CHECK(turns.was_taken(1));
  turns.end(1);
  CHECK(turns.take(3) == SaveTurn::kWaits);
  CHECK(turns.has_come(2));
  CHECK(!turns.was_taken(2));
  CHECK(turns.take(2) == SaveTurn::kTaken);
  turns.end(2);
  turns.end(3);  // it had no turn: it failed before its planner was called
  CHECK(!turns.any());
}

TEST_CASE("a save that has ended out of turn is not waited for") {
  SaveTurns turns;
  turns.begin(1);
  turns.begin(2);
  turns.begin(3);
  turns.end(2);
  CHECK(turns.take(3) == SaveTurn::kWaits);
  turns.end(1);
  CHECK(turns.take(3) == SaveTurn::kTaken);
}

TEST_CASE("a save is dropped before its turn, never after it") {
  SaveTurns turns;
  turns.begin(1);
  turns.begin(2);
  CHECK(turns.take(1) == SaveTurn::kTaken);
  turns.drop(1);
  CHECK(turns.take(1) == SaveTurn::kTaken);
  turns.drop(2);
  CHECK(turns.take(2) == SaveTurn::kDropped);
  turns.end(1);
  CHECK(turns.take(2) == SaveTurn::kDropped);
  CHECK(!turns.was_taken(2));
  turns.drop(7);  // it is not in flight, so no call asks about it
  CHECK(!turns.is_in_flight(7));
}

TEST_CASE("a held save does not take its turn; once that has come it cannot be held") {
  SaveTurns turns;
  turns.begin(1);
  turns.begin(2);
  CHECK(!turns.hold(1));
  CHECK(turns.hold(2));
  turns.end(1);
  CHECK(!turns.hold(1));
  CHECK(turns.take(2) == SaveTurn::kWaits);
  turns.drop(2);
  CHECK(turns.take(2) == SaveTurn::kDropped);
}

}  // namespace
}  // namespace cairn::protocol
