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
// begin      1  take the place out of the run's index (below)
//            2  write .attempt-<id> if it is absent
//            3  give up if .fenced-<id> exists
//            4  write a fence mark to .metadata if it is absent; otherwise
//               read it; if it has no record, do 1 again, and change the
//               index even if the place is not in it
//
// publish    1  take the ETag of the mark from begin 4; if begin made
//               none, or when this begins again, read the ETag of
//               .metadata; if it is absent, write a fence mark there
//            2  give up if .fenced-<id> exists, and then unless
//               .attempt-<id> exists
//            3  write the record to .metadata, if the ETag is
//               still that of 1; otherwise begin again           <- now the checkpoint exists
//               (but end with an error if an answer was lost and the record of another is there)
//            4  if 3 replaced a mark that begin 4 did not write, take the
//               place out of the index as begin does after its step 4
//            5  remove .attempt-<id>
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
// or twice, must not remove the record of a later save. Many servers ignore such a condition. On
// such servers the mark stays for ever, and `remove_root` adds the place to an index in the run,
// the object .tombstones. `children` skips the places in the index, so that nobody reads their
// marks again.
//
// remove     1  read the index of the run, or remember an earlier read
// root       2  list the place, then read .metadata; done if there is
//               anything but a mark
//            3  add the place, if the index still has the ETag of 1
//
// A place with an attempt is not in the index. If remove 1 came after begin 1, or after begin 4
// repeated it, remove 2 finds the attempt. Otherwise remove 3 fails because begin has changed the
// index, or begin 1 came after remove 3. If begin 4 makes the mark, there is nothing to change:
// remove 2 found no mark, and stopped. Lists may lag behind, so that remove 2 does not see the
// attempt. Therefore publish 4 takes the place out of the index again: a later remove 2 finds the
// record.
//
// The index only saves requests. An index that is damaged or was deleted counts as empty.
#include <algorithm>
#include <future>
#include <iterator>
#include <map>
#include <sstream>
#include <utility>

#include <cairn/base/digest.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/signals_blocked.hpp>
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

