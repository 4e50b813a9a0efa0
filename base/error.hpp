// Cairn's errors: one exception type with a code that callers can branch on, and one for broken
// invariants.
//
// Every exception that Cairn throws derives from cairn::Error. Its text says what was tried, on
// which object, and what to do. User plug-ins (planners, writers, readers, stores, Stateful
// objects) may throw any type. During a save or load, Cairn catches these exceptions and reports
// them in the failure map.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace cairn {

// Callers can branch on these codes. Texts and JSON show the name that `to_string` returns.
enum class ErrorCode : std::uint8_t {
  kInvalidArgument = 1,  // never valid, whatever the circumstances
  kPrecondition,         // valid, but not now or not in this configuration
  kNotFound,             // no such object, key or checkpoint
  kAlreadyExists,        // exclusive creation found an existing object
  kCorrupt,              // the bytes are not what they claim to be
  kUnsupported,          // well formed, but uses an unsupported feature, version or type
  kMismatch,             // two sides disagree: keys, shapes, dtypes, world, options
  kUnavailable,          // I/O failed; a retry may succeed
  kNoSpace,              // the store is full, or a quota is exhausted
  kPermission,           // access was denied by the store, the system or a peer, or a file is unsafe to use
  kDeadline,             // timed out
  kCancelled,            // cancelled by the caller, or by a shutdown
  kFenced,               // another rank or job ended this attempt
  kChanged,              // the object was replaced while it was being read
  kCheckpoint,           // a save or load failed: see CheckpointException::failures()
  kInternal,             // a broken invariant in Cairn
};

const char* to_string(ErrorCode code) noexcept;

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& what) : std::runtime_error(what), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

// The exception for a broken invariant. It makes the current save or load fail, and may end the
// actor that threw it. It never ends the process.
class InternalError : public Error {
 public:
  explicit InternalError(const std::string& what) : Error(ErrorCode::kInternal, what) {}
};

// Throws InternalError if `condition` is false, in release builds too. The error's text ends in
// `what`.
void check_invariant(bool condition, const char* what);

// Returns the Error for a failed system call. `action` is a text such as "write 4096 bytes at 8192
// to", `object` is a path or URL, and `error_number` is the value of errno.
Error system_error(std::string_view action, std::string_view object, int error_number);

}  // namespace cairn
