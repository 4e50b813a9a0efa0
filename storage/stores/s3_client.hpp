// Sends requests to one bucket of an S3 server through libcurl, which signs them (SigV4). Knows
// requests, retries and errors, but nothing of stores.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <cairn/base/bytes.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/base/random.hpp>
#include <cairn/storage/stores/s3_answers.hpp>
#include <cairn/storage/stores/s3_settings.hpp>

namespace cairn {

// Names the write that made an object, so that its writer recognises it after a lost answer.
inline constexpr const char* kS3NonceHeader = "x-amz-meta-cairn-write";

// The state of an object at one look.
struct S3Object {
  bool is_there = false;
  std::string etag;
  std::string nonce;
  std::uint64_t bytes = 0;
  std::string end;  // its last bytes, if they were asked for
};

// The outcome of a conditional write.
struct S3Put {
  std::string etag;           // "": the condition did not hold
  bool was_repeated = false;  // as in S3Response
  explicit operator bool() const { return !etag.empty(); }
};

// A page of a listing: the elements of each entry by name, such as "Key", and what to add to the
// query of the next page; nothing for the last one.
struct S3Page {
  std::vector<std::map<std::string, std::string>> entries;
  S3Fields next;
};

// Thread-safe. Keeps connections for later requests: as many as requests were in flight at the same
// time.
class S3Client {
 public:
  // Accesses nothing. `settings` is called before the first request, again shortly before the
  // credentials expire, and again when the server says that they are not valid. Calls of `settings`
  // never overlap.
  S3Client(std::string bucket, std::function<S3Settings()> settings);
  virtual ~S3Client() = default;

  // Sends a request. Returns the answer if it is a success, or if S3 itself says that the object or
  // upload is absent (404 with NoSuchKey or NoSuchUpload), that a condition does not hold (412), or
  // that the range is beyond the end (416). Any other answer says nothing about the object.
  //
  // Repeats the request after failures of the network and the server, and after answers that are
  // not S3's: an error without a code of S3's, a success without an ETag, of another length, or of
  // another form than the request has. After a refusal, reads the settings again and repeats the
  // request, up to 3 times. Throws kPermission, kNoSpace, kUnavailable and the errors of
  // `settings`: none of these says anything about an object. No error text contains credentials.
  // Virtual for tests.
  virtual S3Response send(const S3Request& request);

  // Looks for an object, and reads up to `end_bytes` of its end. Otherwise reads a byte of it,
  // because an answer to HEAD has no body and so cannot prove absence. Throws as `send` does.
  S3Object look(const std::string& key, std::size_t end_bytes = 0);
  // Returns the page of a listing that follows a page with `next`, or the first one. An answer that
  // is not a whole page, or for which `check` throws, is repeated as by `send`.
  S3Page list(S3Request request, const S3Fields& next, const std::function<void(const S3Page&)>& check = nullptr);
  // Writes a whole object if it is absent or, given `etag`, if it still has that ETag. If the
  // condition did not hold and `was_repeated` is true, this write may also have succeeded, its
  // answer was lost, and another write has replaced the object since. Looks at the object
  // afterwards, and writes again if the answer contradicts it. Does not look if `confirms`, called
  // with the ETag in the answer, returns true. Throws as `send` does.
  using Confirms = std::function<bool(const std::string& etag)>;
  static bool trust_answer(const std::string&) { return true; }
  S3Put put_if(const std::string& key, ByteSpan content, const std::string& etag = "", const Confirms& confirms = nullptr);
  // Removes an object that no other process writes again.
  void remove(const std::string& key);

  // The two functions below test the server once for each endpoint, bucket and process. They use
  // objects that exist anyway, and so leave nothing behind.
  //
  // Returns the condition on PUT that the server ignores, If-None-Match or If-Match; "" if it obeys
  // both. Tries them on `key`, an object that exists and that a server which obeys does not change.
  std::string ignored_condition(const std::string& key);
  // Returns whether the server is known to obey If-Match on DELETE. `remove` tests it.
  bool removes_on_condition();
  // Returns a text that no other call returns, for kS3NonceHeader.
  std::string new_nonce() { return random_hex(*random_, 128); }

 private:
  using Connection = std::unique_ptr<void, void (*)(void*)>;  // a handle of libcurl
  struct Attempt;
  // Returns the settings. Reads them first if that is due. Throws only if there are none yet. With
  // `refused`, reads them again, unless another thread has read them since `refused`, and throws if
  // that fails.
  std::shared_ptr<const S3Settings> settings(const std::shared_ptr<const S3Settings>& refused = nullptr);
  Attempt attempt(const S3Request& request, const S3Settings& with);
  std::string url_of(const S3Request& request, const S3Settings& where) const;
  Error failure(const S3Request& request, const Attempt& attempt, const S3Settings& with) const;
  // Sleeps for between half of `most` and all of it, or for `at_least` if that is longer. Ranks
  // that the server refused at the same moment must not retry at the same moment.
  void pause(std::chrono::milliseconds most, std::chrono::milliseconds at_least = {});
  // The behaviour of a server that was tried.
  struct KnownServer {
    bool obeys_on_writing = false;
    std::optional<bool> obeys_on_removal;
  };
  // Returns what this process knows of the server, after it has learnt something.
  KnownServer known_server(const std::function<void(KnownServer&)>& learn = nullptr);
  Connection take_connection();

  const std::string bucket_;
  const std::function<S3Settings()> read_settings_;
  const std::unique_ptr<Random> random_ = system_random();
  Mutex mutex_;
  CondVar renewed_;
  bool is_reading_ CAIRN_GUARDED_BY(mutex_) = false;  // a thread reads the settings
  std::shared_ptr<const S3Settings> settings_ CAIRN_GUARDED_BY(mutex_);
  std::chrono::system_clock::time_point renew_at_ CAIRN_GUARDED_BY(mutex_);  // if the credentials expire
  std::vector<Connection> idle_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
