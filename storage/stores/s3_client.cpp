#include <cairn/storage/stores/s3_client.hpp>

#include <algorithm>
#include <cstring>
#include <thread>

#include <curl/curl.h>

#include <cairn/base/digest.hpp>
#include <cairn/base/log.hpp>
#include <cairn/base/utf8.hpp>

namespace cairn {
namespace {

// Limit on answers that are not the content of an object. A page of a listing has at most a
// thousand names of a kilobyte, percent-encoded.
constexpr std::size_t kBodyBytesMax = std::size_t{16} << 20;
constexpr std::size_t kErrorTextMax = 300;
constexpr int kRenewalsMax = 3;  // for one request
constexpr int kRefusalPauseGrowth = 5;
// Size of each connection's buffers for sending and receiving: the largest that libcurl takes. Its
// default for receiving, 16 KiB, costs many system calls.
constexpr long kBufferBytes = 512L * 1024;

struct Upload {
  ByteSpan bytes;
  std::size_t sent = 0;
  bool was_repeated = false;

  static std::size_t read(char* to, std::size_t size, std::size_t count, void* self) {
    auto& upload = *static_cast<Upload*>(self);
    const std::size_t length = std::min(size * count, upload.bytes.size() - upload.sent);
    if (length > 0) std::memcpy(to, upload.bytes.data() + upload.sent, length);
    upload.sent += length;
    return length;
  }
  // For a connection that turns out to be closed when it is used again.
  static int seek(void* self, curl_off_t offset, int origin) {
    auto& upload = *static_cast<Upload*>(self);
    if (origin != SEEK_SET || offset < 0 || static_cast<std::size_t>(offset) > upload.bytes.size()) return CURL_SEEKFUNC_FAIL;
    upload.was_repeated = upload.was_repeated || upload.sent > 0;
    upload.sent = static_cast<std::size_t>(offset);
    return CURL_SEEKFUNC_OK;
  }
};

struct Download {
  CURL* easy = nullptr;
  MutableByteSpan destination;
  std::size_t received = 0;
  std::string& body;

