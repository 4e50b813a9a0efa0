#include <cairn/runtime/worlds/job_secret.hpp>

#include <cairn/base/error.hpp>
#include <cairn/base/settings.hpp>

namespace cairn {
namespace {

constexpr const char* kInStore = "store";  // shorter than a secret may be

}  // namespace

bool is_secret_in_store(const WorldOptions& options) {
  // The program's own secret counts before that of the environment.
  if (!options.secret.empty() || !options.secret_file.empty()) return false;
  if (options.secret_from_store) return true;
  return environment_value("CAIRN_SECRET_FILE").empty() && environment_value("CAIRN_SECRET") == kInStore;
}

Secret find_secret(const WorldOptions& options) {
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
