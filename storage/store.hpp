// A store of named byte objects: the one interface to a directory, memory or an object store.
//
// A Store is rooted at one place: a checkpoint, or a run that holds checkpoints. Object names are
// relative and use '/' between parts; no part is empty, "." or "..". An object is immutable once
// its writer has synced or closed it. Only `publish`, `fence` and the removal methods change what a
// name refers to. Every method is thread-safe and may block; actors must never call one on their
// own thread. Methods throw cairn::Error, whose text says what was being done to which object. Any
// method that accesses the store may throw kUnavailable or kPermission, besides the codes below.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <cairn/base/bytes.hpp>

namespace cairn {

using ObjectName = std::string;

struct ObjectInfo {
  ObjectName name;
  std::uint64_t size_bytes = 0;
};

// The end of an object.
struct ObjectEnd {
  std::uint64_t object_bytes = 0;  // size of the whole object
  std::string content;             // its last bytes
};

// Everything at a place, at one look.
struct PlaceContents {
  std::vector<ObjectInfo> objects;  // as `list` returns them
  std::vector<std::string> open_attempts, fenced_attempts;
  // The end of the commit record, if the store had to read it to make the list; "" otherwise.
  ObjectEnd record;
};

// The place whose record was published last.
struct LatestPlace {
  ObjectName name;
  std::uint64_t sequence = 0;  // the commit sequence in the record
};

// The places one level below the root, at one look.
struct RunView {
  std::vector<ObjectName> places;  // as `children` returns them
  // The contents of places, and of the root itself, "", without the places below it. May lack any
  // place. A place may have changed since.
  std::map<ObjectName, PlaceContents> seen{};
  // The place whose record was published last, if the store keeps this apart from its lists, and
  // the record was not removed by `remove` or `retract`. If there is no record at the place,
  // another program has removed it.
  std::optional<LatestPlace> latest{};

  // Returns null for a place that was not seen.
  const PlaceContents* at(const ObjectName& place) const {
    const auto found = seen.find(place);
    return found == seen.end() ? nullptr : &found->second;
  }
};

struct ReadRange {
  std::uint64_t offset = 0;  // bytes
  MutableByteSpan destination;
};

// Options for creating an object.
struct CreateOptions {
  // The expected size; 0: unknown. The store reserves this space at once if it can, so that a full
  // disk is detected early.
  std::uint64_t expected_bytes = 0;
  // Bypasses the page cache if the store can. Writes must then be aligned (see alignment_bytes).
  bool direct = false;
  // Nonzero: the object is written in parts of this size. Each `write_at` writes one part: its
  // offset is a multiple of `part_bytes`, and its size is `part_bytes`, or less for the last part.
  // Every part before the last must be written, each of them exactly once; the order does not
  // matter. The length given to `sync` or `close` is the end of the last part. See
  // StoreTraits::part_bytes_min.
  std::uint64_t part_bytes = 0;
  // The object appears under its name only when its writer is synced or closed. Programs that read
  // it without a commit record then never read an incomplete object. `sync` and `close` throw
  // kAlreadyExists if another object has taken the name. No effect if
  // StoreTraits::create_takes_name is false, because every object then appears in this way anyway.
  bool appears_whole = false;
};

// Whether several threads that write to one object are faster than one.
enum class ObjectWrites : std::uint8_t {
  kParallel = 1,    // yes, or it is not known
  kSerialIfCached,  // only with CreateOptions::direct: the system locks a file for each cached write
  kSerial,          // no
};

// Requirements that a store places on the code that writes to it. The defaults suit a directory.
struct StoreTraits {
  // Nonzero: an object larger than this must be written in parts of at least this size, which
  // CreateOptions::part_bytes declares. `write_at` throws kInvalidArgument otherwise.
  std::uint64_t part_bytes_min = 0;
  std::uint64_t parts_max = 0;  // the maximum number of parts of one object; 0: no limit
  // False: `create` does not take the name. An object appears under its name only when its writer
  // is synced or closed. If several writers use one name, the first to finish wins, and `sync` and
  // `close` of the others throw kAlreadyExists.
  bool create_takes_name = true;
  ObjectWrites writes = ObjectWrites::kParallel;
  bool has_links = false;  // whether `link` may work
};

// An object being written. Nothing is guaranteed until `sync` or `close` returns. Destroying the
// writer before that discards the object.
class ObjectWriter {
 public:
  virtual ~ObjectWriter() = default;
  // Writes `bytes` at `offset`. Thread-safe for ranges that do not overlap. Bytes that were never
  // written are read as zero, unless the object is written in parts. Throws kNoSpace, kUnavailable.
  virtual void write_at(std::uint64_t offset, ByteSpan bytes) = 0;
  // Returns the alignment that `write_at` requires of offset, size and memory address. It is 1
  // unless the object was opened with `direct` and the store supports that.
  virtual std::size_t alignment_bytes() const { return 1; }
  // Truncates or extends the object to `length`, then makes its content and name survive power
  // loss. No writes may follow. Throws kNotFound if the object was removed or replaced meanwhile.
  void sync(std::uint64_t length) { finish(length, true); }
  // Finishes as `sync` does, but the object may not survive power loss (DCP's sync_files=False).
  void close(std::uint64_t length) { finish(length, false); }
  // Does what `sync` does, if `is_durable`, or what `close` does.
  virtual void finish(std::uint64_t length, bool is_durable) = 0;
  // Removes the object being written. Idempotent. Never throws.
  virtual void discard() noexcept = 0;
};

// Whether `publish` may replace an existing record.
enum class Overwrite : std::uint8_t { kAllowed = 1, kRefused };

class Store {
 public:
  virtual ~Store() = default;

