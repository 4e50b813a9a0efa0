// Where named byte objects live: one seam for a directory, memory, an object store.
//
// A Store is rooted at one place (a checkpoint, or a run that holds checkpoints). Object names are relative, with '/' between
// parts; no part is empty, "." or "..". Objects are immutable once their writer has synced them; only `publish` and `fence` change
// what a name means. Every method is thread-safe and may block; actors never call one on their own thread. Errors are cairn::Error
// with the codes named below and a text that says what was being done to which object.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <cairn/base/bytes.hpp>

namespace cairn {

using ObjectName = std::string;

struct ObjectInfo {
  ObjectName name;
  std::uint64_t size_bytes = 0;
};

struct ReadRange {
  std::uint64_t offset = 0;  // bytes
  MutableByteSpan destination;
};

// How a new object is to be written.
struct CreateOptions {
  std::uint64_t expected_bytes = 0;  // reserved up front where the store can, so that a full disk is known early; 0: unknown
  bool direct = false;               // bypass the page cache where the store can: then writes must be aligned (see alignment_bytes)
};

// An object being written. Nobody sees a promise about it before `sync` returned. Destroying it without `sync` discards it.
class ObjectWriter {
 public:
  virtual ~ObjectWriter() = default;
  // Thread-safe for ranges that do not overlap; bytes never written read as zero. kNoSpace, kUnavailable.
  virtual void write_at(std::uint64_t offset, ByteSpan bytes) = 0;
  // Offset, size and memory address must be multiples of this; 1 unless opened `direct` and the store agreed.
  virtual std::size_t alignment_bytes() const { return 1; }
  // Cuts or extends the object to `length`, then makes it survive power loss, its name included. No writes after it.
  virtual void sync(std::uint64_t length) = 0;
  // As `sync` without surviving power loss (DCP's sync_files=False).
  virtual void close(std::uint64_t length) = 0;
  // Removes what was written. Idempotent, never throws.
  virtual void discard() noexcept = 0;
};

// What `publish` expects to find.
enum class Overwrite : std::uint8_t { kAllowed = 1, kRefused };

class Store {
 public:
  virtual ~Store() = default;

  virtual std::string url() const = 0;  // for error texts: where this store is rooted
  virtual bool is_shared() const = 0;   // whether other processes see it; `mem:` is one process's

  // Makes the root exist (a directory and its parents, durably). No-op where there is nothing to make.
  virtual void create_root() = 0;

  // A new object; kAlreadyExists if the name is taken. Makes the parents of the name, but not the root: kNotFound without one,
  // where a root has to be made. kNoSpace if `expected_bytes` cannot be had: then nothing was created.
  virtual std::unique_ptr<ObjectWriter> create(const ObjectName& name, const CreateOptions& options = {}) = 0;

  // Fills every range exactly. kNotFound; kCorrupt if the object ends before a range does. Ranges may be in any order.
  virtual void read(const ObjectName& name, const std::vector<ReadRange>& ranges) = 0;
  // kNotFound.
  virtual std::uint64_t size_bytes(const ObjectName& name) = 0;
  virtual bool exists(const ObjectName& name) = 0;
  // Whether anything has this name: an object, or what keeps one from being made there (a directory, a pipe, a link that leads nowhere).
  // The default asks `exists`: enough where there are but objects.
  virtual bool is_taken(const ObjectName& name);
  // Objects whose name begins with `prefix`, sorted, at any depth. An absent root lists nothing.
  virtual std::vector<ObjectInfo> list(const ObjectName& prefix = "") = 0;
  // First parts of the names that have more than one: the places one level below, sorted ("step_100" for "step_100/.metadata"). May
  // name places that hold no object. The default asks `list`; stores that can do it without visiting every object should.
  virtual std::vector<ObjectName> children();
  // Idempotent: removing what is not there is fine. kPermission, kUnavailable.
  virtual void remove(const ObjectName& name) = 0;

  // --- the commit protocol: storage/publication.hpp says how its steps combine ---

