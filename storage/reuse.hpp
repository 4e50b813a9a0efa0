// The option by which a save takes unchanged data over from the last one.
#pragma once

#include <cstdint>

namespace cairn {

// The tensors that a save takes over from the last one, instead of writing them again, if they have
// not changed.
enum class Reuse : std::uint8_t {
  kOff = 1,
  kDeclared,  // the tensors that the caller has marked by `frozen`
  kDigest,    // in addition, all others that do not change between saves
};

}  // namespace cairn
