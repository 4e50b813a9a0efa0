// Writes one object of an S3 store. A small object is one request. An object in parts is a
// multipart upload, whose parts are sent from the memory of the caller; nothing is copied or kept.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <cairn/storage/store.hpp>
#include <cairn/storage/stores/s3_client.hpp>

namespace cairn {

inline constexpr std::uint64_t kS3PartsMax = 10'000;  // of one object

// `buffer_max` limits the size of an object that is not written in parts.
std::unique_ptr<ObjectWriter> make_s3_writer(std::shared_ptr<S3Client> client, std::string key, std::string url,
                                             const CreateOptions& options, std::uint64_t buffer_max);

}  // namespace cairn
