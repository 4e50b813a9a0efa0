// The index of a run in a bucket, and the list of its places. s3_attempts.cpp says when an attempt
// changes the index.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <sstream>
#include <utility>

#include <cairn/base/digest.hpp>
#include <cairn/base/parallel.hpp>
#include <cairn/storage/format/commit_footer.hpp>
#include <cairn/storage/format/commit_head.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/stores/s3_store.hpp>

namespace cairn {
namespace {

constexpr unsigned kReadersMax = 8;            // threads that read the records of a run
constexpr const char* kLatestWord = "latest";  // in the index

// Returns whether `end` is a whole record, and its checksum is right.
bool is_sound(ByteSpan end, std::uint64_t record_bytes) {
  const auto footer = parse_commit_footer(end);
  return footer && end.size() == record_bytes && footer->crc32 == crc32(0, end.subspan(0, end.size() - 4));
}

}  // namespace

S3Store::Places S3Store::places(bool& is_large) {
  MutexLock lock(memory_mutex_);
  is_large = memory_of(place_).is_large;
  Index index = memory_of(place_).index;
  lock.unlock();
  const bool is_known = !index.etag.empty() && !is_large;
  if (!is_known) index = read_index(place_);
  Places found;
  std::string etag_of_index;
  const auto look = [&](const ObjectName& expected) {
    // A list of all objects tells which records are new. Of a large run, it would take many pages.
    std::vector<Listed> all;
    if (!is_large) all = listed("", false, expected, &is_large);
    if (is_large) all = listed("", true, expected);
    found = {{"", {}}};
    for (Listed& object : all) {
      const std::size_t slash = object.name.find('/');
      const ObjectName place = slash == std::string::npos ? "" : object.name.substr(0, slash);
      if (slash != 0) found[place].push_back({{object.name.substr(slash + 1), object.size_bytes}, object.etag});
      if (object.name == kRunIndexName) etag_of_index = object.etag;
    }
  };
  look("");
  if (is_known && etag_of_index != index.etag) index = read_index(place_);
  // The record decides, because somebody may have removed the checkpoint without Cairn.
  const ObjectName& latest = index.latest.name;
  if (!latest.empty() && found.count(latest) == 0 && find_record(latest + "/" + kCommitRecordName).is_live) {
    Places before = std::move(found);
    look(latest + "/");
    found.merge(before);
  }
  lock.lock();
  Memory& memory = memory_of(place_);
  memory.is_large = is_large;
  for (auto known = memory.records.begin(); known != memory.records.end();)
    known = found.count(known->first) == 0 ? memory.records.erase(known) : std::next(known);
  for (const ObjectName& name : index.removed) found.erase(name);
  return found;
}

std::vector<ObjectName> S3Store::children() {
  bool is_large = false;
  std::vector<ObjectName> names;
  for (const auto& place : places(is_large))
    if (!place.first.empty()) names.push_back(place.first);
  return names;
}

RunView S3Store::look() {
  bool is_large = false;
  const Places found = places(is_large);
  RunView run;
  if (Index index = remembered_index(place_); !index.latest.name.empty()) run.latest = std::move(index.latest);
  std::vector<const Places::value_type*> whole;
  for (const auto& place : found) {
    if (!place.first.empty()) run.places.push_back(place.first);
    // The records of parts are read by those who need them.
    const auto is_of_part = [](const Listed& object) { return part_of_name(object.name).has_value(); };
    if ((!is_large || place.first.empty()) && std::none_of(place.second.begin(), place.second.end(), is_of_part))
      whole.push_back(&place);
  }
  // Reads all new records at once, because the caller looks at one after another.
  std::vector<std::optional<PlaceContents>> contents(whole.size());
  for_each_in_parallel(kReadersMax, whole.size(), [&](std::size_t i) {
    try {
      const std::string prefix = place_ + whole[i]->first;
      contents[i] = S3Store(bucket_, prefix.substr(0, prefix.find_last_not_of('/') + 1), client_).contents_in(whole[i]->second, "");
    } catch (const Error&) {  // the call that reads this record throws it
    }
  });
  for (std::size_t i = 0; i < whole.size(); ++i)
    if (contents[i]) run.seen.emplace(whole[i]->first, *std::move(contents[i]));
  return run;
}

std::optional<S3Store::Record> S3Store::remembered_record(const ObjectName& name) const {
  const auto [run, place] = place_of_record(name);
  MutexLock lock(memory_mutex_);
  const auto& records = memory_of(run).records;
  const auto known = records.find(place);
  return known == records.end() ? std::nullopt : std::optional(known->second);
}

S3Store::Record S3Store::record_in_list(const ObjectName& name, const std::string& etag) {
  if (auto known = remembered_record(name); known && known->etag == etag) {
    // Perhaps only this answer is damaged.
    if (known->is_live && !is_sound(known->end, known->bytes)) remember(name, {});
    return *std::move(known);
  }
  Record record = find_record(name, kRecordEndBytes);
  remember(name, record);
  return record;
}

void S3Store::remember(const ObjectName& name, Record record) {
  const auto [run, place] = place_of_record(name);
  if (part_of_name(place)) return;  // nobody lists the parts of ranks again, so that none would be forgotten
  MutexLock lock(memory_mutex_);
  if (record.etag.empty())
    memory_of(run).records.erase(place);
  else
    memory_of(run).records[place] = std::move(record);
}

Mutex S3Store::memory_mutex_;

S3Store::Memory& S3Store::memory_of(const std::string& run) const {
  static auto* const memories = new std::map<std::string, Memory>;
  return (*memories)[bucket_ + "/" + run];
}

S3Store::Index S3Store::remembered_index(const std::string& run) const {
  MutexLock lock(memory_mutex_);
  return memory_of(run).index;
}

// Lines: a removed place, or "latest <sequence> <place>". Then a mark that makes the ETag unique,
// and the CRC-32 of all that.
S3Store::Index S3Store::read_index(const std::string& run) {
  Index index;
  for (int tries = 0; tries < 2; ++tries) {  // twice, as one answer may have been damaged on its way
    const S3Response response = client_->send({"GET", "read", "s3:GetObject", escaped_key(run + kRunIndexName)});
    index.etag = response.succeeded() ? response.etag : "";
    if (!response.succeeded()) break;
    const std::size_t end = response.body.size() - std::min(response.body.size(), sizeof(std::uint32_t));
    const ByteSpan text(response.body.data(), end);
    if (end < kFenceMarkBytes || zip::get_u32(response.body.data() + end) != crc32(0, text)) continue;
    std::istringstream lines(response.body.substr(0, end - kFenceMarkBytes));
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string first;
      if (words >> first && first == kLatestWord && words >> index.latest.sequence && words.get() == ' ')
        std::getline(words, index.latest.name);
      else
        index.removed.insert(line);
    }
    break;
  }
  MutexLock lock(memory_mutex_);
  return memory_of(run).index = index;
}

