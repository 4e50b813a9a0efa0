#include <cairn/runtime/worlds/job_secret.hpp>

#include <cstdlib>
#include <cstring>

#include <cairn/base/error.hpp>

namespace cairn {
namespace {

const char* variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

constexpr const char* kInStore = "store";  // shorter than a secret may be

}  // namespace

bool is_secret_in_store(const WorldOptions& options) {
  // The program's own secret counts before that of the environment.
  if (!options.secret.empty() || !options.secret_file.empty()) return false;
  if (options.secret_from_store) return true;
  return *variable("CAIRN_SECRET_FILE") == '\0' && std::strcmp(variable("CAIRN_SECRET"), kInStore) == 0;
}

Secret find_secret(const WorldOptions& options) {
  if (is_secret_in_store(options)) return Secret();
  if (!options.secret.empty() && !options.secret_file.empty())
    throw Error(ErrorCode::kInvalidArgument, "WorldOptions::secret and secret_file are both set: leave one of them out");
  if (!options.secret.empty()) return Secret(options.secret);
  if (!options.secret_file.empty()) return Secret::from_file(options.secret_file);
  if (const char* const path = variable("CAIRN_SECRET_FILE"); *path != '\0') return Secret::from_file(path);
  if (const char* const text = variable("CAIRN_SECRET"); *text != '\0') return Secret(ByteSpan(text, std::strlen(text)));
  return Secret();
}

}  // namespace cairn
