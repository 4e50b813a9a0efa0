// A valid trailer, with every field set, as a seed for fuzzing. For metadata see sample_metadata.
#pragma once

#include <cairn/storage/format/trailer.hpp>
#include <cairn/tests/support/sample_metadata.hpp>

namespace cairn::testing {

Trailer sample_trailer();

}  // namespace cairn::testing
