// Objects of an S3 store. The commit protocol is in s3_attempts.cpp.
#include <cairn/storage/stores/s3_store.hpp>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>

#include <cairn/base/error.hpp>
#include <cairn/base/utf8.hpp>
#include <cairn/storage/format/commit_footer.hpp>
#include <cairn/storage/presence.hpp>
#include <cairn/storage/stores/url.hpp>

namespace cairn {
namespace {

// S3's limit is 5 MiB. A whole number of checksum blocks, and a power of two as other block sizes
// are.
constexpr std::uint64_t kPartBytesMin = 8u << 20;
constexpr std::size_t kKeyBytesMax = 1024;

// The objects of the commit protocol are no objects of the store.
bool is_hidden(const ObjectName& name) {
  const std::string last = name.substr(name.rfind('/') + 1);  // all of it if there is no '/'
  return last == kRunIndexName || last.rfind(kOpenMark, 0) == 0 || last.rfind(kFencedMark, 0) == 0;
}

// Returns the name as it can be in a key, for which S3 wants printable UTF-8.
std::string escaped(const std::string& name) {
  std::string key;
  for (std::size_t at = 0; at < name.size();) {
    const std::size_t length = utf8_character_bytes(std::string_view(name).substr(at));
    const auto byte = static_cast<unsigned char>(name[at]);
    if (length == 0 || byte < 0x20 || byte == 0x7f || byte == '%') {
      constexpr char kHex[] = "0123456789ABCDEF";
      key += {'%', kHex[byte >> 4], kHex[byte & 15]};
      ++at;
    } else {
      key.append(name, at, length);
      at += length;
    }
  }
  return key;
}

Error not_found(const char* action, const std::string& url) {
  return Error(ErrorCode::kNotFound, std::string("cannot ") + action + " " + url + ": there is no such object");
}

}  // namespace

S3Store::S3Store(const std::string& bucket, const std::string& prefix, std::shared_ptr<S3Client> client)
    : bucket_(bucket), place_(prefix.empty() ? "" : prefix + "/"), client_(std::move(client)) {}

bool S3Store::is_record(const ObjectName& name) {
  return name == kCommitRecordName || ends_with(name, std::string("/") + kCommitRecordName);
}

std::string S3Store::url() const { return "s3://" + bucket_ + (place_.empty() ? "" : "/" + place_.substr(0, place_.size() - 1)); }

std::string S3Store::url_of(const ObjectName& name) const { return url() + "/" + printable_utf8(name); }

std::string S3Store::escaped_key(const std::string& full_name) const {
  std::string key = escaped(full_name);
  if (key.size() > kKeyBytesMax)
    throw Error(ErrorCode::kInvalidArgument, "an S3 key has at most " + std::to_string(kKeyBytesMax) + " bytes, and that of s3://" +
                                                 bucket_ + "/" + printable_utf8(full_name) + " would have " +
                                                 std::to_string(key.size()));
  return key;
}

StoreTraits S3Store::traits() const {
  StoreTraits traits;
  traits.part_bytes_min = kPartBytesMin;
  traits.parts_max = kS3PartsMax;
  traits.create_takes_name = false;
  traits.has_links = true;
  return traits;
}

std::unique_ptr<ObjectWriter> S3Store::create(const ObjectName& name, const CreateOptions& options) {
  check_object_name(name);
  if (options.part_bytes > 0 && options.expected_bytes / options.part_bytes >= kS3PartsMax)
    throw Error(ErrorCode::kInvalidArgument, "cannot create " + url_of(name) + ": " + std::to_string(options.expected_bytes) +
                                                 " bytes are more than " + std::to_string(kS3PartsMax) + " parts of " +
                                                 std::to_string(options.part_bytes));
  // An object in one request is written only if it is absent. If its name is of one save, no other
  // writer is told too late.
  const bool is_small = options.expected_bytes > 0 && (options.part_bytes == 0 || options.expected_bytes < options.part_bytes);
  if (!(is_small && (save_id_of_file(name) || save_id_of_mark(name))) && exists(name))
    throw Error(ErrorCode::kAlreadyExists, "cannot create " + url_of(name) + ": an object of this name exists");
  return make_s3_writer(client_, key_of(name), url_of(name), options, kPartBytesMin);
}

std::uint64_t S3Store::link(const std::string& source, const ObjectName& name, bool is_durable) {
  // S3's limit. More can be copied in parts, but libcurl 7.88 signs the header with their range
  // wrongly.
  constexpr std::uint64_t kCopiedBytesMax = std::uint64_t{5} << 30;
  check_object_name(name);
  const StoreUrl from = split_url(source);
  if (from.scheme != "s3" || from.authority != bucket_) return Store::link(source, name, is_durable);
  const std::string key = escaped_key(place_in(from));
  const S3Object found = client_->look(key);
  if (!found.is_there) throw not_found("copy", source);
  if (found.bytes > kCopiedBytesMax)
    throw Error(ErrorCode::kUnsupported,
                source + " has " + std::to_string(found.bytes) + " bytes, and a bucket copies at most 5 GiB");
  if (exists(name))
    throw Error(ErrorCode::kAlreadyExists, "cannot copy " + source + " to " + url_of(name) + ": an object of this name exists");
  copy_s3_object(client_, bucket_ + "/" + key, found.bytes, key_of(name), url_of(name));
  return found.bytes;
}

void S3Store::read_range(const ObjectName& name, std::uint64_t offset, MutableByteSpan destination) {
  const std::size_t size = destination.size();
  if (offset <= std::numeric_limits<std::int64_t>::max() - size) {
    S3Request request{"GET", "read", "s3:GetObject", key_of(name)};
    request.destination = destination;
    request.offset = offset;
    const S3Response response = client_->send(request);
    if (response.status == 404) throw not_found("read", url_of(name));
    if (response.received == size) return;
  }
  // Looks a second time, because one answer is not enough to conclude damage.
  const std::uint64_t object_bytes = size_bytes(name);
  if (object_bytes >= size && offset <= object_bytes - size)
    throw Error(ErrorCode::kUnavailable, "cannot read " + std::to_string(size) + " bytes at " + std::to_string(offset) + " of " +
                                             url_of(name) + ": the server's answers about its length do not agree");
  throw Error(ErrorCode::kCorrupt, "cannot read " + std::to_string(size) + " bytes at " + std::to_string(offset) + " of " +
                                       url_of(name) + ": it ends at " + std::to_string(object_bytes) +
                                       "; it was cut short, or is not the object it should be");
}

void S3Store::read(const ObjectName& name, const std::vector<ReadRange>& ranges) {
  check_object_name(name);
  const bool reads = std::any_of(ranges.begin(), ranges.end(), [](const ReadRange& range) { return !range.destination.empty(); });
  // A record may be followed by a fence mark, and a mark may be a part of a record.
  const bool is_plain = !is_record(name) && !save_id_of_mark(name);
  const Record found = reads && is_plain ? Record() : find(name);
  if (!(reads && is_plain) && !found.is_live) throw not_found("read", url_of(name));
  for (const ReadRange& range : ranges) {
    const std::size_t size = range.destination.size();
    if (size == 0) continue;
    if (!is_plain && (range.offset > found.bytes || found.bytes - range.offset < size))
      throw Error(ErrorCode::kCorrupt, "cannot read " + std::to_string(size) + " bytes at " + std::to_string(range.offset) +
                                           " of " + url_of(name) + ": it ends at " + std::to_string(found.bytes));
    if (!is_plain && found.end.size() == found.bytes)
      std::memcpy(range.destination.data(), found.end.data() + range.offset, size);
    else
      read_range(name, range.offset, range.destination);
  }
}

std::uint64_t S3Store::size_bytes(const ObjectName& name) {
  check_object_name(name);
  const Record found = find(name);
  if (!found.is_live) throw not_found("find the size of", url_of(name));
  return found.bytes;
}

bool S3Store::exists(const ObjectName& name) {
  check_object_name(name);
  return find(name).is_live;
}

std::optional<ObjectEnd> S3Store::read_end(const ObjectName& name, std::size_t bytes_max) {
  check_object_name(name);
  Record record = find(name, bytes_max);
  if (bytes_max == kRecordEndBytes && is_record(name)) remember(name, record);
  if (!record.is_live) return std::nullopt;
  if (record.end.size() > bytes_max) record.end.erase(0, record.end.size() - bytes_max);
  return ObjectEnd{record.bytes, std::move(record.end)};
}

std::vector<S3Store::Listed> S3Store::listed(const ObjectName& prefix, bool children_only, const ObjectName& expected,
                                             bool* is_cut) {
  S3Request request{"GET", "list", "s3:ListBucket"};
  request.query = {{"list-type", "2"}, {"encoding-type", "url"}, {"prefix", escaped(place_ + prefix)}};
  if (children_only) request.query.emplace_back("delimiter", "/");
  using Entry = std::map<std::string, std::string>;
  const auto name_of = [&](const Entry& entry) {
    const auto key = entry.find(entry.count("Key") > 0 ? "Key" : "Prefix");
    const std::string name = key == entry.end() ? "" : s3_decode(s3_decode(key->second, true));
    return name.size() >= place_.size() ? name.substr(place_.size()) : "";
  };
  std::vector<Listed> found;
  bool has_expected = expected.empty();
  S3Page page;
  do {
    page = client_->list(request, page.next, [&](const S3Page& answer) {
      for (const Entry& entry : answer.entries) {
        if (entry.count("Prefix") == 0 && (entry.count("Key") == 0 || entry.count("Size") == 0))
          throw Error(ErrorCode::kUnavailable, "the listing lacks the name or the size of an object");
        has_expected = has_expected || name_of(entry).rfind(expected, 0) == 0;
      }
      if (answer.next.empty() && !has_expected)
        throw Error(ErrorCode::kUnavailable, "the listing lacks " + expected + ", which " + kRunIndexName +
                                                 " names as the latest checkpoint, and whose record is there");
    });
    for (Entry& entry : page.entries)
      found.push_back({{name_of(entry), std::strtoull(entry["Size"].c_str(), nullptr, 10)}, s3_etag(entry["ETag"])});
  } while (!page.next.empty() && is_cut == nullptr);
  if (is_cut != nullptr) *is_cut = !page.next.empty();
  return found;
}

PlaceContents S3Store::contents_below(const ObjectName& prefix) {
  check_object_prefix(prefix);
  std::string index_etag = remembered_index(place_in_run(place_).first).etag;
  const std::vector<Listed> all = listed(prefix);
  PlaceContents found = contents_in(all, prefix);
  if (!prefix.empty()) return found;
  const bool has_mark = all.size() == 1 && all[0].name == kCommitRecordName && found.record.object_bytes == 0;
  const auto mark = has_mark ? remembered_record(kCommitRecordName) : std::nullopt;
  MutexLock lock(mutex_);
  emptied_ = {std::move(index_etag), mark && !mark->is_live && mark->etag == all[0].etag ? mark->etag : ""};
  return found;
}

PlaceContents S3Store::contents_in(const std::vector<Listed>& listed, const ObjectName& prefix) {
  PlaceContents found;
  std::vector<Listed> objects;
  std::set<std::string> open, ended;  // attempts, by their marks
  for (const Listed& object : listed) {
    for (auto& [mark, ids] : {std::pair(std::string(kOpenMark), &open), {kFencedMark, &ended}})
      if (object.name.rfind(mark, 0) == 0 && object.name.size() > mark.size() && object.name.find('/') == std::string::npos)
        ids->insert(object.name.substr(mark.size()));
    // Other programs make empty objects with names like "a/", as if they were directories.
    if (!object.name.empty() && object.name.back() != '/' && !is_hidden(object.name)) objects.push_back(object);
  }
  Record record;
  // A list of marks does not have the record.
  if (!prefix.empty() && prefix.rfind(kRemovalMark, 0) == 0) record = find_record(kCommitRecordName, kRecordEndBytes);
  found.open_attempts.assign(open.begin(), open.end());
  // A fence that is not done may look done. `clear_attempt` looks for it itself.
  std::set_difference(ended.begin(), ended.end(), open.begin(), open.end(), std::back_inserter(found.fenced_attempts));
  for (Listed& object : objects) {
    if (is_record(object.name)) {
      const Record known = record_in_list(object.name, object.etag);
      object.size_bytes = known.bytes;
      if (object.name == kCommitRecordName) record = known;
      if (!known.is_live) continue;
    }
    found.objects.push_back(std::move(object));
  }
  if (record.is_live) found.record = {record.bytes, std::move(record.end)};
  if (ObjectName mark = removal_mark_name(record.removed);
      !record.removed.empty() && mark.rfind(prefix, 0) == 0 && !has_name(found.objects, mark))
    found.objects.push_back({std::move(mark), removal_text(record).size()});
  std::sort(found.objects.begin(), found.objects.end(), [](const ObjectInfo& a, const ObjectInfo& b) { return a.name < b.name; });
  return found;
}

S3Store::Record S3Store::find(const ObjectName& name, std::size_t end_bytes) {
  if (const auto id = save_id_of_mark(name)) {
    const Record record = find_record(kCommitRecordName, kRecordEndBytes);
    if (record.removed == *id) {
      std::string text = removal_text(record);
      return {"", text.size(), true, std::move(text), ""};
    }
  }
  return find_record(name, end_bytes);
}

// The text is all before the last line, which has the save id.
std::string S3Store::removal_text(const Record& record) {
  std::string text = record.end;
  if (record.bytes > text.size()) {
    text.resize(static_cast<std::size_t>(record.bytes));
    read_range(kCommitRecordName, 0, {text.data(), text.size()});
  }
  return text.substr(0, text.rfind('\n', text.size() - 2) + 1);
}

std::vector<ObjectInfo> S3Store::list(const ObjectName& prefix) { return contents_below(prefix).objects; }

PlaceContents S3Store::contents() {
  MutexLock lock(mutex_);
  auto published = std::exchange(published_, std::nullopt);
  lock.unlock();
  return published ? *std::move(published) : contents_below("");
}

void S3Store::remove(const ObjectName& name) {
  check_object_name(name);
  if (is_record(name)) return retract_record(name);
  for (const auto id = save_id_of_mark(name); id;) {
    std::optional<Record> known = remembered_record(kCommitRecordName);
    if (!known || known->removed != *id) known = find_record(kCommitRecordName);
    if (known->removed != *id) break;
    {
      MutexLock lock(mutex_);
      // Nothing else is left, and `remove_root` hides this mark or removes it.
      if (emptied_.second == known->etag && is_checkpoint_name(place_in_run(place_).second)) return;
    }
    const S3Put put = client_->put_if(key_of(kCommitRecordName), fence_mark(), known->etag);
    remember(kCommitRecordName, {put.etag, 0, false, "", ""});
    if (put) break;
  }
  client_->remove(key_of(name));
}

std::shared_ptr<Store> open_s3_store(const std::string& url) {
  static auto* mutex = new Mutex;
  static auto* clients = new std::map<std::string, std::weak_ptr<S3Client>>;
  const StoreUrl parts = split_url(url);
  const std::string& bucket = parts.authority;
  if (bucket.empty() ||
      bucket.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_") != std::string::npos)
    throw Error(ErrorCode::kInvalidArgument, "cannot open store \"" + url + "\": it names no bucket, as in s3://bucket/prefix");
  const std::string place = place_in(parts);
  MutexLock lock(*mutex);
  std::weak_ptr<S3Client>& known = (*clients)[bucket];
  std::shared_ptr<S3Client> client = known.lock();
  if (!client) known = client = std::make_shared<S3Client>(bucket, [bucket] { return s3_settings_from_environment(bucket); });
  return std::make_shared<S3Store>(bucket, place, std::move(client));
}

}  // namespace cairn
