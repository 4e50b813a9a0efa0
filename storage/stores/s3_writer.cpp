// Writes one object of an S3 store.
#include <cstring>
#include <map>
#include <utility>

#include <cairn/base/error.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/storage/stores/s3_store.hpp>

namespace cairn {
namespace {

// Returns the text of an element of the answer `what`, without quotes around it. Throws
// kUnavailable, with the text `absent`, if it has none.
std::string text_in(const S3Response& answer, const char* what, const char* element, const char* absent) {
  std::string found;
  visit_s3_xml(answer.body, what, [&](const std::string& path, const std::string& text) {
    if (path == element) found = s3_etag(text);
  });
  if (found.empty()) throw Error(ErrorCode::kUnavailable, absent);
  return found;
}

class S3Writer final : public ObjectWriter {
 public:
  S3Writer(std::shared_ptr<S3Client> client, std::string key, std::string url, const CreateOptions& options,
           std::uint64_t buffer_max)
      : client_(std::move(client)),
        key_(std::move(key)),
        url_(std::move(url)),
        part_bytes_(options.part_bytes),
        buffer_max_(buffer_max),
        nonce_(client_->new_nonce()) {}
  ~S3Writer() override {
    MutexLock lock(mutex_);
    const bool is_finished = finished_;
    lock.unlock();
    if (!is_finished) discard();
  }

  void write_at(std::uint64_t offset, ByteSpan bytes) override {
    if (bytes.empty()) return;
    if (part_bytes_ > 0) return write_part(offset, bytes);
    if (offset > buffer_max_ || bytes.size() > buffer_max_ - offset)
      throw Error(ErrorCode::kInvalidArgument, "cannot write " + std::to_string(bytes.size()) + " bytes at " +
                                                   std::to_string(offset) + " of " + url_ + ": beyond " +
                                                   std::to_string(buffer_max_) +
                                                   " bytes this store takes objects in parts only; set CreateOptions::part_bytes");
    MutexLock lock(mutex_);
    require_writing();
    if (buffer_.size() < offset + bytes.size()) buffer_.resize(offset + bytes.size());
    std::memcpy(buffer_.data() + offset, bytes.data(), bytes.size());
  }

  void finish(std::uint64_t length, bool /*is_durable*/) override {
    MutexLock lock(mutex_);
    require_writing();
    if (!upload_.empty()) {
      finish_upload(length);
    } else if (!etag_.empty()) {
      if (length != length_)
        throw Error(ErrorCode::kInvalidArgument, "cannot finish " + url_ + " at " + std::to_string(length) +
                                                     " bytes: its only part ends at " + std::to_string(length_));
    } else {
      if (length > buffer_max_)
        throw Error(ErrorCode::kInvalidArgument, "cannot finish " + url_ + " at " + std::to_string(length) +
                                                     " bytes: so large an object must be written in parts");
      buffer_.resize(length);
      etag_ = client_->put_if(key_, buffer_).etag;
      if (etag_.empty()) throw already_exists();
      buffer_ = {};
    }
    finished_ = true;
  }

  // Has the server copy an object, "bucket/key", that has `bytes` bytes, as the only part.
  void copy(const std::string& source, std::uint64_t bytes) {
    MutexLock lock(mutex_);
    S3Request request = request_to("PUT");
    request.query = {{"partNumber", "1"}, {"uploadId", begin_upload()}};
    request.headers = {{"x-amz-copy-source", s3_encode(source, true)}};
    const auto etag_in = [](const S3Response& answer) {
      return text_in(answer, "the end of a copy", "CopyPartResult/ETag", "the answer does not confirm the copy");
    };
    request.check = etag_in;
    const S3Response response = client_->send(request);
    if (!response.succeeded())
      throw Error(ErrorCode::kNotFound, "cannot copy s3://" + source + " to " + url_ + ": " + response.error_code);
    parts_[0] = {bytes, etag_in(response)};
  }

  // Removes the object only if it is this writer's: another save may have made one of the same
  // name.
  void discard() noexcept override {
    try {
      std::string upload, etag;
      {
        MutexLock lock(mutex_);
        finished_ = true;
        upload.swap(upload_);
        etag.swap(etag_);
        buffer_ = {};
      }
      if (!upload.empty()) {
        S3Request request = request_to("DELETE");
        request.action = "abort the upload of";
        request.permission = "s3:AbortMultipartUpload";
        request.query = {{"uploadId", upload}};
        client_->send(request);
      }
      if (!etag.empty() && client_->look(key_).etag == etag) client_->send(request_to("DELETE"));
    } catch (...) {
      // The clean-up after the next save removes the rest.
    }
  }

 private:
  struct Part {
    std::uint64_t bytes = 0;
    std::string etag;
  };

