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
#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace cairn {

struct S3Credentials {
  std::string access_key;
  std::string secret_key;
  std::string session_token;  // "": none
  std::optional<std::chrono::system_clock::time_point> expires{};
};

// Returns the credentials that STS gives for a web identity token; nothing if
// AWS_WEB_IDENTITY_TOKEN_FILE is not set. `ca_bundle` is S3Settings::ca_bundle. Throws kPermission
// if STS refuses, and otherwise what `s3_credentials_of_machine` throws.
std::optional<S3Credentials> s3_credentials_of_web_identity(const std::string& region, const std::string& ca_bundle);

// Returns the credentials of the container or the instance. If the instance gives none, sets
// `reason` and returns nothing. If AWS_EC2_METADATA_DISABLED is "true", returns nothing and sets no
// reason. Throws kInvalidArgument for invalid variables, and kUnavailable if the service exists but
// fails. No error text contains credentials or tokens.
std::optional<S3Credentials> s3_credentials_of_machine(std::string& reason);

// Returns an environment variable; "" if it is not set.
std::string s3_variable(const char* name);

}  // namespace cairn
