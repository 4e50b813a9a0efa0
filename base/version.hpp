// The version of the library. The build reads it from here.
//
// Versions follow https://semver.org; before 1.0, a new minor version may change the API. The ABI
// depends on the LibTorch in use.
#pragma once

#define CAIRN_VERSION_MAJOR 0
#define CAIRN_VERSION_MINOR 1
#define CAIRN_VERSION_PATCH 0
#define CAIRN_VERSION "0.1.0"

namespace cairn {

// The version of the headers that the caller was compiled with.
inline constexpr const char* kVersion = CAIRN_VERSION;

}  // namespace cairn