  static std::size_t write(char* from, std::size_t size, std::size_t count, void* self) {
    auto& download = *static_cast<Download*>(self);
    const std::size_t length = size * count;
    long status = 0;
    curl_easy_getinfo(download.easy, CURLINFO_RESPONSE_CODE, &status);
    if (status == 206 && !download.destination.empty()) {
      if (length > download.destination.size() - download.received) return 0;
      std::memcpy(download.destination.data() + download.received, from, length);
      download.received += length;
    } else {
      if (length > kBodyBytesMax - download.body.size()) return 0;
      try {
        download.body.append(from, length);
      } catch (const std::bad_alloc&) {
        return 0;
      }
    }
    return length;
  }
};

bool may_recover(CURLcode code) {
  // CURLE_UNSUPPORTED_PROTOCOL: the answer is not HTTP. CURLE_WRITE_ERROR: it is too long.
  constexpr CURLcode kPassing[] = {CURLE_COULDNT_RESOLVE_PROXY, CURLE_COULDNT_RESOLVE_HOST, CURLE_COULDNT_CONNECT,
                                   CURLE_WEIRD_SERVER_REPLY,    CURLE_UNSUPPORTED_PROTOCOL, CURLE_WRITE_ERROR,
                                   CURLE_PARTIAL_FILE,          CURLE_OPERATION_TIMEDOUT,   CURLE_SSL_CONNECT_ERROR,
                                   CURLE_GOT_NOTHING,           CURLE_SEND_ERROR,           CURLE_RECV_ERROR};
  return std::find(std::begin(kPassing), std::end(kPassing), code) != std::end(kPassing);
}

// Returns the status of an error that came in an answer with status 200.
int status_of(const std::string& error_code) {
  if (error_code == "InternalError") return 500;
  if (error_code == "OperationAborted" || error_code == "ConditionalRequestConflict") return 409;
  if (error_code == "PreconditionFailed") return 412;
  return error_code == "NoSuchUpload" ? 404 : 400;
}

std::string header_of(CURL* easy, const char* name) {
  curl_header* found = nullptr;
  return curl_easy_header(easy, name, 0, CURLH_HEADER, -1, &found) == CURLHE_OK ? found->value : "";
}

// The messages of a server may hold anything; the first line of them is shown.
std::string shown(const std::string& text) { return printable_utf8(text.substr(0, kErrorTextMax)); }

}  // namespace

struct S3Client::Attempt {
  CURLcode code = CURLE_OK;
  std::string transport;  // the failure, if `code` says that there was one
  std::string message;    // of the server
  std::string region;     // of the bucket, as the server says
  std::chrono::seconds retry_after{0};
  S3Response response;
};

S3Client::S3Client(std::string bucket, std::function<S3Settings()> settings)
    : bucket_(std::move(bucket)), read_settings_(std::move(settings)) {
  // Once, before any thread uses libcurl. Never undone: the program may use libcurl, too.
  static const CURLcode started = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (started != CURLE_OK)
    throw Error(ErrorCode::kPrecondition, std::string("libcurl cannot start: ") + curl_easy_strerror(started));
}

std::shared_ptr<const S3Settings> S3Client::settings(const std::shared_ptr<const S3Settings>& refused) {
  using Clock = std::chrono::system_clock;
  MutexLock lock(mutex_);
  // One thread reads them. Others wait for it, and look again, if they have none that are valid.
  for (;; renewed_.wait(mutex_)) {
    const auto expires = settings_ ? settings_->credentials.expires : std::nullopt;
    const bool is_due = !settings_ || (expires && Clock::now() >= renew_at_);
    if (refused ? refused != settings_ : !is_due) return settings_;
    if (!is_reading_) break;
    if (!refused && settings_ && (!expires || Clock::now() < *expires)) return settings_;
  }
  const bool has_old = !refused && settings_ != nullptr;
  is_reading_ = true;
  lock.unlock();
  std::shared_ptr<const S3Settings> fresh;
  std::optional<Error> failure;
  try {
    fresh = std::make_shared<const S3Settings>(read_settings_());
  } catch (const Error& error) {
    failure = error;
  } catch (const std::exception& error) {
    failure = Error(ErrorCode::kUnavailable, error.what());
  }
  if (failure && has_old)  // the old ones may still be good: the server decides
    write_log(LogLevel::kWarning, -1, "cannot renew the credentials for s3://" + bucket_ + " yet: " + failure->what());
  lock.lock();
  is_reading_ = false;
  renewed_.notify_all();
  if (failure && !has_old) throw Error(*failure);
  if (!failure) settings_ = std::move(fresh);
  // Not sooner than after a pause, also if the server has none that last longer.
  if (const auto& expires = settings_->credentials.expires)
    renew_at_ = std::max(*expires - settings_->renewal_margin, Clock::now() + settings_->renewal_pause);
  return settings_;
}

S3Client::Connection S3Client::take_connection() {
  MutexLock lock(mutex_);
  Connection connection(nullptr, curl_easy_cleanup);
  if (idle_.empty()) {
    connection.reset(curl_easy_init());
    if (!connection) throw std::bad_alloc();
  } else {
    connection = std::move(idle_.back());
    idle_.pop_back();
  }
  return connection;
}

std::string S3Client::url_of(const S3Request& request, const S3Settings& where) const {
  std::string url = where.endpoint;
  if (where.virtual_hosts)
    url.insert(url.find("://") + 3, bucket_ + ".");
  else
    url += "/" + bucket_;
  url += "/" + s3_encode(request.key, true);
  // libcurl signs the query as it stands, and the signature needs it sorted.
  S3Fields query = request.query;
  std::sort(query.begin(), query.end());
  char separator = '?';
  for (const auto& [name, value] : query) {
    url += separator + s3_encode(name) + "=" + s3_encode(value);
    separator = '&';
  }
  return url;
}

S3Client::Attempt S3Client::attempt(const S3Request& request, const S3Settings& with) {
  Connection connection = take_connection();
  CURL* const easy = connection.get();
  Attempt attempt;
  Upload upload{request.body};
  Download download{easy, request.destination, 0, attempt.response.body};
  char error[CURL_ERROR_SIZE] = "";
  std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)> headers(nullptr, curl_slist_free_all);
  const auto add = [&](const std::string& line) {
    curl_slist* const longer = curl_slist_append(headers.get(), line.c_str());
    if (!longer) throw std::bad_alloc();
    headers.release();
    headers.reset(longer);
  };
  // In this form the value is what libcurl signs. Servers compare it with the body.
  add("x-amz-content-sha256: " + to_hex(sha256(request.body)));
  if (!with.credentials.session_token.empty()) add("x-amz-security-token: " + with.credentials.session_token);
  for (const auto& [name, value] : request.headers) add(name + ": " + value);
  if (const std::uint64_t bytes = request.destination.size(); bytes > 0)
    add("Range: bytes=" + (request.offset ? std::to_string(*request.offset) + "-" + std::to_string(*request.offset + bytes - 1)
                                          : "-" + std::to_string(bytes)));

