// Names calls in errors, and makes the exception of a failed call. Internal.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include <cairn/actors/call.hpp>
#include <cairn/base/failure.hpp>

namespace cairn {

inline std::string saving(const std::string& checkpoint_id) { return "saving '" + checkpoint_id + "'"; }
inline std::string loading(const std::string& checkpoint_id) { return "loading '" + checkpoint_id + "'"; }

// Returns the exception for a failed call. `outcome` must be a failure.
inline CheckpointException exception_of(std::string call, CallResult outcome) {
  return CheckpointException(std::move(call), std::move(outcome.failures), outcome.committed, std::move(outcome.save_id));
}

// Returns the text of an exception as failure maps give it.
inline std::string text_of(const std::exception_ptr& error) { return capture_failure(0, Phase::kFinish, "trainer", error).what; }

}  // namespace cairn