  virtual std::string url() const = 0;  // the root of this store, as a URL or a path
  virtual bool is_shared() const = 0;   // whether other processes see this store; a `mem:` store belongs to one process
  // Returns the same traits for all stores of one place. A store that wraps another one must
  // forward this call.
  virtual StoreTraits traits() const { return {}; }

  // Creates the root: a directory and its parents, durably. Does nothing if the store needs no
  // root.
  virtual void create_root() = 0;

  // Creates a new object. Creates the parents of the name, but not the root. Throws kAlreadyExists
  // if the name is taken (see StoreTraits::create_takes_name). Throws kNotFound if the store needs
  // a root and has none. Throws kNoSpace if `expected_bytes` cannot be reserved; then no object was
  // created.
  virtual std::unique_ptr<ObjectWriter> create(const ObjectName& name, const CreateOptions& options = {}) = 0;

  // Gives an object of another place a second name, in this place, durably if `is_durable`.
  // `source` is its URL. No byte passes this process: a directory shares the bytes until both names
  // are removed, and a server copies them. Creates the parents of the name, but not the root.
  // Returns the object's size. Throws kAlreadyExists if the name is taken, kNotFound if there is no
  // such object, and kUnsupported if the object is out of reach, as on another file system or in
  // another bucket. The default throws kUnsupported.
  virtual std::uint64_t link(const std::string& source, const ObjectName& name, bool is_durable = true);