  // Opens attempt `save_id`, exclusively: kAlreadyExists if it is open, kFenced if it was fenced. Durable once it returns. A save
  // id is 1 to 200 of the characters A-Z a-z 0-9 . _ - and never used twice; kInvalidArgument for another text, here and below.
  virtual void begin_attempt(const std::string& save_id) = 0;
  // Makes `record` the content of ".metadata", atomically and durably, and closes the attempt. Readers see the old or the new one.
  // kFenced if the attempt is not open any more (fenced, or never begun): then nothing changed. With Overwrite::kRefused and a
  // record there: kAlreadyExists, nothing changed. kUnavailable: it may or may not have happened: read ".metadata" to know.
  virtual void publish(const std::string& save_id, ByteSpan record, Overwrite overwrite) = 0;
  // Ends another's attempt: once it returns, `publish` of `save_id` can never succeed any more (it may have before: read
  // ".metadata"). Idempotent; an attempt that never was, or was published, is fenced alike.
  virtual void fence(const std::string& save_id) = 0;
  // Attempts that were begun and neither published nor cleared, and those fenced, by save id.
  virtual std::vector<std::string> open_attempts() = 0;
  virtual std::vector<std::string> fenced_attempts() = 0;
  // Forgets a fenced attempt: what the store keeps of it is removed. Never called for one that was not fenced.
  virtual void clear_attempt(const std::string& save_id) = 0;

  // --- taking a checkpoint away: storage/run_directory.hpp says how its steps combine ---

  // Removes ".metadata", durably: once it returns the checkpoint does not exist, whatever becomes of its other objects. Idempotent.
  // kPermission, also for a root that only leads to a place elsewhere, as a link does; kUnavailable. The default calls `remove`: enough
  // where that is durable.
  virtual void retract();
  // Returns whether the root only leads to another place, as a symbolic link does. Clean-up changes nothing there: it may belong
  // to somebody else. A store that wraps another one forwards this call. The default returns false.
  virtual bool leads_elsewhere();
  // Removes the root itself if nothing is left in it; otherwise, and where there is nothing to remove, it does nothing. kPermission,
  // kUnavailable. The default does nothing: for stores whose places are but names.
  virtual void remove_root();
};

inline constexpr const char* kCommitRecordName = ".metadata";

// For those who implement a store: throw kInvalidArgument, saying why, for a name, prefix or save id that no store may accept.
void check_object_name(const ObjectName& name);
void check_object_prefix(const ObjectName& prefix);
void check_attempt_id(const std::string& save_id);

// --- URL schemes -----------------------------------------------------------------------------------------------------------
//
// How a text is read, in this order:
//   1  "<scheme>://..."       a URL, whether or not the scheme is known
//
//   2  "<scheme>:..."         a URL if the scheme is known ("file:run"), else a path: a colon is an ordinary letter of file names
//
//   3  anything else          a path; "./" in front makes a path of everything
//
// A scheme is a letter and one or more letters, digits, '+', '-' or '.'; case does not matter. A single letter followed by ":/" or
// ":\" is a drive of another system: kInvalidArgument. "file:" URLs name no host but "localhost", and their path is taken as it
// stands, without percent-decoding.

// Opens the store rooted at `url`. A plain path is a "file:" URL.
using StoreFactory = std::function<std::shared_ptr<Store>(const std::string& url)>;

// Adds a scheme, e.g. "s3", for all of this process. Thread-safe. kAlreadyExists if the scheme is known; kInvalidArgument for a
// name that is not one.
void register_store(const std::string& scheme, StoreFactory factory);
// "file:///a/b", "/a/b", "a/b", "mem://name/path", or a registered scheme. kInvalidArgument for an unknown scheme, listing those
// known. Opening makes nothing and touches nothing; a relative path is relative to the working directory of this call.
std::shared_ptr<Store> open_store(const std::string& url);
// The URL of the place that holds `url`: "/run/step_1" -> "/run". Keeps scheme and authority. A root ("/", "mem://name") is its
// own.
std::string parent_url(const std::string& url);
// `url` with a name appended: ("/run", "step_1") -> "/run/step_1".
std::string child_url(const std::string& url, const std::string& name);

}  // namespace cairn
