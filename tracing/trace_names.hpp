// The names of messages, hooks and states (actors/protocol) that the analysis knows. Traces of
// another version may use other names; the analysis then reports less. Internal.
#pragma once

#include <array>
#include <string_view>

namespace cairn::trace_names {

inline constexpr std::string_view kSupervisor = "supervisor";
inline constexpr std::string_view kCoordinator = "coordinator";

inline constexpr std::string_view kLinkDown = "LinkDown";
inline constexpr std::string_view kLinkUp = "LinkUp";
inline constexpr std::string_view kJoin = "Join";
inline constexpr std::string_view kNeedLocalPlan = "NeedLocalPlan";
inline constexpr std::string_view kNeedGlobalPlan = "NeedGlobalPlan";

inline bool begins_with(std::string_view text, std::string_view beginning) { return text.substr(0, beginning.size()) == beginning; }

}  // namespace cairn::trace_names