  // Reads bytes. Fills every range completely; ranges may be in any order. Throws kNotFound. Throws
  // kCorrupt if the object ends before a range does.
  virtual void read(const ObjectName& name, const std::vector<ReadRange>& ranges) = 0;
  // Returns the size of an object. Throws kNotFound.
  virtual std::uint64_t size_bytes(const ObjectName& name) = 0;
  virtual bool exists(const ObjectName& name) = 0;
  // Returns the last `bytes_max` bytes of an object, or all of a smaller one. Returns nothing if
  // there is no such object. Throws as `read` does. The default calls `exists`, `size_bytes` and
  // `read`; stores where each of them is a request should override it.
  virtual std::optional<ObjectEnd> read_end(const ObjectName& name, std::size_t bytes_max);
  // Returns whether anything has this name: an object, or something that blocks the name (a
  // directory, a pipe, a dangling link). The default calls `exists`, which is enough for stores
  // that hold only objects.
  virtual bool is_taken(const ObjectName& name) { return exists(name); }
  // Lists the objects whose names begin with `prefix`, at any depth, sorted. Returns nothing if the
  // root does not exist.
  virtual std::vector<ObjectInfo> list(const ObjectName& prefix = "") = 0;
  // Returns the names of the places one level below the root, sorted: the first part of each name
  // with more than one part ("step_100" for "step_100/.metadata"). May include places that hold no
  // object. The default calls `list`; stores that can avoid visiting every object should override
  // it.
  virtual std::vector<ObjectName> children();
  // Returns the places, and what a list of them shows besides. The default calls `children`, and
  // has seen nothing. A store that wraps another one should forward this call.
  virtual RunView look() { return {children()}; }
  // Removes an object. Idempotent: removing an absent object succeeds. Throws kPermission,
  // kUnavailable.
  virtual void remove(const ObjectName& name) = 0;

  // --- the commit protocol: storage/publication.hpp describes the steps ---

  // Opens attempt `save_id` exclusively and durably. Throws kAlreadyExists if it is open, kFenced
  // if it was fenced, kNotFound if the store needs a root and has none, and kUnsupported if the
  // server lacks conditional writes. For Overwrite::kRefused, throws kAlreadyExists if there is a
  // record. A save id has 1 to 200 of the characters A-Z a-z 0-9 . _ - (otherwise throws
  // kInvalidArgument) and must never be used twice.
  virtual void begin_attempt(const std::string& save_id, Overwrite overwrite = Overwrite::kAllowed) = 0;
  // Makes `record` the content of ".metadata", atomically and durably, and closes the attempt.
  // Readers see either the old or the new record. Throws kFenced if the attempt is not open
  // (fenced, published or never begun). For Overwrite::kRefused, throws kAlreadyExists if there is
  // a record, and kUnsupported if the store cannot refuse atomically. After these errors nothing
  // has changed. After kUnavailable the record may or may not have been published: read ".metadata"
  // to find out.
  virtual void publish(const std::string& save_id, ByteSpan record, Overwrite overwrite) = 0;
  // Ends an attempt of any process: after this returns, `publish` of `save_id` can never succeed.
  // But `publish` may have succeeded before: read ".metadata". Idempotent. An attempt that never
  // began, or was published, can be fenced as well.
  virtual void fence(const std::string& save_id) = 0;
  // `open_attempts` returns the save ids of attempts that were begun, and neither published nor
  // fenced. `fenced_attempts` returns those of attempts that were fenced, and not cleared.
  virtual std::vector<std::string> open_attempts() = 0;
  virtual std::vector<std::string> fenced_attempts() = 0;
  // Returns all objects and attempts. An object in it whose save has not ended is of an attempt in
  // it, or of one that began during the call. The default lists the objects, then the open
  // attempts, and then the fenced ones, because a fence may come between the two. Stores that find
  // all of them in one look should override it. The first call after `publish` may return what
  // `publish` found when the record was there.
  virtual PlaceContents contents();
  // Returns whether the attempt is open, or fenced and not cleared. The default searches both;
  // stores that can look up one name should override it, because every rank that writes, except the
  // coordinator, calls it once per save.
  virtual bool has_attempt(const std::string& save_id);
  // Forgets a fenced attempt and removes everything the store keeps of it. Throws kPrecondition for
  // an open attempt. Does nothing if there is no such attempt.
  virtual void clear_attempt(const std::string& save_id) = 0;

  // --- removing a checkpoint: storage/runs/run_directory.hpp describes the steps ---