Error S3Store::changes_too_often(const std::string& url) {
  return Error(ErrorCode::kUnavailable,
               "cannot change " + url + ": other processes changed it " + std::to_string(kTriesMax) + " times in a row");
}

void S3Store::change_index(const std::string& run, Index seen, bool is_confirmed, const std::function<bool(Index&)>& change) {
  const S3Client::Confirms confirms = is_confirmed ? nullptr : S3Client::trust_answer;
  for (int tries = 0; tries < kTriesMax; ++tries) {
    if (!change(seen)) return;
    Bytes content;
    if (const auto& [name, sequence] = seen.latest; !name.empty())
      content = std::string(kLatestWord) + " " + std::to_string(sequence) + " " + name + "\n";
    for (const ObjectName& name : seen.removed) content += name + "\n";
    content += fence_mark();
    zip::put_u32(content, crc32(0, content));
    if (const S3Put put = client_->put_if(escaped_key(run + kRunIndexName), content, seen.etag, confirms)) {
      seen.etag = put.etag;
      MutexLock lock(memory_mutex_);
      memory_of(run).index = std::move(seen);
      return;
    }
    seen = read_index(run);
  }
  throw changes_too_often("s3://" + bucket_ + "/" + run + kRunIndexName);
}

std::pair<std::string, ObjectName> S3Store::place_of_record(const ObjectName& name) const {
  return place_in_run(place_ + name.substr(0, name.size() - std::strlen(kCommitRecordName)));
}

