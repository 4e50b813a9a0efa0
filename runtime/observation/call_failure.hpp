// Names calls and exceptions in errors. Internal.
#pragma once

#include <exception>
#include <string>

#include <cairn/base/failure.hpp>

namespace cairn {

inline std::string saving(const std::string& checkpoint_id) { return "saving '" + checkpoint_id + "'"; }
inline std::string loading(const std::string& checkpoint_id) { return "loading '" + checkpoint_id + "'"; }

// Returns the text of an exception as failure maps give it.
inline std::string text_of(const std::exception_ptr& error) { return capture_failure(0, Phase::kFinish, "trainer", error).what; }

}  // namespace cairn
