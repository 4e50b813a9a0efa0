// The settings of S3 stores: the AWS environment variables and shared files, read as other S3
// clients read them.
//
//   endpoint     AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL; otherwise AWS itself
//   region       AWS_REGION, AWS_DEFAULT_REGION, `region` of the profile; otherwise us-east-1
//   credentials  the first of these that exists: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and
//                AWS_SESSION_TOKEN; those for a web identity token;
//                aws_access_key_id, aws_secret_access_key and aws_session_token of the profile;
//                those of the container or the instance. If AWS_PROFILE is set, only the profile's
//   profile      AWS_PROFILE, otherwise "default", in AWS_SHARED_CREDENTIALS_FILE
//                (~/.aws/credentials) and AWS_CONFIG_FILE (~/.aws/config)
//   TLS          AWS_CA_BUNDLE, a file of certificates; otherwise those of the system
//   addressing   CAIRN_S3_ADDRESSING: `path` (endpoint/bucket/key) or `virtual`
//                (bucket.endpoint/key); otherwise `virtual` for AWS if the bucket's name has no
//                '.', and `path` for all else
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

struct S3Settings {
  std::string endpoint;  // "https://s3.eu-central-1.amazonaws.com", without a '/' at the end
  std::string region;
  std::string ca_bundle;  // "": that of the system
  bool virtual_hosts = false;
  S3Credentials credentials;

  // Limits of one request. A request with a transient failure is repeated after a pause. The pause
  // doubles from `pause_first` up to `pause_max`; each one is shortened at random by up to half.
  int tries_max = 8;
  std::chrono::milliseconds pause_first{100};
  std::chrono::milliseconds pause_max{10'000};
  std::chrono::seconds connect_timeout{10};
  std::chrono::seconds stall_timeout{60};  // a try fails if it is slower than `bytes_per_second_min` for this long
  long bytes_per_second_min = 1024;
  std::chrono::seconds retry_time{300};  // after the first failure; a request that fails later is not repeated
  // A refused request is repeated up to 3 times: after this pause, 5 times, and 25 times as long.
  std::chrono::milliseconds refusal_pause{100};
  // Credentials are read again `renewal_margin` before they expire, but at least `renewal_pause`
  // after the last time.
  std::chrono::seconds renewal_margin{300};
  std::chrono::seconds renewal_pause{60};
};

// Reads the settings for a bucket from the sources above. Throws kInvalidArgument for invalid
// variables and files, kPermission if no source gives credentials or STS refuses, and kUnavailable
// if STS or the service of the container or the instance fails.
S3Settings s3_settings_from_environment(const std::string& bucket);

}  // namespace cairn
