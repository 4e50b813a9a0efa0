#include <cairn/storage/stores/s3_settings.hpp>

#include <fstream>
#include <map>

#include <cairn/base/error.hpp>

namespace cairn {
namespace {

std::string trimmed(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

// Returns the keys and values of one section of an INI file; none if there is no such file.
// Indented lines belong to a nested setting and are skipped.
std::map<std::string, std::string> section_of(const std::string& path, const std::string& section) {
  std::map<std::string, std::string> values;
  std::ifstream file(path);
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#' || line[0] == ';' || line[0] == ' ' || line[0] == '\t') continue;
    if (line[0] == '[') {
      inside = trimmed(line.substr(1, line.find(']') - 1)) == section;
    } else if (const std::size_t equals = line.find('='); inside && equals != std::string::npos) {
      values[trimmed(line.substr(0, equals))] = trimmed(line.substr(equals + 1));
    }
  }
  return values;
}

std::string shared_file(const char* variable_name, const char* name) {
  const std::string path = s3_variable(variable_name);
  return path.empty() ? s3_variable("HOME") + "/.aws/" + name : path;
}

bool addresses_by_host(bool is_aws, const std::string& bucket) {
  const std::string chosen = s3_variable("CAIRN_S3_ADDRESSING");
  // The certificate of AWS covers one label before its domain, so not a bucket with a '.'.
  if (chosen.empty()) return is_aws && bucket.find('.') == std::string::npos;
  if (chosen != "path" && chosen != "virtual")
    throw Error(ErrorCode::kInvalidArgument, "CAIRN_S3_ADDRESSING is \"" + chosen + "\": use path or virtual");
  return chosen == "virtual";
}

}  // namespace

S3Settings s3_settings_from_environment(const std::string& bucket) {
  const std::string chosen_profile = s3_variable("AWS_PROFILE");
  const std::string profile = chosen_profile.empty() ? "default" : chosen_profile;
  const std::string credentials_path = shared_file("AWS_SHARED_CREDENTIALS_FILE", "credentials");
  auto shared = section_of(credentials_path, profile);
  auto config = section_of(shared_file("AWS_CONFIG_FILE", "config"), profile == "default" ? profile : "profile " + profile);

  S3Settings settings;
  for (const std::string& region : {s3_variable("AWS_REGION"), s3_variable("AWS_DEFAULT_REGION"), shared["region"],
                                    config["region"], std::string("us-east-1")}) {
    settings.region = region;
    if (!region.empty()) break;
  }

  settings.endpoint = s3_variable("AWS_ENDPOINT_URL_S3");
  if (settings.endpoint.empty()) settings.endpoint = s3_variable("AWS_ENDPOINT_URL");
  const bool is_aws = settings.endpoint.empty();
  if (is_aws) settings.endpoint = "https://s3." + settings.region + ".amazonaws.com";
  // Not shown: it would be a password in an error text.
  if (settings.endpoint.find('@') != std::string::npos)
    throw Error(ErrorCode::kInvalidArgument, "the S3 endpoint has a user name or password in its URL: set AWS_ACCESS_KEY_ID and " +
                                                 std::string("AWS_SECRET_ACCESS_KEY instead"));
  while (!settings.endpoint.empty() && settings.endpoint.back() == '/') settings.endpoint.pop_back();
  if (settings.endpoint.rfind("https://", 0) != 0 && settings.endpoint.rfind("http://", 0) != 0)
    throw Error(ErrorCode::kInvalidArgument,
                "the S3 endpoint \"" + settings.endpoint + "\" is no URL that begins with https:// or http://");
  settings.ca_bundle = s3_variable("AWS_CA_BUNDLE");
  settings.virtual_hosts = addresses_by_host(is_aws, bucket);

  // A profile that was asked for by name counts more than keys that are set for everything.
  S3Credentials& credentials = settings.credentials;
  credentials = {s3_variable("AWS_ACCESS_KEY_ID"), s3_variable("AWS_SECRET_ACCESS_KEY"), s3_variable("AWS_SESSION_TOKEN")};
  if (credentials.access_key.empty() && chosen_profile.empty())
    if (const auto found = s3_credentials_of_web_identity(settings.region, settings.ca_bundle)) {
      credentials = *found;
      return settings;
    }
  if (credentials.access_key.empty() || !chosen_profile.empty())
    credentials = {shared["aws_access_key_id"], shared["aws_secret_access_key"], shared["aws_session_token"]};
  if (credentials.access_key.empty())
    credentials = {config["aws_access_key_id"], config["aws_secret_access_key"], config["aws_session_token"]};
  if (!credentials.access_key.empty() && !credentials.secret_key.empty()) return settings;

  // A profile without keys that was asked for by name is a mistake, and gets no other rights.
  std::string no_machine;
  if (chosen_profile.empty())
    if (const auto found = s3_credentials_of_machine(no_machine)) {
      credentials = *found;
      return settings;
    }
  throw Error(ErrorCode::kPermission,
              "there are no S3 credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or put them into profile \"" +
                  profile + "\" of " + credentials_path + (no_machine.empty() ? "" : "; " + no_machine));
}

}  // namespace cairn