  // Removes ".metadata" durably. After this returns, the checkpoint does not exist, even if its
  // other objects remain. Idempotent. With `mark`, ".removed-<save id>", first creates this object
  // durably, with `text` in it. Without space for the mark, goes on: a removal makes space. Throws
  // kUnavailable. Throws kPermission if access is denied, or if the root is a link to another
  // place. The default calls `create_mark` and `remove`, which is enough if `remove` is durable. A
  // store that does both in one step lists and reads the mark like an object.
  virtual void retract(const ObjectName& mark = "", const std::string& text = "");
  // Returns whether the root is only a link to another place, such as a symbolic link. Clean-up
  // changes nothing there, because the target may belong to another run. A store that wraps another
  // one must forward this call. The default returns false.
  virtual bool leads_elsewhere() { return false; }
  // Removes the root itself if it is empty. Otherwise, or if the root does not exist, does nothing.
  // Throws kPermission, kUnavailable. The default does nothing, which is right for stores whose
  // places are only name prefixes.
  virtual void remove_root() {}

  // Returns a store with a second copy of the same objects, which readers use when an object here
  // is damaged; null if there is none. A store that wraps another one must forward this call. The
  // default returns null.
  virtual std::shared_ptr<Store> fallback() { return nullptr; }
};

inline constexpr const char* kCommitRecordName = ".metadata";

// Creates the object `name` with this content, durably.
void create_whole(Store& store, const ObjectName& name, const std::string& content);
// Creates the mark of a removal, as `retract` does. Does nothing if `mark` is "".
void create_mark(Store& store, const ObjectName& mark, const std::string& text);

// Throw kInvalidArgument, with the reason, if a name, prefix or save id breaks the rules that all
// stores share. For use in implementations of stores.
void check_object_name(const ObjectName& name);
void check_object_prefix(const ObjectName& prefix);
void check_attempt_id(const std::string& save_id);
// Throws kAlreadyExists if `overwrite` is kRefused and there is a record. For `begin_attempt`.
void check_overwrite(Store& store, const std::string& save_id, Overwrite overwrite);

// --- URL schemes ---------------------------------------------------------------------------------
//
// Texts are parsed by the first rule that matches:
//   1  "<scheme>://..."       a URL, even if the scheme is unknown
//   2  "<scheme>:..."         a URL if the scheme is known ("file:run"); otherwise a path, since
//                             file names may contain a colon
//   3  anything else          a path; a leading "./" makes any text a path
//
// A scheme is a letter followed by one or more letters, digits, '+', '-' or '.'; case does not
// matter. A single letter followed by ":/" or ":\" looks like a Windows drive and throws
// kInvalidArgument. "file:" URLs accept no host except "localhost", and their path is used
// literally, without percent-decoding.

// Opens the store rooted at `url`. A plain path is a "file:" URL.
using StoreFactory = std::function<std::shared_ptr<Store>(const std::string& url)>;

// Registers a scheme, such as "s3", for the whole process. Thread-safe. Throws kAlreadyExists if
// the scheme is known, kInvalidArgument if the name cannot be a scheme or the factory is empty.
void register_store(const std::string& scheme, StoreFactory factory);
// Opens the store at `url`: "file:///a/b", "/a/b", "a/b", "mem://name/path", or a URL of a
// registered scheme. Creates and accesses nothing. A relative path is resolved against the working
// directory of this call. Throws kInvalidArgument for an unknown scheme, listing the known ones.
std::shared_ptr<Store> open_store(const std::string& url);
// Returns the URL of the place that contains `url`: "/run/step_1" -> "/run". Keeps scheme and
// authority. The parent of a root ("/", "mem://name") is the root itself.
std::string parent_url(const std::string& url);
// Returns `url` with a name appended: ("/run", "step_1") -> "/run/step_1".
std::string child_url(const std::string& url, const std::string& name);
// Returns the directory that a plain path or a "file:" URL names; nothing for other URLs. Accesses
// nothing. Throws kInvalidArgument, as open_store does, for a text that is neither a path nor a
// URL.
std::optional<std::filesystem::path> local_path(const std::string& url);

}  // namespace cairn
