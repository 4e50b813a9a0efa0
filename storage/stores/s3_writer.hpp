// Writes one object of an S3 store. A small object is one request. An object in parts is a
// multipart upload, whose parts are sent from the memory of the caller; nothing is copied or kept.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include <cairn/base/mutex.hpp>
#include <cairn/storage/store.hpp>
#include <cairn/storage/stores/s3_client.hpp>

namespace cairn {

inline constexpr std::uint64_t kS3PartsMax = 10'000;  // of one object

class S3Writer : public ObjectWriter {
 public:
  // `buffer_max` limits the size of an object that is not written in parts.
  S3Writer(std::shared_ptr<S3Client> client, std::string key, std::string url, const CreateOptions& options,
           std::uint64_t buffer_max);
  ~S3Writer() override;
  void write_at(std::uint64_t offset, ByteSpan bytes) override;
  void sync(std::uint64_t length) override;
  void close(std::uint64_t length) override { sync(length); }
  void discard() noexcept override;

 private:
  struct Part {
    std::uint64_t bytes = 0;
    std::string etag;
  };

  void write_part(std::uint64_t offset, ByteSpan bytes);
  void put_whole(ByteSpan bytes);
  std::string begin_upload() CAIRN_REQUIRES(mutex_);
  void finish_upload(std::uint64_t length) CAIRN_REQUIRES(mutex_);
  void require_writing() const CAIRN_REQUIRES(mutex_);
  S3Request request_to(const char* method) const;
  Error already_exists() const;

  const std::shared_ptr<S3Client> client_;
  const std::string key_;
  const std::string url_;
  const std::uint64_t part_bytes_;  // 0: not in parts
  const std::uint64_t buffer_max_;
  const std::string nonce_;

  Mutex mutex_;
  std::string buffer_ CAIRN_GUARDED_BY(mutex_);                   // the bytes so far of an object that is not in parts
  std::string upload_ CAIRN_GUARDED_BY(mutex_);                   // id of the upload, once it has begun
  std::map<std::uint64_t, Part> parts_ CAIRN_GUARDED_BY(mutex_);  // the parts that were sent, by number from 0
  std::string etag_ CAIRN_GUARDED_BY(mutex_);                     // the object's ETag, once the object is there
  std::uint64_t length_ CAIRN_GUARDED_BY(mutex_) = 0;             // the object's length, once the object is there
  bool finished_ CAIRN_GUARDED_BY(mutex_) = false;
};

}  // namespace cairn
