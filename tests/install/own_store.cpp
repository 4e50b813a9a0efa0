// Runs the conformance suite on the store of examples/own_store, as a project outside the tree.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <torch/torch.h>
// Behind LibTorch, which has macros of the same names.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include <cairn/runtime/cairn.hpp>
#include <cairn/tests/storage/store_conformance.hpp>

#include "../../examples/own_store/quota_store.hpp"

namespace {

// Returns the URL of a new directory, which is removed when the program ends.
std::string new_place() {
  struct Directory {
    Directory() {
      REQUIRE(mkdtemp(path.data()));
      own_store::register_quota(100'000'000);
    }
    ~Directory() { std::filesystem::remove_all(path); }
    std::string path = "/tmp/cairn_own_store_XXXXXX";
    int places = 0;
  };
  static Directory directory;
  return "quota://" + directory.path + "/run/step_" + std::to_string(++directory.places);
}

}  // namespace

TEST_CASE("a store of one's own keeps the contract") {
  cairn::testing::check_store_conformance([] { return cairn::open_store(new_place()); });
}

TEST_CASE("a save that a store of one's own refuses fails with the store's reason") {
  const std::string place = new_place();
  cairn::save({{"small", torch::ones({1000})}}, place);
  try {
    cairn::save({{"large", torch::ones({30'000'000})}}, place);
    FAIL("it was saved");
  } catch (const cairn::CheckpointException& error) {
    REQUIRE(error.failures().size() == 1);
    CHECK(error.failures().begin()->second.code == cairn::ErrorCode::kNoSpace);
    CHECK(std::string(error.what()).find("quota of 100000000") != std::string::npos);
  }
  cairn::StateDict state{{"small", torch::zeros({1000})}};
  cairn::load(state, place);
  CHECK(torch::equal(state.at("small").tensor(), torch::ones({1000})));
}
