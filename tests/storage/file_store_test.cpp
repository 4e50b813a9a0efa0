// Behaviour that only real file systems show: links, pipes, mounts, descriptors, and races in the
// kernel.
#include <cairn/tests/support/plain.hpp>
// The suite uses doctest, which the line above brings.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <cairn/storage/stores/file_store.hpp>
#include <cairn/tests/storage/store_conformance.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tests/support/thrown.hpp>

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

// The real file system, with a call of `before_placing` right before a commit record is put in
// place.
class WatchedFiles : public FileSystem {
 public:
  std::function<void()> before_placing;

  int open_for_reading(const std::string& path) noexcept override { return real_.open_for_reading(path); }
  int create_exclusively(const std::string& path) noexcept override { return real_.create_exclusively(path); }
  int close(int file) noexcept override { return real_.close(file); }
  ssize_t read_at(int file, void* to, std::size_t size, std::uint64_t at) noexcept override {
    return real_.read_at(file, to, size, at);
  }
  ssize_t write_at(int file, const void* from, std::size_t size, std::uint64_t at) noexcept override {
    if (refuse_direct_writes && direct) return -EINVAL;
    return real_.write_at(file, from, size, at);
  }
  int bypass_cache(int file, bool on) noexcept override {
    if (refuse_direct_writes) {
      direct = on;
      return 0;
    }
    return real_.bypass_cache(file, on);
  }
  int allocate(int file, std::uint64_t length) noexcept override { return real_.allocate(file, length); }
  int truncate(int file, std::uint64_t length) noexcept override { return real_.truncate(file, length); }
  int sync_data(int file) noexcept override { return real_.sync_data(file); }
  int status_of(int file, FileStatus& status) noexcept override { return real_.status_of(file, status); }
  int status(const std::string& path, bool follow, FileStatus& status) noexcept override {
    return real_.status(path, follow, status);
  }
  int list_directory(const std::string& path, std::vector<DirectoryEntry>& entries) override {
    return real_.list_directory(path, entries);
  }
  int make_directory(const std::string& path) noexcept override { return real_.make_directory(path); }
  int remove_directory(const std::string& path) noexcept override { return real_.remove_directory(path); }
  int remove_file(const std::string& path) noexcept override { return real_.remove_file(path); }
  int rename(const std::string& from, const std::string& to) noexcept override {
    if (before_placing) before_placing();
    return real_.rename(from, to);
  }
  int rename_exclusively(const std::string& from, const std::string& to) noexcept override {
    if (no_exclusive_rename) return -EINVAL;
    if (before_placing) before_placing();
    return real_.rename_exclusively(from, to);
  }
  int link(const std::string& from, const std::string& to) noexcept override {
    if (before_placing) before_placing();
    return real_.link(from, to);
  }
  int sync_directory(const std::string& path) noexcept override { return real_.sync_directory(path); }
  ObjectWrites writes(const std::string& path) noexcept override {
    ++looks_at_file_system;
    return real_.writes(path);
  }

  int looks_at_file_system = 0;
  bool no_exclusive_rename = false;
  bool refuse_direct_writes = false;
  std::atomic<bool> direct{false};

