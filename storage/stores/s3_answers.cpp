#include <cairn/storage/stores/s3_answers.hpp>

#include <algorithm>
#include <csignal>
#include <ctime>
#include <exception>
#include <memory>
#include <new>

#include <curl/curl.h>
#include <expat.h>
#include <pthread.h>

#include <cairn/base/error.hpp>

namespace cairn {
namespace {

using CurlText = std::unique_ptr<char, decltype(&curl_free)>;

// Expat's callbacks for visit_s3_xml.
struct XmlWalk {
  const std::function<void(const std::string&, const std::string&)>& visit;
  XML_Parser parser;
  std::string path;
  std::string text;
  std::exception_ptr error;

  static void start(void* self, const XML_Char* name, const XML_Char** /*attributes*/) {
    auto& walk = *static_cast<XmlWalk*>(self);
    if (!walk.path.empty()) walk.path += '/';
    walk.path += name;
    walk.text.clear();
    // No answer of S3 is nested as deep.
    if (walk.path.size() > 1000) XML_StopParser(walk.parser, XML_FALSE);
  }
  static void end(void* self, const XML_Char* /*name*/) {
    auto& walk = *static_cast<XmlWalk*>(self);
    try {
      if (!walk.error) walk.visit(walk.path, walk.text);
    } catch (...) {
      walk.error = std::current_exception();
      XML_StopParser(walk.parser, XML_FALSE);
    }
    const std::size_t slash = walk.path.rfind('/');
    walk.path.resize(slash == std::string::npos ? 0 : slash);
    walk.text.clear();
  }
  static void characters(void* self, const XML_Char* text, int length) {
    static_cast<XmlWalk*>(self)->text.append(text, static_cast<std::size_t>(length));
  }
};

}  // namespace

S3ContentRange::S3ContentRange(const std::string& text) {
  unsigned long long from = 0, last = 0, all = 0;
  if (std::sscanf(text.c_str(), "bytes %llu-%llu/%llu", &from, &last, &all) == 3 && from <= last && last < all) {
    first = from;
    bytes = last - from + 1;
    object_bytes = all;
  }
}

std::string why_foreign(const S3Request& request, const S3Response& response, const S3ContentRange& range) {
  const std::string method = request.method;
  const std::uint64_t asked = request.destination.size();
  if (asked > 0) {
    if (response.status != 206) return "the server answered " + std::to_string(response.status) + " to a request for a range";
    if (range.bytes == 0) return "the answer does not say which bytes it has";
    const std::uint64_t all = range.object_bytes;
    const std::uint64_t first = request.offset.value_or(all - std::min(asked, all));
    const std::uint64_t expected = std::min(asked, all - std::min(first, all));
    if (range.first != first || range.bytes != expected || response.received != expected)
      return "the answer has " + std::to_string(response.received) + " bytes at " + std::to_string(range.first) + ", not " +
             std::to_string(expected) + " at " + std::to_string(first);
  }
  if (method == "DELETE" && response.status != 204)
    return "the server answered " + std::to_string(response.status) + " to a removal";
  const bool writes = method == "PUT" && !request.check;  // otherwise the body says how it went
  if (writes && !response.body.empty()) return "the answer to a write has a body";
  const bool has_etag = !request.key.empty() && (writes || (method == "GET" && request.query.empty()));
  if (has_etag && response.etag.empty()) return "the answer has no ETag";
  try {
    if (request.check) request.check(response);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

bool may_pass(const S3Response& response) {
  // If the answer has no code of S3's, a proxy has answered. The last two codes mean that the
  // server received other bytes than were sent.
  if (response.error_code.empty()) return true;
  for (const char* code :
       {"SlowDown", "InternalError", "ServiceUnavailable", "RequestTimeout", "BadDigest", "XAmzContentSHA256Mismatch"})
    if (response.error_code == code) return true;
  switch (response.status) {
    case 404:  // these three are no findings about the object: see is_finding
    case 412:
    case 416:
    case 307:
    case 408:
    case 409:  // another request to the object was in progress, so it is not known whether a condition holds
    case 429:
      return true;
    default:
      return response.status >= 500 && response.status != 501;
  }
}

bool may_have_run(const S3Response& response) {
  return response.status >= 500 || response.status == 429 || response.error_code.empty();
}

bool is_finding(const S3Request& request, const S3Response& response) {
  switch (response.status) {
    case 404:
      return !request.key.empty() &&
             (response.error_code == "NoSuchKey" || (response.error_code == "NoSuchUpload" && !request.query.empty()));
    case 412:
      return response.error_code == "PreconditionFailed" &&
             std::any_of(request.headers.begin(), request.headers.end(),
                         [](const auto& header) { return header.first == "If-Match" || header.first == "If-None-Match"; });
    case 416:
      return response.error_code == "InvalidRange" && !request.destination.empty();
    default:
      return false;
  }
}

bool is_refusal(const S3Response& response) {
  const std::string& code = response.error_code;
  return (!code.empty() && (response.status == 401 || response.status == 403)) || code == "ExpiredToken" ||
         code == "InvalidToken" || code == "TokenRefreshRequired" || code == "NoSuchBucket";
}

void visit_s3_xml(const std::string& xml, const std::string& what,
                  const std::function<void(const std::string& path, const std::string& text)>& visit) {
  const std::unique_ptr<XML_ParserStruct, decltype(&XML_ParserFree)> parser(XML_ParserCreate("UTF-8"), &XML_ParserFree);
  if (!parser) throw std::bad_alloc();
  XmlWalk walk{visit, parser.get(), {}, {}, {}};
  XML_SetUserData(parser.get(), &walk);
  XML_SetElementHandler(parser.get(), XmlWalk::start, XmlWalk::end);
  XML_SetCharacterDataHandler(parser.get(), XmlWalk::characters);
  const XML_Status status = XML_Parse(parser.get(), xml.data(), static_cast<int>(xml.size()), XML_TRUE);
  if (walk.error) std::rethrow_exception(walk.error);
  if (status != XML_STATUS_OK)
    throw Error(ErrorCode::kUnavailable,
                "the server answered with " + what + " that cannot be read: " + XML_ErrorString(XML_GetErrorCode(parser.get())));
}

int perform_without_sigpipe(void* easy) {
  sigset_t pending, pipe, before;
  sigpending(&pending);
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, &before);
  const CURLcode code = curl_easy_perform(easy);
  const timespec at_once{0, 0};
  while (sigismember(&pending, SIGPIPE) == 0 && sigtimedwait(&pipe, nullptr, &at_once) == SIGPIPE) {
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return code;
}

std::string s3_etag(std::string quoted) {
  if (quoted.size() >= 2 && quoted.front() == '"' && quoted.back() == '"') return quoted.substr(1, quoted.size() - 2);
  return quoted;
}

std::string s3_encode(const std::string& text, bool keep_slashes) {
  const CurlText escaped(curl_easy_escape(nullptr, text.c_str(), static_cast<int>(text.size())), &curl_free);
  if (!escaped) throw std::bad_alloc();
  std::string encoded = escaped.get();
  if (!keep_slashes) return encoded;
  for (std::size_t at = 0; (at = encoded.find("%2F", at)) != std::string::npos;) encoded.replace(at, 3, "/");
  return encoded;
}

std::string s3_decode(std::string text, bool plus_is_space) {
  if (plus_is_space) std::replace(text.begin(), text.end(), '+', ' ');
  int bytes = 0;
  const CurlText decoded(curl_easy_unescape(nullptr, text.c_str(), static_cast<int>(text.size()), &bytes), &curl_free);
  if (!decoded) throw std::bad_alloc();
  return {decoded.get(), static_cast<std::size_t>(bytes)};
}

}  // namespace cairn
