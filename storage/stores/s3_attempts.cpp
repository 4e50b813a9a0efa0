// The commit protocol of an S3 store. It decides which attempt may publish.
//
// The record and everything that must be decided about it is one object, .metadata. It is only
// written on the condition that it is absent or has the ETag that was seen before. In it is
//
//   record                 as it was published
//   record, fence mark     the same record, after an attempt was fenced
//   fence mark             no record: one was removed, or an attempt was fenced before the first
//   removal mark,          no record: a removal has begun. The mark is its text, then
//   fence mark             "removed <save id>" on a line. The store shows it as .removed-<save id>
//
// A fence mark has a nonce, so no two versions of the object have the same ETag.
//
// begin      1  take the place out of the run's index (below)
//            2  write .attempt-<id> if it is absent
//            3  write a fence mark to .metadata if it is absent; done if
//               that was written
//            4  give up if .fenced-<id> exists; read .metadata; if it has
//               no record, do 1 again, and change the index even if the
//               place is not in it
//
// publish    1  take the ETag of the mark from begin 3, and go to 3; if
//               begin made none, or when this begins again, read the ETag of
//               .metadata; if it is absent, write a fence mark there
//            2  give up if .fenced-<id> exists, and then unless
//               .attempt-<id> exists
//            3  if a removal mark is there, write it to .removed-<save id>;
//               write the record to .metadata, if the ETag is
//               still that of 1; otherwise begin again           <- now the checkpoint exists
//               (but end with an error if an answer was lost and the record of another is there).
//               Confirm by a list of the place, or by a read, that it is there
//            4  take the place out of the index as begin does after its
//               step 4, if 3 replaced a mark that begin 3 did not write;
//               in the same write name this place as the latest, unless
//               the index names one of a larger sequence
//            5  remove .attempt-<id>
//
// fence      1  write .fenced-<id>
//            2  if .attempt-<id> does not exist, write a fence mark to
//               .metadata if it is absent; done if that was written, or if
//               .attempt-<id> still does not exist
//            3  read .metadata and its ETag; if it is absent, write a fence
//               mark and go to 5, or read again
//            4  write it again with a new fence mark, if the
//               ETag is still that of 3                          <- now it cannot publish
//            5  remove .attempt-<id>
//
// clear      1  give up if .attempt-<id> exists
//            2  remove .fenced-<id>
//
// If begin 3 has written a mark, no fence of this id has ended before: it would have left a mark or
// found a record. A fence that ends later finds the attempt, in 2, and changes the ETag.
//
// Otherwise, a publication that finds no fence, and then an attempt, has done so before fence 1: an
// attempt whose fence was cleared is gone. So it has passed its step 1 before fence 3. If
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
// the object .run-index. `children` skips the places in the index, so that nobody reads their
// marks again.
//
// remove     1  read the index of the run, or remember an earlier read
// root       2  read .metadata, then list the place, or take both from a
//               list after 1; done if there is anything but a mark
//            3  add the place, if the index still has the ETag of 1
//
// A place with an attempt is not in the index. If remove 1 came after begin 1, or after begin 4
// repeated it, remove 2 finds the attempt. Otherwise remove 3 fails because begin has changed the
// index, or begin 1 came after remove 3. If begin 3 makes the mark, there is nothing to change:
// remove 2 found no mark, and stopped. Lists may lag behind, so that remove 2 does not see the
// attempt. Therefore publish 4 takes the place out of the index again: a later remove 2 finds the
// record.
//
// The removed places in the index only save requests. An index that is damaged or was deleted
// counts as empty.
//
// The index also names the latest checkpoint of the run. `children` compares: a listing without
// this place, although its record is there, is an error of the store. So a list that lags behind
// takes no job back. If the record is not there, somebody has removed it without Cairn, and
// `look` tells. A publication names its place after the record is there, and a removal takes the
// name out before the record goes. A crash between these steps leaves an index that names an older
// place, or none, which contradicts nothing.
#include <algorithm>
#include <utility>

#include <cairn/base/error.hpp>
#include <cairn/base/parallel.hpp>
#include <cairn/storage/format/commit_footer.hpp>
#include <cairn/storage/format/commit_head.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/presence.hpp>
#include <cairn/storage/stores/s3_store.hpp>