// The index of each run as this process has read or written it last.
Mutex remembered_mutex;
template <class Index>
std::map<std::string, Index>& remembered_indexes() CAIRN_REQUIRES(remembered_mutex) {
  static auto* indexes = new std::map<std::string, Index>;
  return *indexes;
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
  request.destination = {end.data(), end.size()};
  const S3Response response = client_->send(request);
  Record record;
  if (response.status == 404) return record;
  if (response.status == 416) {
    // An empty object has no last bytes. The answer does not have its ETag.
    const S3Object found = client_->look(request.key);
    record.is_live = found.is_there;
    record.etag = found.etag;
    return record;
  }
  record.is_live = true;
  record.etag = response.etag;
  record.bytes = response.object_bytes;
  end.resize(static_cast<std::size_t>(response.received));
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

std::string S3Store::write_first_mark() {
  // If this write is lost, the condition on its ETag fails.
  return client_->put_if(key_of(kCommitRecordName), fence_mark(), std::nullopt, nullptr, false).value_or("");
}

void S3Store::begin_attempt(const std::string& save_id) {
  check_attempt_id(save_id);
  const std::string mark = key_of(kOpenMark + save_id);
  // 1, beside 2: their order does not matter
  std::future<void> unlisted;
  {
    const SignalsBlocked on_the_thread;
    unlisted = std::async([this] { unlist_root(false); });
  }
  // 2
  const bool begun = client_->put_if(mark, "open\n", std::nullopt, nullptr, false).has_value();
  unlisted.get();
  // 3
  if (has_object(kFencedMark + save_id)) {
    if (begun) client_->remove(mark);
    throw Error(ErrorCode::kFenced, "cannot begin save " + save_id + " in " + url() + ": another rank or job has ended it");
  }
  if (!begun)
    throw Error(ErrorCode::kAlreadyExists, "cannot begin save " + save_id + " in " + url() + ": an attempt of this id is open");
  if (const std::string ignored = client_->ignored_condition(mark); !ignored.empty()) {
    client_->remove(mark);
    throw Error(ErrorCode::kUnsupported,
                "cannot save to " + url() + ": the server ignores conditions on writes (" + ignored +
                    "), without which two jobs could publish in one place; Ceph's gateway ignores them in versioned buckets");
  }
  // 4
  const std::string etag = write_first_mark();
  if (etag.empty() && !find_record(kCommitRecordName).is_live) unlist_root(true);
  if (etag.empty()) return;
  MutexLock lock(mutex_);
  first_marks_[save_id] = etag;
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
  bool is_reused = false;
  std::string first_mark;
  {
    MutexLock lock(mutex_);
    if (const auto known = first_marks_.extract(save_id)) first_mark = known.mapped();
  }
  for (int tries = 0; tries < kTriesMax; ++tries) {
    // 1
    Record seen;
    seen.etag = std::exchange(first_mark, "");
    if (seen.etag.empty()) {
      seen = find_record(kCommitRecordName);
      is_reused = !seen.etag.empty() && !seen.is_live;
    }
    const bool is_done = unanswered && is_published(record);
    if (!is_done) {
      if (seen.etag.empty()) seen.etag = write_first_mark();
      if (seen.etag.empty()) continue;
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
    if (is_reused) unlist_root(true);
    // 5
    try {
      client_->remove(key_of(kOpenMark + save_id));
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
    if (seen.bytes > 0) {
      // Reads twice, because the record is written again: an answer that was damaged in transit
      // must not become the record.
      Bytes again = content;
      read_range(kCommitRecordName, 0, {content.data(), content.size()});
      read_range(kCommitRecordName, 0, {again.data(), again.size()});
      if (content != again)
        throw Error(ErrorCode::kUnavailable,
                    "cannot end save " + save_id + ": two reads of " + url_of(kCommitRecordName) + " differ");
    }
  } catch (const Error&) {
    // Replaced by a shorter one: it has changed, which is enough.
    was_replaced = find_record(kCommitRecordName).etag != seen.etag;
    if (!was_replaced) throw;
  }
  // 4. If the record was replaced between the two reads, the condition does not hold.
  if (!was_replaced) replace_record(kCommitRecordName, seen.etag, content + fence_mark());
  // 5
  client_->remove(key_of(kOpenMark + save_id));
}

std::pair<S3Store::Ids, S3Store::Ids> S3Store::marked_attempts(const std::string& prefix) {
  std::pair<Ids, Ids> marked;
  visit(prefix, false, [&](const ObjectInfo& object) {
    for (auto& [mark, ids] : {std::pair(std::string(kOpenMark), &marked.first), {kFencedMark, &marked.second}})
      if (object.name.rfind(mark, 0) == 0 && object.name.size() > mark.size() && object.name.find('/') == std::string::npos)
        ids->push_back(object.name.substr(mark.size()));
    return true;
  });
  std::sort(marked.first.begin(), marked.first.end());
  std::sort(marked.second.begin(), marked.second.end());
  return marked;
}

S3Store::Ids S3Store::open_attempts() { return marked_attempts(kOpenMark).first; }

S3Store::Ids S3Store::fenced_attempts() {
  // All in one list. A fence that is not done may look done; `clear_attempt` looks for it itself.
  const auto [open, ended] = marked_attempts(".");
  Ids fenced;
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
  client_->remove(key_of(kFencedMark + save_id));
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
    const std::size_t known = uploads.size();
    const auto parse = [&](const S3Response& response) {
      uploads.resize(known);
      Upload current;
      std::string truncated;
      visit_s3_xml(response.body, "a listing of uploads", [&](const std::string& path, const std::string& text) {
        if (path == "ListMultipartUploadsResult/Upload/Key") current.key = s3_decode(text, true);
        if (path == "ListMultipartUploadsResult/Upload/UploadId") current.id = text;
        if (path == "ListMultipartUploadsResult/Upload" && ends_with(current.key, file_end)) uploads.push_back(current);
        if (path == "ListMultipartUploadsResult/NextKeyMarker") key_marker = s3_decode(text, true);
        if (path == "ListMultipartUploadsResult/NextUploadIdMarker") id_marker = text;
        if (path == "ListMultipartUploadsResult/IsTruncated") truncated = text;
      });
      if (truncated != "true" && truncated != "false") throw Error(ErrorCode::kUnavailable, "the answer is not a whole listing");
      is_truncated = truncated == "true";
    };
    listing.check = parse;
    parse(client_->send(listing));
    if (is_truncated && before == std::pair(key_marker, id_marker))
      throw Error(ErrorCode::kUnavailable, "cannot list the uploads to " + url() + ": the server's listing does not advance");
  }
  for (const Upload& upload : uploads) {
    S3Request request{"DELETE", "abort the upload of", "s3:AbortMultipartUpload", upload.key};
    request.query = {{"uploadId", upload.id}};
    client_->send(request);
  }
}

S3Store::Removed S3Store::remembered_places(const std::string& run) const {
  MutexLock lock(remembered_mutex);
  return remembered_indexes<Removed>()[bucket_ + "/" + run];
}

S3Store::Removed S3Store::removed_places(const std::string& run, const std::optional<std::string>& etag) {
  if (Removed known = remembered_places(run); etag && known.etag == etag) return known;
  const S3Response response = client_->send({"GET", "read", "s3:GetObject", escaped_key(run + kRemovedIndexName)});
  Removed removed;
  if (!response.succeeded()) return removed;
  removed.etag = response.etag;
  // Names, each with a line feed, and a mark that makes the ETag unique; then their CRC-32.
  const std::size_t end = response.body.size() - std::min(response.body.size(), sizeof(std::uint32_t));
  const ByteSpan text(response.body.data(), end);
  if (end < kFenceMarkBytes || zip::get_u32(response.body.data() + end) != crc32(0, text)) return removed;
  std::istringstream names(response.body.substr(0, end - kFenceMarkBytes));
  for (std::string name; std::getline(names, name);) removed.places.insert(name);
  MutexLock lock(remembered_mutex);
  return remembered_indexes<Removed>()[bucket_ + "/" + run] = removed;
}

bool S3Store::write_removed(const std::string& run, Removed removed, bool is_confirmed) {
  Bytes content;
  for (const ObjectName& name : removed.places) content += name + "\n";
  content += fence_mark();
  zip::put_u32(content, crc32(0, content));
  const std::optional<std::string> seen = removed.etag.empty() ? std::nullopt : std::optional(removed.etag);
  const auto etag = client_->put_if(escaped_key(run + kRemovedIndexName), content, seen, nullptr, is_confirmed);
  if (!etag) return false;
  removed.etag = *etag;
  MutexLock lock(remembered_mutex);
  remembered_indexes<Removed>()[bucket_ + "/" + run] = std::move(removed);
  return true;
}

std::pair<std::string, ObjectName> S3Store::place_in_run() const {
  const std::string place = place_.substr(0, place_.size() - std::min<std::size_t>(place_.size(), 1));
  const std::size_t slash = place.rfind('/') + 1;  // 0 if there is none
  const ObjectName name = place.substr(slash);
  return {place.substr(0, slash), is_checkpoint_name(name) ? name : ""};
}

void S3Store::unlist_root(bool is_reused) {
  const auto [run, name] = place_in_run();
  if (name.empty()) return;
  for (int tries = 0; tries < kTriesMax; ++tries) {
    Removed removed = removed_places(run);
    const bool was_listed = removed.places.erase(name) > 0;
    if ((!was_listed && !is_reused) || write_removed(run, removed, true)) return;
  }
  throw changes_too_often("s3://" + bucket_ + "/" + run + kRemovedIndexName);
}

void S3Store::remove_root() {
  const auto [run, name] = place_in_run();
  for (int tries = 0; tries < kTriesMax; ++tries) {
    // 1
    Removed removed = remembered_places(run);
    if (tries > 0 || removed.places.count(name) > 0) removed = removed_places(run);
    // 2
    std::size_t others = 0;
    visit("", false, [&](const ObjectInfo& object) {
      if (object.name != kCommitRecordName) ++others;
      return others == 0;
    });
    if (others > 0) return;
    const Record record = find_record(kCommitRecordName);
    if (record.etag.empty() || record.is_live) return;
    if (client_->removes_on_condition()) {
      S3Request request{"DELETE", "remove", "s3:DeleteObject", key_of(kCommitRecordName)};
      request.headers = {{"If-Match", record.etag}};
      client_->send(request);
      return;
    }
    // 3
    if (name.empty() || !removed.places.insert(name).second || write_removed(run, removed, false)) return;
  }
  throw changes_too_often("s3://" + bucket_ + "/" + run + kRemovedIndexName);
}

}  // namespace cairn
