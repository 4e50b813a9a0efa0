// The commit protocol of an S3 store. It decides which attempt may publish.
//
// The record and everything that must be decided about it is one object, .metadata. It is only
// written on the condition that it is absent or has the ETag that was seen before. In it is
//
//   record                 as it was published
//   record, fence mark     the same record, after an attempt was fenced
//   fence mark             no record: one was removed, or an attempt was fenced before the first
//
// A fence mark has a nonce, so no two versions of the object have the same ETag.
//
// begin      1  write .attempt-<id> if it is absent
//            2  give up if .fenced-<id> exists
//
// publish    1  read the ETag of .metadata; if it is absent, write
//               a fence mark there, and begin again
//            2  give up if .fenced-<id> exists, and then unless
//               .attempt-<id> exists
//            3  write the record to .metadata, if the ETag is
//               still that of 1; otherwise begin again           <- now the checkpoint exists
//               (but end with an error if an answer was lost and the record of another is there)
//            4  remove .attempt-<id>
//
// fence      1  write .fenced-<id>
//            2  done if .attempt-<id> does not exist
//            3  read .metadata and its ETag
//            4  write it again with a new fence mark, if the
//               ETag is still that of 3                          <- now it cannot publish
//            5  remove .attempt-<id>
//
// clear      1  give up if .attempt-<id> exists
//            2  remove .fenced-<id>
//
// A publication that finds no fence, and then an attempt, has done so before fence 1: an attempt
// whose fence was cleared is gone. So it has passed its step 1 before fence 3. If
// .metadata changed between these two reads, publish 3 fails. Otherwise publish 3 and fence 4
// expect the same ETag, and the server lets one of them succeed, or neither if a third write came
// first. In each case the ETag has changed when the fence ends: the record is there, or publish 3
// fails, begins again and finds the fence. So the outcome of fence 4 does not matter. No record is
// written where there was nothing, since "nothing" has no ETag that could have changed meanwhile.
// Nor is a record written again once it may have been there: its ETag would come back.
//
// The proof needs a server that does not carry out a request after its client has given up on it
// and has asked again, other than one with If-Match.
//
// An attempt is fenced only when fence 5 is done. Until then it counts as open, so that others
// complete a fence whose process died.
//
// For the same reason removing a record leaves a fence mark in its place. `remove_root` removes the
// mark when nothing else is left, but only with a condition on its ETag: a DELETE that comes late,
// or twice, must not remove the record of a later save. Many servers ignore such a condition; there
// the mark stays.
#include <algorithm>
#include <iterator>

#include <cairn/base/error.hpp>
#include <cairn/storage/format/commit_footer.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/stores/s3_store.hpp>
#include <cairn/storage/stores/s3_xml.hpp>