 private:
  FileSystem& real_ = system_files();
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

TEST_CASE("without a root, nothing is made elsewhere") {
  TemporaryDirectory directory;
  FileStore store(directory.path() + "/run");
  CHECK(code_of([&] { store.create("object"); }) == ErrorCode::kNotFound);
  CHECK(code_of([&] { store.create("below/object"); }) == ErrorCode::kNotFound);
  CHECK(code_of([&] { store.begin_attempt("save"); }) == ErrorCode::kNotFound);
  CHECK_FALSE(fs::exists(directory.path() + "/run"));
}

TEST_CASE("a store looks at its file system once, however often its traits are asked for") {
  const TemporaryDirectory directory;
  WatchedFiles files;
  FileStore store(directory.path(), files);
  for (int i = 0; i < 3; ++i) store.traits();
  CHECK(files.looks_at_file_system == 1);
}

TEST_CASE("a relative path means the directory of the moment it was opened in") {
  TemporaryDirectory directory;
  const fs::path before = fs::current_path();
  fs::current_path(directory.path());
  FileStore store("run//");
  FileStore dotted("./run/.");
  fs::current_path(before);
  store.create_root();
  put_object(store, "object", "x");
  CHECK(fs::exists(directory.path() + "/run/object"));
  CHECK(get_object(dotted, "object") == "x");
  CHECK(store.url() == fs::canonical(directory.path()).string() + "/run");
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

TEST_CASE("an error about a missing attempt says that its directory may have been removed") {
  const TemporaryDirectory directory;
  FileStore store(directory.path() + "/step");
  store.create_root();
  store.begin_attempt("save");
  fs::remove_all(directory.path() + "/step");
  store.create_root();  // as another job does that saves to this place
  const Thrown thrown = thrown_by([&] { store.publish("save", ByteSpan("record", 6), Overwrite::kAllowed); });
  CHECK(thrown.code == ErrorCode::kFenced);
  for (const char* const part : {"save", "ended by another rank or job", "its directory was removed", "Nothing was changed"})
    CHECK(thrown.says(part));
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

TEST_CASE("no descriptor is left open, whatever fails") {
  TemporaryDirectory directory;
  FileStore store(directory.path());
  DescriptorGuard guard;
  put_object(store, "a/object", "content");
  char bytes[100];
  CHECK(code_of([&] { store.create("a/object"); }) == ErrorCode::kAlreadyExists);
  CHECK(code_of([&] { store.read("a/object", {{3, {bytes, 100}}}); }) == ErrorCode::kCorrupt);
  CHECK(code_of([&] { store.read("a", {}); }) == ErrorCode::kNotFound);
  store.list();
  store.create("discarded")->discard();
  store.create("dropped");
  const auto failed = code_of([&] { store.create("absurd", {std::uint64_t{1} << 62, false}); });
  CHECK(failed == ErrorCode::kNoSpace);
  CHECK_FALSE(store.exists("absurd"));
  store.begin_attempt("save");
  store.publish("save", ByteSpan("x", 1), Overwrite::kRefused);
  store.begin_attempt("next");
  CHECK(code_of([&] { store.publish("next", ByteSpan("x", 1), Overwrite::kRefused); }) == ErrorCode::kAlreadyExists);
  store.fence("next");
  CHECK(code_of([&] { store.publish("next", ByteSpan("x", 1), Overwrite::kRefused); }) == ErrorCode::kFenced);
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
  TemporaryDirectory directory;
  WatchedFiles files;
  files.refuse_direct_writes = true;
  FileStore store(directory.path(), files);
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

TEST_CASE("the kernel's own race between placing a record and fencing: one of the two wins") {
  for (const std::string parent : {"/dev/shm", "/tmp"}) {
    if (::access(parent.c_str(), W_OK) != 0) continue;
    const int rounds = parent == "/tmp" ? 40 : 300;  // syncing a disk takes time
    for (const bool refused : {false, true}) {
      for (const bool no_exclusive_rename : {false, true}) {
        if (!refused && no_exclusive_rename) continue;
        TemporaryDirectory directory(parent);
        WatchedFiles files;
        files.no_exclusive_rename = no_exclusive_rename;
        FileStore store(directory.path(), files);
        FileStore rival(directory.path());
        int published = 0;
        for (int round = 0; round < rounds; ++round) {
          const std::string id = "save-" + std::to_string(round);
          store.begin_attempt(id);
          std::atomic<int> at_the_line{0};
          files.before_placing = [&] {
            ++at_the_line;
            while (at_the_line < 2) std::this_thread::yield();
          };
          std::optional<ErrorCode> outcome;
          bool seen = false;
          TogetherThreads::run(2, [&](int thread) {
            if (thread == 0) {
              outcome = code_of([&] { store.publish(id, id, refused ? Overwrite::kRefused : Overwrite::kAllowed); });
            } else {
              while (at_the_line < 1) std::this_thread::yield();
              ++at_the_line;
              rival.fence(id);
              seen = rival.exists(kCommitRecordName) && get_object(rival, kCommitRecordName) == id;
            }
          });
          files.before_placing = nullptr;
          REQUIRE((!outcome || *outcome == ErrorCode::kFenced));
          REQUIRE(seen == !outcome);
          REQUIRE((store.exists(kCommitRecordName) && get_object(store, kCommitRecordName) == id) == !outcome);
          published += outcome ? 0 : 1;
          store.clear_attempt(id);
          if (refused) store.remove(kCommitRecordName);
        }
        const std::string how = std::string(refused ? ", refusing" : "") + (no_exclusive_rename ? " by link" : "");
        MESSAGE(parent, how, ": publication won ", published, " of ", rounds);
        CHECK(names_of(store.list("s")).empty());
      }
    }
  }
}
