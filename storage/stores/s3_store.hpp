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
#include <cairn/storage/format/names.hpp>
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
  void create_root() override {}

  std::unique_ptr<ObjectWriter> create(const ObjectName& name, const CreateOptions& options = {}) override;
  // The server copies the object, if it is in the same bucket and has at most 5 GiB.
  std::uint64_t link(const std::string& source, const ObjectName& name, bool is_durable = true) override;
  void read(const ObjectName& name, const std::vector<ReadRange>& ranges) override;
  std::uint64_t size_bytes(const ObjectName& name) override;
  bool exists(const ObjectName& name) override;
  // An object of the name of a place is not in the way of its objects.
  bool is_taken(const ObjectName& name) override { return !is_checkpoint_name(name) && exists(name); }
  std::optional<ObjectEnd> read_end(const ObjectName& name, std::size_t bytes_max) override;
  std::vector<ObjectInfo> list(const ObjectName& prefix = "") override;
  std::vector<ObjectName> children() override;
  RunView look() override;
  void remove(const ObjectName& name) override;

  void begin_attempt(const std::string& save_id, Overwrite overwrite = Overwrite::kAllowed) override;
  void publish(const std::string& save_id, ByteSpan record, Overwrite overwrite) override;
  void fence(const std::string& save_id) override;
  std::vector<std::string> open_attempts() override { return contents_below(kOpenMark).open_attempts; }
  std::vector<std::string> fenced_attempts() override { return contents_below(".").fenced_attempts; }
  PlaceContents contents() override;
  bool has_attempt(const std::string& save_id) override;
  void clear_attempt(const std::string& save_id) override;
  void retract(const ObjectName& mark = "", const std::string& text = "") override;
  void remove_root() override;

 private:
  // The object of the commit record on the server. It may contain a record, a fence mark or both:
  // see s3_attempts.cpp.
  struct Record {
    std::string etag;         // "": there is no object
    std::uint64_t bytes = 0;  // the size of the object, without the fence mark
    bool is_live = false;     // the object contains a record
    std::string end;          // the last of these bytes
    std::string removed;      // the save id in the mark of a removal; "": there is none
  };
  static bool is_record(const ObjectName& name);
  // Looks at an object of any name, in one request. `end_bytes`: of Record::end, at most.
  Record find_record(const ObjectName& name, std::size_t end_bytes = 0);
  // Does the same, but the mark of a removal that is a part of the record's object is found as a
  // record that has the text of the mark.
  Record find(const ObjectName& name, std::size_t end_bytes = 0);
  // Returns the record `name` that a list has with this ETag, and the end of it, as this process
  // has read or written it before; reads it otherwise.
  Record record_in_list(const ObjectName& name, const std::string& etag);
  std::optional<Record> remembered_record(const ObjectName& name) const;
  void remember(const ObjectName& name, Record record);
  // The index of a run: see s3_index.cpp.
  struct Index {
    std::string etag;              // "": there is none
    std::set<ObjectName> removed;  // places whose checkpoints were removed
    LatestPlace latest;            // the name is "" if that is not known
    bool is_latest_sure = true;    // false: nobody has looked whether the server has kept the name
  };
  // This process's last look at a run. All stores of the process share it.
  struct Memory {
    Index index;
    bool is_large = false;                   // a list of all its objects has more than one page
    std::map<ObjectName, Record> records{};  // by place, with kRecordEndBytes of the end, or all
  };
  static Mutex memory_mutex_;
  Memory& memory_of(const std::string& run) const CAIRN_REQUIRES(memory_mutex_);
  Index read_index(const std::string& run);
  Index remembered_index(const std::string& run) const;
  // Changes the index, unless `change` returns false. Begins with `seen`, and again with the
  // current version if another process has changed it.
  void change_index(const std::string& run, Index seen, bool is_confirmed, const std::function<bool(Index&)>& change);
  // Removes this place from the index of removed places. `is_reused`: the place had a mark, so
  // another process may be about to add it. With a published record of Cairn's, names this place as
  // the latest checkpoint, if the index names none of a larger sequence.
  void enter_index(bool is_reused, ByteSpan record = {});
  // Leaves `mark` and a fence mark in place of the record.
  void retract_record(const ObjectName& name, const std::string& mark = "");
  std::string removal_text(const Record& record);  // of the mark of a removal in it
  // How often an object may change under a writer. Each change is one of another process.
  static constexpr int kTriesMax = 64;
  static Error changes_too_often(const std::string& url);
  // Writes a fence mark in place of the record if the record is absent. Returns the mark's ETag, or
  // "" if an object is there.
  std::string write_first_mark();
  Bytes fence_mark();

  // Splits the full name of a place, which ends with '/', into the prefix of the names in the run,
  // and the name of the place.
  static std::pair<std::string, ObjectName> place_in_run(const std::string& full_name);
  std::pair<std::string, ObjectName> place_of_record(const ObjectName& name) const;
  // Returns the key of an object, given its full name in the bucket.
  std::string escaped_key(const std::string& full_name) const;
  std::string key_of(const ObjectName& name) const { return escaped_key(place_ + name); }
  std::string url_of(const ObjectName& name) const;
  bool has_object(const ObjectName& name) { return client_->look(key_of(name)).is_there; }
  void read_range(const ObjectName& name, std::uint64_t offset, MutableByteSpan destination);
  // Returns the objects whose names begin with `prefix`. With `children_only`, returns the objects
  // of the root itself, and each place one level below it, with a '/' at the end. A whole listing
  // without an object or place `expected` is an error of the store. With `is_cut`, stops after the
  // first page and sets whether there are more.
  struct Listed : ObjectInfo {
    std::string etag;
  };
  std::vector<Listed> listed(const ObjectName& prefix, bool children_only = false, const ObjectName& expected = "",
                             bool* is_cut = nullptr);
  // Returns the objects of a run by place, those of the run itself under "". A place of a large run
  // has no objects. Places of removed checkpoints are left out.
  using Places = std::map<ObjectName, std::vector<Listed>>;
  Places places(bool& is_large);
  PlaceContents contents_below(const ObjectName& prefix);
  PlaceContents contents_in(const std::vector<Listed>& listed, const ObjectName& prefix);
  const std::string bucket_;
  const std::string place_;  // "" or a prefix of names that ends with '/'
  const std::shared_ptr<S3Client> client_;
  Mutex mutex_;
  std::optional<PlaceContents> published_ CAIRN_GUARDED_BY(mutex_);          // for the first `contents` after a publication
  std::map<std::string, std::string> first_marks_ CAIRN_GUARDED_BY(mutex_);  // ETags of marks that attempts made when they began
  // ETags of the run's index before the last list of this place, and of the fence mark, if the list
  // has nothing else; otherwise "".
  std::pair<std::string, std::string> emptied_ CAIRN_GUARDED_BY(mutex_);
};

// Returns a writer of one object. A small object is one request. An object in parts is a multipart
// upload, whose parts are sent from the memory of the caller; nothing is copied or kept.
// `buffer_max` limits the size of an object that is not written in parts.
std::unique_ptr<ObjectWriter> make_s3_writer(std::shared_ptr<S3Client> client, std::string key, std::string url,
                                             const CreateOptions& options, std::uint64_t buffer_max);
// Has the server copy the object `source`, "bucket/key", which has `bytes` bytes, to a new one.
void copy_s3_object(std::shared_ptr<S3Client> client, const std::string& source, std::uint64_t bytes, std::string key,
                    std::string url);
inline constexpr std::uint64_t kS3PartsMax = 10'000;  // of one object

// The index of a run: its latest checkpoint, and the places whose checkpoints were removed.
inline constexpr const char* kRunIndexName = ".run-index";

// Creates the store for an "s3:" URL. Stores of one bucket share their connections.
std::shared_ptr<Store> open_s3_store(const std::string& url);

}  // namespace cairn