namespace cairn {
namespace {

// Limit on how often .metadata may change under a writer. Each change is a publication or a fence
// of another process.
constexpr int kTriesMax = 64;

Error not_open(const std::string& save_id, const std::string& url) {
  return Error(ErrorCode::kFenced, "cannot publish save " + save_id + " in " + url +
                                       ": its attempt is not open; it was ended by another rank or job, or never begun. Nothing " +
                                       "was changed");
}

Error changes_too_often(const std::string& url) {
  return Error(ErrorCode::kUnavailable,
               "cannot change " + url + ": other processes changed it " + std::to_string(kTriesMax) + " times in a row");
}

}  // namespace

Bytes S3Store::fence_mark() { return make_fence_mark(client_->new_nonce().substr(0, 16)); }

S3Store::Record S3Store::find_record(const ObjectName& name, std::size_t end_bytes) {
  Bytes end(end_bytes + kFenceMarkBytes, '\0');
  S3Request request{"GET", "read", "s3:GetObject", key_of(name)};
  request.headers = {{"Range", "bytes=-" + std::to_string(end.size())}};
  request.destination = {end.data(), end.size()};
  S3Response response = client_->send(request);
  Record record;
  if (response.status == 404) return record;
  record.is_live = true;
  if (response.status == 416) {
    // An empty object has no last bytes. The answer does not have its ETag.
    request.method = "HEAD";
    request.headers.clear();
    response = client_->send(request);
    record.is_live = response.succeeded();
    record.etag = response.etag;
    return record;
  }
  if (response.status != 206)
    throw Error(ErrorCode::kUnsupported, "cannot read " + url_of(name) + ": the server does not read ranges");
  if (response.object_bytes == 0 || response.content_length == 0)
    throw Error(ErrorCode::kUnsupported, "cannot read " + url_of(name) + ": the server does not say how long its answers are");
  record.etag = response.etag;
  record.object_bytes = record.bytes = response.object_bytes;
  end.resize(static_cast<std::size_t>(std::min<std::uint64_t>(response.content_length, end.size())));
  if (ends_in_fence_mark(end)) {
    record.bytes -= kFenceMarkBytes;
    record.is_live = record.bytes > 0;
    end.resize(end.size() - kFenceMarkBytes);
  }
  record.end = end.size() > end_bytes ? end.substr(end.size() - end_bytes) : std::move(end);
  return record;
}

std::optional<std::string> S3Store::replace_record(const ObjectName& name, const std::string& seen, ByteSpan content,
                                                   bool* was_repeated) {
  return client_->put_if(key_of(name), content, seen.empty() ? std::nullopt : std::optional(seen), was_repeated);
}

void S3Store::retract_record(const ObjectName& name) {
  for (int tries = 0; tries < kTriesMax; ++tries) {
    const Record seen = find_record(name);
    if (!seen.is_live || replace_record(name, seen.etag, fence_mark())) return;
  }
  throw changes_too_often(url_of(name));
}

void S3Store::begin_attempt(const std::string& save_id) {
  check_attempt_id(save_id);
  const S3Conditions obeyed = client_->conditions(key_of(kProbeMark + client_->new_nonce()));
  if (!obeyed.on_creation || !obeyed.on_replacement)
    throw Error(ErrorCode::kUnsupported,
                "cannot save to " + url() + ": the server does not obey conditions on writes (" +
                    (obeyed.on_creation ? "If-Match" : "If-None-Match") +
                    "), without which two jobs could publish in one place; Ceph's gateway does not in versioned buckets");
  // 1
  const bool begun = client_->put_if(key_of(kOpenMark + save_id), "open\n").has_value();
  // 2
  if (has_object(kFencedMark + save_id)) {
    if (begun) delete_object(kOpenMark + save_id);
    throw Error(ErrorCode::kFenced, "cannot begin save " + save_id + " in " + url() + ": another rank or job has ended it");
  }
  if (!begun)
    throw Error(ErrorCode::kAlreadyExists, "cannot begin save " + save_id + " in " + url() + ": an attempt of this id is open");
}

// A fence may have written the record again since, so its ETag tells nothing.
bool S3Store::is_published(ByteSpan record) {
  const Record seen = find_record(kCommitRecordName);
  if (!seen.is_live || seen.bytes != record.size()) return false;
  Bytes content(record.size(), '\0');
  try {
    read_range(kCommitRecordName, 0, {content.data(), content.size()});
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kCorrupt || error.code() == ErrorCode::kNotFound) return false;  // replaced meanwhile
    throw;
  }
  return std::equal(content.begin(), content.end(), record.data());
}

void S3Store::publish(const std::string& save_id, ByteSpan record, Overwrite overwrite) {
  check_attempt_id(save_id);
  std::optional<std::string> unanswered;  // the ETag that a write replaced, if it was carried out
  for (int tries = 0; tries < kTriesMax; ++tries) {
    // 1
    const Record seen = find_record(kCommitRecordName);
    const bool is_done = unanswered && is_published(record);
    if (!is_done) {
      if (seen.etag.empty()) {
        replace_record(kCommitRecordName, "", fence_mark());
        continue;
      }
      // 2
      if (has_object(kFencedMark + save_id) || !has_object(kOpenMark + save_id)) throw not_open(save_id, url());
      if (seen.is_live && overwrite == Overwrite::kRefused)
        throw Error(ErrorCode::kAlreadyExists,
                    "cannot publish save " + save_id + ": " + url_of(kCommitRecordName) + " is there already. Nothing was changed");
      if (unanswered && *unanswered != seen.etag)
        throw Error(ErrorCode::kUnavailable, "cannot tell whether save " + save_id + " was published in " + url() +
                                                 ": the server's answer was lost, and another save has changed the record since");
      // 3
      bool was_repeated = false;
      if (!replace_record(kCommitRecordName, seen.etag, record, &was_repeated)) {
        if (was_repeated) unanswered = seen.etag;
        continue;
      }
    }
    // 4
    try {
      delete_object(kOpenMark + save_id);
    } catch (const Error&) {
      // The checkpoint exists. A later save clears the attempt.
    }
    return;
  }
  throw changes_too_often(url_of(kCommitRecordName));
}

