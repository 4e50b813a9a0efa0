// The errors of Cairn: one exception type for what callers branch on by code, one for broken invariants.
//
// Every exception that Cairn throws derives from cairn::Error, and its text says what was tried, on what, and what to do.
// Exceptions of user plug-ins (planners, writers, readers, stores, Stateful objects) may be of any type; they are captured.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace cairn {

// A code exists only where a caller can branch on it. Names in messages and in JSON are those of `to_string`.
enum class ErrorCode : std::uint8_t {
  kInvalidArgument = 1,  // a value that no state of the world could make valid
  kPrecondition,         // valid, but not now or not in this configuration
  kNotFound,             // no such object, key or checkpoint
  kAlreadyExists,        // exclusive creation found something there
  kCorrupt,              // bytes are not what they claim to be
  kUnsupported,          // well formed, but a feature, version or type that is not supported
  kMismatch,             // two sides disagree: keys, shapes, dtypes, world, options
  kUnavailable,          // I/O failed; trying again may help
  kNoSpace,              // the store is full or a quota is reached
  kPermission,           // the store refuses
  kDeadline,             // did not end in time
  kCancelled,            // the caller cancelled it
  kFenced,               // another rank or job ended this attempt
  kChanged,              // the object was replaced while it was being read
  kCheckpoint,           // a save or load failed: see CheckpointException::failures()
  kInternal,             // a broken invariant of Cairn's own
};

const char* to_string(ErrorCode code) noexcept;

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& what) : std::runtime_error(what), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

// A broken invariant: ends the actor and the attempt, publishes nothing, never aborts the trainer.
class InternalError : public Error {
 public:
  explicit InternalError(const std::string& what) : Error(ErrorCode::kInternal, what) {}
};

// Throws InternalError with the text unless `condition` holds. Stays in release builds.
void check_invariant(bool condition, const char* what);

// The error of a failed system call: `action` ("write 4096 bytes at 8192 to"), `object` (a path or URL), `error_number` (errno).
Error system_error(std::string_view action, std::string_view object, int error_number);

}  // namespace cairn
