// Requests to an S3 server and its answers. Only this file decides what an answer means.
//
//   finding   S3's own word about the object: a success of the form that the request has, or an
//             error whose code says that the object is absent, that a condition on it does not
//             hold, or that it ends before the range
//   refusal   S3 does not accept the sender, or does not know the bucket
//   failure   all else, such as answers of a proxy. It says nothing about the object
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <cairn/base/bytes.hpp>

namespace cairn {

using S3Fields = std::vector<std::pair<std::string, std::string>>;

struct S3Response {
  int status = 0;
  std::string body;
  std::string etag;                // without quotes
  std::string nonce;               // the value of kS3NonceHeader
  std::uint64_t received = 0;      // bytes in S3Request::destination
  std::uint64_t object_bytes = 0;  // size of the whole object, if the request was for a range
  std::string error_code;          // "NoSuchKey"; "" where there is none
  bool was_repeated = false;       // the request was sent again, and an earlier try may have succeeded

  bool succeeded() const { return status >= 200 && status < 300; }
};

struct S3Request {
  const char* method = "GET";
  // For error texts: the verb ("read"), and the permission that it needs ("s3:GetObject").
  const char* action = "";
  const char* permission = "";
  std::string key{};  // "": the bucket itself
  S3Fields query{};
  S3Fields headers{};
  ByteSpan body{};  // borrowed for the call
  // If not empty, asks for as many bytes at `offset`, or for the last bytes of the object if there
  // is no offset, and receives them. Any other body is in S3Response::body.
  MutableByteSpan destination{};
  std::optional<std::uint64_t> offset{};
  // Throws if a successful answer is not one of S3 to this request. The request is then repeated.
  std::function<void(const S3Response&)> check{};
};

// A Content-Range: "bytes 0-31/1000".
struct S3ContentRange {
  std::uint64_t first = 0;
  std::uint64_t bytes = 0;  // 0: not known
  std::uint64_t object_bytes = 0;

  explicit S3ContentRange(const std::string& text);
};

// Returns why a successful answer is not S3's answer to the request; "" if it is.
std::string why_foreign(const S3Request& request, const S3Response& response, const S3ContentRange& range);
// Returns whether an error is a finding about the object.
bool is_finding(const S3Request& request, const S3Response& response);
// Returns whether an error is a refusal. A refusal may be temporary: a program may renew the keys
// or set the clock, or another server may answer.
bool is_refusal(const S3Response& response);
// Returns whether an error that is neither a finding nor a refusal may be temporary, so that the
// request is worth repeating.
bool may_pass(const S3Response& response);
// Returns whether the server may have carried out a request that it answered with this error.
bool may_have_run(const S3Response& response);

// Calls `visit` at the end of every element, with the element's path
// ("ListBucketResult/Contents/Key") and text. Throws kUnavailable if `xml` is not well-formed;
// `what` names the document in the error.
void visit_s3_xml(const std::string& xml, const std::string& what,
                  const std::function<void(const std::string& path, const std::string& text)>& visit);

// Performs a request of libcurl, given its handle, and returns its CURLcode. OpenSSL may write to a
// connection that the server has closed, which raises SIGPIPE. libcurl's own guard changes the
// handler of the whole process, so it is off. Instead, this thread blocks the signal meanwhile.
int perform_without_sigpipe(void* easy);

// Returns an ETag without its quotes.
std::string s3_etag(std::string quoted);
// Returns `text` as it stands in a URL and in its signature: all but letters, digits and "-._~" is
// percent-encoded.
std::string s3_encode(const std::string& text, bool keep_slashes = false);
// Decodes "%41". With `plus_is_space`, '+' stands for a space, as in listings.
std::string s3_decode(std::string text, bool plus_is_space = false);

}  // namespace cairn