namespace cairn {
namespace {

Error not_open(const std::string& save_id, const std::string& url) {
  return Error(ErrorCode::kFenced, "cannot publish save " + save_id + " in " + url +
                                       ": its attempt is not open; it was ended by another rank or job, or never begun. Nothing " +
                                       "was changed");
}

// The last line of a removal's mark before a fence mark. A save id follows.
constexpr std::string_view kRemovedWord = "removed ";
// Every read of a record takes as much of its end, to see whether a removal has begun.
constexpr std::size_t kRemovalEndBytes = 256;  // at least a line break and this line

// Returns the save id in the removal's mark at the end of `bytes`; "" if there is none.
std::string removed_in(std::string_view bytes) {
  if (bytes.size() < 2 || bytes.back() != '\n') return "";
  bytes.remove_suffix(1);
  bytes.remove_prefix(bytes.rfind('\n') + 1);  // 0 if there is no line break
  return bytes.substr(0, kRemovedWord.size()) == kRemovedWord ? std::string(bytes.substr(kRemovedWord.size())) : "";
}

}  // namespace

Bytes S3Store::fence_mark() { return make_fence_mark(client_->new_nonce().substr(0, 16)); }

S3Store::Record S3Store::find_record(const ObjectName& name, std::size_t end_bytes) {
  S3Object found = client_->look(key_of(name), std::max(end_bytes, kRemovalEndBytes) + kFenceMarkBytes);
  Record record{std::move(found.etag), found.bytes, found.is_there, std::move(found.end), ""};
  if (is_record(name) && ends_in_fence_mark(record.end)) {
    record.bytes -= kFenceMarkBytes;
    record.end.resize(record.end.size() - kFenceMarkBytes);
    record.removed = removed_in(record.end);
    record.is_live = record.bytes > 0 && record.removed.empty();
  }
  if (record.end.size() > end_bytes) record.end.erase(0, record.end.size() - end_bytes);
  return record;
}

void S3Store::retract(const ObjectName& mark, const std::string& text) {
  const auto id = save_id_of_mark(mark);
  retract_record(kCommitRecordName, id ? text + std::string(kRemovedWord) + *id + "\n" : "");
}

void S3Store::retract_record(const ObjectName& name, const std::string& mark) {
  const auto [run, place] = place_of_record(name);
  Index index = remembered_index(run);
  if (index.etag.empty() || !index.is_latest_sure) index = read_index(run);
  change_index(run, std::move(index), true, [&latest = place](Index& seen) {
    const bool is_named = !latest.empty() && seen.latest.name == latest;
    if (is_named) seen.latest = {};
    return is_named;
  });
  for (int tries = 0; tries < kTriesMax; ++tries) {
    // The caller has just read the record. If that was long ago, its ETag does no harm.
    std::optional<Record> known = tries == 0 ? remembered_record(name) : std::nullopt;
    const Record seen = known && known->is_live ? *std::move(known) : find_record(name, mark.empty() ? 0 : kRecordEndBytes);
    if (!seen.is_live) return;
    // The checkpoint may have been replaced since the caller has looked, or the list that it looked
    // at lagged behind. A record that is not Cairn's has no save id to compare.
    if (!mark.empty()) {
      const auto head = seen.end.size() == seen.bytes ? commit_head_in(seen.end) : read_commit_head(*this);
      if (head && head->save_id != removed_in(mark))
        throw Error(ErrorCode::kPrecondition, "cannot remove save " + removed_in(mark) + " in " + url() + ": save " +
                                                  head->save_id + " has replaced it. Nothing was changed");
    }
    const S3Put put = client_->put_if(key_of(name), mark + fence_mark(), seen.etag);
    if (put) return remember(name, {put.etag, mark.size(), false, mark, removed_in(mark)});
  }
  throw changes_too_often(url_of(name));
}

std::string S3Store::write_first_mark() {
  // If this write is lost, the condition on its ETag fails.
  return client_->put_if(key_of(kCommitRecordName), fence_mark(), "", S3Client::trust_answer).etag;
}

void S3Store::begin_attempt(const std::string& save_id, Overwrite overwrite) {
  check_attempt_id(save_id);
  const std::string mark = key_of(kOpenMark + save_id);
  // 1 beside 2: their order does not matter
  bool begun = false;
  for_each_in_parallel(2, 2, [&](std::size_t step) {
    if (step == 0) enter_index(false);
    if (step == 1) begun = bool(client_->put_if(mark, "open\n", "", S3Client::trust_answer));
  });
  if (!begun && !has_object(kFencedMark + save_id))
    throw Error(ErrorCode::kAlreadyExists, "cannot begin save " + save_id + " in " + url() + ": an attempt of this id is open");
  if (const std::string ignored = client_->ignored_condition(mark); !ignored.empty()) {
    client_->remove(mark);
    throw Error(ErrorCode::kUnsupported,
                "cannot save to " + url() + ": the server ignores conditions on writes (" + ignored +
                    "), without which two jobs could publish in one place; Ceph's gateway ignores them in versioned buckets");
  }
  // 3
  const std::string etag = begun ? write_first_mark() : "";
  if (!etag.empty()) {
    remember(kCommitRecordName, {etag, 0, false, "", ""});
    MutexLock lock(mutex_);
    first_marks_[save_id] = etag;
    return;
  }
  // 4
  if (has_object(kFencedMark + save_id)) {
    if (begun) client_->remove(mark);
    throw Error(ErrorCode::kFenced, "cannot begin save " + save_id + " in " + url() + ": another rank or job has ended it");
  }
  if (!find_record(kCommitRecordName).is_live) return enter_index(true);
  try {
    check_overwrite(*this, save_id, overwrite);
  } catch (...) {
    client_->remove(mark);
    throw;
  }
}

void S3Store::publish(const std::string& save_id, ByteSpan record, Overwrite overwrite) {
  check_attempt_id(save_id);
  std::optional<std::string> unanswered;  // the ETag that a write replaced, if it was carried out
  bool is_reused = false;
  std::optional<PlaceContents> found;
  const auto is_listed = [&](const std::string& etag) {
    const std::string end(record.view().substr(record.size() - std::min(record.size(), kRecordEndBytes)));
    remember(kCommitRecordName, {etag, record.size(), true, end, ""});
    try {
      PlaceContents listed = contents_below("");
      const auto& [bytes, content] = listed.record;
      if (!end.empty() && bytes == record.size() && content == end) found = std::move(listed);
    } catch (const Error&) {  // a read of the record tells
    }
    return found.has_value();
  };
  std::string first_mark;
  {
    MutexLock lock(mutex_);
    if (const auto known = first_marks_.extract(save_id)) first_mark = known.mapped();
  }
  for (int tries = 0; tries < kTriesMax; ++tries) {
    // 1
    Record seen;
    seen.etag = std::exchange(first_mark, "");
    const bool is_first = !seen.etag.empty();
    if (!is_first) {
      seen = find_record(kCommitRecordName);
      is_reused = !seen.etag.empty() && !seen.is_live;
    }
    // A fence may have written the record again since, so its ETag tells nothing.
    const Record written = unanswered ? find_record(kCommitRecordName, record.size()) : Record();
    if (!written.is_live || written.bytes != record.size() || written.end != record.view()) {
      if (seen.etag.empty()) seen.etag = write_first_mark();
      if (seen.etag.empty()) continue;
      // 2
      if (!is_first && (has_object(kFencedMark + save_id) || !has_object(kOpenMark + save_id))) throw not_open(save_id, url());
      if (seen.is_live && overwrite == Overwrite::kRefused)
        throw Error(ErrorCode::kAlreadyExists,
                    "cannot publish save " + save_id + ": " + url_of(kCommitRecordName) + " is there already. Nothing was changed");
      if (unanswered && *unanswered != seen.etag)
        throw Error(ErrorCode::kUnavailable, "cannot tell whether save " + save_id + " was published in " + url() +
                                                 ": the server's answer was lost, and another save has changed the record since");
      // 3
      // The files of the removed checkpoint may still be there, and nothing else says that they are
      // dead.
      if (!seen.removed.empty()) {
        const Record removal = find_record(kCommitRecordName, kRecordEndBytes);
        if (removal.removed != seen.removed) continue;  // the removal has ended meanwhile
        client_->put_if(key_of(removal_mark_name(seen.removed)), removal_text(removal));
      }
      const S3Put put = client_->put_if(key_of(kCommitRecordName), record, seen.etag, is_listed);
      if (!put && put.was_repeated) unanswered = seen.etag;
      if (!put) continue;
    }
    // 4
    enter_index(is_reused, record);
    // 5
    try {
      client_->remove(key_of(kOpenMark + save_id));
      if (found) {
        auto& open = found->open_attempts;
        open.erase(std::remove(open.begin(), open.end(), save_id), open.end());
      }
      MutexLock lock(mutex_);
      published_ = std::move(found);
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
  const std::string record = key_of(kCommitRecordName);
  const auto is_open = [&] { return has_object(kOpenMark + save_id); };
  if (!is_open() && (client_->put_if(record, fence_mark()) || !is_open())) return;
  // 3
  Record seen = find_record(kCommitRecordName);
  for (int tries = 0; seen.etag.empty(); seen = find_record(kCommitRecordName)) {
    if (client_->put_if(record, fence_mark())) break;
    if (++tries == kTriesMax) throw changes_too_often(url_of(kCommitRecordName));
  }
  bool was_replaced = seen.etag.empty();
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
  if (!was_replaced) client_->put_if(record, content + fence_mark(), seen.etag);
  // 5
  client_->remove(key_of(kOpenMark + save_id));
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
  // A process that was killed leaves the parts of its files, which no listing of objects shows.
  S3Request listing{"GET", "list the uploads to", "s3:ListBucketMultipartUploads"};
  listing.query = {{"uploads", ""}, {"encoding-type", "url"}, {"prefix", key_of(kDataFilePrefix)}};
  std::vector<S3Request> uploads;  // aborted later: the marker of a page names one of them
  S3Page page;
  do {
    page = client_->list(listing, page.next);
    for (auto& upload : page.entries) {
      S3Request request{"DELETE", "abort the upload of", "s3:AbortMultipartUpload", s3_decode(upload["Key"], true)};
      request.query = {{"uploadId", upload["UploadId"]}};
      if (ends_with(request.key, "_" + save_id + ".distcp")) uploads.push_back(std::move(request));
    }
  } while (!page.next.empty());
  for (const S3Request& request : uploads) client_->send(request);
  client_->remove(key_of(kFencedMark + save_id));
}

}  // namespace cairn
