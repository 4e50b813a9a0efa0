// Answers that S3 never gives, or that say nothing of an object. Needs no server.
#include <cairn/tests/support/plain.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <cairn/base/digest.hpp>
#include <cairn/formats/zip_format.hpp>
#include <cairn/storage/format/commit_footer.hpp>
#include <cairn/storage/stores/s3_store.hpp>
#include <cairn/tests/s3/answering_server.hpp>
#include <cairn/tests/storage/store_tools.hpp>
#include <cairn/tests/support/thrown.hpp>

using namespace cairn;
using namespace cairn::testing;

namespace {

using Answers = std::vector<std::string>;
using Act = std::function<void(Store&)>;

S3Settings settings_of(const std::string& endpoint) {
  S3Settings settings;
  settings.endpoint = endpoint;
  settings.region = "us-east-1";
  settings.credentials = {"key", "secret", ""};
  settings.tries_max = 3;
  settings.pause_first = settings.refusal_pause = std::chrono::milliseconds(0);
  return settings;
}

// The result of a call on a place of its own. Its requests are answered in this order; the last
// answer stands for all others.
struct Outcome {
  Thrown thrown;
  std::size_t requests = 0;
};
Outcome outcome_of(const Act& act, const Answers& answers) {
  std::atomic<std::size_t> requests{0};
  const AnsweringServer server([&](const std::string&) { return answers[std::min(requests++, answers.size() - 1)]; });
  S3Store store("bucket", "run/step_1", std::make_shared<S3Client>("bucket", [&] { return settings_of(server.url()); }));
  Outcome outcome;
  outcome.thrown = thrown_by([&] { act(store); });
  outcome.requests = requests;
  return outcome;
}

std::string part_of_object(const std::string& body, const std::string& range) {
  return http_answer("206 Partial Content", body, "ETag: \"tag\"\r\nContent-Range: bytes " + range + "\r\n");
}

// The object of a run that names its latest checkpoint.
std::string run_index(const std::string& lines) {
  std::string index = lines + std::string(kFenceMarkBytes, 'm');
  zip::put_u32(index, crc32(0, index));
  return index;
}

const std::string kEmptyListing = http_answer("200 OK", "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>");
const std::string kForeign404 = http_answer("404 Not Found", "default backend - 404");
const std::string kPage = http_answer("200 OK", "<html><body>It works</body></html>", "Content-Type: text/html\r\n");
const std::string kEmpty = http_answer("200 OK");
const std::string kNoSuchKey = s3_error("404 Not Found", "NoSuchKey");
const std::string kInvalidRange = s3_error("416 Range Not Satisfiable", "InvalidRange");

const Act kFindRecord = [](Store& store) { store.exists(kCommitRecordName); };
const Act kFindFile = [](Store& store) { store.exists("file"); };
const Act kSize = [](Store& store) { store.size_bytes("file"); };
const Act kReadTwo = [](Store& store) {
  char bytes[2];
  store.read("file", {{4, {bytes, 2}}});
};
const Act kList = [](Store& store) { store.list(); };
const Act kChildren = [](Store& store) { store.children(); };
const Act kRemove = [](Store& store) { store.remove("file"); };
const Act kWrite = [](Store& store) { put_object(store, "file", "content"); };
const Act kRetract = [](Store& store) { store.retract(); };
const Act kHasAttempt = [](Store& store) { store.has_attempt("save"); };
const Act kFence = [](Store& store) { store.fence("save"); };
const Act kClear = [](Store& store) { store.clear_attempt("save"); };
const std::string kDenied = s3_error("403 Forbidden", "AccessDenied"), kExpired = s3_error("403 Forbidden", "ExpiredToken");
const std::string kSkewed = s3_error("403 Forbidden", "RequestTimeTooSkewed");
const std::string kNoBucket = s3_error("404 Not Found", "NoSuchBucket");
const std::string kFalse412 = s3_error("412 Precondition Failed", "PreconditionFailed");
const std::string kWritten = http_answer("200 OK", "", "ETag: \"new\"\r\n");
const Act kPublish = [](Store& store) { store.publish("save", "record", Overwrite::kAllowed); };

}  // namespace

