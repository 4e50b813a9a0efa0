#include <cairn/tests/support/plain.hpp>

#include <cerrno>
#include <string>

#include <cairn/base/error.hpp>

namespace cairn {
namespace {

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
  CHECK(std::string(system_error("read", "/x", 98765).what()).find("error 98765") != std::string::npos);
  const std::string text = system_error("write 4096 bytes at 8192 to", "/data/x.distcp", ENOSPC).what();
  CHECK(text ==
        "cannot write 4096 bytes at 8192 to /data/x.distcp: No space left on device (ENOSPC); free space or inodes (df -i), or "
        "choose another store");
}

}  // namespace
}  // namespace cairn