  curl_easy_reset(easy);  // keeps the connection
  const std::string url = url_of(request, with);
  const std::string signing = "aws:amz:" + with.region + ":s3";
  curl_easy_setopt(easy, CURLOPT_URL, url.c_str());
  curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);
  curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(easy, CURLOPT_AWS_SIGV4, signing.c_str());
  curl_easy_setopt(easy, CURLOPT_USERNAME, with.credentials.access_key.c_str());
  curl_easy_setopt(easy, CURLOPT_PASSWORD, with.credentials.secret_key.c_str());
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, error);
  curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT, static_cast<long>(with.connect_timeout.count()));
  curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, with.bytes_per_second_min);
  curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, static_cast<long>(with.stall_timeout.count()));
  curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
  curl_easy_setopt(easy, CURLOPT_TCP_NODELAY, 1L);
  if (!with.ca_bundle.empty()) curl_easy_setopt(easy, CURLOPT_CAINFO, with.ca_bundle.c_str());
  curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, kBufferBytes);
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, Download::write);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, &download);
  const std::string method = request.method;
  if (method == "PUT" || method == "POST") {
    curl_easy_setopt(easy, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, request.method);
    // The body follows at once. A server that has refused the request by then ends it all the same.
    curl_easy_setopt(easy, CURLOPT_EXPECT_100_TIMEOUT_MS, 0L);
    curl_easy_setopt(easy, CURLOPT_UPLOAD_BUFFERSIZE, kBufferBytes);
    curl_easy_setopt(easy, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
    curl_easy_setopt(easy, CURLOPT_READFUNCTION, Upload::read);
    curl_easy_setopt(easy, CURLOPT_READDATA, &upload);
    curl_easy_setopt(easy, CURLOPT_SEEKFUNCTION, Upload::seek);
    curl_easy_setopt(easy, CURLOPT_SEEKDATA, &upload);
  } else {
    curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, request.method);
  }

  attempt.code = static_cast<CURLcode>(perform_without_sigpipe(easy));
  S3Response& response = attempt.response;
  long status = 0;
  curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
  response.status = static_cast<int>(status);
  response.was_repeated = upload.was_repeated;
  curl_off_t retry_after = 0;
  curl_easy_getinfo(easy, CURLINFO_RETRY_AFTER, &retry_after);
  attempt.retry_after = std::chrono::seconds(retry_after);
  response.received = download.received;
  response.etag = s3_etag(header_of(easy, "ETag"));
  response.nonce = header_of(easy, kS3NonceHeader);
  attempt.region = header_of(easy, "x-amz-bucket-region");
  const S3ContentRange range(header_of(easy, "Content-Range"));
  response.object_bytes = range.object_bytes;
  if (attempt.code != CURLE_OK) {
    attempt.transport = error[0] != '\0' ? error : curl_easy_strerror(attempt.code);
    return attempt;  // without the connection, which may be in the middle of an answer
  }
  // The end of a multipart upload may fail after the status was sent.
  const bool is_error = status >= 300 || (method == "POST" && response.body.find("<Error") != std::string::npos);
  if (is_error && !response.body.empty() && response.body.find("<Error") != std::string::npos) {
    try {
      visit_s3_xml(response.body, "an error", [&](const std::string& path, const std::string& text) {
        if (path == "Error/Code") response.error_code = text;
        if (path == "Error/Message") attempt.message = text;
        if (path == "Error/Region") attempt.region = text;
      });
    } catch (const Error&) {
      // An answer of something between: its status says enough.
    }
  }
  if (is_error && status < 300) response.status = status_of(response.error_code);
  if (!is_error) attempt.transport = why_foreign(request, response, range);
  if (is_error ? response.error_code.empty() : !attempt.transport.empty()) {
    // A later try gets another connection, which may lead elsewhere.
    if (attempt.message.empty()) attempt.message = response.body;
    if (!is_error) attempt.code = CURLE_WEIRD_SERVER_REPLY;
    return attempt;
  }
  // The options refer to local variables.
  curl_easy_reset(easy);
  MutexLock lock(mutex_);
  idle_.push_back(std::move(connection));
  return attempt;
}

