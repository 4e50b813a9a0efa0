// Credentials for S3. In a container or on a cloud instance, a program gets them over HTTP from the
// services below, as with the AWS SDKs. No proxy is used.
//
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

// Returns the credentials of the container or the instance. If the instance gives none, sets
// `reason` and returns nothing. If AWS_EC2_METADATA_DISABLED is "true", returns nothing and sets no
// reason. Throws kInvalidArgument for invalid variables, and kUnavailable if the service exists but
// fails. No error text contains credentials or tokens.
std::optional<S3Credentials> s3_credentials_of_machine(std::string& reason);

// Returns an environment variable; "" if it is not set.
std::string s3_variable(const char* name);

}  // namespace cairn
