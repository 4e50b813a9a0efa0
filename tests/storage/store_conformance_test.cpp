// Runs the conformance suite on each of Cairn's stores.
#include <cairn/tests/support/plain.hpp>
// The suite uses doctest, which the line above brings.
#include <unistd.h>

#include <cairn/storage/stores/memory_store.hpp>
#include <cairn/tests/storage/store_conformance.hpp>
#include <cairn/tests/support/skipped.hpp>
#include <cairn/tests/support/temporary_directory.hpp>

using namespace cairn;
using namespace cairn::testing;

TEST_CASE("a directory on disk keeps the store's contract") {
  TemporaryDirectory directory;
  check_store_conformance([&] { return open_store(directory.path() + "/run/step"); });
}

TEST_CASE("a directory in memory keeps the store's contract") {
  if (::access("/dev/shm", W_OK) != 0) {
    skip_case("/dev/shm is not there or not writable");
    return;
  }
  TemporaryDirectory directory("/dev/shm");
  check_store_conformance([&] { return open_store("file://" + directory.path() + "/run/step"); });
}

TEST_CASE("an object that is being written occupies its name, on disk and in memory") {
  TemporaryDirectory directory;
  for (const std::string& url : {directory.path() + "/run/step", std::string("mem://conformance/run/step")}) {
    CAPTURE(url);
    const auto store = open_store(url);
    store->create_root();
    const auto writer = store->create("object");
    CHECK(store->is_taken("object"));
    writer->discard();
    CHECK_FALSE(store->is_taken("object"));
  }
  forget_memory("conformance");
}

TEST_CASE("memory keeps the store's contract") {
  check_store_conformance([] { return open_store("mem://conformance/run/step"); });
  forget_memory("conformance");
}
