// Sends requests to one bucket of an S3 server through libcurl, which signs them (SigV4). Knows
// requests, retries and errors, but nothing of stores.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <cairn/base/bytes.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/base/random.hpp>
#include <cairn/storage/stores/s3_settings.hpp>

namespace cairn {

using S3Fields = std::vector<std::pair<std::string, std::string>>;

struct S3Request {
  const char* method = "GET";
  // For error texts: the verb ("read"), and the permission that it needs ("s3:GetObject").
  const char* action = "";
  const char* permission = "";
  std::string key{};  // "": the bucket itself
  S3Fields query{};
  S3Fields headers{};
  ByteSpan body{};                // borrowed for the call
  MutableByteSpan destination{};  // receives the body of a partial answer (206); any other body is in S3Response::body
};

struct S3Response {
  int status = 0;
  std::string body;
  std::string etag;                  // without quotes
  std::string nonce;                 // the value of kS3NonceHeader
  std::uint64_t content_length = 0;  // also of HEAD
  std::uint64_t object_bytes = 0;    // size of the whole object, if the request was for a range
  std::string error_code;            // "NoSuchKey"; "" where there is none
  bool was_repeated = false;         // the request was sent again, and an earlier try may have succeeded, too

  bool succeeded() const { return status >= 200 && status < 300; }
};

// Names the write that made an object, so that its writer recognises it after a lost answer.
inline constexpr const char* kS3NonceHeader = "x-amz-meta-cairn-write";

// Whether the server obeys If-None-Match on PUT, If-Match on PUT, If-Match on DELETE.
struct S3Conditions {
  bool on_creation = false;
  bool on_replacement = false;
  bool on_deletion = false;
};

// Thread-safe. Keeps connections for later requests: as many as requests were in flight at the same
// time.
class S3Client {
 public:
  // Accesses nothing. `settings` is called before the first request, again shortly before the
  // credentials expire, and again when the server says that they are not valid. Calls of `settings`
  // never overlap.
  S3Client(std::string bucket, std::function<S3Settings()> settings);
  virtual ~S3Client();

  // Sends a request. Returns the answer if it is a success, or 404 (except for an absent bucket),
  // 412 or 416. Repeats the request after transient failures of the network and the server. Throws
  // kPermission, kNotFound (no such bucket), kInvalidArgument (the bucket is in another region),
  // kNoSpace, kUnavailable and the errors of `settings`. No error text contains credentials.
  // Virtual for tests.
  virtual S3Response send(const S3Request& request);

  // Writes a whole object if it is absent or, given `etag`, if it still has that ETag. Returns the
  // new ETag, or nothing if the condition did not hold. `was_repeated` is set as in S3Response. If
  // it is true, "nothing" may also mean that this write succeeded, its answer was lost, and another
  // write has replaced the object since. Throws as `send` does.
  std::optional<std::string> put_if(const std::string& key, ByteSpan content, const std::optional<std::string>& etag = {},
                                    bool* was_repeated = nullptr);
  // Finds out, once per client, which conditions the server obeys. Makes and removes an object with
  // the key `probe`, which nobody else may use.
  S3Conditions conditions(const std::string& probe);
  // Returns the ETag of the object if the write with this nonce made it; otherwise nothing.
  std::optional<std::string> etag_of_write(const std::string& key, const std::string& nonce);
  // Returns a text that no other call returns, for kS3NonceHeader.
  std::string new_nonce() { return random_hex(*random_, 128); }

 private:
  struct Connection;
  struct Attempt;
  // Returns the settings. Reads them first if that is due. Throws only if there are none yet. Not
  // checked for thread safety, because Clang's analysis does not know std::unique_lock.
  std::shared_ptr<const S3Settings> settings() CAIRN_NO_THREAD_SAFETY_ANALYSIS;
  std::shared_ptr<const S3Settings> current_settings();
  // Reads the settings again. Returns whether the credentials differ from those in `refused`, which
  // the server has rejected.
  bool renew_credentials(const std::shared_ptr<const S3Settings>& refused);
  bool is_renewal_due();
  void read_settings() CAIRN_REQUIRES(renewal_);
  void postpone_renewal() CAIRN_REQUIRES(mutex_);
  Attempt attempt(const S3Request& request, const S3Settings& with);
  std::string url_of(const S3Request& request, const S3Settings& where) const;
  Error failure(const S3Request& request, const Attempt& attempt, const S3Settings& with) const;
  std::unique_ptr<Connection> take_connection();

  const std::string bucket_;
  const std::function<S3Settings()> read_settings_;
  const std::unique_ptr<Random> random_ = system_random();
  Mutex renewal_;  // held while settings are read; locked before mutex_
  Mutex mutex_;
  std::shared_ptr<const S3Settings> settings_ CAIRN_GUARDED_BY(mutex_);
  std::chrono::system_clock::time_point renew_at_ CAIRN_GUARDED_BY(mutex_);  // if the credentials expire
  std::vector<std::unique_ptr<Connection>> idle_ CAIRN_GUARDED_BY(mutex_);
  std::optional<S3Conditions> conditions_ CAIRN_GUARDED_BY(mutex_);
};

// Returns an ETag without its quotes.
std::string s3_etag(std::string quoted);
// Returns `text` as it stands in a URL and in its signature: all but letters, digits and "-._~" is
// percent-encoded.
std::string s3_encode(const std::string& text, bool keep_slashes = false);
// Decodes "%41". With `plus_is_space`, '+' stands for a space, as in listings.
std::string s3_decode(const std::string& text, bool plus_is_space = false);

}  // namespace cairn
