// Finds the secret of a job. Internal: users see WorldOptions.
#pragma once

#include <string>

#include <cairn/actors/links/secret.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/settings.hpp>
#include <cairn/runtime/worlds/world_options.hpp>

namespace cairn {

// Returns whether rank 0 draws the secret and passes it on through the store. That is so if
// `secret_from_store` is set and neither `secret` nor `secret_file` is. It is also so if
// CAIRN_SECRET is "store", and neither these options nor CAIRN_SECRET_FILE are set.
inline bool is_secret_in_store(const WorldOptions& options) {
  // The program's own secret counts before that of the environment.
  if (!options.secret.empty() || !options.secret_file.empty()) return false;
  if (options.secret_from_store) return true;
  return environment_value("CAIRN_SECRET_FILE").empty() &&
         environment_value("CAIRN_SECRET") == "store";  // shorter than a secret may be
}

// Returns the first of these that is set: `secret`, the contents of `secret_file`, the contents of
// the file that CAIRN_SECRET_FILE names, CAIRN_SECRET. Returns an empty Secret if none of them is
// set, or if `is_secret_in_store` returns true. Throws kInvalidArgument if both options are set.
// Throws what Secret's constructor and Secret::from_file throw.
inline Secret find_secret(const WorldOptions& options) {
  if (is_secret_in_store(options)) return Secret();
  if (!options.secret.empty() && !options.secret_file.empty())
    throw Error(ErrorCode::kInvalidArgument, "WorldOptions::secret and secret_file are both set: leave one of them out");
  if (!options.secret.empty()) return Secret(options.secret);
  if (!options.secret_file.empty()) return Secret::from_file(options.secret_file);
  if (const std::string path = environment_value("CAIRN_SECRET_FILE"); !path.empty()) return Secret::from_file(path);
  if (const std::string text = environment_value("CAIRN_SECRET"); !text.empty()) return Secret(text);
  return Secret();
}

}  // namespace cairn