void S3Client::pause(std::chrono::milliseconds most, std::chrono::milliseconds at_least) {
  const auto half = static_cast<std::uint64_t>(most.count()) / 2;
  std::this_thread::sleep_for(std::max(at_least, std::chrono::milliseconds(half + random_->next() % (half + 1))));
}

S3Response S3Client::send(const S3Request& request) {
  std::shared_ptr<const S3Settings> with = settings();
  int renewals = 0;
  bool was_unanswered = false;
  auto next_pause = with->pause_first;
  auto refusal_pause = with->refusal_pause;
  std::optional<std::chrono::steady_clock::time_point> first_failure;  // a part may take long, and then fail
  for (int tries = 1;; ++tries) {
    Attempt made = attempt(request, *with);
    if (!first_failure) first_failure = std::chrono::steady_clock::now();
    made.response.was_repeated = made.response.was_repeated || was_unanswered;
    const bool answered = made.code == CURLE_OK;
    if (answered && (made.response.succeeded() || is_finding(request, made.response))) return std::move(made.response);
    was_unanswered = was_unanswered || !answered || may_have_run(made.response);
    if (answered && is_refusal(made.response) && renewals < kRenewalsMax) {
      ++renewals;
      pause(refusal_pause);
      refusal_pause *= kRefusalPauseGrowth;
      try {
        settings(with);
      } catch (const Error&) {
        // Another program may be writing the shared file.
        if (renewals == kRenewalsMax) throw;
      }
      with = settings();
      continue;
    }
    const bool may_repeat = answered ? may_pass(made.response) : may_recover(made.code);
    const bool is_over = tries >= with->tries_max || std::chrono::steady_clock::now() - *first_failure >= with->retry_time;
    if (!may_repeat || is_over) throw failure(request, made, *with);
    pause(next_pause, std::min<std::chrono::milliseconds>(made.retry_after, with->pause_max));
    next_pause = std::min(next_pause * 2, with->pause_max);
    with = settings();
  }
}

S3Object S3Client::look(const std::string& key, std::size_t end_bytes) {
  std::string bytes(std::max<std::size_t>(end_bytes, 1), '\0');
  S3Request request{"GET", end_bytes > 0 ? "read" : "look for", "s3:GetObject", key};
  request.destination = {bytes.data(), bytes.size()};
  if (end_bytes == 0) request.offset = 0;
  S3Response response = send(request);
  bytes.resize(std::min<std::size_t>(response.received, end_bytes));
  const bool is_empty = response.status == 416;
  if (is_empty) {
    // An empty object has no first and no last byte. Such an answer has no ETag.
    request.destination = {};
    request.check = [](const S3Response& whole) {
      if (!whole.body.empty()) throw Error(ErrorCode::kUnavailable, "the answers about its length do not agree");
    };
    response = send(request);
  }
  if (!response.succeeded()) return {};
  return {true, response.etag, response.nonce, is_empty ? 0 : response.object_bytes, std::move(bytes)};
}

