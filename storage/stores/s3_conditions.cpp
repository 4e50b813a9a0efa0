// Writes and removals of an S3Client under conditions, and what servers make of those.
#include <algorithm>
#include <map>

#include <cairn/base/utf8.hpp>
#include <cairn/storage/stores/s3_client.hpp>

namespace cairn {
namespace {

constexpr const char* kNoEtag = "00000000000000000000000000000000";

}  // namespace

// By endpoint and bucket.
S3Client::KnownServer S3Client::known_server(const std::function<void(KnownServer&)>& learn) {
  static auto* const mutex = new Mutex;
  static auto* const servers = new std::map<std::string, KnownServer>;
  const std::string place = settings()->endpoint + "/" + bucket_;
  MutexLock lock(*mutex);
  if (learn) learn((*servers)[place]);
  return (*servers)[place];
}

S3Put S3Client::put_if(const std::string& key, ByteSpan content, const std::string& etag, const Confirms& confirms) {
  const std::string nonce = new_nonce();
  S3Request request{"PUT", "write", "s3:PutObject", key};
  request.body = content;
  request.headers.emplace_back(kS3NonceHeader, nonce);
  // Unquoted, as Ceph wants it and AWS accepts it.
  request.headers.emplace_back(etag.empty() ? "If-None-Match" : "If-Match", etag.empty() ? "*" : etag);
  bool may_have_written = false;
  for (int tries = 1;; ++tries) {
    const S3Response response = send(request);
    may_have_written = may_have_written || response.was_repeated;
    const bool is_gone = !etag.empty() && response.status == 404 && response.error_code == "NoSuchKey";
    const std::string answered =
        "cannot write s3://" + bucket_ + "/" + printable_utf8(key) + ": the server answered " + std::to_string(response.status);
    if (!response.succeeded() && response.status != 412 && !is_gone) throw Error(ErrorCode::kUnavailable, answered);
    if (response.succeeded() && confirms && confirms(response.etag)) return {response.etag, may_have_written};
    // An object that is in the way may be this one, written by a try whose answer was lost. libcurl
    // itself sends a request again if a reused connection turns out to be closed.
    const S3Object found = look(key);
    if (found.nonce == nonce) return {found.etag, may_have_written};
    const bool is_unchanged = found.etag == etag;
    if (!is_unchanged && (found.is_there || !response.succeeded()))
      return {response.succeeded() && !etag.empty() ? response.etag : "", may_have_written};
    // The answer is wrong: the condition still holds, or nothing was written.
    const auto with = settings();
    if (tries >= with->tries_max)
      throw Error(ErrorCode::kUnavailable,
                  answered + ", but the object " + (found.is_there ? "has not changed" : "does not exist"));
    may_have_written = true;
    pause(std::min(with->pause_first * (1 << std::min(tries, 16)), with->pause_max));
  }
}

std::string S3Client::ignored_condition(const std::string& key) {
  if (known_server().obeys_on_writing) return "";
  for (const auto& [name, value] : S3Fields{{"If-None-Match", "*"}, {"If-Match", kNoEtag}}) {
    S3Request request{"PUT", "write", "s3:PutObject", key};
    request.headers = {{name, value}};
    const std::string body = "tried\n";
    request.body = body;
    // Writes twice: the first write may have created the object, if it was absent.
    if (send(request).succeeded() && send(request).succeeded()) return name;
  }
  known_server([](KnownServer& server) { server.obeys_on_writing = true; });
  return "";
}

bool S3Client::removes_on_condition() { return known_server().obeys_on_removal.value_or(false); }

void S3Client::remove(const std::string& key) {
  S3Request request{"DELETE", "remove", "s3:DeleteObject", key};
  if (!known_server().obeys_on_removal) {
    request.headers = {{"If-Match", kNoEtag}};
    const bool obeys = send(request).status == 412;
    known_server([&](KnownServer& server) { server.obeys_on_removal = obeys; });
    if (!obeys) return;  // it is gone
    request.headers.clear();
  }
  send(request);
}

}  // namespace cairn
