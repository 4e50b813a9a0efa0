// The conformance suite for stores, as doctest checks. It tests each sentence of
// <cairn/storage/store.hpp> that can be tested from outside.
//
// Use it for your own store, in this tree or against the installed library. You provide doctest:
//
//   #include <doctest/doctest.h>
//   #include <cairn/tests/storage/store_conformance.hpp>
//   TEST_CASE("my store keeps the contract") {
//     cairn::testing::check_store_conformance(
//         [] { return std::make_shared<MyStore>(a_new_empty_place()); });
//   }
//
// The function you pass returns a store at an unused place whose root does not exist yet. It is
// called once per subcase. `reopen` returns a second store object for the same place. `open_child`
// returns a store object for a place below it. By default, both call `open_store`, with url() or
// with the URL of the place below. This requires that the URL's scheme is registered. The suite
// does not test behaviour that shows only after a power loss, in a full store or on a broken
// device. It also does not test stores whose root is a link (`leads_elsewhere`).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include <cairn/base/error.hpp>
#include <cairn/storage/store.hpp>
#include <cairn/tests/storage/store_tools.hpp>

namespace cairn::testing {

using OpenEmptyStore = std::function<std::shared_ptr<Store>()>;
using ReopenStore = std::function<std::shared_ptr<Store>(Store&)>;
using OpenChildStore = std::function<std::shared_ptr<Store>(Store&, const std::string& name)>;

namespace conformance {

// Rounds of each race. Every round costs several disk syncs.
inline constexpr int kRaceRounds = 60;

// An object has several names, and exists until all are removed. `store` is above the two places.
inline void check_links(Store& store, Store& from, Store& to) {
  from.create_root();
  to.create_root();
  const std::string content(5000, 'c');
  put_object(from, "a", content);
  const std::string source = child_url(from.url(), "a");
  CHECK(to.traits().has_links == store.traits().has_links);
  if (!store.traits().has_links) {
    CHECK(code_of([&] { to.link(source, "b"); }) == ErrorCode::kUnsupported);
    CHECK(to.list().empty());
    return;
  }
  for (const bool is_durable : {true, false}) {
    const std::string name = is_durable ? "b" : "below/b";
    CHECK(to.link(source, name, is_durable) == content.size());
    CHECK(get_object(to, name) == content);
    CHECK(code_of([&] { to.link(source, name); }) == ErrorCode::kAlreadyExists);
    CHECK(code_of([&] { to.create(name); }) == ErrorCode::kAlreadyExists);
  }
  CHECK(store.list("step_10/").size() == 2);
  CHECK(code_of([&] { to.link(child_url(from.url(), "absent"), "c"); }) == ErrorCode::kNotFound);
  CHECK(code_of([&] { to.link("s3://bucket/a", "c"); }) == ErrorCode::kUnsupported);
  CHECK(code_of([&] { to.link(source, "../c"); }) == ErrorCode::kInvalidArgument);
  from.remove("a");
  to.remove("below/b");
  CHECK(get_object(to, "b") == content);
  to.remove("b");
  CHECK(to.list().empty());
}

inline void check_names(Store& store) {
  const std::string nul("a\0b", 3);
  for (const std::string& bad : {std::string(), std::string("/a"), std::string("a/"), std::string("a//b"), std::string("."),
                                 std::string(".."), std::string("../a"), std::string("a/../b"), std::string("a/./b"), nul}) {
    INFO("name \"", bad, "\"");
    CHECK(code_of([&] { store.create(bad); }) == ErrorCode::kInvalidArgument);
    CHECK(code_of([&] { store.read(bad, {}); }) == ErrorCode::kInvalidArgument);
    CHECK(code_of([&] { store.size_bytes(bad); }) == ErrorCode::kInvalidArgument);
    CHECK(code_of([&] { store.read_end(bad, 1); }) == ErrorCode::kInvalidArgument);
    CHECK(code_of([&] { store.exists(bad); }) == ErrorCode::kInvalidArgument);
    CHECK(code_of([&] { store.remove(bad); }) == ErrorCode::kInvalidArgument);
  }
  for (const std::string& bad : {std::string("/"), std::string("../"), std::string("a/../"), std::string("a//"), nul}) {
    INFO("prefix \"", bad, "\"");
    CHECK(code_of([&] { store.list(bad); }) == ErrorCode::kInvalidArgument);
  }
  for (const std::string& bad :
       {std::string(), std::string("a/b"), std::string("a b"), std::string("ä"), std::string(201, 'x'), nul}) {
    INFO("save id \"", bad, "\"");
    CHECK(code_of([&] { store.begin_attempt(bad); }) == ErrorCode::kInvalidArgument);
    CHECK(code_of([&] { store.publish(bad, ByteSpan(), Overwrite::kAllowed); }) == ErrorCode::kInvalidArgument);
    CHECK(code_of([&] { store.fence(bad); }) == ErrorCode::kInvalidArgument);
    CHECK(code_of([&] { store.clear_attempt(bad); }) == ErrorCode::kInvalidArgument);
    CHECK(code_of([&] { store.has_attempt(bad); }) == ErrorCode::kInvalidArgument);
  }
  CHECK(visible_names(store).empty());
  for (const std::string& good : {std::string("..a"), std::string("a.."), std::string("with space"), std::string("ü\xff\n")}) {
    put_object(store, good, good);
    CHECK(get_object(store, good) == good);
  }
  CHECK_FALSE(code_of([&] { store.begin_attempt(std::string(200, 'x')); }).has_value());
}

inline void check_absent_root(Store& store) {
  CHECK(store.list().empty());
  CHECK(store.list("a/b").empty());
  CHECK(store.children().empty());
  CHECK(store.open_attempts().empty());
  CHECK(store.fenced_attempts().empty());
  CHECK_FALSE(store.has_attempt("never"));
  CHECK_FALSE(store.exists("a"));
  CHECK_FALSE(store.exists(kCommitRecordName));
  CHECK_FALSE(store.is_taken("a"));
  CHECK(code_of([&] { store.read("a", {}); }) == ErrorCode::kNotFound);
  CHECK(code_of([&] { store.size_bytes("a"); }) == ErrorCode::kNotFound);
  store.remove("a");
  store.retract();
  store.remove_root();
  CHECK(code_of([&] { store.publish("never", ByteSpan(), Overwrite::kAllowed); }) == ErrorCode::kFenced);
  // Even if the root does not exist, an attempt that was never begun can be fenced. Creating the
  // root is idempotent.
  store.fence("early");
  store.create_root();
  store.create_root();
  CHECK(code_of([&] { store.begin_attempt("early"); }) == ErrorCode::kFenced);
  put_object(store, "a", "there");
  store.create_root();
  CHECK(get_object(store, "a") == "there");
}

// Two Store objects for one place describe it in the same way. Error texts contain the object name
// or save id that was passed.
inline void check_description(Store& store, Store& other) {
  CHECK_FALSE(store.url().empty());
  CHECK(store.url() == other.url());
  CHECK(store.is_shared() == other.is_shared());
  CHECK(store.traits().part_bytes_min == other.traits().part_bytes_min);
  CHECK(store.traits().parts_max == other.traits().parts_max);
  CHECK(store.traits().create_takes_name == other.traits().create_takes_name);
  CHECK(store.traits().writes == other.traits().writes);
  CHECK_FALSE(store.leads_elsewhere());
  put_object(store, "present", "x");
  const auto check_names_it = [](const char* name, const std::function<void()>& act) {
    std::string text;
    try {
      act();
    } catch (const Error& error) {
      text = error.what();
    }
    INFO("error \"", text, "\" names ", name);
    CHECK(text.find(name) != std::string::npos);
  };
  char byte[1];
  check_names_it("absent", [&] { store.read("absent", {{0, {byte, 1}}}); });
  check_names_it("absent", [&] { store.size_bytes("absent"); });
  check_names_it("present", [&] { store.read("present", {{1, {byte, 1}}}); });
  check_names_it("present", [&] { store.create("present")->sync(0); });
  check_names_it("never", [&] { store.publish("never", ByteSpan(), Overwrite::kAllowed); });
}

// A store at a run also sees the objects of the checkpoints below it, but each place has its own
// attempts.
inline void check_places(Store& run, Store& child, Store& other_child) {
  CHECK(child.url() == child_url(run.url(), "step_1"));
  put_object(run, "step_1/data", "of the child");
  CHECK(get_object(child, "data") == "of the child");
  put_object(child, "deep/data", "deep");
  CHECK(get_object(run, "step_1/deep/data") == "deep");
  put_object(run, "step_10/data", "of another child");
  CHECK(visible_names(child) == Names{"data", "deep/data"});
  CHECK(child.children() == Names{"deep"});
  CHECK(run.children() == Names{"step_1", "step_10"});

  child.begin_attempt("save");
  CHECK(run.open_attempts().empty());
  CHECK(other_child.open_attempts().empty());
  CHECK_FALSE(run.has_attempt("save"));
  CHECK(code_of([&] { run.publish("save", ByteSpan("x", 1), Overwrite::kAllowed); }) == ErrorCode::kFenced);
  run.fence("save");
  other_child.fence("save");
  child.publish("save", ByteSpan("record", 6), Overwrite::kRefused);
  CHECK(get_object(run, std::string("step_1/") + kCommitRecordName) == "record");
  CHECK_FALSE(run.exists(kCommitRecordName));
  CHECK_FALSE(other_child.exists(kCommitRecordName));
  CHECK(names_of(run.list("step_1/.metadata")) == Names{std::string("step_1/") + kCommitRecordName});

  child.retract();
  CHECK_FALSE(run.exists(std::string("step_1/") + kCommitRecordName));
  for (const auto& object : child.list()) child.remove(object.name);
  child.remove_root();
  CHECK(get_object(run, "step_10/data") == "of another child");
  CHECK(run.list("step_1/").empty());
}

// The object has this content, as `read_end` shows it.
inline void check_end(Store& store, const char* name, const std::string& content) {
  for (const std::size_t bytes_max : {std::size_t{0}, std::size_t{1}, content.size(), content.size() + 100}) {
    const auto end = store.read_end(name, bytes_max);
    REQUIRE(end.has_value());
    CHECK(end->object_bytes == content.size());
    CHECK((end->content == content.substr(content.size() - std::min(content.size(), bytes_max))));
  }
}

inline void check_objects(Store& store, Store& other) {
  put_object(store, "one", "first");
  CHECK(get_object(other, "one") == "first");
  CHECK(other.size_bytes("one") == 5);
  CHECK(other.exists("one"));
  CHECK(other.is_taken("one"));
  CHECK_FALSE(other.is_taken("on"));
  CHECK(code_of([&] { other.create("one"); }) == ErrorCode::kAlreadyExists);
  CHECK(get_object(store, "one") == "first");

  put_object(store, "empty", "");
  CHECK(other.size_bytes("empty") == 0);
  CHECK(get_object(other, "empty").empty());

  check_end(other, "one", "first");
  check_end(other, "empty", "");
  CHECK_FALSE(other.read_end("absent", 3).has_value());

  put_object(store, "a/b/c", "deep");
  put_object(store, "a/b/d", "deep too");
  CHECK(get_object(other, "a/b/c") == "deep");
  CHECK_FALSE(store.exists("a/b"));
  CHECK_FALSE(store.exists("a"));
  CHECK(code_of([&] { store.size_bytes("a/b"); }) == ErrorCode::kNotFound);
  CHECK(code_of([&] { store.read("a/b", {}); }) == ErrorCode::kNotFound);
  CHECK_FALSE(store.exists("one/below"));
  CHECK(code_of([&] { store.read("one/below", {}); }) == ErrorCode::kNotFound);
  store.remove("one/below");
  CHECK(get_object(store, "one") == "first");
}

inline void check_writer(Store& store) {
  {  // Writes arrive in any order. Gaps read as zero, and `sync` truncates the object to the given length.
    const auto writer = store.create("gaps", {1000, false});
    CHECK(writer->alignment_bytes() == 1);
    writer->write_at(7, ByteSpan("seven", 5));
    writer->write_at(0, ByteSpan("zero", 4));
    writer->write_at(100, ByteSpan());
    writer->write_at(9, ByteSpan("VE", 2));
    writer->sync(11);
  }
  CHECK(get_object(store, "gaps") == std::string("zero\0\0\0seVEn", 12).substr(0, 11));
  {
    const auto writer = store.create("longer");
    writer->write_at(0, ByteSpan("x", 1));
    writer->sync(3);
  }
  CHECK(get_object(store, "longer") == std::string("x\0\0", 3));
  {
    const auto writer = store.create("closed", {1 << 20, false});
    writer->write_at(0, ByteSpan("content", 7));
    writer->close(4);
  }
  CHECK(get_object(store, "closed") == "cont");
  {
    const auto writer = store.create("reserved only", {1 << 20, false});
    writer->sync(0);
  }
  CHECK(store.size_bytes("reserved only") == 0);
}

inline void check_appears_whole(Store& store) {
  CreateOptions options;
  options.appears_whole = true;
  const auto writer = store.create("whole", options);
  writer->write_at(0, ByteSpan("abc", 3));
  CHECK(!store.exists("whole"));
  writer->sync(3);
  CHECK(get_object(store, "whole") == "abc");
  CHECK(code_of([&] {
          const auto second = store.create("whole", options);
          second->write_at(0, ByteSpan("xy", 2));
          second->sync(2);
        }) == ErrorCode::kAlreadyExists);
  CHECK(get_object(store, "whole") == "abc");
  const auto dropped = store.create("dropped", options);
  dropped->write_at(0, ByteSpan("x", 1));
  dropped->discard();
  CHECK(visible_names(store) == Names{"whole"});
}

inline void check_discard(Store& store) {
  store.create("dropped")->write_at(0, ByteSpan("x", 1));
  {
    const auto writer = store.create("nothing written");
    if (store.traits().create_takes_name) CHECK(code_of([&] { store.create("nothing written"); }) == ErrorCode::kAlreadyExists);
  }
  const auto early = store.create("early");
  early->write_at(0, ByteSpan("x", 1));
  early->discard();
  early->discard();
  const auto late = store.create("late");
  late->write_at(0, ByteSpan("x", 1));
  late->sync(1);
  late->discard();
  late->discard();
  CHECK(visible_names(store).empty());

  // The names are free again. If an old writer is discarded once more, the new object with its name
  // is not touched.
  put_object(store, "early", "new");
  put_object(store, "late", "new");
  early->discard();
  late->discard();
  CHECK(get_object(store, "early") == "new");
  CHECK(get_object(store, "late") == "new");
}

// If an object is removed while its writer is still open, `sync` fails.
inline void check_removed_while_written(Store& store) {
  const auto writer = store.create("taken");
  writer->write_at(0, ByteSpan("x", 1));
  store.remove("taken");
  put_object(store, "taken", "another's");
  const auto code = code_of([&] { writer->sync(1); });
  CHECK((code == ErrorCode::kNotFound || (code == ErrorCode::kAlreadyExists && !store.traits().create_takes_name)));
  writer->discard();
  CHECK(get_object(store, "taken") == "another's");
}

// If two writers use one name, the first to create the object gets the name. If `create` does not
// take the name, the first to finish gets it.
inline void check_two_writers(Store& store) {
  const auto first = store.create("object");
  first->write_at(0, "first");
  if (store.traits().create_takes_name) {
    CHECK(code_of([&] { store.create("object"); }) == ErrorCode::kAlreadyExists);
  } else {
    CHECK_FALSE(store.exists("object"));
    const auto second = store.create("object");
    second->write_at(0, "second");
    CHECK_FALSE(store.exists("object"));
    first->sync(5);
    CHECK(code_of([&] { second->sync(6); }) == ErrorCode::kAlreadyExists);
    CHECK(code_of([&] {
            const auto third = store.create("other");
            put_object(store, "other", "won");
            third->close(0);
          }) == ErrorCode::kAlreadyExists);
    CHECK(get_object(store, "other") == "won");
    second->discard();
  }
  if (store.traits().create_takes_name) first->sync(5);
  CHECK(get_object(store, "object") == "first");
}

inline void check_parallel_writes(Store& store) {
  constexpr std::size_t kPiece = 100 * 1000 + 7;
  constexpr int kThreads = 8;
  std::string content(kPiece * kThreads * 3, '\0');
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>('a' + i * 7 / 3 % 26);
  for (const std::uint64_t expected : {std::uint64_t{0}, static_cast<std::uint64_t>(content.size())}) {
    const std::string name = "parallel " + std::to_string(expected);
    const auto writer = store.create(name, {expected, false});
    TogetherThreads::run(kThreads, [&](int thread) {
      for (int round = 2; round >= 0; --round) {
        const std::size_t offset = (static_cast<std::size_t>(round) * kThreads + static_cast<std::size_t>(thread)) * kPiece;
        writer->write_at(offset, ByteSpan(content.data() + offset, kPiece));
      }
    });
    writer->sync(content.size());
    CHECK((get_object(store, name) == content));
  }
}

inline void check_direct(Store& store) {
  constexpr std::size_t kBlock = 64 * 1024;
  const auto writer = store.create("direct", {3 * kBlock, true});
  const std::size_t alignment = writer->alignment_bytes();
  REQUIRE(alignment >= 1);
  REQUIRE(kBlock % alignment == 0);
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  const std::unique_ptr<char, Free> block(static_cast<char*>(std::aligned_alloc(kBlock, kBlock)));
  for (const int part : {2, 0, 1}) {
    std::fill_n(block.get(), kBlock, static_cast<char>('0' + part));
    writer->write_at(static_cast<std::uint64_t>(part) * kBlock, ByteSpan(block.get(), kBlock));
  }
  if (alignment > 1) {
    CHECK(code_of([&] { writer->write_at(1, ByteSpan(block.get(), kBlock)); }) == ErrorCode::kInvalidArgument);
    CHECK(code_of([&] { writer->write_at(0, ByteSpan(block.get(), kBlock - 1)); }) == ErrorCode::kInvalidArgument);
    CHECK(code_of([&] { writer->write_at(0, ByteSpan(block.get() + 1, alignment)); }) == ErrorCode::kInvalidArgument);
  }
  const std::size_t length = 2 * kBlock + 123;
  writer->sync(length);
  std::string expected = std::string(kBlock, '0') + std::string(kBlock, '1') + std::string(123, '2');
  CHECK((get_object(store, "direct") == expected));
}

// Writes objects as the write engine does: in parts of equal size (the last may be smaller), in any
// order.
inline void check_parts(Store& store) {
  const std::size_t part = std::max<std::size_t>(store.traits().part_bytes_min, 64 * 1024);
  std::string content(2 * part + 123, '\0');
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>('a' + i * 7 / 3 % 26);
  for (const std::size_t length : {std::size_t{0}, std::size_t{1}, part - 1, part, part + 1, 2 * part, content.size()}) {
    const std::string name = "parts " + std::to_string(length);
    CreateOptions options;
    options.expected_bytes = length;
    options.part_bytes = part;
    const auto writer = store.create(name, options);
    const std::size_t parts = (length + part - 1) / part;
    TogetherThreads::run(static_cast<int>(parts), [&](int thread) {
      const std::size_t offset = (parts - 1 - static_cast<std::size_t>(thread)) * part;
      writer->write_at(offset, ByteSpan(content.data() + offset, std::min(part, length - offset)));
    });
    writer->sync(length);
    CHECK((get_object(store, name) == content.substr(0, length)));
  }
  // If `part_bytes_min` is not 0, an object that is not written in parts can be at most
  // `part_bytes_min` bytes long.
  if (store.traits().part_bytes_min > 0) {
    const auto whole = store.create("whole");
    whole->write_at(0, ByteSpan(content.data(), part));
    CHECK(code_of([&] { whole->write_at(part, ByteSpan(content.data(), 1)); }) == ErrorCode::kInvalidArgument);
    whole->discard();
  }
  // An object does not exist after its writer was discarded, or destroyed before it finished.
  CreateOptions options;
  options.part_bytes = part;
  const auto writer = store.create("discarded", options);
  writer->write_at(part, ByteSpan(content.data(), part));
  writer->discard();
  store.create("destroyed", options)->write_at(0, ByteSpan(content.data(), part));
  CHECK_FALSE(store.exists("discarded"));
  CHECK_FALSE(store.exists("destroyed"));
}

inline void check_read(Store& store) {
  put_object(store, "digits", "0123456789");
  std::string a(3, 'x'), b(2, 'x'), all(10, 'x'), none;
  store.read("digits", {{7, {a.data(), 3}}, {0, {b.data(), 2}}, {0, {all.data(), 10}}, {4, {none.data(), 0}}});
  CHECK(a == "789");
  CHECK(b == "01");
  CHECK(all == "0123456789");
  store.read("digits", {});
  for (const std::uint64_t offset :
       {std::uint64_t{8}, std::uint64_t{10}, std::uint64_t{11}, std::uint64_t{1} << 40, ~std::uint64_t{0} - 1}) {
    INFO("offset ", offset);
    CHECK(code_of([&] { store.read("digits", {{offset, {a.data(), 3}}}); }) == ErrorCode::kCorrupt);
  }
  CHECK(code_of([&] { store.read("absent", {}); }) == ErrorCode::kNotFound);
  CHECK(code_of([&] { store.read("absent", {{0, {a.data(), 3}}}); }) == ErrorCode::kNotFound);
  CHECK(code_of([&] { store.size_bytes("absent"); }) == ErrorCode::kNotFound);
}

inline void check_list(Store& store, Store& other) {
  for (const char* name : {"b", "a-b", "a/z", "a/b/c", "a/b/a", "aa", "B", "~"}) put_object(store, name, name);
  CHECK(visible_names(other) == Names{"B", "a-b", "a/b/a", "a/b/c", "a/z", "aa", "b", "~"});
  CHECK(names_of(other.list("a")) == Names{"a-b", "a/b/a", "a/b/c", "a/z", "aa"});
  CHECK(names_of(other.list("a/")) == Names{"a/b/a", "a/b/c", "a/z"});
  CHECK(names_of(other.list("a/b")) == Names{"a/b/a", "a/b/c"});
  CHECK(names_of(other.list("a/b/c")) == Names{"a/b/c"});
  CHECK(other.list("a/b/c/").empty());
  CHECK(other.list("c").empty());
  CHECK(other.list("c/d").empty());
  CHECK(other.list("b/").empty());
  for (const auto& object : other.list("a/")) CHECK(object.size_bytes == object.name.size());
  CHECK(other.children() == Names{"a"});
  put_object(store, "C/x", "");
  CHECK(other.children() == Names{"C", "a"});

  // The commit record is listed like any other object.
  store.begin_attempt("save");
  store.publish("save", ByteSpan("record", 6), Overwrite::kAllowed);
  CHECK(names_of(other.list(".metadata")) == Names{".metadata"});
}

inline void check_remove(Store& store, Store& other) {
  put_object(store, "a/b", "x");
  put_object(store, "a/c", "x");
  other.remove("a/b");
  other.remove("a/b");
  CHECK_FALSE(store.exists("a/b"));
  CHECK(visible_names(store) == Names{"a/c"});
  put_object(store, "a/b", "again");
  CHECK(get_object(other, "a/b") == "again");
  store.begin_attempt("save");
  store.publish("save", ByteSpan("record", 6), Overwrite::kAllowed);
  store.remove(kCommitRecordName);
  CHECK_FALSE(other.exists(kCommitRecordName));
}

inline void check_create_race(Store& store) {
  for (int round = 0; round < kRaceRounds / 4; ++round) {
    const std::string name = "place " + std::to_string(round) + "/object";
    std::atomic<int> winner{-1}, winners{0};
    TogetherThreads::run(8, [&](int thread) {
      const std::string content = std::to_string(thread);
      const auto code = code_of([&] {
        const auto writer = store.create(name);
        writer->write_at(0, content);
        writer->sync(1);
        winner = thread;
        ++winners;
      });
      if (code && *code != ErrorCode::kAlreadyExists) throw std::runtime_error("unexpected error");
    });
    REQUIRE(winners == 1);
    REQUIRE(get_object(store, name) == std::to_string(winner));
  }
}

// `retract` leaves objects and attempts in place. The caller decides whether to remove them.
inline void check_retract(Store& store, Store& other) {
  store.retract();
  put_object(store, "data", "x");
  store.begin_attempt("first");
  store.publish("first", ByteSpan("record", 6), Overwrite::kRefused);
  store.begin_attempt("second");
  other.retract();
  other.retract();
  CHECK_FALSE(store.exists(kCommitRecordName));
  CHECK(get_object(store, "data") == "x");
  CHECK(store.open_attempts() == Names{"second"});
  store.publish("second", ByteSpan("again", 5), Overwrite::kRefused);
  CHECK(get_object(other, kCommitRecordName) == "again");
}

// The mark of a removal is there before the record goes, and after another save to the same place.
inline void check_retract_with_mark(Store& store, Store& other) {
  const std::string removed = ".removed-";
  const ObjectName mark = removed + "cairn-00112233445566778899aabbccddeeff-01234567-1";
  const auto text_of_mark = [&] {
    const auto end = other.read_end(mark, 1000);
    return end ? end->content : "none";
  };
  for (const std::string& text : {std::string("\n"), "\n" + std::string(300, 'n') + "\n"}) {
    store.begin_attempt("first" + std::to_string(text.size()));
    store.publish("first" + std::to_string(text.size()), ByteSpan("record", 6), Overwrite::kRefused);
    other.retract(mark, text);
    store.retract(mark, text);
    CHECK_FALSE(store.exists(kCommitRecordName));
    CHECK(names_of(store.list()) == Names{mark});
    CHECK(names_of(store.list(mark)) == Names{mark});
    CHECK(names_of(store.list(removed)) == Names{mark});
    CHECK(text_of_mark() == text);
    CHECK(other.exists(mark));
    CHECK(get_object(other, mark) == text);
    const std::string next = "next" + std::to_string(text.size());
    store.begin_attempt(next);
    store.publish(next, ByteSpan("next", 4), Overwrite::kRefused);
    CHECK(text_of_mark() == text);
    store.remove(mark);
    CHECK(names_of(other.list()) == Names{kCommitRecordName});
    other.retract(mark, text);
    put_object(store, "data", "x");
    CHECK(names_of(other.list()) == Names{mark, "data"});
    other.remove(mark);
    CHECK(names_of(store.list()) == Names{"data"});
    store.remove("data");
  }
}

inline void check_remove_root(Store& store, Store& other) {
  put_object(store, "data", "x");
  other.remove_root();
  CHECK(get_object(store, "data") == "x");
  store.remove("data");
  store.begin_attempt("first");
  other.remove_root();
  store.publish("first", ByteSpan("record", 6), Overwrite::kRefused);
  other.remove_root();
  CHECK(get_object(store, kCommitRecordName) == "record");
  store.retract();
  other.remove_root();
  other.remove_root();
  CHECK(store.list().empty());
  // A removed root can be created again.
  store.create_root();
  put_object(store, "data", "new");
  CHECK(get_object(other, "data") == "new");
}

inline void check_begin(Store& store, Store& other) {
  store.begin_attempt("one");
  CHECK(code_of([&] { other.begin_attempt("one"); }) == ErrorCode::kAlreadyExists);
  store.begin_attempt("two");
  CHECK(other.open_attempts() == Names{"one", "two"});
  CHECK(other.fenced_attempts().empty());
  CHECK(other.has_attempt("one"));
  CHECK_FALSE(other.has_attempt("on"));
  CHECK(visible_names(store).empty());
  for (int round = 0; round < kRaceRounds / 4; ++round) {
    std::atomic<int> winners{0};
    TogetherThreads::run(8, [&](int thread) {
      const auto code = code_of([&] { (thread % 2 == 0 ? store : other).begin_attempt("race-" + std::to_string(round)); });
      if (!code) ++winners;
      if (code && *code != ErrorCode::kAlreadyExists) throw std::runtime_error("unexpected error");
    });
    REQUIRE(winners == 1);
  }
}

inline void check_publish(Store& store, Store& other) {
  CHECK(code_of([&] { store.publish("never", ByteSpan("x", 1), Overwrite::kAllowed); }) == ErrorCode::kFenced);
  CHECK_FALSE(other.exists(kCommitRecordName));
  store.begin_attempt("one");
  CHECK_FALSE(other.exists(kCommitRecordName));
  store.publish("one", ByteSpan("first", 5), Overwrite::kRefused);
  CHECK(get_object(other, kCommitRecordName) == "first");
  CHECK(other.open_attempts().empty());
  CHECK(other.fenced_attempts().empty());
  CHECK(code_of([&] { store.publish("one", ByteSpan("again", 5), Overwrite::kAllowed); }) == ErrorCode::kFenced);
  CHECK(get_object(other, kCommitRecordName) == "first");

  // A refused overwrite changes nothing: the attempt stays open, and a publication that allows
  // overwriting succeeds.
  store.begin_attempt("two");
  for (int i = 0; i < 2; ++i)
    CHECK(code_of([&] { store.publish("two", ByteSpan("second", 6), Overwrite::kRefused); }) == ErrorCode::kAlreadyExists);
  CHECK(get_object(other, kCommitRecordName) == "first");
  CHECK(other.open_attempts() == Names{"two"});
  std::string large(5 * 1000 * 1000 + 1, 'l');
  store.publish("two", large, Overwrite::kAllowed);
  CHECK((get_object(other, kCommitRecordName) == large));
  check_end(other, kCommitRecordName, large);
  store.begin_attempt("three");
  store.publish("three", ByteSpan(), Overwrite::kAllowed);
  CHECK(other.size_bytes(kCommitRecordName) == 0);
  check_end(other, kCommitRecordName, "");
  CHECK(names_of(other.list()) == Names{kCommitRecordName});
}

inline void check_fence(Store& store, Store& other) {
  store.begin_attempt("live");
  store.begin_attempt("dead");
  other.fence("dead");
  other.fence("dead");
  CHECK(store.open_attempts() == Names{"live"});
  CHECK(store.fenced_attempts() == Names{"dead"});
  CHECK(store.has_attempt("live"));
  CHECK(store.has_attempt("dead"));
  CHECK(code_of([&] { store.publish("dead", ByteSpan("x", 1), Overwrite::kAllowed); }) == ErrorCode::kFenced);
  CHECK(code_of([&] { store.publish("dead", ByteSpan("x", 1), Overwrite::kRefused); }) == ErrorCode::kFenced);
  CHECK(code_of([&] { store.begin_attempt("dead"); }) == ErrorCode::kFenced);
  CHECK(code_of([&] { store.publish("dead", ByteSpan("x", 1), Overwrite::kAllowed); }) == ErrorCode::kFenced);
  CHECK_FALSE(store.exists(kCommitRecordName));
  CHECK_FALSE(store.read_end(kCommitRecordName, 1).has_value());
  CHECK(store.open_attempts() == Names{"live"});

  // An attempt that was never begun can be fenced.
  other.fence("unborn");
  CHECK(code_of([&] { store.begin_attempt("unborn"); }) == ErrorCode::kFenced);
  CHECK(code_of([&] { store.publish("unborn", ByteSpan("x", 1), Overwrite::kAllowed); }) == ErrorCode::kFenced);
  CHECK(store.fenced_attempts() == Names{"dead", "unborn"});

  // Fencing does not affect other attempts. A published attempt stays published after it is fenced.
  store.publish("live", ByteSpan("live", 4), Overwrite::kRefused);
  other.fence("live");
  CHECK(get_object(store, kCommitRecordName) == "live");
  check_end(store, kCommitRecordName, "live");
  CHECK(store.fenced_attempts() == Names{"dead", "live", "unborn"});
  CHECK(code_of([&] { store.publish("live", ByteSpan("x", 1), Overwrite::kAllowed); }) == ErrorCode::kFenced);
  CHECK(get_object(store, kCommitRecordName) == "live");

  for (const char* id : {"dead", "live", "unborn"}) store.clear_attempt(id);
  CHECK_FALSE(other.has_attempt("dead"));
  CHECK(store.fenced_attempts().empty());
  CHECK(store.open_attempts().empty());
  CHECK(names_of(store.list()) == Names{kCommitRecordName});
  CHECK(code_of([&] { store.publish("dead", ByteSpan("x", 1), Overwrite::kAllowed); }) == ErrorCode::kFenced);
}

// Exactly one of publish and fence wins, and the outcome is final.
inline void check_publish_fence_race(Store& store, Store& other) {
  int published = 0;
  std::string current;
  for (int round = 0; round < kRaceRounds; ++round) {
    const std::string id = "save-" + std::to_string(round);
    const Overwrite overwrite = current.empty() ? Overwrite::kRefused : Overwrite::kAllowed;
    store.begin_attempt(id);
    std::optional<ErrorCode> outcome;
    bool seen_by_fence[3] = {};
    TogetherThreads::run(4, [&](int thread) {
      if (thread == 0) {
        outcome = code_of([&] { store.publish(id, id, overwrite); });
      } else {
        other.fence(id);
        // After `fence` returns, it is final whether this attempt was published.
        seen_by_fence[thread - 1] = other.exists(kCommitRecordName) && get_object(other, kCommitRecordName) == id;
      }
    });
    REQUIRE((!outcome || *outcome == ErrorCode::kFenced));
    if (!outcome) {
      ++published;
      current = id;
    }
    REQUIRE((store.exists(kCommitRecordName) ? get_object(store, kCommitRecordName) : "") == current);
    for (const bool seen : seen_by_fence) REQUIRE(seen == !outcome);
    REQUIRE(code_of([&] { store.publish(id, ByteSpan("late", 4), Overwrite::kAllowed); }) == ErrorCode::kFenced);
    REQUIRE(store.open_attempts().empty());
    REQUIRE(store.fenced_attempts() == Names{id});
    store.clear_attempt(id);
  }
  MESSAGE("publication won ", published, " of ", kRaceRounds, " races");
}

inline void check_begin_fence_race(Store& store, Store& other) {
  for (int round = 0; round < kRaceRounds; ++round) {
    const std::string id = "save-" + std::to_string(round);
    TogetherThreads::run(3, [&](int thread) {
      if (thread == 0) {
        const auto code = code_of([&] { store.begin_attempt(id); });
        if (code && *code != ErrorCode::kFenced) throw std::runtime_error("unexpected error");
      } else {
        other.fence(id);
      }
    });
    REQUIRE(code_of([&] { store.publish(id, ByteSpan("x", 1), Overwrite::kAllowed); }) == ErrorCode::kFenced);
    REQUIRE(store.open_attempts().empty());
    REQUIRE(store.fenced_attempts() == Names{id});
    store.clear_attempt(id);
  }
  CHECK_FALSE(store.exists(kCommitRecordName));
}

// Exactly one of many publications that refuse to overwrite succeeds.
inline void check_refusal_race(Store& store, Store& other) {
  for (int round = 0; round < kRaceRounds / 4; ++round) {
    for (int thread = 0; thread < 8; ++thread) store.begin_attempt(std::to_string(round) + "-" + std::to_string(thread));
    std::atomic<int> winner{-1}, winners{0};
    TogetherThreads::run(8, [&](int thread) {
      const std::string id = std::to_string(round) + "-" + std::to_string(thread);
      const auto code = code_of([&] { (thread % 2 == 0 ? store : other).publish(id, id, Overwrite::kRefused); });
      if (!code) {
        winner = thread;
        ++winners;
      } else if (*code != ErrorCode::kAlreadyExists) {
        throw std::runtime_error("unexpected error");
      }
    });
    REQUIRE(winners == 1);
    REQUIRE(get_object(store, kCommitRecordName) == std::to_string(round) + "-" + std::to_string(winner));
    for (const std::string& id : store.open_attempts()) {
      store.fence(id);
      store.clear_attempt(id);
    }
    store.remove(kCommitRecordName);
  }
}

// A reader sees the whole old record or the whole new one, never a mixture.
inline void check_readers_see_whole_records(Store& store, Store& other) {
  constexpr std::size_t kLength = 50 * 1000;
  store.begin_attempt("save-0");
  store.publish("save-0", std::string(kLength, 'a'), Overwrite::kAllowed);
  std::atomic<bool> done{false};
  std::atomic<int> torn{0};
  TogetherThreads::run(3, [&](int thread) {
    if (thread == 0) {
      for (int i = 1; i <= 40; ++i) {
        const std::string id = "save-" + std::to_string(i);
        store.begin_attempt(id);
        store.publish(id, std::string(kLength, static_cast<char>('a' + i % 26)), Overwrite::kAllowed);
      }
      done = true;
    } else {
      do {
        const std::string record = get_object(other, kCommitRecordName);
        if (record != std::string(kLength, record.front())) ++torn;
      } while (!done);
    }
  });
  CHECK(torn == 0);
}

}  // namespace conformance

inline void check_store_conformance(
    const OpenEmptyStore& open_empty, const ReopenStore& reopen = [](Store& store) { return open_store(store.url()); },
    const OpenChildStore& open_child = [](Store& store,
                                          const std::string& name) { return open_store(child_url(store.url(), name)); }) {
  const std::shared_ptr<Store> store = open_empty();
  const std::shared_ptr<Store> other = reopen(*store);

  SUBCASE("a root that does not exist yet") { conformance::check_absent_root(*store); }
  store->create_root();
  SUBCASE("names, prefixes and save ids") { conformance::check_names(*store); }
  SUBCASE("description") { conformance::check_description(*store, *other); }
  SUBCASE("child places") { conformance::check_places(*store, *open_child(*store, "step_1"), *open_child(*other, "step_10")); }
  SUBCASE("objects") { conformance::check_objects(*store, *other); }
  SUBCASE("writing") { conformance::check_writer(*store); }
  SUBCASE("appearing whole") { conformance::check_appears_whole(*store); }
  SUBCASE("discarding") { conformance::check_discard(*store); }
  SUBCASE("removed while written") { conformance::check_removed_while_written(*store); }
  SUBCASE("two writers") { conformance::check_two_writers(*store); }
  SUBCASE("parallel writes") { conformance::check_parallel_writes(*store); }
  SUBCASE("writing in parts") { conformance::check_parts(*store); }
  SUBCASE("direct I/O") { conformance::check_direct(*store); }
  SUBCASE("reading") { conformance::check_read(*store); }
  SUBCASE("linking") { conformance::check_links(*store, *open_child(*store, "step_1"), *open_child(*other, "step_10")); }
  SUBCASE("listing") { conformance::check_list(*store, *other); }
  SUBCASE("removing") { conformance::check_remove(*store, *other); }
  SUBCASE("taking a checkpoint away") { conformance::check_retract(*store, *other); }
  SUBCASE("taking a checkpoint away with a mark") { conformance::check_retract_with_mark(*store, *other); }
  SUBCASE("removing the root") { conformance::check_remove_root(*store, *other); }
  SUBCASE("creation races") { conformance::check_create_race(*store); }
  SUBCASE("beginning attempts") { conformance::check_begin(*store, *other); }
  SUBCASE("publishing") { conformance::check_publish(*store, *other); }
  SUBCASE("fencing") { conformance::check_fence(*store, *other); }
  SUBCASE("publish races fence") { conformance::check_publish_fence_race(*store, *other); }
  SUBCASE("begin races fence") { conformance::check_begin_fence_race(*store, *other); }
  SUBCASE("refusals race") { conformance::check_refusal_race(*store, *other); }
  SUBCASE("readers beside publications") { conformance::check_readers_see_whole_records(*store, *other); }
}

}  // namespace cairn::testing
