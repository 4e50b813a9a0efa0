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
  int error_number;
  ErrorCode code;
  const char* advice;
};

constexpr Meaning kMeanings[] = {
    {ENOENT, ErrorCode::kNotFound, "check the path"},
    {EEXIST, ErrorCode::kAlreadyExists, "choose another name, or remove it if nobody needs it"},
    {EACCES, ErrorCode::kPermission, "check owner and permissions"},
    {EPERM, ErrorCode::kPermission, "check owner and permissions"},
    {EROFS, ErrorCode::kPermission, "the file system is mounted read-only"},
    // A file system also reports ENOSPC if it has free blocks but no free inode.
    {ENOSPC, ErrorCode::kNoSpace, "free space or inodes (df -i), or choose another store"},
    {EDQUOT, ErrorCode::kNoSpace, "the quota is used up: free space or choose another store"},
    {EFBIG, ErrorCode::kNoSpace, "the file is larger than the file system or the process's limit (ulimit -f) allows"},
    {EINVAL, ErrorCode::kInvalidArgument, "the system does not accept this request for this object"},
    {ENAMETOOLONG, ErrorCode::kInvalidArgument, "use a shorter name"},
    {ENOTDIR, ErrorCode::kPrecondition, "a part of the path is not a directory"},
    {EISDIR, ErrorCode::kPrecondition, "it is a directory"},
    {ENOTEMPTY, ErrorCode::kPrecondition, "the directory is not empty"},
    {ELOOP, ErrorCode::kPrecondition, "the path holds a loop of symbolic links"},
    {EBUSY, ErrorCode::kPrecondition, "it is in use"},
    {EXDEV, ErrorCode::kUnsupported, "it is on another file system"},
    {ENOSYS, ErrorCode::kUnsupported, "this file system or kernel lacks the operation"},
    {EOPNOTSUPP, ErrorCode::kUnsupported, "this file system or kernel lacks the operation"},
    {ETIMEDOUT, ErrorCode::kDeadline, "check that the other side is reachable"},
    {ECANCELED, ErrorCode::kCancelled, "it was cancelled"},
    // Named because raising a limit helps, and trying again does not.
    {EMFILE, ErrorCode::kUnavailable, "the process has too many open files: raise ulimit -n"},
};

// Returns the code and the advice for an errno value. Unlisted values count as device or network
// errors.
Meaning meaning_of(int error_number) {
  for (const Meaning& meaning : kMeanings)
    if (meaning.error_number == error_number) return meaning;
  return {error_number, ErrorCode::kUnavailable, "trying again may help"};
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
