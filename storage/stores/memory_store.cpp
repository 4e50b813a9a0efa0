#include <cairn/storage/stores/memory_store.hpp>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <stdexcept>

#include <cairn/base/error.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/base/shared_mutex.hpp>
#include <cairn/storage/stores/url.hpp>

namespace cairn {
namespace {

// Resizes `content`. Throws kNoSpace if memory runs out.
void resize_or_fail(std::string& content, std::uint64_t length, const std::string& object) {
  try {
    if (length > std::numeric_limits<std::size_t>::max()) throw std::length_error(object);
    content.resize(static_cast<std::size_t>(length));
  } catch (const std::exception&) {
    throw Error(ErrorCode::kNoSpace, "cannot grow " + object + " to " + std::to_string(length) + " bytes: out of memory");
  }
}

// Visits the entries whose keys begin with `prefix`, in order.
template <class Map, class Visit>
void visit_prefix(const Map& map, const std::string& prefix, Visit visit) {
  for (auto entry = map.lower_bound(prefix); entry != map.end(); ++entry) {
    if (entry->first.compare(0, prefix.size(), prefix) != 0) return;
    visit(*entry);
  }
}

// Everything stored under one name. Contents are replaced, never modified, so readers copy from
// them without the lock.
struct Memory {
  struct Object {
    std::shared_ptr<const std::string> content;  // null while it is being written
  };
  enum class Attempt : std::uint8_t { kOpen, kFenced };

  Mutex mutex;
  std::map<std::string, std::shared_ptr<Object>> objects CAIRN_GUARDED_BY(mutex);  // by full name
  std::map<std::string, Attempt> attempts
      CAIRN_GUARDED_BY(mutex);  // by place + save id, because an attempt belongs to one checkpoint
};

// Guards the map of memories. Never destroyed, like that map.
Mutex& memories_mutex() {
  static Mutex* mutex = new Mutex;
  return *mutex;
}

std::map<std::string, std::shared_ptr<Memory>>& memories() {
  static auto* all = new std::map<std::string, std::shared_ptr<Memory>>;
  return *all;
}

// The name is taken at once, and the content appears when the writer closes, as in a file store
// with exclusive creation.
class MemoryWriter final : public ObjectWriter {
 public:
  MemoryWriter(std::shared_ptr<Memory> memory, std::string name, std::string url, const CreateOptions& options)
      : memory_(std::move(memory)), name_(std::move(name)), url_(std::move(url)), content_(std::make_shared<std::string>()) {
    // Before the name is taken, so that running out of memory leaves nothing behind.
    resize_or_fail(*content_, options.expected_bytes, url_);
    MutexLock lock(memory_->mutex);
    if (!memory_->objects.emplace(name_, object_).second)
      throw Error(ErrorCode::kAlreadyExists, "cannot create " + url_ + ": an object of this name exists");
  }

  ~MemoryWriter() override {
    if (!finished_) discard();
  }

  void write_at(std::uint64_t offset, ByteSpan bytes) override {
    if (offset > std::numeric_limits<std::uint64_t>::max() - bytes.size())
      throw Error(ErrorCode::kInvalidArgument,
                  "cannot write at " + std::to_string(offset) + " of " + url_ + ": no object is that long");
    const std::uint64_t end = offset + bytes.size();
    {
      SharedLock lock(mutex_);
      require_writing();
      // Writers of different parts copy at the same time. Only growing needs the lock alone.
      if (end <= content_->size()) return copy(offset, bytes);
    }
    ExclusiveLock lock(mutex_);
    require_writing();
    if (end > content_->size()) resize_or_fail(*content_, end, url_);
    copy(offset, bytes);
  }

  void finish(std::uint64_t length, bool /*is_durable*/) override {
    ExclusiveLock lock(mutex_);
    require_writing();
    resize_or_fail(*content_, length, url_);
    MutexLock memory_lock(memory_->mutex);
    // The name may belong to another object by now.
    const auto object = memory_->objects.find(name_);
    if (object == memory_->objects.end() || object->second != object_)
      throw Error(ErrorCode::kNotFound,
                  "cannot finish writing " + url_ + ": it was removed or replaced; another process may have ended its save");
    object_->content = content_;
    finished_ = true;
  }