void S3Store::fence(const std::string& save_id) {
  check_attempt_id(save_id);
  // 1
  client_->put_if(key_of(kFencedMark + save_id), "fenced\n");
  // 2
  if (!has_object(kOpenMark + save_id)) return;
  // 3
  const Record seen = find_record(kCommitRecordName);
  bool was_replaced = false;
  Bytes content(static_cast<std::size_t>(seen.bytes), '\0');
  try {
    if (seen.bytes > 0) read_range(kCommitRecordName, 0, {content.data(), content.size()});
  } catch (const Error&) {
    // Replaced by a shorter one: it has changed, which is enough.
    was_replaced = find_record(kCommitRecordName).etag != seen.etag;
    if (!was_replaced) throw;
  }
  // 4. If the record was replaced between the two reads, the condition does not hold.
  if (!was_replaced) replace_record(kCommitRecordName, seen.etag, content + fence_mark());
  // 5
  delete_object(kOpenMark + save_id);
}

std::vector<std::string> S3Store::attempts_marked(const std::string& mark) {
  std::vector<std::string> ids;
  visit(mark, false, [&](const ObjectInfo& object) {
    const std::string id = object.name.substr(mark.size());
    if (!id.empty() && id.find('/') == std::string::npos) ids.push_back(id);
    return true;
  });
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::vector<std::string> S3Store::open_attempts() { return attempts_marked(kOpenMark); }

std::vector<std::string> S3Store::fenced_attempts() {
  // In this order, so that a fence which begins between the two does not count as done.
  const std::vector<std::string> ended = attempts_marked(kFencedMark);
  const std::vector<std::string> open = attempts_marked(kOpenMark);
  std::vector<std::string> fenced;
  std::set_difference(ended.begin(), ended.end(), open.begin(), open.end(), std::back_inserter(fenced));
  return fenced;
}

bool S3Store::has_attempt(const std::string& save_id) {
  check_attempt_id(save_id);
  return has_object(kOpenMark + save_id) || has_object(kFencedMark + save_id);
}

void S3Store::clear_attempt(const std::string& save_id) {
  check_attempt_id(save_id);
  if (has_object(kOpenMark + save_id))
    throw Error(ErrorCode::kPrecondition,
                "cannot clear save " + save_id + " in " + url() + ": its attempt is open; fence it first");
  if (!has_object(kFencedMark + save_id)) return;
  abort_uploads_of(save_id);
  delete_object(kFencedMark + save_id);
}

// A process that was killed leaves the parts of its files, which no listing of objects shows.
void S3Store::abort_uploads_of(const std::string& save_id) {
  struct Upload {
    std::string key, id;
  };
  std::vector<Upload> uploads;
  S3Request listing{"GET", "list the uploads to", "s3:ListBucketMultipartUploads"};
  const std::string file_end = "_" + save_id + ".distcp";
  std::string key_marker, id_marker;
  bool is_truncated = true;
  while (is_truncated) {
    const std::pair before(key_marker, id_marker);
    listing.query = {{"uploads", ""}, {"encoding-type", "url"}, {"prefix", key_of("__")}};
    if (!key_marker.empty())
      listing.query.insert(listing.query.end(), {{"key-marker", key_marker}, {"upload-id-marker", id_marker}});
    const S3Response response = client_->send(listing);
    is_truncated = false;
    Upload current;
    visit_s3_xml(response.body, "a listing of uploads", [&](const std::string& path, const std::string& text) {
      if (path == "ListMultipartUploadsResult/Upload/Key") current.key = s3_decode(text, true);
      if (path == "ListMultipartUploadsResult/Upload/UploadId") current.id = text;
      if (path == "ListMultipartUploadsResult/Upload" && ends_with(current.key, file_end)) uploads.push_back(current);
      if (path == "ListMultipartUploadsResult/NextKeyMarker") key_marker = s3_decode(text, true);
      if (path == "ListMultipartUploadsResult/NextUploadIdMarker") id_marker = text;
      if (path == "ListMultipartUploadsResult/IsTruncated") is_truncated = text == "true";
    });
    if (is_truncated && before == std::pair(key_marker, id_marker))
      throw Error(ErrorCode::kUnavailable, "cannot list the uploads to " + url() + ": the server's listing does not advance");
  }
  for (const Upload& upload : uploads) {
    S3Request request{"DELETE", "abort the upload of", "s3:AbortMultipartUpload", upload.key};
    request.query = {{"uploadId", upload.id}};
    client_->send(request);
  }
}

void S3Store::remove_root() {
  std::size_t others = 0;
  visit("", false, [&](const ObjectInfo& object) {
    if (object.name != kCommitRecordName && object.name.rfind(kProbeMark, 0) != 0) ++others;
    return others == 0;
  });
  if (others > 0) return;
  const Record record = find_record(kCommitRecordName);
  if (record.etag.empty() || record.is_live || !client_->conditions(key_of(kProbeMark + client_->new_nonce())).on_deletion) return;
  S3Request request{"DELETE", "remove", "s3:DeleteObject", key_of(kCommitRecordName)};
  request.headers = {{"If-Match", record.etag}};
  client_->send(request);
}

}  // namespace cairn
