#include <cairn/storage/stores/s3_settings.hpp>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <initializer_list>
#include <map>
#include <memory>
#include <sstream>
#include <thread>
#include <vector>

#include <curl/curl.h>
#include <nlohmann/json.hpp>

#include <cairn/base/error.hpp>
#include <cairn/base/settings.hpp>
#include <cairn/base/utf8.hpp>
#include <cairn/storage/stores/s3_answers.hpp>
#include <cairn/storage/stores/url.hpp>

namespace cairn {
namespace {

// Returns the first text that is not empty; "" if there is none.
std::string first_given(std::initializer_list<std::string> texts) {
  const auto* const found = std::find_if(texts.begin(), texts.end(), [](const std::string& text) { return !text.empty(); });
  return found == texts.end() ? "" : *found;
}

std::string without_slashes_at_end(const std::string& url) { return url.substr(0, url.find_last_not_of('/') + 1); }

// Says why no credentials came from a service.
Error no_credentials(ErrorCode code, const std::string& from, const std::string& why) {
  return Error(code, "cannot get S3 credentials from " + from + ": " + why);
}

// --- credentials ---
//
// Credentials for S3. In a container or on a cloud instance, a program gets them over HTTP from the
// services below, as with the AWS SDKs. Only an https request to STS may use a proxy.
//
//   identity   the role AWS_ROLE_ARN, for the token in AWS_WEB_IDENTITY_TOKEN_FILE: from STS, at
//              AWS_ENDPOINT_URL_STS, AWS_ENDPOINT_URL or the region's endpoint; the session is
//              called AWS_ROLE_SESSION_NAME, or "cairn"
//   container  AWS_CONTAINER_CREDENTIALS_RELATIVE_URI, at 169.254.170.2, or
//              AWS_CONTAINER_CREDENTIALS_FULL_URI: https, or http to loopback or a container host;
//              with the token in AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE or
//              AWS_CONTAINER_AUTHORIZATION_TOKEN
//   instance   otherwise the role of the instance (IMDSv2), unless AWS_EC2_METADATA_DISABLED is
//              "true"; at AWS_EC2_METADATA_SERVICE_ENDPOINT instead of http://169.254.169.254

constexpr const char* kContainerHost = "http://169.254.170.2";
constexpr const char* kInstanceHost = "http://169.254.169.254";
constexpr std::size_t kAnswerBytesMax = std::size_t{64} * 1024;
// The service is on the same machine. Where there is none, nothing answers at its address.
constexpr long kConnectTimeoutMs = 1000;
constexpr long kTimeoutMs = 5000;
// STS may be far away.
constexpr long kRemoteConnectTimeoutMs = 10'000;
constexpr long kRemoteTimeoutMs = 30'000;
constexpr int kAskedMax = 3;
constexpr std::chrono::milliseconds kPause{200};

struct Answer {
  bool connected = false;
  int status = 0;  // 0: there is no answer
  std::string body;
  std::string error;  // if there is no answer
};

std::size_t append(char* from, std::size_t size, std::size_t count, void* body) {
  auto& text = *static_cast<std::string*>(body);
  if (size * count > kAnswerBytesMax - text.size()) return 0;
  text.append(from, size * count);
  return size * count;
}

struct Question {
  const char* method;
  std::string url;
  std::string header{};
  // For another machine:
  std::string form{};
  std::string ca_bundle{};  // "": that of the system
};

Answer ask_once(const Question& question) {
  const std::string& header = question.header;
  const bool is_remote = !question.form.empty();
  const std::unique_ptr<CURL, decltype(&curl_easy_cleanup)> easy(curl_easy_init(), &curl_easy_cleanup);
  const std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)> headers(
      header.empty() ? nullptr : curl_slist_append(nullptr, header.c_str()), &curl_slist_free_all);
  if (!easy || (!header.empty() && !headers)) throw std::bad_alloc();
  Answer answer;
  curl_easy_setopt(easy.get(), CURLOPT_URL, question.url.c_str());
  curl_easy_setopt(easy.get(), CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(easy.get(), CURLOPT_CUSTOMREQUEST, question.method);
  curl_easy_setopt(easy.get(), CURLOPT_HTTPHEADER, headers.get());
  if (is_remote) curl_easy_setopt(easy.get(), CURLOPT_POSTFIELDS, question.form.c_str());
  // Without encryption, only to this machine, and not through a proxy.
  if (!is_remote || question.url.rfind("https://", 0) != 0) curl_easy_setopt(easy.get(), CURLOPT_NOPROXY, "*");
  if (!question.ca_bundle.empty()) curl_easy_setopt(easy.get(), CURLOPT_CAINFO, question.ca_bundle.c_str());
  curl_easy_setopt(easy.get(), CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy.get(), CURLOPT_CONNECTTIMEOUT_MS, is_remote ? kRemoteConnectTimeoutMs : kConnectTimeoutMs);
  curl_easy_setopt(easy.get(), CURLOPT_TIMEOUT_MS, is_remote ? kRemoteTimeoutMs : kTimeoutMs);
  curl_easy_setopt(easy.get(), CURLOPT_WRITEFUNCTION, append);
  curl_easy_setopt(easy.get(), CURLOPT_WRITEDATA, &answer.body);
  const auto code = static_cast<CURLcode>(perform_without_sigpipe(easy.get()));
  curl_off_t connect_time = 0;
  curl_easy_getinfo(easy.get(), CURLINFO_CONNECT_TIME_T, &connect_time);
  answer.connected = connect_time > 0;
  if (code != CURLE_OK) {
    answer.error = curl_easy_strerror(code);
    return answer;
  }
  long status = 0;
  curl_easy_getinfo(easy.get(), CURLINFO_RESPONSE_CODE, &status);
  answer.status = static_cast<int>(status);
  return answer;
}

// Services of many programs that start at once answer some with 429 or 5xx.
Answer ask(const Question& question) {
  for (int tries = 1;; ++tries) {
    Answer answer = ask_once(question);
    const bool may_pass = answer.connected && (answer.status == 0 || answer.status == 429 || answer.status >= 500);
    if (!may_pass || tries == kAskedMax) return answer;
    std::this_thread::sleep_for(kPause * tries);
  }
}

std::string outcome(const Answer& answer) {
  return answer.status == 0 ? answer.error : "it answered " + std::to_string(answer.status);
}

// Parses "2026-11-25T10:42:00Z". Times of a century ahead are as good as none.
std::optional<std::chrono::system_clock::time_point> time_of(const std::string& text) {
  std::tm utc{};
  if (!strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &utc)) return std::nullopt;
  const std::time_t most = std::time(nullptr) + std::time_t{365} * 24 * 3600;
  return std::chrono::system_clock::from_time_t(std::min(timegm(&utc), most));
}

using Fields = std::map<std::string, std::string>;  // of an answer

std::string code_in(Fields& fields) { return printable_utf8(fields["Code"].substr(0, 100)); }

// `token` is the name of the field with the session token.
S3Credentials credentials_in(Fields& fields, const char* token, const std::string& from) {
  if (fields["AccessKeyId"].empty() || fields["SecretAccessKey"].empty())
    throw no_credentials(ErrorCode::kUnavailable, from,
                         "its answer has none" + (fields["Code"].empty() ? "" : " (" + code_in(fields) + ")"));
  return {fields["AccessKeyId"], fields["SecretAccessKey"], fields[token], time_of(fields["Expiration"])};
}

S3Credentials parse_credentials(const std::string& text, const std::string& from) {
  const auto answer = nlohmann::json::parse(text, nullptr, false);
  Fields fields;
  for (const auto& [name, value] : answer.items())
    if (value.is_string()) fields[name] = value.get<std::string>();
  return credentials_in(fields, "Token", from);
}

// Returns the host of a URL, for errors and for the check below. What else is in it may be secret.
std::string host_of(const std::string& url) {
  const std::unique_ptr<CURLU, decltype(&curl_url_cleanup)> parsed(curl_url(), &curl_url_cleanup);
  char* host = nullptr;
  if (!parsed || curl_url_set(parsed.get(), CURLUPART_URL, url.c_str(), 0) != CURLUE_OK ||
      curl_url_get(parsed.get(), CURLUPART_HOST, &host, 0) != CURLUE_OK)
    return "";
  const std::unique_ptr<char, decltype(&curl_free)> owned(host, &curl_free);
  return host;
}

// In the clear a token goes to this machine only.
bool may_receive_token(const std::string& url) {
  const std::string host = host_of(url);
  if (host.empty()) return false;
  if (url.rfind("https://", 0) == 0) return true;
  const std::vector<std::string> local{"localhost", "[::1]", "169.254.170.2", "169.254.170.23", "[fd00:ec2::23]"};
  const bool is_loopback = host.rfind("127.", 0) == 0 && host.find_first_not_of("0123456789.") == std::string::npos;
  return url.rfind("http://", 0) == 0 && (is_loopback || std::find(local.begin(), local.end(), host) != local.end());
}

// Returns the token in the file that a variable names. Read each time, since it changes.
std::string token_of_file(const char* variable) {
  const std::string path = environment_value(variable);
  std::ifstream file(path);
  std::ostringstream content;
  if (!(content << file.rdbuf())) throw Error(ErrorCode::kPermission, std::string("cannot read ") + variable + ", " + path);
  std::string token = content.str();
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  return token;
}

std::string container_token() {
  constexpr const char* kTokenFile = "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE";
  const std::string token =
      environment_value(kTokenFile).empty() ? environment_value("AWS_CONTAINER_AUTHORIZATION_TOKEN") : token_of_file(kTokenFile);
  if (token.find_first_of("\r\n") != std::string::npos)
    throw Error(ErrorCode::kInvalidArgument, "the authorization token for container credentials has more than one line");
  return token;
}

S3Credentials container_credentials(const std::string& url) {
  if (!may_receive_token(url))
    throw Error(ErrorCode::kInvalidArgument, "AWS_CONTAINER_CREDENTIALS_FULL_URI must begin with https://, or with http:// and a " +
                                                 std::string("loopback address or the address of a container host"));
  const std::string token = container_token();
  const std::string from = "the container's service at " + host_of(url);
  const Answer answer = ask({"GET", url, token.empty() ? "" : "Authorization: " + token});
  if (answer.status == 401 || answer.status == 403)
    throw no_credentials(ErrorCode::kPermission, from, outcome(answer) + "; see AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
  if (answer.status != 200) throw no_credentials(ErrorCode::kUnavailable, from, outcome(answer));
  return parse_credentials(answer.body, from);
}

std::optional<S3Credentials> instance_credentials(std::string& reason) {
  const std::string host =
      without_slashes_at_end(first_given({environment_value("AWS_EC2_METADATA_SERVICE_ENDPOINT"), kInstanceHost}));
  const std::string service = "the instance metadata service at " + host_of(host);
  const auto failed = [&](const Answer& answer) { return no_credentials(ErrorCode::kUnavailable, service, outcome(answer)); };

  const Answer session = ask({"PUT", host + "/latest/api/token", "X-aws-ec2-metadata-token-ttl-seconds: 21600"});
  // 403: the service is switched off. Others of 400 to 499: it is not what is there.
  if (!session.connected || (session.status >= 400 && session.status < 500 && session.status != 429)) {
    reason = service + ": " + outcome(session);
    return std::nullopt;
  }
  if (session.status == 0)
    throw no_credentials(ErrorCode::kUnavailable, service,
                         outcome(session) + "; in a container, set the hop limit of the instance's metadata to 2, or give keys");
  if (session.status != 200 || session.body.find_first_of("\r\n") != std::string::npos) throw failed(session);
  const std::string token = "X-aws-ec2-metadata-token: " + session.body;

  const std::string roles_url = host + "/latest/meta-data/iam/security-credentials/";
  const Answer roles = ask({"GET", roles_url, token});
  const std::string role = roles.body.substr(0, roles.body.find_first_of("\r\n"));
  if (roles.status == 404 || (roles.status == 200 && role.empty())) {
    reason = service + ": this instance has no role";
    return std::nullopt;
  }
  if (roles.status != 200) throw failed(roles);
  const Answer answer = ask({"GET", roles_url + role, token});
  if (answer.status != 200) throw failed(answer);
  return parse_credentials(answer.body, service);
}

// Returns the credentials that STS gives for a web identity token; nothing if
// AWS_WEB_IDENTITY_TOKEN_FILE is not set. `ca_bundle` is S3Settings::ca_bundle. Throws kPermission
// if STS refuses, and otherwise what `s3_credentials_of_machine` throws.
std::optional<S3Credentials> s3_credentials_of_web_identity(const std::string& region, const std::string& ca_bundle) {
  if (environment_value("AWS_WEB_IDENTITY_TOKEN_FILE").empty()) return std::nullopt;
  const std::string role = environment_value("AWS_ROLE_ARN");
  if (role.empty())
    throw Error(ErrorCode::kInvalidArgument, "AWS_WEB_IDENTITY_TOKEN_FILE is set, but not AWS_ROLE_ARN: set the role to assume");
  const std::string url =
      without_slashes_at_end(first_given({environment_value("AWS_ENDPOINT_URL_STS"), environment_value("AWS_ENDPOINT_URL"),
                                          "https://sts." + region + ".amazonaws.com"}));
  if (!may_receive_token(url))
    throw Error(ErrorCode::kInvalidArgument,
                "a web identity token is sent over https:// only, or to this machine: set AWS_ENDPOINT_URL_STS to such a URL");
  std::string form = "Action=AssumeRoleWithWebIdentity&Version=2011-06-15";
  for (const auto& [name, value] : {std::pair{"RoleArn", role},
                                    {"RoleSessionName", first_given({environment_value("AWS_ROLE_SESSION_NAME"), "cairn"})},
                                    {"WebIdentityToken", token_of_file("AWS_WEB_IDENTITY_TOKEN_FILE")}})
    form += std::string("&") + name + "=" + s3_encode(value);
  const Answer answer = ask({"POST", url + "/", "", form, ca_bundle});

  Fields fields;
  const std::string from = "STS at " + host_of(url);
  // Other answers than 200 may be pages of a proxy.
  const bool is_xml = answer.status == 200 || answer.body.find("<ErrorResponse") != std::string::npos;
  if (is_xml && answer.body.find('<') != std::string::npos)
    visit_s3_xml(answer.body, "credentials of a role",
                 [&](const std::string& path, const std::string& text) { fields[path.substr(path.rfind('/') + 1)] = text; });
  const std::string code = fields["Code"].empty() ? "" : " " + code_in(fields);
  const bool is_transient = code.rfind(" Throttling", 0) == 0 || code == " IDPCommunicationError";
  if (answer.status >= 400 && answer.status < 500 && answer.status != 429 && !is_transient)
    throw no_credentials(ErrorCode::kPermission, from,
                         outcome(answer) + code + "; see AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN");
  if (answer.status != 200) throw no_credentials(ErrorCode::kUnavailable, from, outcome(answer) + code);
  return credentials_in(fields, "SessionToken", from);
}

// Returns the credentials of the container or the instance. If the instance gives none, sets
// `reason` and returns nothing. If AWS_EC2_METADATA_DISABLED is "true", returns nothing and sets no
// reason. Throws kInvalidArgument for invalid variables, and kUnavailable if the service exists but
// fails. No error text contains credentials or tokens.
std::optional<S3Credentials> s3_credentials_of_machine(std::string& reason) {
  if (const std::string path = environment_value("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"); !path.empty())
    return container_credentials(kContainerHost + path);
  if (const std::string url = environment_value("AWS_CONTAINER_CREDENTIALS_FULL_URI"); !url.empty())
    return container_credentials(url);
  if (lower_case(environment_value("AWS_EC2_METADATA_DISABLED")) == "true") return std::nullopt;
  return instance_credentials(reason);
}

// --- other settings ---

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
  return first_given({environment_value(variable_name), environment_value("HOME") + "/.aws/" + name});
}

bool addresses_by_host(bool is_aws, const std::string& bucket) {
  const std::string chosen = environment_value("CAIRN_S3_ADDRESSING");
  // The certificate of AWS covers one label before its domain, so not a bucket with a '.'.
  if (chosen.empty()) return is_aws && bucket.find('.') == std::string::npos;
  if (chosen != "path" && chosen != "virtual")
    throw Error(ErrorCode::kInvalidArgument, "CAIRN_S3_ADDRESSING is \"" + chosen + "\": use path or virtual");
  return chosen == "virtual";
}

}  // namespace

