// A store in a bucket of an S3 server, "s3://<bucket>/<prefix>". docs/stores.md tells users how to
// reach AWS and other servers.
//
// An object `name` has the key "<prefix>/<name>". Control characters, '%' and bytes that are not
// UTF-8 are percent-encoded in keys. An object appears when its writer is synced or closed. Large
// objects are written in parts: each `write_at` sends its part at once, from the caller's memory.
//
// S3 has no rename. It has conditional writes, which succeed only if an object is absent
// (If-None-Match) or unchanged (If-Match). The server must support both. Its lists and reads must
// see every write that it has answered before.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <cairn/base/mutex.hpp>
#include <cairn/storage/store.hpp>
#include <cairn/storage/stores/s3_client.hpp>

namespace cairn {

class S3Store : public Store {
 public:
  // `prefix` is the path in the bucket without slashes at its ends; it may be empty.
  S3Store(const std::string& bucket, const std::string& prefix, std::shared_ptr<S3Client> client);

  std::string url() const override;
  bool is_shared() const override { return true; }
  StoreTraits traits() const override;
  void create_root() override;

  std::unique_ptr<ObjectWriter> create(const ObjectName& name, const CreateOptions& options = {}) override;
  void read(const ObjectName& name, const std::vector<ReadRange>& ranges) override;
  std::uint64_t size_bytes(const ObjectName& name) override;
  bool exists(const ObjectName& name) override;
  std::optional<ObjectEnd> read_end(const ObjectName& name, std::size_t bytes_max) override;
  std::vector<ObjectInfo> list(const ObjectName& prefix = "") override;
  std::vector<ObjectName> children() override;
  void remove(const ObjectName& name) override;

  void begin_attempt(const std::string& save_id) override;
  void publish(const std::string& save_id, ByteSpan record, Overwrite overwrite) override;
  void fence(const std::string& save_id) override;
  std::vector<std::string> open_attempts() override;
  std::vector<std::string> fenced_attempts() override;
  bool has_attempt(const std::string& save_id) override;
  void clear_attempt(const std::string& save_id) override;
  void remove_root() override;

 private:
  // The object of the commit record on the server. It may contain a record, a fence mark or both:
  // see s3_attempts.cpp.
  struct Record {
    std::string etag;         // "": there is no object
    std::uint64_t bytes = 0;  // the size of the record, without the fence mark
    bool is_live = false;     // the object contains a record
    std::string end;          // the last bytes of the record
  };
  // One request. Reads at most `end_bytes` of the record's end.
  Record find_record(const ObjectName& name, std::size_t end_bytes = 0);
  // The index of a run's removed places: see s3_attempts.cpp.
  struct Removed {
    std::string etag;  // "": there is none
    std::set<ObjectName> places;
  };
  // Reads the index. With `etag`, takes it from memory if this process knows that version.
  Removed removed_places(const std::string& run, const std::optional<std::string>& etag = {});
  // Returns the version that this process has seen last; empty if it has seen none.
  Removed remembered_places(const std::string& run) const;
  bool write_removed(const std::string& run, Removed removed, bool is_confirmed);
  // Removes this place from the index. `is_reused`: the place had a mark, so another process may be
  // about to add it.
  void unlist_root(bool is_reused);
  // Replaces the object `name` with `content` if the object's ETag is still `seen`, or if `seen` is
  // "" and the object is absent. Returns the new ETag, or nothing if the object has changed.
  // `was_repeated`: see S3Client::put_if.
  std::optional<std::string> replace_record(const ObjectName& name, const std::string& seen, ByteSpan content,
                                            bool* was_repeated = nullptr);
  void retract_record(const ObjectName& name);
  // Returns whether `record` is the live commit record.
  bool is_published(ByteSpan record);
  // Writes a fence mark in place of the record if the record is absent. Returns the mark's ETag, or
  // "" if an object is there.
  std::string write_first_mark();
  Bytes fence_mark();

  // Returns the prefix of the names in the run, and the name of this place. The name is "" if Cairn
  // does not give such names, because the index has no other places.
  std::pair<std::string, ObjectName> place_in_run() const;
  // Returns the key of an object, given its full name in the bucket.
  std::string escaped_key(const std::string& full_name) const;
  std::string key_of(const ObjectName& name) const { return escaped_key(place_ + name); }
  std::string url_of(const ObjectName& name) const;
  bool has_object(const ObjectName& name) { return client_->look(key_of(name)).is_there; }
  void read_range(const ObjectName& name, std::uint64_t offset, MutableByteSpan destination);
  struct Listed : ObjectInfo {
    std::string etag;
  };
  // Calls `object` for each name that begins with `prefix`, until a call returns false. With
  // `children_only`, calls it for the objects of the root itself, and for each place one level
  // below it, with a '/' at the end.
  void visit(const ObjectName& prefix, bool children_only, const std::function<bool(const Listed&)>& object);
  // Returns the attempts with a mark that begins with `prefix`: the open ones, and those that a
  // fence has ended or is ending.
  using Ids = std::vector<std::string>;
  std::pair<Ids, Ids> marked_attempts(const std::string& prefix);
  void abort_uploads_of(const std::string& save_id);
  const std::string bucket_;
  const std::string place_;  // "" or a prefix of names that ends with '/'
  const std::shared_ptr<S3Client> client_;
  Mutex mutex_;
  std::map<std::string, std::string> first_marks_ CAIRN_GUARDED_BY(mutex_);  // ETags of marks that attempts made when they began
};

// The index of the places in a run whose checkpoints were removed.
inline constexpr const char* kRemovedIndexName = ".tombstones";

// Creates the store for an "s3:" URL. Stores of one bucket share their connections.
std::shared_ptr<Store> open_s3_store(const std::string& url);

}  // namespace cairn
