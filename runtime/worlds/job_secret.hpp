// Finds the secret of a job. Internal: users see WorldOptions.
#pragma once

#include <cairn/actors/links/secret.hpp>
#include <cairn/runtime/worlds/world_options.hpp>

namespace cairn {

// Returns whether rank 0 draws the secret and passes it on through the store. That is so if
// `secret_from_store` is set and neither `secret` nor `secret_file` is. It is also so if
// CAIRN_SECRET is "store", and neither these options nor CAIRN_SECRET_FILE are set.
bool is_secret_in_store(const WorldOptions& options);

// Returns the first of these that is set: `secret`, the contents of `secret_file`, the contents of
// the file that CAIRN_SECRET_FILE names, CAIRN_SECRET. Returns an empty Secret if none of them is
// set, or if `is_secret_in_store` returns true. Throws kInvalidArgument if both options are set.
// Throws what Secret's constructor and Secret::from_file throw.
Secret find_secret(const WorldOptions& options);

}  // namespace cairn