S3Settings s3_settings_from_environment(const std::string& bucket) {
  const std::string chosen_profile = environment_value("AWS_PROFILE");
  const std::string profile = first_given({chosen_profile, "default"});
  const std::string credentials_path = shared_file("AWS_SHARED_CREDENTIALS_FILE", "credentials");
  auto shared = section_of(credentials_path, profile);
  auto config = section_of(shared_file("AWS_CONFIG_FILE", "config"), profile == "default" ? profile : "profile " + profile);

  S3Settings settings;
  settings.region = first_given(
      {environment_value("AWS_REGION"), environment_value("AWS_DEFAULT_REGION"), shared["region"], config["region"], "us-east-1"});

  settings.endpoint = first_given({environment_value("AWS_ENDPOINT_URL_S3"), environment_value("AWS_ENDPOINT_URL")});
  const bool is_aws = settings.endpoint.empty();
  if (is_aws) settings.endpoint = "https://s3." + settings.region + ".amazonaws.com";
  // Not shown: it would be a password in an error text.
  if (settings.endpoint.find('@') != std::string::npos)
    throw Error(ErrorCode::kInvalidArgument, "the S3 endpoint has a user name or password in its URL: set AWS_ACCESS_KEY_ID and " +
                                                 std::string("AWS_SECRET_ACCESS_KEY instead"));
  settings.endpoint = without_slashes_at_end(settings.endpoint);
  if (settings.endpoint.rfind("https://", 0) != 0 && settings.endpoint.rfind("http://", 0) != 0)
    throw Error(ErrorCode::kInvalidArgument,
                "the S3 endpoint \"" + settings.endpoint + "\" is no URL that begins with https:// or http://");
  settings.ca_bundle = environment_value("AWS_CA_BUNDLE");
  settings.virtual_hosts = addresses_by_host(is_aws, bucket);

  // A profile that was asked for by name counts more than keys that are set for everything.
  S3Credentials& credentials = settings.credentials;
  credentials = {environment_value("AWS_ACCESS_KEY_ID"), environment_value("AWS_SECRET_ACCESS_KEY"),
                 environment_value("AWS_SESSION_TOKEN")};
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
