// Behaviour that only real file systems show: links, pipes, mounts, descriptors, and races in the
// kernel.
#include <cairn/tests/support/plain.hpp>
// The suite uses doctest, which the line above brings.
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <cairn/storage/stores/file_store.hpp>
#include <cairn/tests/storage/store_conformance.hpp>
#include <cairn/tests/support/simulated_file_system.hpp>
#include <cairn/tests/support/temporary_directory.hpp>

using namespace cairn;
using namespace cairn::testing;

namespace {

namespace fs = std::filesystem;

std::size_t open_descriptors() {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator()));
}

// Checks that the number of open descriptors is the same before and after. No other test runs
// meanwhile.
struct DescriptorGuard {
  std::size_t before = open_descriptors();
  ~DescriptorGuard() { CHECK(open_descriptors() == before); }
};

}  // namespace

TEST_CASE("a file where a directory is needed") {
  TemporaryDirectory directory;
  DescriptorGuard guard;
  std::ofstream(directory.path() + "/file") << "x";
  FileStore below(directory.path() + "/file/run");
  CHECK(code_of([&] { below.create_root(); }).has_value());
  FileStore there(directory.path() + "/file");
  CHECK(code_of([&] { there.create_root(); }).has_value());
  CHECK(code_of([&] { there.list(); }).has_value());
  CHECK(code_of([&] { there.begin_attempt("save"); }).has_value());
  FileStore store(directory.path());
  CHECK(code_of([&] { store.create("file/object"); }).has_value());
  CHECK_FALSE(store.exists("file/object"));
  CHECK(code_of([&] { store.begin_attempt("save"), store.publish("save", ByteSpan("x", 1), Overwrite::kAllowed); }) ==
        std::nullopt);
  CHECK(fs::file_size(directory.path() + "/file") == 1);
}

TEST_CASE("links are read through and never removed through") {
  TemporaryDirectory directory, elsewhere;
  DescriptorGuard guard;
  std::ofstream(elsewhere.path() + "/target") << "target";
  FileStore store(directory.path());
  fs::create_symlink(elsewhere.path() + "/target", directory.path() + "/link");
  fs::create_symlink(elsewhere.path(), directory.path() + "/place");
  fs::create_symlink(directory.path() + "/nothing", directory.path() + "/dangling");
  fs::create_symlink("loop", directory.path() + "/loop");
  CHECK(get_object(store, "link") == "target");
  CHECK(get_object(store, "place/target") == "target");
  CHECK(names_of(store.list()) == Names{"link"});
  CHECK(store.children() == Names{"place"});
  CHECK_FALSE(store.exists("dangling"));
  CHECK(code_of([&] { store.read("dangling", {}); }) == ErrorCode::kNotFound);
  CHECK(code_of([&] { store.create("link"); }) == ErrorCode::kAlreadyExists);
  CHECK(code_of([&] { store.create("dangling"); }) == ErrorCode::kAlreadyExists);
  CHECK_FALSE(fs::exists(directory.path() + "/nothing"));

  // If the writer's file was replaced by a link, the writer removes neither the link nor its
  // target.
  const auto writer = store.create("mine");
  fs::remove(directory.path() + "/mine");
  fs::create_symlink(elsewhere.path() + "/target", directory.path() + "/mine");
  writer->discard();
  CHECK(fs::is_symlink(directory.path() + "/mine"));
  store.remove("mine");
  store.remove("link");
  CHECK(fs::exists(elsewhere.path() + "/target"));
  CHECK_FALSE(fs::exists(fs::symlink_status(directory.path() + "/link")));

  // Publishing replaces a link, and does not write through it.
  fs::create_symlink(elsewhere.path() + "/target", directory.path() + "/.metadata");
  store.begin_attempt("save");
  store.publish("save", ByteSpan("record", 6), Overwrite::kAllowed);
  CHECK(get_object(store, ".metadata") == "record");
  CHECK(fs::file_size(elsewhere.path() + "/target") == 6);
  CHECK_FALSE(fs::is_symlink(directory.path() + "/.metadata"));
}

