// Where the secret of a job comes from. Internal: users see WorldOptions.
#pragma once

#include <cairn/actors/links/secret.hpp>

namespace cairn {

struct WorldOptions;

// Of `secret`, else of `secret_file`, else of the file that CAIRN_SECRET_FILE names, else of CAIRN_SECRET; none if none of them says
// anything. Throws kInvalidArgument for both options at once, and what Secret's constructor and Secret::from_file throw.
Secret find_secret(const WorldOptions& options);

}  // namespace cairn
