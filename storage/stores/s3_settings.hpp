// The settings of S3 stores: the AWS environment variables and shared files, read as other S3
// clients read them.
//
//   endpoint     AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL; otherwise AWS itself
//   region       AWS_REGION, AWS_DEFAULT_REGION, `region` of the profile; otherwise us-east-1
//   credentials  AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN; otherwise those
//                for a web identity token (s3_credentials.hpp); otherwise aws_access_key_id,
//                aws_secret_access_key and aws_session_token of the profile; otherwise those of the
//                container or the instance
//   profile      AWS_PROFILE, otherwise "default", in AWS_SHARED_CREDENTIALS_FILE
//                (~/.aws/credentials) and AWS_CONFIG_FILE (~/.aws/config)
//   TLS          AWS_CA_BUNDLE, a file of certificates; otherwise those of the system
//   addressing   CAIRN_S3_ADDRESSING: `path` (endpoint/bucket/key) or `virtual`
//                (bucket.endpoint/key); otherwise `virtual` for AWS, and `path` for other endpoints
#pragma once

#include <chrono>
#include <string>

#include <cairn/storage/stores/s3_credentials.hpp>

namespace cairn {

struct S3Settings {
  std::string endpoint;  // "https://s3.eu-central-1.amazonaws.com", without a '/' at the end
  std::string region;
  std::string ca_bundle;  // "": that of the system
  bool virtual_hosts = false;
  S3Credentials credentials;

  // Limits of one request. A request that fails for a passing reason is repeated after a pause that
  // doubles from `pause_first` to `pause_max` and is shortened at random by up to half.
  int tries_max = 8;
  std::chrono::milliseconds pause_first{100};
  std::chrono::milliseconds pause_max{10'000};
  std::chrono::seconds connect_timeout{10};
  std::chrono::seconds stall_timeout{60};  // at less than `bytes_per_second_min`
  long bytes_per_second_min = 1024;
  std::chrono::seconds retry_time{300};  // since the first failure; no pause begins later
  // Credentials are read again so long before they expire, but not more often than this.
  std::chrono::seconds renewal_margin{300};
  std::chrono::seconds renewal_pause{60};
};

// Reads the settings for a bucket, and asks STS or the metadata service for credentials if there
// are none. Throws kInvalidArgument for variables and files that cannot be understood, kPermission
// if there are no credentials, kUnavailable if the service fails.
S3Settings s3_settings_from_environment(const std::string& bucket);

}  // namespace cairn