  void discard() noexcept override {
    ExclusiveLock lock(mutex_);
    finished_ = true;
    MutexLock memory_lock(memory_->mutex);
    const auto object = memory_->objects.find(name_);
    if (object != memory_->objects.end() && object->second == object_) memory_->objects.erase(object);
  }

 private:
  void copy(std::uint64_t offset, ByteSpan bytes) CAIRN_REQUIRES_SHARED(mutex_) {
    if (!bytes.empty()) std::memcpy(content_->data() + offset, bytes.data(), bytes.size());
  }

  void require_writing() const CAIRN_REQUIRES_SHARED(mutex_) {
    if (finished_)
      throw Error(ErrorCode::kPrecondition, "cannot write to " + url_ + ": its writer was already synced, closed or discarded");
  }

  const std::shared_ptr<Memory> memory_;
  const std::string name_;
  const std::string url_;
  const std::shared_ptr<Memory::Object> object_ = std::make_shared<Memory::Object>();
  SharedMutex mutex_;  // shared while copying into existing bytes; exclusive to resize or finish
  bool finished_ CAIRN_GUARDED_BY(mutex_) = false;
  std::shared_ptr<std::string> content_ CAIRN_GUARDED_BY(mutex_);
};

class MemoryStore final : public Store {
 public:
  // `name` and `path` are as in the URL; `path` may be empty.
  MemoryStore(const std::string& name, const std::string& path) : name_(name), place_(path.empty() ? "" : path + "/") {
    MutexLock lock(memories_mutex());
    std::shared_ptr<Memory>& memory = memories()[name];
    if (!memory) memory = std::make_shared<Memory>();
    memory_ = memory;
  }

  std::string url() const override { return "mem://" + name_ + (place_.empty() ? "" : "/" + place_.substr(0, place_.size() - 1)); }
  bool is_shared() const override { return false; }
  void create_root() override {}

  std::unique_ptr<ObjectWriter> create(const ObjectName& name, const CreateOptions& options) override {
    check_object_name(name);
    return std::make_unique<MemoryWriter>(memory_, full_name(name), child_url(url(), name), options);
  }

  void read(const ObjectName& name, const std::vector<ReadRange>& ranges) override {
    const auto content = content_of(name);
    if (!content) throw Error(ErrorCode::kNotFound, "cannot read " + child_url(url(), name) + ": there is no such object");
    for (const ReadRange& range : ranges) {
      const std::size_t size = range.destination.size();
      if (size == 0) continue;
      if (range.offset > content->size() || content->size() - range.offset < size)
        throw Error(ErrorCode::kCorrupt, "cannot read " + std::to_string(size) + " bytes at " + std::to_string(range.offset) +
                                             " of " + child_url(url(), name) + ": it ends at " + std::to_string(content->size()) +
                                             "; it was cut short, or is not the object it should be");
      std::memcpy(range.destination.data(), content->data() + range.offset, size);
    }
  }

  std::uint64_t size_bytes(const ObjectName& name) override {
    const auto content = content_of(name);
    if (!content)
      throw Error(ErrorCode::kNotFound, "cannot find the size of " + child_url(url(), name) + ": there is no such object");
    return content->size();
  }

  bool exists(const ObjectName& name) override { return content_of(name) != nullptr; }

  bool is_taken(const ObjectName& name) override {
    check_object_name(name);
    MutexLock lock(memory_->mutex);
    return memory_->objects.count(full_name(name)) > 0;
  }

  std::vector<ObjectInfo> list(const ObjectName& prefix) override {
    check_object_prefix(prefix);
    std::vector<ObjectInfo> found;
    MutexLock lock(memory_->mutex);
    visit_prefix(memory_->objects, full_name(prefix), [&](const auto& entry) {
      if (entry.second->content) found.push_back({entry.first.substr(place_.size()), entry.second->content->size()});
    });
    return found;
  }

  void remove(const ObjectName& name) override {
    check_object_name(name);
    MutexLock lock(memory_->mutex);
    memory_->objects.erase(full_name(name));
  }

  void begin_attempt(const std::string& save_id, Overwrite overwrite) override {
    check_attempt_id(save_id);
    check_overwrite(*this, save_id, overwrite);
    MutexLock lock(memory_->mutex);
    const auto [attempt, added] = memory_->attempts.emplace(full_name(save_id), Memory::Attempt::kOpen);
    if (added) return;
    if (attempt->second == Memory::Attempt::kFenced)
      throw Error(ErrorCode::kFenced, "cannot begin save " + save_id + " in " + url() + ": another rank or job has ended it");
    throw Error(ErrorCode::kAlreadyExists, "cannot begin save " + save_id + " in " + url() + ": an attempt of this id is open");
  }

