// Store URLs, their schemes, and the stores that they open.
#include <cairn/tests/support/plain.hpp>
// The suite uses doctest, which the line above brings.
#include <filesystem>

#include <cairn/storage/stores/memory_store.hpp>
#include <cairn/tests/storage/store_conformance.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tests/support/thrown.hpp>

using namespace cairn;
using namespace cairn::testing;

TEST_CASE("URLs that open nothing") {
  for (const std::string& bad :
       {std::string(), std::string("a\0b", 3), std::string("nfs4://host/a"), std::string("S9://bucket/a"), std::string("mem://"),
        std::string("mem:///a"), std::string("mem:a"), std::string("mem://name/../a"), std::string("mem://name/a//b"),
        std::string("file://"), std::string("file:"), std::string("file://run/step"), std::string("C:\\run"), std::string("c:/run"),
        std::string("c://run")}) {
    INFO("\"", bad, "\"");
    CHECK(code_of([&] { open_store(bad); }) == ErrorCode::kInvalidArgument);
  }
  const Thrown unknown = thrown_by([] { open_store("gopher://host/a"); });
  CHECK(unknown.says("gopher"));
  CHECK(unknown.says("file"));
  CHECK(unknown.says("mem"));
  CHECK(thrown_by([] { open_store("file://run/step"); }).says("file:///run/step"));
}

TEST_CASE("every spelling of a path opens the same directory") {
  TemporaryDirectory directory;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(directory.path());
  const auto store = open_store("run:1");  // a colon is an ordinary character in a path
  store->create_root();
  put_object(*store, "object", "x");
  for (const std::string& url : {std::string("./run:1"), std::string("run:1/"), std::string("file:run:1"),
                                 directory.path() + "/run:1", "file://" + directory.path() + "/run:1",
                                 "FILE://localhost" + directory.path() + "/run:1/", "file:" + directory.path() + "/run:1"}) {
    INFO(url);
    CHECK(open_store(url)->exists("object"));
  }
  std::filesystem::current_path(before);
  CHECK(std::filesystem::exists(directory.path() + "/run:1/object"));
  CHECK(store->is_shared());
}

TEST_CASE("memory is found again by name, and places in it are apart") {
  forget_memory("registry");
  put_object(*open_store("mem://registry/run/step"), "object", "x");
  CHECK(open_store("MEM://registry/run/step/")->exists("object"));
  CHECK(open_store("mem://registry")->exists("run/step/object"));
  CHECK(open_store("mem://registry/run")->exists("step/object"));
  CHECK_FALSE(open_store("mem://registry/run/ste")->exists("p/object"));
  CHECK_FALSE(open_store("mem://other/run/step")->exists("object"));
  CHECK_FALSE(open_store("mem://registry/run")->is_shared());
  CHECK(open_store("mem://registry/run/step")->url() == "mem://registry/run/step");

  const auto kept = open_store("mem://registry/run/step");
  forget_memory("registry");
  forget_memory("registry");
  CHECK(kept->exists("object"));
  CHECK_FALSE(open_store("mem://registry/run/step")->exists("object"));
  forget_memory("registry");
  forget_memory("other");
}

TEST_CASE("memory that cannot be had is a full store") {
  const auto store = open_store("mem://registry/full");
  CHECK(code_of([&] { store->create("object", {std::uint64_t{1} << 62, false}); }) == ErrorCode::kNoSpace);
  CHECK_FALSE(store->exists("object"));
  const auto writer = store->create("object");
  CHECK(code_of([&] { writer->write_at(std::uint64_t{1} << 62, ByteSpan("x", 1)); }) == ErrorCode::kNoSpace);
  CHECK(code_of([&] { writer->write_at(~std::uint64_t{0}, ByteSpan("xx", 2)); }) == ErrorCode::kInvalidArgument);
  writer->write_at(0, ByteSpan("x", 1));
  writer->sync(1);
  CHECK(get_object(*store, "object") == "x");
  CHECK(code_of([&] { writer->write_at(0, ByteSpan("x", 1)); }) == ErrorCode::kPrecondition);
  forget_memory("registry");
}

