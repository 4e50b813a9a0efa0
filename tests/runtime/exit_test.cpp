// Processes that end through std::exit while a save is in flight. No destructor of an object on
// main's stack runs.
#include <cairn/tests/support/torch.hpp>
//
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include <doctest/doctest.h>

#include <cairn/runtime/cairn.hpp>
#include <cairn/tests/support/faulty_storage.hpp>
#include <cairn/tests/support/generations.hpp>
#include <cairn/tests/support/own_child.hpp>
#include <cairn/tests/support/temporary_directory.hpp>

namespace cairn::testing {
namespace {

constexpr const char* kPlace = "CAIRN_TEST_PLACE";

// Returns the standard error of the test case, up to the end of its process.
std::string left(const std::string& test_case, const TemporaryDirectory& directory) {
  return stderr_of_case(test_case, {{kPlace, directory.path() + "/step"}});
}

bool is_saved(const TemporaryDirectory& directory) { return std::filesystem::exists(directory.path() + "/step/.metadata"); }

TEST_CASE("a process that exits while a save is in flight waits for it, and says nothing") {
  const TemporaryDirectory directory;
  CHECK(left("exit child: a save that goes on", directory).empty());
  CHECK(is_saved(directory));
}

TEST_CASE("a process that exits says which save has not ended by the deadline") {
  const TemporaryDirectory directory;
  const std::string text = left("exit child: a save that stands still", directory);
  CHECK(text.find("has not ended in time, and is cancelled: the process goes away") != std::string::npos);
  CHECK(text.find("is left behind: a hook of its has not returned") != std::string::npos);
  CHECK_FALSE(is_saved(directory));
}

TEST_CASE("a process that exits says which save has failed, if nobody has asked") {
  const TemporaryDirectory directory;
  const std::string text = left("exit child: a save that has failed", directory);
  CHECK(text.find("has failed, and nobody had asked") != std::string::npos);
  CHECK(text.find("not ended in time") == std::string::npos);
}

std::shared_ptr<Gate> gate_of_child() {
  static const auto gate = std::make_shared<Gate>();
  return gate;
}

TEST_CASE("exit child: a save that goes on" * doctest::skip()) {
  const auto gate = gate_of_child();
  Checkpointer checkpointer(World::single());
  checkpointer.async_save({{"step", 1}}, std::getenv(kPlace), gated("write_data", gate));
  gate->wait_until_reached();
  std::atexit([] { gate_of_child()->open(); });  // the save is in flight until the process exits
  std::exit(0);
}

TEST_CASE("exit child: a save that stands still" * doctest::skip()) {
  WorldOptions impatient;
  impatient.shutdown_deadline = std::chrono::milliseconds(0);
  Checkpointer checkpointer(World::single(impatient));
  checkpointer.async_save({{"step", 1}}, std::getenv(kPlace), gated("write_data", gate_of_child()));
  gate_of_child()->wait_until_reached();
  std::exit(0);
}

TEST_CASE("exit child: a save that has failed" * doctest::skip()) {
  SaveOptions options;
  options.storage_writer = std::make_shared<FaultyWriter>(FailOn{{"write_data", {0}}}, 0);
  Checkpointer checkpointer(World::single());
  checkpointer.async_save({{"step", 1}}, std::getenv(kPlace), options).wait();
  std::exit(0);
}

}  // namespace
}  // namespace cairn::testing