  // One lock makes the three steps of publishing one: the attempt is open, the record appears, the
  // attempt ends.
  void publish(const std::string& save_id, ByteSpan record, Overwrite overwrite) override {
    check_attempt_id(save_id);
    const auto content = std::make_shared<std::string>();
    resize_or_fail(*content, record.size(), child_url(url(), kCommitRecordName));
    if (!record.empty()) std::memcpy(content->data(), record.data(), record.size());
    auto published = std::make_shared<Memory::Object>(Memory::Object{content});
    MutexLock lock(memory_->mutex);
    const auto attempt = memory_->attempts.find(full_name(save_id));
    if (attempt == memory_->attempts.end() || attempt->second != Memory::Attempt::kOpen)
      throw Error(ErrorCode::kFenced,
                  "cannot publish save " + save_id + " in " + url() +
                      ": its attempt is not open; it was ended by another rank or job, or never begun. Nothing was changed");
    std::shared_ptr<Memory::Object>& object = memory_->objects[full_name(kCommitRecordName)];
    if (object && overwrite == Overwrite::kRefused)
      throw Error(ErrorCode::kAlreadyExists, "cannot publish save " + save_id + ": " + child_url(url(), kCommitRecordName) +
                                                 " is there already. Nothing was changed");
    object = std::move(published);
    memory_->attempts.erase(attempt);
  }

  void fence(const std::string& save_id) override {
    check_attempt_id(save_id);
    MutexLock lock(memory_->mutex);
    memory_->attempts[full_name(save_id)] = Memory::Attempt::kFenced;
  }

  std::vector<std::string> open_attempts() override { return attempts_that_are(true); }

  std::vector<std::string> fenced_attempts() override { return attempts_that_are(false); }

  void clear_attempt(const std::string& save_id) override {
    check_attempt_id(save_id);
    MutexLock lock(memory_->mutex);
    const auto attempt = memory_->attempts.find(full_name(save_id));
    if (attempt == memory_->attempts.end()) return;
    if (attempt->second == Memory::Attempt::kOpen)
      throw Error(ErrorCode::kPrecondition,
                  "cannot clear save " + save_id + " in " + url() + ": its attempt is open; fence it first");
    memory_->attempts.erase(attempt);
  }

 private:
  std::string full_name(const ObjectName& name) const { return place_ + name; }

  // Returns null if there is no such object, or if it is being written.
  std::shared_ptr<const std::string> content_of(const ObjectName& name) {
    check_object_name(name);
    MutexLock lock(memory_->mutex);
    const auto object = memory_->objects.find(full_name(name));
    return object == memory_->objects.end() ? nullptr : object->second->content;
  }

  std::vector<std::string> attempts_that_are(bool open) {
    std::vector<std::string> ids;
    MutexLock lock(memory_->mutex);
    visit_prefix(memory_->attempts, place_, [&](const auto& entry) {
      const std::string id = entry.first.substr(place_.size());
      // Places below this one have attempts of their own, with a '/' in the rest of the key. Save
      // ids contain no '/'.
      if (id.find('/') == std::string::npos && (entry.second == Memory::Attempt::kOpen) == open) ids.push_back(id);
    });
    return ids;
  }

  const std::string name_;
  const std::string place_;  // "" or a path that ends with '/'
  std::shared_ptr<Memory> memory_;
};

}  // namespace

std::shared_ptr<Store> open_memory_store(const std::string& url) {
  const StoreUrl parts = split_url(url);
  if (parts.authority.empty())
    throw Error(ErrorCode::kInvalidArgument, "cannot open store \"" + url + "\": memory needs a name, as in mem://name/path");
  return std::make_shared<MemoryStore>(parts.authority, place_in(parts));
}

void forget_memory(const std::string& name) {
  std::shared_ptr<Memory> memory;  // declared before the lock: freed after unlocking, since it may be large
  MutexLock lock(memories_mutex());
  const auto found = memories().find(name);
  if (found == memories().end()) return;
  memory = std::move(found->second);
  memories().erase(found);
}

}  // namespace cairn