TEST_CASE("schemes of users") {
  for (const std::string& bad :
       {std::string(), std::string("x"), std::string("9p"), std::string("a b"), std::string("s3://"), std::string("ü1")}) {
    INFO("\"", bad, "\"");
    CHECK(code_of([&] { register_store(bad, open_memory_store); }) == ErrorCode::kInvalidArgument);
  }
  CHECK(code_of([] { register_store("user", nullptr); }) == ErrorCode::kInvalidArgument);
  CHECK(code_of([] { register_store("File", open_memory_store); }) == ErrorCode::kAlreadyExists);

  std::string opened;
  register_store("User-1.x", [&opened](const std::string& url) {
    opened = url;
    open_store("mem://registry/from a factory");  // the registry is not locked while a factory runs
    return open_store("mem://registry/user");
  });
  CHECK(open_store("user-1.X://bucket/a?b=c") != nullptr);
  CHECK(opened == "user-1.X://bucket/a?b=c");
  CHECK(open_store("user-1.x:without slashes") != nullptr);
  CHECK(code_of([] { register_store("user-1.x", open_memory_store); }) == ErrorCode::kAlreadyExists);
  CHECK(thrown_by([] { open_store("absent://x"); }).says("user-1.x"));

  register_store("nothing", [](const std::string&) { return std::shared_ptr<Store>(); });
  CHECK(code_of([] { open_store("nothing://x"); }) == ErrorCode::kPrecondition);
  forget_memory("registry");
}

TEST_CASE("the parent of a place") {
  const std::vector<std::pair<std::string, std::string>> parents{
      {"/run/step_1", "/run"},
      {"/run/step_1/", "/run"},
      {"/run//step_1", "/run"},
      {"/run", "/"},
      {"/", "/"},
      {"run/step_1", "run"},
      {"run", "."},
      {"./run", "."},
      {".", ".."},
      {"./", ".."},
      {"..", "../.."},
      {"../x", ".."},
      {"run/..", "run/../.."},
      {"run/.", "."},
      {"run:1/step", "run:1"},
      {"file:///run/step_1", "file:///run"},
      {"file:///run", "file:///"},
      {"file:run/step_1", "file:run"},
      {"file:run", "file:."},
      {"mem://name/run/step_1", "mem://name/run"},
      {"mem://name/run", "mem://name"},
      {"mem://name", "mem://name"},
      {"mem://name/", "mem://name"},
      {"unknown://bucket/run/step", "unknown://bucket/run"},
  };
  for (const auto& [url, parent] : parents) {
    const auto& shown = url;
    INFO(shown);
    CHECK(parent_url(url) == parent);
  }
  CHECK(code_of([] { parent_url(""); }) == ErrorCode::kInvalidArgument);
}

TEST_CASE("the directory of a store on this machine") {
  for (const char* url : {"/run", "run", "./ftp:run", "ftp:run"}) CHECK(local_path(url) == std::filesystem::path(url));
  CHECK(local_path("file:///run/step_1") == std::filesystem::path("/run/step_1"));
  CHECK(local_path("file:run") == std::filesystem::path("run"));
  for (const char* elsewhere : {"mem://run", "ftp://host/run"}) CHECK(local_path(elsewhere) == std::nullopt);
  for (const char* refused : {"", "~", "~/run"}) CHECK(code_of([&] { local_path(refused); }) == ErrorCode::kInvalidArgument);
  CHECK(local_path("./~/run") == std::filesystem::path("./~/run"));
}

TEST_CASE("a place below another") {
  for (const char* url : {"/run", "/", "run", ".", "file:///", "file:run", "mem://name", "mem://name/run"}) {
    INFO(url);
    CHECK(child_url(url, "step_1") == url + std::string(std::string(url).back() == '/' ? "" : "/") + "step_1");
    CHECK(parent_url(child_url(url, "step_1")) == url);
  }
  CHECK(child_url("/run/", "a/b") == "/run/a/b");
  for (const char* bad : {"", "/a", "..", "a/../b"}) CHECK(code_of([&] { child_url("/run", bad); }) == ErrorCode::kInvalidArgument);
}
