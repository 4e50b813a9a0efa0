#include <cairn/tests/support/plain.hpp>

#include <cerrno>
#include <set>
#include <string>

#include <cairn/base/error.hpp>

namespace cairn {
namespace {

TEST_CASE("a broken invariant throws, a sound one does not") {
  CHECK_NOTHROW(check_invariant(true, "fine"));
  CHECK_THROWS_WITH_AS(check_invariant(false, "two is one"), doctest::Contains("two is one"), InternalError);
  try {
    check_invariant(false, "x");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kInternal);
  }
}

TEST_CASE("system errors name action, object and cause, and have a code") {
  const auto code = [](int error_number) { return system_error("write to", "/x", error_number).code(); };
  CHECK(code(ENOENT) == ErrorCode::kNotFound);
  CHECK(code(EEXIST) == ErrorCode::kAlreadyExists);
  CHECK(code(EACCES) == ErrorCode::kPermission);
  CHECK(code(EROFS) == ErrorCode::kPermission);
  CHECK(code(ENOSPC) == ErrorCode::kNoSpace);
  CHECK(code(EDQUOT) == ErrorCode::kNoSpace);
  CHECK(code(EIO) == ErrorCode::kUnavailable);
  CHECK(code(EINVAL) == ErrorCode::kInvalidArgument);
  CHECK(code(EOPNOTSUPP) == ErrorCode::kUnsupported);
  CHECK(code(ETIMEDOUT) == ErrorCode::kDeadline);
  const std::string text = system_error("write 4096 bytes at 8192 to", "/data/x.distcp", ENOSPC).what();
  CHECK(text ==
        "cannot write 4096 bytes at 8192 to /data/x.distcp: No space left on device (ENOSPC); free space or inodes (df -i), or "
        "choose another store");
}

TEST_CASE("an error number that no system defines is told as a number") {
  CHECK(std::string(system_error("read", "/x", 98765).what()).find("error 98765") != std::string::npos);
}

TEST_CASE("every error code has a name of its own") {
  std::set<std::string> names;
  for (int code = 1; code <= static_cast<int>(ErrorCode::kInternal); ++code) names.insert(to_string(static_cast<ErrorCode>(code)));
  CHECK(names.size() == static_cast<std::size_t>(ErrorCode::kInternal));
  CHECK(names.count("unknown") == 0);
  CHECK(std::string(to_string(static_cast<ErrorCode>(200))) == "unknown");
}

}  // namespace
}  // namespace cairn
