// Finds the secret of a job. Internal: users see WorldOptions.
#pragma once

#include <cairn/actors/links/secret.hpp>

namespace cairn {

struct WorldOptions;

// Returns `secret`, else the contents of `secret_file`, else of the file that CAIRN_SECRET_FILE
// names, else CAIRN_SECRET. Returns an empty Secret if none of them is set. Throws kInvalidArgument
// if both options are set, and what Secret's constructor and Secret::from_file throw.
Secret find_secret(const WorldOptions& options);

}  // namespace cairn
