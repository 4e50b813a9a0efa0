// The failure maps that every rank gets when user-defined storage fails on some ranks.
#include <cairn/runtime/testing/testing.hpp>
#include <cairn/tests/support/failure_cases.hpp>

using namespace cairn;
using namespace cairn::testing;

namespace {

// Runs each case with a fresh checkpointer and with one that has already planned the same state.
template <class Body>
void cold_and_warm(Body body) {
  SUBCASE("cold plan cache") {
    Checkpointer checkpointer(world(), "cold");
    body(checkpointer);
  }
  SUBCASE("warm plan cache") {
    Checkpointer checkpointer(world(), "warm");
    for (int i = 0; i < 2; ++i) check_save(checkpointer, {});
    body(checkpointer);
  }
}

}  // namespace

TEST_CASE("B1.3 a writer and a reader that do nothing leave the state unchanged") {
  cold_and_warm([](Checkpointer& checkpointer) {
    check_save(checkpointer, {}, 0, save_in_call, false);
    check_load(checkpointer, {}, 0, false);
  });
}

TEST_CASE("B1.4 every rank gets the map of exactly the ranks whose hook failed in a save") {
  cold_and_warm([](Checkpointer& checkpointer) {
    check_save(checkpointer, {{"set_up_storage_writer", {0}}});
    check_save(checkpointer, {{"prepare_local_plan", {0}}});
    check_save(checkpointer, {{"prepare_global_plan", {0}}});
    check_save(checkpointer, {{"write_data", {2}}});
    check_save(checkpointer, {{"write_data_async", {3}}});
    check_save(checkpointer, {{"finish", {0}}});
    check_save(checkpointer, {});
  });
}

TEST_CASE("B1.4 so does the handle of an asynchronous save") {
  cold_and_warm([](Checkpointer& checkpointer) {
    check_save(checkpointer, {{"reset", {1}}}, 0, save_in_background);
    check_save(checkpointer, {{"set_up_storage_writer", {0}}}, 0, save_in_background);
    check_save(checkpointer, {{"prepare_local_plan", {0}}}, 0, save_in_background);
    check_save(checkpointer, {{"prepare_global_plan", {0}}}, 0, save_in_background);
    check_save(checkpointer, {{"write_data", {2}}}, 0, save_in_background);
    check_save(checkpointer, {{"write_data_async", {3}}}, 0, save_in_background);
    check_save(checkpointer, {{"finish", {0}}}, 0, save_in_background);
    check_save(checkpointer, {{"finish", {1}}}, 1, save_in_background);
    check_save(checkpointer, {}, 0, save_in_background);
  });
}

TEST_CASE("B1.5 the same with coordinator 1") {
  cold_and_warm([](Checkpointer& checkpointer) {
    check_save(checkpointer, {{"set_up_storage_writer", {1}}}, 1);
    check_save(checkpointer, {{"finish", {1}}}, 1);
    check_save(checkpointer, {}, 1);
  });
}

TEST_CASE("B1.6 every rank gets the map of exactly the ranks whose hook failed in a load") {
  cold_and_warm([](Checkpointer& checkpointer) {
    if (!chosen_place().empty()) check_save(checkpointer, {});
    check_load(checkpointer, {});
    check_load(checkpointer, {{"set_up_storage_reader", {0}}});
    check_load(checkpointer, {{"prepare_global_plan", {0}}});
    check_load(checkpointer, {{"read_metadata", {0}}});
    check_load(checkpointer, {{"prepare_local_plan", {1}}});
    check_load(checkpointer, {{"read_data", {3}}});
    check_load(checkpointer, {{"read_data_async", {1}}});
    check_load(checkpointer, {{"set_up_storage_reader", {0}}}, 3);
    check_load(checkpointer, {{"read_metadata", {3}}}, 1);
    check_load(checkpointer, {{"read_data", {0}}}, 2);
    check_load(checkpointer, {{"read_data_async", {2}}}, 3);
    check_load(checkpointer, {{"prepare_global_plan", {1}}}, 1);
  });
}

TEST_CASE("B1.8 two ranks that fail in one phase are both in every rank's map") {
  cold_and_warm([](Checkpointer& checkpointer) {
    check_save(checkpointer, {{"write_data", {1, 3}}});
    check_save(checkpointer, {{"prepare_local_plan", {0, 2}}}, 1);
    check_load(checkpointer, {{"read_data", {0, 3}}});
  });
}

TEST_CASE("B1.8 an exception that is not a std::exception is in every rank's map too") {
  cold_and_warm([](Checkpointer& checkpointer) {
    check_save(checkpointer, {{"write_data_number", {2}}, {"write_data", {3}}});
    check_save(checkpointer, {{"finish_number", {0}}});
    check_load(checkpointer, {{"read_data_number", {1}}});
  });
}