S3Page S3Client::list(S3Request request, const S3Fields& next, const std::function<void(const S3Page&)>& check) {
  request.query.insert(request.query.end(), next.begin(), next.end());
  S3Page page;
  request.check = [&](const S3Response& response) {
    page = {};
    std::map<std::string, std::string> entry;
    std::string truncated;
    visit_s3_xml(response.body, "a listing of s3://" + bucket_, [&](const std::string& path, const std::string& text) {
      const auto depth = std::count(path.begin(), path.end(), '/');
      const std::string element = path.substr(path.rfind('/') + 1);
      // One element may name several prefixes.
      if (depth == 2 && !entry.emplace(element, text).second) page.entries.push_back(std::exchange(entry, {{element, text}}));
      if (depth != 1) return;
      if (!entry.empty()) page.entries.push_back(std::exchange(entry, {}));
      if (element == "IsTruncated") truncated = text;
      if (element == "NextContinuationToken" && !text.empty()) page.next.emplace_back("continuation-token", text);
      if (element == "NextKeyMarker" && !text.empty()) page.next.emplace_back("key-marker", s3_decode(text, true));
      if (element == "NextUploadIdMarker" && !text.empty()) page.next.emplace_back("upload-id-marker", text);
    });
    if (truncated == "false") page.next.clear();
    if (truncated != "false" && truncated != "true") throw Error(ErrorCode::kUnavailable, "the answer is not a whole listing");
    if (truncated == "true" && (page.next.empty() || page.next == next))
      throw Error(ErrorCode::kUnavailable, "the answer does not say how the listing goes on");
    if (check) check(page);
  };
  request.check(send(request));
  return page;
}

Error S3Client::failure(const S3Request& request, const Attempt& attempt, const S3Settings& with) const {
  const std::string what = std::string("cannot ") + request.action + " s3://" + bucket_ +
                           (request.key.empty() ? "" : "/" + printable_utf8(request.key)) + ": ";
  const S3Response& response = attempt.response;
  const std::string& code = response.error_code;
  if (attempt.code == CURLE_PEER_FAILED_VERIFICATION || attempt.code == CURLE_SSL_CACERT_BADFILE)
    return Error(ErrorCode::kPermission,
                 what + shown(attempt.transport) + " (" + with.endpoint + "); " +
                     (with.ca_bundle.empty() ? "set AWS_CA_BUNDLE to a file with the server's CA certificate"
                                             : "AWS_CA_BUNDLE is " + with.ca_bundle));
  if (attempt.code != CURLE_OK)
    return Error(ErrorCode::kUnavailable, what + shown(attempt.transport) + " (" + with.endpoint + ")" +
                                              (attempt.message.empty() ? "" : ": " + shown(attempt.message)));
  const std::string answer = "the server answered " + std::to_string(response.status) + (code.empty() ? "" : " " + shown(code)) +
                             (attempt.message.empty() ? "" : ": " + shown(attempt.message));
  if (code == "NoSuchBucket")
    return Error(ErrorCode::kUnavailable, what + "there is no bucket \"" + bucket_ + "\" at " + with.endpoint);
  if (code == "QuotaExceeded" || response.status == 507) return Error(ErrorCode::kNoSpace, what + answer);
  if (code == "RequestTimeTooSkewed" || code == "RequestExpired")
    return Error(ErrorCode::kPermission, what + answer + "; the clock of this machine differs from the server's: set it");
  if (code == "SignatureDoesNotMatch")
    return Error(ErrorCode::kPermission, what + answer + "; the secret key does not belong to the access key");
  if (code == "InvalidAccessKeyId")
    return Error(ErrorCode::kPermission, what + answer + "; the server does not know the access key");
  if (code == "ExpiredToken") return Error(ErrorCode::kPermission, what + answer + "; get new credentials");
  if (code == "PermanentRedirect" || code == "AuthorizationHeaderMalformed" || (response.status == 301 && !attempt.region.empty()))
    return Error(ErrorCode::kUnavailable, what + answer + "; the bucket is not in region " + with.region +
                                              (attempt.region.empty() ? "" : ", but in " + shown(attempt.region)) +
                                              ": set AWS_REGION");
  // Without the permission to list, S3 does not report that an object is absent.
  const bool is_read = request.permission == std::string("s3:GetObject");
  if ((response.status == 401 || response.status == 403) && !code.empty())
    return Error(ErrorCode::kPermission, what + answer + "; the credentials need the permission " + request.permission +
                                             (is_read ? ", and s3:ListBucket in case the object does not exist" : ""));
  return Error(ErrorCode::kUnavailable, what + answer);
}

}  // namespace cairn