TEST_CASE("S3 answers: an answer that is not S3's own is an error of the store") {
  struct Row {
    const char* name;
    const Act& act;
    Answers answers;
    const char* text;
    ErrorCode code = ErrorCode::kUnavailable;
  };
  for (const Row& row : std::vector<Row>{
           {"a 404 of something between, for a record", kFindRecord, {kForeign404}, "default backend"},
           {"for a file", kFindFile, {kForeign404}, "404"},
           {"for a range", kReadTwo, {kForeign404}, "404"},
           {"for a listing", kList, {kForeign404}, "404"},
           {"NoSuchKey for a listing", kList, {kNoSuchKey}, "NoSuchKey"},
           {"for a removal", kRemove, {kForeign404}, "404"},
           {"for a record to remove", kRetract, {kForeign404}, "404"},
           {"for the marks of an attempt", kHasAttempt, {kForeign404}, "404"},
           {"for a fence", kFence, {kForeign404}, "404"},
           {"for an attempt to clear", kClear, {kForeign404}, "404"},
           {"for a publication", kPublish, {kForeign404}, "404"},
           {"a page, as a listing", kList, {kPage}, "It works"},
           {"as places", kChildren, {kPage}, "It works"},
           {"as a record", kFindRecord, {kPage}, "It works"},
           {"as a range", kReadTwo, {kPage}, "It works"},
           {"for a removal", kRemove, {kPage}, "It works"},
           {"for a write", kWrite, {kNoSuchKey, kPage}, "It works"},
           {"nothing, as a listing", kList, {kEmpty}, "no element"},
           {"as a record", kFindRecord, {kEmpty}, "200"},
           {"for a write", kWrite, {kNoSuchKey, kEmpty}, "ETag"},
           {"a listing without an end", kList, {http_answer("200 OK", "<ListBucketResult/>")}, "listing"},
           {"of objects without sizes", kList,
            {http_answer("200 OK",
             "<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>run/step_1/a</Key></Contents></ListBucketResult>")},
            "size"},
           {"no length", kSize, {http_answer("206 Partial Content", "x", "ETag: \"tag\"\r\n")}, "which bytes"},
           {"another range", kReadTwo, {part_of_object("xy", "0-1/10")}, "2 bytes at 0"},
           {"a short range", kReadTwo, {part_of_object("x", "4-4/10")}, "1 bytes at 4"},
           {"no ETag", kSize, {http_answer("206 Partial Content", "x", "Content-Range: bytes 0-0/1\r\n")}, "ETag"},
           {"an end that another look denies", kReadTwo, {kInvalidRange, part_of_object("0123456789", "0-9/10")}, "do not agree"},
           {"an end that another look confirms", kReadTwo, {kInvalidRange, part_of_object("0123", "0-3/4")}, "at 4",
            ErrorCode::kCorrupt},
           {"an empty object that is a page at the next look", kSize,
            {kInvalidRange, http_answer("200 OK", "<html/>", "ETag: \"page\"\r\n")}, "do not agree"},
           {"a write that is not there afterwards", kWrite,
            {kNoSuchKey, kWritten, kNoSuchKey, kWritten, kNoSuchKey, kWritten, kNoSuchKey}, "does not exist"},
           {"a false 412", kWrite, {kNoSuchKey, kFalse412, kNoSuchKey, kFalse412, kNoSuchKey, kFalse412, kNoSuchKey}, "412"},
           {"a redirection to a page", kFindRecord, {http_answer("302 Found", "", "Location: http://127.0.0.1:1/login\r\n")},
            "302"},
           {"a 403 of something between", kFindRecord, {http_answer("403 Forbidden", "blocked")}, "blocked"},
           {"an expired token", kFindRecord, {s3_error("400 Bad Request", "ExpiredToken")}, "get new credentials",
            ErrorCode::kPermission},
           {"a clock that differs", kFindRecord, {kSkewed}, "clock", ErrorCode::kPermission},
           {"no permission to read", kFindRecord, {kDenied}, "s3:GetObject, and s3:ListBucket in case", ErrorCode::kPermission},
           {"no permission to list", kList, {kDenied}, "the permission s3:ListBucket", ErrorCode::kPermission},
           {"no bucket", kFindRecord, {kNoBucket}, "there is no bucket"},
           {"a listing without the latest checkpoint, whose record is there", kChildren,
            {http_answer("200 OK", run_index("latest 2 step_2\n"), "ETag: \"index\"\r\n"), kEmptyListing,
             part_of_object("x", "0-0/1"), kEmptyListing},
            "the listing lacks step_2"},
       }) {
    const Outcome outcome = outcome_of(row.act, row.answers);
    CAPTURE(std::string(row.name));
    CAPTURE(outcome.thrown.what);
    REQUIRE(outcome.thrown.is_error);
    CHECK(outcome.thrown.code == row.code);
    CHECK(outcome.thrown.says(row.text));
    CHECK(outcome.requests >= 2);  // it was asked again
  }
}

TEST_CASE("S3 answers: a request succeeds after wrong answers and temporary refusals") {
  const std::string whole = part_of_object("xy", "4-5/10");
  struct Row {
    const char* name;
    const Act& act;
    Answers answers;
  };
  for (const Row& row : std::vector<Row>{
           {"absent in the store's own words", kFindRecord, {kNoSuchKey}},
           {"a 404 of something between", kFindRecord, {kForeign404, kForeign404, kNoSuchKey}},
           {"a page", kList, {kPage, kEmpty, kEmptyListing}},
           {"a range", kReadTwo, {kPage, part_of_object("x", "4-4/10"), whole}},
           {"a token that is renewed", kReadTwo, {kExpired, kExpired, whole}},
           {"a clock that is set", kReadTwo, {kSkewed, whole}},
           {"a permission that is given", kReadTwo, {kDenied, kDenied, kDenied, whole}},
           {"a server that says when to come back", kReadTwo,
            {http_answer("503 Slow Down", "<Error><Code>SlowDown</Code></Error>", "Retry-After: 0\r\n"), whole}},
           {"another back end", kReadTwo, {kNoBucket, whole}},
           {"a removal", kRemove, {kPage, kForeign404, http_answer("204 No Content")}},
       }) {
    CAPTURE(std::string(row.name));
    const Outcome outcome = outcome_of(row.act, row.answers);
    CAPTURE(outcome.thrown.what);
    CHECK_FALSE(outcome.thrown.is_error);
    CHECK(outcome.requests == row.answers.size());
  }
}

TEST_CASE("S3 answers: unchanged credentials are read again after a refusal, three times") {
  for (const int renewed_at : {2, 4, 5}) {
    CAPTURE(renewed_at);
    int reads = 0;
    const AnsweringServer server([](const std::string& head) {
      return head.find("Credential=new/") != std::string::npos ? kNoSuchKey : s3_error("403 Forbidden", "InvalidAccessKeyId");
    });
    S3Client client("bucket", [&] {
      S3Settings settings = settings_of(server.url());
      if (++reads >= renewed_at) settings.credentials.access_key = "new";
      return settings;
    });
    const Thrown thrown = thrown_by([&] { client.look("key"); });
    CHECK(thrown.is_error == (renewed_at > 4));
    CHECK(reads == std::min(renewed_at, 4));
  }
}