  // A part that is smaller than the others is the last one. At offset 0 it is the whole object.
  void write_part(std::uint64_t offset, ByteSpan bytes) {
    if (offset % part_bytes_ != 0 || bytes.size() > part_bytes_)
      throw Error(ErrorCode::kInvalidArgument, "cannot write " + std::to_string(bytes.size()) + " bytes at " +
                                                   std::to_string(offset) + " of " + url_ + ": it is written in parts of " +
                                                   std::to_string(part_bytes_));
    if (offset == 0 && bytes.size() < part_bytes_) return put_whole(bytes);
    const std::uint64_t index = offset / part_bytes_;
    if (index >= kS3PartsMax)
      throw Error(ErrorCode::kInvalidArgument, "cannot write to " + url_ + " beyond " + std::to_string(kS3PartsMax) + " parts of " +
                                                   std::to_string(part_bytes_) + " bytes");
    S3Request request = request_to("PUT");
    {
      MutexLock lock(mutex_);
      require_writing();
      request.query = {{"partNumber", std::to_string(index + 1)}, {"uploadId", begin_upload()}};
    }
    request.body = bytes;
    const S3Response response = client_->send(request);
    if (!response.succeeded())
      throw Error(ErrorCode::kUnavailable, "cannot write part " + std::to_string(index + 1) + " of " + url_ +
                                               ": the server answered " + std::to_string(response.status) + " " +
                                               response.error_code);
    MutexLock lock(mutex_);
    parts_[index] = {bytes.size(), response.etag};
  }

  void put_whole(ByteSpan bytes) {
    {
      MutexLock lock(mutex_);
      require_writing();
    }
    // Not under the lock: `discard` must not wait for the data. Nobody else writes this part.
    const S3Put put = client_->put_if(key_, bytes);
    if (!put) throw already_exists();
    {
      MutexLock lock(mutex_);
      etag_ = put.etag;
      length_ = bytes.size();
      if (!finished_) return;
    }
    discard();  // again, since the object came after the first time
  }

  // Under the lock, so that the first parts begin one upload and not several.
  std::string begin_upload() CAIRN_REQUIRES(mutex_) {
    if (!upload_.empty()) return upload_;
    S3Request request = request_to("POST");
    request.query = {{"uploads", ""}};
    request.headers = {{kS3NonceHeader, nonce_}};
    const auto id_in = [](const S3Response& answer) {
      return text_in(answer, "the beginning of an upload", "InitiateMultipartUploadResult/UploadId", "the answer has no upload id");
    };
    request.check = id_in;
    return upload_ = id_in(client_->send(request));
  }

  void finish_upload(std::uint64_t length) CAIRN_REQUIRES(mutex_) {
    std::uint64_t end = 0;
    std::string list = "<CompleteMultipartUpload>";
    for (const auto& [index, part] : parts_) {
      if (index * part_bytes_ != end) break;  // a gap: `end` stays behind
      end += part.bytes;
      list += "<Part><PartNumber>" + std::to_string(index + 1) + "</PartNumber><ETag>\"" + part.etag + "\"</ETag></Part>";
    }
    list += "</CompleteMultipartUpload>";
    if (end != length)
      throw Error(ErrorCode::kInvalidArgument,
                  "cannot finish " + url_ + " at " + std::to_string(length) + " bytes: its parts end at " + std::to_string(end));
    S3Request request = request_to("POST");
    request.query = {{"uploadId", upload_}};
    // Ceph ignores the condition. Names of data files are unique, so that no object is in the way.
    request.headers = {{"If-None-Match", "*"}, {"Content-Type", "application/xml"}};
    request.body = list;
    request.check = [](const S3Response& response) {
      bool is_complete = false;
      visit_s3_xml(response.body, "the end of an upload", [&](const std::string& path, const std::string&) {
        is_complete = is_complete || path == "CompleteMultipartUploadResult";
      });
      if (!is_complete) throw Error(ErrorCode::kUnavailable, "the answer does not confirm the end of the upload");
    };
    const S3Response response = client_->send(request);
    // The object decides: if an earlier try finished the upload and its answer was lost, the upload
    // no longer exists.
    const S3Object found = client_->look(key_);
    if (found.nonce != nonce_) {
      if (response.status == 412 && found.is_there) throw already_exists();
      if (response.succeeded() || response.status == 412)
        throw Error(ErrorCode::kUnavailable, "cannot finish writing " + url_ + ": the server answered " +
                                                 std::to_string(response.status) + ", but the object does not exist");
      throw Error(ErrorCode::kNotFound,
                  "cannot finish writing " + url_ + ": its upload was aborted; another process may have ended its save");
    }
    if (found.bytes != length)
      throw Error(ErrorCode::kUnavailable, "cannot finish writing " + url_ + ": the server has " + std::to_string(found.bytes) +
                                               " bytes of " + std::to_string(length));
    etag_ = found.etag;
    upload_.clear();
    length_ = length;
  }

  void require_writing() const CAIRN_REQUIRES(mutex_) {
    if (finished_)
      throw Error(ErrorCode::kPrecondition, "cannot write to " + url_ + ": its writer was already synced, closed or discarded");
  }

  S3Request request_to(const char* method) const { return {method, "write", "s3:PutObject", key_}; }
  Error already_exists() const {
    return Error(ErrorCode::kAlreadyExists,
                 "cannot finish writing " + url_ + ": an object of this name was created; another process may have ended its save");
  }

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

}  // namespace

std::unique_ptr<ObjectWriter> make_s3_writer(std::shared_ptr<S3Client> client, std::string key, std::string url,
                                             const CreateOptions& options, std::uint64_t buffer_max) {
  return std::make_unique<S3Writer>(std::move(client), std::move(key), std::move(url), options, buffer_max);
}

void copy_s3_object(std::shared_ptr<S3Client> client, const std::string& source, std::uint64_t bytes, std::string key,
                    std::string url) {
  S3Writer writer(std::move(client), std::move(key), std::move(url), {}, 0);
  if (bytes > 0) writer.copy(source, bytes);
  writer.finish(bytes, true);
}

}  // namespace cairn