std::pair<std::string, ObjectName> S3Store::place_in_run(const std::string& full_name) {
  const std::string place = full_name.substr(0, full_name.size() - std::min<std::size_t>(full_name.size(), 1));
  const std::size_t slash = place.rfind('/') + 1;  // 0 if there is none
  return {place.substr(0, slash), place.substr(slash)};
}

void S3Store::enter_index(bool is_reused, ByteSpan record) {
  std::pair<std::string, ObjectName> place_of = place_in_run(place_);
  // A removal at the place of the checkpoint has hidden its parts, too. Only a part that begins at
  // the moment of the removal can miss this: each rank that wrote the index would wait for others.
  const bool is_part = part_of_name(place_of.second).has_value();
  if (is_part) place_of = place_in_run(place_of.first);
  const auto& [run, name] = place_of;
  // A part of a rank is no checkpoint of a run.
  const bool is_in_run = !is_part && !name.empty() && name.find('\n') == std::string::npos;
  const auto head = is_in_run && !record.empty() ? commit_head_in(record) : std::nullopt;
  const bool has_nothing_new = !record.empty() && !is_reused;
  if (!head && (has_nothing_new || !is_checkpoint_name(name))) return;  // the index has no other removed places
  Index seen = remembered_index(run);
  if (!head && (is_part || is_reused || seen.etag.empty())) seen = read_index(run);
  change_index(run, std::move(seen), !head || is_reused, [&, &place = name](Index& index) {
    const bool was_removed = index.removed.erase(place) > 0;
    const auto& [latest, sequence] = index.latest;
    const bool is_latest = head && (latest.empty() || latest == place || sequence <= head->sequence);
    if (is_latest) index.latest = {place, head->sequence};
    if (is_latest) index.is_latest_sure = is_reused;  // then the write is confirmed
    return was_removed || (is_reused && !is_part) || is_latest;
  });
}

void S3Store::remove_root() {
  const auto [run, name] = place_in_run(place_);
  // 1
  Index index = remembered_index(run);
  if (index.removed.count(name) > 0) index = read_index(run);
  MutexLock lock(mutex_);
  auto emptied = std::exchange(emptied_, {});
  lock.unlock();
  change_index(run, std::move(index), false, [&, &place = name](Index& seen) {
    // 2
    // The last list counts if it came after the index that is known. Otherwise the mark is read
    // before the list, so that an attempt whose first mark it is, is in the list.
    std::string mark = emptied.first == seen.etag ? std::exchange(emptied.second, "") : "";
    if (mark.empty()) {
      const Record record = find_record(kCommitRecordName);
      if (record.etag.empty() || record.is_live) return false;
      mark = record.etag;
      bool is_cut = false;
      for (const Listed& object : listed("", false, "", &is_cut))
        if (object.name != kCommitRecordName) return false;
      if (is_cut) return false;  // more than one page is more than a mark
    }
    if (client_->removes_on_condition()) {
      S3Request request{"DELETE", "remove", "s3:DeleteObject", key_of(kCommitRecordName)};
      request.headers = {{"If-Match", mark}};
      client_->send(request);
      return false;
    }
    // 3
    return is_checkpoint_name(place) && seen.removed.insert(place).second;
  });
}

}  // namespace cairn
