#include <cairn/base/error.hpp>

#include <cerrno>
#include <cstring>

#include <cairn/base/enum_names.hpp>

namespace cairn {

const char* to_string(ErrorCode code) noexcept {
  // Texts and JSON show these names, so they never change.
  static constexpr const char* kNames[] = {
      "invalid_argument", "precondition", "not_found", "already_exists", "corrupt", "unsupported", "mismatch",   "unavailable",
      "no_space",         "permission",   "deadline",  "cancelled",      "fenced",  "changed",     "checkpoint", "internal"};
  return name_in<ErrorCode::kInternal>(kNames, code, "unknown");
}

// A function and not assert(): a broken invariant must end the attempt in release builds as well.
void check_invariant(bool condition, const char* what) {
  if (!condition) throw InternalError(std::string("broken invariant: ") + what);
}

namespace {

struct Meaning {
  ErrorCode code;
  const char* advice;
};

// Returns the code and the advice for an errno value. Unlisted values count as device or network
// errors.
Meaning meaning_of(int error_number) {
  switch (error_number) {
    case ENOENT:
      return {ErrorCode::kNotFound, "check the path"};
    case EEXIST:
      return {ErrorCode::kAlreadyExists, "choose another name, or remove it if nobody needs it"};
    case EACCES:
    case EPERM:
      return {ErrorCode::kPermission, "check owner and permissions"};
    case EROFS:
      return {ErrorCode::kPermission, "the file system is mounted read-only"};
    // A file system also reports ENOSPC if it has free blocks but no free inode.
    case ENOSPC:
      return {ErrorCode::kNoSpace, "free space or inodes (df -i), or choose another store"};
    case EDQUOT:
      return {ErrorCode::kNoSpace, "the quota is used up: free space or choose another store"};
    case EFBIG:
      return {ErrorCode::kNoSpace, "the file is larger than the file system or the process's limit (ulimit -f) allows"};
    case EINVAL:
      return {ErrorCode::kInvalidArgument, "the system does not accept this request for this object"};
    case ENAMETOOLONG:
      return {ErrorCode::kInvalidArgument, "use a shorter name"};
    case ENOTDIR:
      return {ErrorCode::kPrecondition, "a part of the path is not a directory"};
    case EISDIR:
      return {ErrorCode::kPrecondition, "it is a directory"};
    case ENOTEMPTY:
      return {ErrorCode::kPrecondition, "the directory is not empty"};
    case ELOOP:
      return {ErrorCode::kPrecondition, "the path holds a loop of symbolic links"};
    case EBUSY:
      return {ErrorCode::kPrecondition, "it is in use"};
    case ENOSYS:
    case EOPNOTSUPP:
      return {ErrorCode::kUnsupported, "this file system or kernel lacks the operation"};
    case ETIMEDOUT:
      return {ErrorCode::kDeadline, "check that the other side is reachable"};
    case ECANCELED:
      return {ErrorCode::kCancelled, "it was cancelled"};
    // Named because raising a limit helps, and trying again does not.
    case EMFILE:
      return {ErrorCode::kUnavailable, "the process has too many open files: raise ulimit -n"};
    default:
      return {ErrorCode::kUnavailable, "trying again may help"};
  }
}

}  // namespace

Error system_error(std::string_view action, std::string_view object, int error_number) {
  const Meaning meaning = meaning_of(error_number);
  std::string text = "cannot ";
  text.append(action).append(" ").append(object).append(": ");
  // Unlike strerror, these functions are thread-safe and independent of the locale.
  if (const char* description = strerrordesc_np(error_number)) {
    text.append(description).append(" (").append(strerrorname_np(error_number)).append(")");
  } else {
    text.append("error ").append(std::to_string(error_number));
  }
  text.append("; ").append(meaning.advice);
  return Error(meaning.code, text);
}

}  // namespace cairn
