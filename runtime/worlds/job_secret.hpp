// Finds the secret of a job. Internal: users see WorldOptions.
#pragma once

#include <cairn/actors/links/secret.hpp>
#include <cairn/runtime/worlds/world_options.hpp>

namespace cairn {

// Returns whether rank 0 draws the secret and passes it on through the store. It does if
// `secret_from_store` is set and neither `secret` nor `secret_file` is. It also does if
// CAIRN_SECRET is "store" and nothing else is set.
bool is_secret_in_store(const WorldOptions& options);

// Returns `secret`, else the contents of `secret_file`, else of the file that CAIRN_SECRET_FILE
// names, else CAIRN_SECRET. Returns an empty Secret if none of them is set, or if the secret is in
// the store. Throws kInvalidArgument if both options are set, and what Secret's constructor and
// Secret::from_file throw.
Secret find_secret(const WorldOptions& options);

}  // namespace cairn
