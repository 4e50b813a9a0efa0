// How much of an exhaustive test runs under a sanitizer.
#pragma once

namespace cairn::testing {

// Tests that try every seed, bit or operation count by this. A sanitizer makes each try ten times
// slower, so under one they try every seventh. 7 and 8 have no divisor in common, so bits in all
// positions of a byte are tried.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr unsigned kStride = 7;
#else
inline constexpr unsigned kStride = 1;
#endif

}  // namespace cairn::testing
