#include <cairn/tests/support/plain.hpp>

#include <new>
#include <stdexcept>
#include <string>

#include <cairn/base/failure.hpp>
#include <cairn/base/process_name.hpp>
#include <cairn/base/rank_text.hpp>

namespace cairn {
namespace {

struct CustomError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct NotAnException {};
struct Silent : std::exception {
  const char* what() const noexcept override { return nullptr; }
};

template <class Exception>
Failure captured(Exception exception) {
  return capture_failure(3, Phase::kWrite, "storage", std::make_exception_ptr(std::move(exception)));
}

Failure failure_of(int rank, const std::string& what, FailureKind kind = FailureKind::kRaised) {
  Failure failure;
  failure.rank = rank;
  failure.phase = Phase::kWrite;
  failure.kind = kind;
  failure.code = ErrorCode::kUnavailable;
  failure.type = "std::runtime_error";
  failure.what = what;
  failure.actor = "storage";
  return failure;
}

FailureMap map_of(const std::vector<Failure>& failures) {
  FailureMap map;
  for (const Failure& failure : failures) map.emplace(failure.rank, failure);
  return map;
}

TEST_CASE("a failure tells type, text, code and place of what was thrown") {
  const Failure failure = captured(CustomError("disk on fire"));
  CHECK(failure.rank == 3);
  CHECK(failure.phase == Phase::kWrite);
  CHECK(failure.kind == FailureKind::kRaised);
  CHECK(failure.code == ErrorCode::kUnavailable);
  CHECK(failure.type.find("CustomError") != std::string::npos);
  CHECK(failure.what == "disk on fire");
  CHECK(failure.actor == "storage");
  CHECK(failure.process == process_name());
  CHECK_THROWS_AS(std::rethrow_exception(failure.exception), CustomError);
}

TEST_CASE("Cairn's own errors keep their code, broken invariants their kind") {
  const Failure failure = captured(Error(ErrorCode::kNoSpace, "full"));
  CHECK(failure.code == ErrorCode::kNoSpace);
  CHECK(failure.kind == FailureKind::kRaised);
  CHECK(failure.type == "cairn::Error");
  CHECK(captured(InternalError("oops")).kind == FailureKind::kInternal);
}

TEST_CASE("exceptions of any type are captured") {
  CHECK(captured(42).type == "int");
  CHECK(captured(std::string("text")).what == "text");
  CHECK(captured(static_cast<const char*>("literal")).what == "literal");
  CHECK(captured(static_cast<const char*>(nullptr)).what == "(null)");
  CHECK(captured(NotAnException{}).type.find("NotAnException") != std::string::npos);
  CHECK_FALSE(captured(NotAnException{}).what.empty());
  CHECK_FALSE(captured(Silent{}).what.empty());
  CHECK(captured(std::bad_alloc()).type == "std::bad_alloc");
  CHECK(captured(std::bad_alloc()).what == "out of memory");
}

TEST_CASE("without a given exception, the current one or its absence is captured") {
  try {
    throw CustomError("in flight");
  } catch (...) {
    CHECK(capture_failure(0, Phase::kJoin, "planner", nullptr).what == "in flight");
  }
  const Failure none = capture_failure(0, Phase::kJoin, nullptr, nullptr);
  CHECK(none.kind == FailureKind::kInternal);
  CHECK(none.type.empty());
  CHECK_FALSE(none.what.empty());
}

TEST_CASE("causes of causes are told, a bounded number of them") {
  const auto nest = [](auto&& self, int depth) -> void {
    if (depth == 0) throw CustomError("the root");
    try {
      self(self, depth - 1);
    } catch (...) {
      std::throw_with_nested(std::runtime_error("level " + std::to_string(depth)));
    }
  };
  try {
    nest(nest, 2);
  } catch (...) {
    const std::string what = capture_failure(0, Phase::kJoin, "", nullptr).what;
    CHECK(what.find("level 2; caused by") == 0);
    CHECK(what.find("the root") != std::string::npos);
  }
  try {
    nest(nest, 100);
  } catch (...) {
    const std::string what = capture_failure(0, Phase::kJoin, "", nullptr).what;
    CHECK(what.find("level 92") != std::string::npos);
    CHECK(what.find("level 91;") == std::string::npos);
  }
}

TEST_CASE("huge texts are cut, between characters") {
  const Failure failure = captured(std::runtime_error(std::string(1 << 20, 'x')));
  CHECK(failure.what.size() <= kFailureTextMax);
  CHECK(failure.what.size() > kFailureTextMax - 16);
  CHECK(failure.what.substr(failure.what.size() - 5) == "[...]");
  std::string umlauts;
  for (int i = 0; i < 100000; ++i) umlauts += "ü";
  const std::string cut = captured(std::runtime_error("x" + umlauts)).what;
  CHECK(cut.size() <= kFailureTextMax);
  CHECK(cut.substr(0, 1 + 2 * 100) == ("x" + umlauts).substr(0, 201));
  CHECK((cut.size() - 1 - 6) % 2 == 0);  // one letter, complete umlauts, the cut mark
  const std::string exact(kFailureTextMax, 'y');
  CHECK(captured(std::runtime_error(exact)).what == exact);
}

TEST_CASE("texts that are not UTF-8 become so") {
  CHECK(captured(std::runtime_error("a\xFF b\xC3\x28 c\xE2\x82")).what == "a? b?( c??");
  CHECK(captured(std::runtime_error("\xED\xA0\x80|\xC0\xAF|\xF5\x80\x80\x80")).what == "???|??|????");
  CHECK(captured(std::runtime_error("名前 \xF0\x9F\x98\x80")).what == "名前 \xF0\x9F\x98\x80");
}

TEST_CASE("a cause on one rank is shown with its process") {
  std::vector<Failure> failures{failure_of(1, "disk on fire"), failure_of(3, "no route"), failure_of(4, "no route")};
  for (Failure& failure : failures) failure.process = "process " + std::to_string(failure.rank) + " on node7";
  CHECK(describe({}) == "no rank reported a failure");
  CHECK(describe(map_of({failures[0]})) ==
        "rank 1 raised in write (storage): std::runtime_error: disk on fire (process 1 on node7)");
  const std::string text = describe(map_of(failures));
  CHECK(text.find("disk on fire (process 1 on node7)\n3 ranks failed:\n") != std::string::npos);
  CHECK(text.find("no route (process") == std::string::npos);
}

TEST_CASE("a thousand ranks with causes of their own stay readable") {
  std::vector<Failure> failures;
  for (int rank = 0; rank < 1000; ++rank)
    failures.push_back(failure_of(rank, "cause " + std::to_string(rank) + std::string(10000, 'z')));
  const std::string text = describe(map_of(failures));
  CHECK(text.size() < 64 * 1024);
  CHECK(text.find("1000 ranks failed") != std::string::npos);
  CHECK(text.find("ranks 16-999: 984 further causes") != std::string::npos);
}

TEST_CASE("raised failures come before lost ranks, and lines of long texts are indented") {
  const std::string text =
      describe(map_of({failure_of(0, "connection closed", FailureKind::kLost),
                       failure_of(1, "connection closed", FailureKind::kLost), failure_of(2, "first line\nsecond line")}));
  CHECK(text.find("rank 2 raised in write (storage): std::runtime_error: first line\n3 ranks failed:") == 0);
  CHECK(text.find("\n    second line") != std::string::npos);
  CHECK(text.find("\n  ranks 0, 1 lost in write") != std::string::npos);
}

TEST_CASE("a cause of several lines is shown once if it is the only one") {
  CHECK(describe(map_of({failure_of(2, "first line\nsecond line"), failure_of(3, "first line\nsecond line")})) ==
        "ranks 2, 3 raised in write (storage): std::runtime_error: first line\n    second line");
  const std::string long_line = describe(map_of({failure_of(1, std::string(1000, 'x'))}));
  CHECK(long_line.find('\n') == std::string::npos);
  CHECK(long_line.find(std::string(1000, 'x')) != std::string::npos);
}

TEST_CASE("ranks are named in ranges, a bounded number of them") {
  CHECK(name_ranks({3}) == "rank 3");
  CHECK(name_ranks({3, 4}) == "ranks 3, 4");
  CHECK(name_ranks({0, 1, 2, 3, 7}) == "ranks 0-3, 7");
  std::vector<int> even;
  for (int rank = 0; rank < 1000; rank += 2) even.push_back(rank);
  CHECK(name_ranks(even) == "ranks 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22 and 488 more");
}

TEST_CASE("the exception of a checkpoint says operation, save id, outcome and causes") {
  Failure mine = captured(CustomError("disk on fire"));
  Failure other = failure_of(5, "lost");
  const CheckpointException exception("save", {map_of({mine, other}), Committed::kNo, "cairn-1"});
  CHECK(exception.code() == ErrorCode::kCheckpoint);
  CHECK(exception.failures().size() == 2);
  CHECK(exception.committed() == Committed::kNo);
  CHECK(exception.save_id() == "cairn-1");
  const std::string text = exception.what();
  CHECK(text.find("save failed (save id cairn-1): ") == 0);
  CHECK(text.find(describe(exception.failures())) != std::string::npos);
  CHECK_THROWS_AS(exception.rethrow_original(3), CustomError);
  CHECK_NOTHROW(exception.rethrow_original(5));
  CHECK_NOTHROW(exception.rethrow_original(77));
  const CheckpointException load("load", {map_of({other}), Committed::kUnknown, ""});
  CHECK(std::string(load.what()).find("save id") == std::string::npos);
  CHECK(std::string(load.what()).find("unknown") != std::string::npos);
  const CheckpointException late("save", {map_of({other}), Committed::kYes, "cairn-1"});
  CHECK(std::string(late.what()).find("save failed (save id cairn-1), yet its checkpoint exists: ") == 0);
}

}  // namespace
}  // namespace cairn