TEST_CASE("a pipe of an object's name makes nobody wait") {
  TemporaryDirectory directory;
  DescriptorGuard guard;
  FileStore store(directory.path());
  REQUIRE(::mkfifo((directory.path() + "/pipe").c_str(), 0600) == 0);
  char byte = 0;
  CHECK(code_of([&] { store.read("pipe", {{0, {&byte, 1}}}); }) == ErrorCode::kNotFound);
  CHECK(code_of([&] { store.size_bytes("pipe"); }) == ErrorCode::kNotFound);
  CHECK_FALSE(store.exists("pipe"));
  CHECK(store.list().empty());
}

TEST_CASE("a directory of an object's name is no object, and is not removed") {
  TemporaryDirectory directory;
  FileStore store(directory.path());
  put_object(store, "place/object", "x");
  CHECK(code_of([&] { store.create("place"); }) == ErrorCode::kAlreadyExists);
  CHECK(code_of([&] { store.remove("place"); }).has_value());
  CHECK(store.exists("place/object"));
  fs::create_directory(directory.path() + "/.metadata");
  store.begin_attempt("save");
  CHECK(code_of([&] { store.publish("save", ByteSpan("x", 1), Overwrite::kAllowed); }).has_value());
  CHECK(code_of([&] { store.publish("save", ByteSpan("x", 1), Overwrite::kRefused); }) == ErrorCode::kAlreadyExists);
  CHECK(store.open_attempts() == Names{"save"});
}

TEST_CASE("a finished writer is used no more") {
  TemporaryDirectory directory;
  FileStore store(directory.path());
  const auto writer = store.create("object");
  writer->sync(0);
  CHECK(code_of([&] { writer->write_at(0, ByteSpan("x", 1)); }) == ErrorCode::kPrecondition);
  CHECK(code_of([&] { writer->sync(1); }) == ErrorCode::kPrecondition);
  CHECK(code_of([&] { writer->close(1); }) == ErrorCode::kPrecondition);
  CHECK(store.size_bytes("object") == 0);
  writer->discard();
  CHECK(code_of([&] { writer->sync(0); }) == ErrorCode::kPrecondition);
  CHECK_FALSE(store.exists("object"));
}

TEST_CASE("discarding while others write: the writes end or fail, and nothing else is hit") {
  TemporaryDirectory directory("/dev/shm");
  FileStore store(directory.path());
  for (int round = 0; round < 100; ++round) {
    const auto writer = store.create("object");
    TogetherThreads::run(4, [&](int thread) {
      if (thread == 0) return writer->discard();
      for (std::uint64_t i = 0; i < 50; ++i)
        if (code_of([&] { writer->write_at(i * 100, ByteSpan("0123456789", 10)); }) == ErrorCode::kPrecondition) return;
    });
    REQUIRE(store.list().empty());
  }
}

TEST_CASE("a file system that agrees to direct I/O and then refuses the writes") {
  struct RefusingFiles : SimulatedFileSystem {
    int bypass_cache(int, bool on) noexcept override {
      is_direct = on;
      return 0;
    }
    ssize_t write_at(int file, const void* from, std::size_t size, std::uint64_t at) noexcept override {
      return is_direct ? -EINVAL : SimulatedFileSystem::write_at(file, from, size, at);
    }
    std::atomic<bool> is_direct{false};
  } files;
  FileStore store("/place", files);
  store.create_root();
  constexpr std::size_t kBlock = 4096;
  alignas(kBlock) static char blocks[8 * kBlock];
  for (std::size_t i = 0; i < sizeof blocks; ++i) blocks[i] = static_cast<char>('a' + i / 5 % 26);
  const auto writer = store.create("object", {sizeof blocks, true});
  REQUIRE(writer->alignment_bytes() == kBlock);
  TogetherThreads::run(8, [&](int thread) {
    const std::size_t offset = static_cast<std::size_t>(thread) * kBlock;
    writer->write_at(offset, ByteSpan(blocks + offset, kBlock));
  });
  writer->sync(sizeof blocks);
  CHECK((get_object(store, "object") == std::string(blocks, sizeof blocks)));
}
