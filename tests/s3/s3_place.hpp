// The bucket of the tests on the server that tests/s3/s3_server.sh starts. Include a test framework
// header first.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <cairn/base/random.hpp>
#include <cairn/storage/stores/s3_client.hpp>
#include <cairn/storage/stores/s3_settings.hpp>

namespace cairn::testing {

inline constexpr const char* kS3Bucket = "cairn-test";

inline std::shared_ptr<S3Client> s3_client(const std::function<void(S3Settings&)>& change = {}) {
  return std::make_shared<S3Client>(kS3Bucket, [change] {
    S3Settings settings = s3_settings_from_environment(kS3Bucket);
    if (change) change(settings);
    return settings;
  });
}

// Returns the URL of a place that no other test uses. Makes the bucket.
inline std::string new_s3_place() {
  static const bool made = [] {
    S3Request request;
    request.method = "PUT";
    return s3_client()->send(request).succeeded();
  }();
  REQUIRE(made);
  return std::string("s3://") + kS3Bucket + "/tests/" + random_hex(*system_random(), 64) + "/step_1";
}

}  // namespace cairn::testing
