// The commit protocol of a file store. It decides which attempt may publish.
//
// begin      1  make .attempt-<id>                           fails if it exists
//            2  give up if .fenced-<id> exists
//            3  sync the root
//
// publish    1  create .attempt-<id>/commit
//            2  write the record into it
//            3  sync the file
//            4  sync .attempt-<id>
//            5  rename .attempt-<id>/commit to .metadata      <- the checkpoint exists from here on
//            6  sync the root
//            7  remove .attempt-<id>
//
// fence      1  rename .attempt-<id> to .fenced-<id>          or make .fenced-<id> if none is open
//            2  unlink .fenced-<id>/commit                    <- from here on it cannot publish
//            3  replace .fenced-<id> with a new directory
//            4  sync both directories
//
// Only one of publish 5 and fence can take effect, and only a crash can leave neither. Publish
// names its file by path, which the kernel resolves again in every step. A step that resolves the
// path after fence 1 finds no .attempt-<id> and fails. Publish 5 may resolve the directory before
// fence 1 and continue after it. But its rename and the unlink of fence 2 change the same
// directory, so one of them comes first. If the rename does, the record is published and the unlink
// finds nothing. If the unlink does, the rename finds nothing. A create (publish 1) overtaken in
// the same way leaves a file in .fenced-<id>, where publish 5 cannot find it.
//
// This is enough if every path is resolved again. A network file system may cache the handle of
// .attempt-<id> and use it for the lookup. Fence 3 therefore removes the old directory, which makes
// such a handle stale. If the file system cannot replace a directory, only fence 1 and 2 protect.
//
// Begin and fence may race for an attempt that was never begun. Each first makes its own directory
// and then looks for the other's, so at least one sees the other. The one that does ends the
// attempt.
#include <algorithm>
#include <cerrno>

#include <cairn/base/error.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/stores/file_store.hpp>

namespace cairn {
namespace {

constexpr const char* kRecordFile = "/commit";
// Suffix of the directory that will replace a fenced attempt. Save ids never contain this
// character.
constexpr const char* kFreshMark = "~";
// Limit on retries of a step that a zombie can disturb. Each disturbance takes one action of a
// zombie, and those are finite.
constexpr int kFenceTriesMax = 64;

// The path no longer exists, as after a fence. A network file system may report this as a stale
// handle.
bool means_gone(int result) { return result == -ENOENT || result == -ENOTDIR || result == -ESTALE; }

bool means_not_empty(int result) { return result == -ENOTEMPTY || result == -EEXIST; }

bool means_unknown_operation(int result) { return result == -EINVAL || result == -ENOSYS || result == -EOPNOTSUPP; }

Error fenced(const std::string& save_id, const std::string& root) {
  return Error(ErrorCode::kFenced,
               "cannot publish save " + save_id + " in " + root +
                   ": its attempt is not open; it was ended by another rank or job, its directory was removed, or it never " +
                   "began. Nothing was changed");
}

}  // namespace

// Throws if a link or a file has the place of a directory of this protocol: Cairn did not make it.
void FileStore::require_directory_of_ours(const std::string& path) {
  FileStatus found;
  if (files_.status(path, false, found) < 0 || found.kind == FileKind::kDirectory) return;
  throw Error(ErrorCode::kPermission, "cannot use " + path + ": it is a link or a file that Cairn did not make; remove it");
}

void FileStore::begin_attempt(const std::string& save_id, Overwrite overwrite) {
  check_attempt_id(save_id);
  check_overwrite(*this, save_id, overwrite);
  const std::string attempt = path_of(kOpenMark + save_id);
  // 1
  const int made = files_.make_directory(attempt);
  if (made == -EEXIST)
    throw Error(ErrorCode::kAlreadyExists, "cannot begin save " + save_id + " in " + root_ + ": an attempt of this id is open");
  if (made == -ENOENT)
    throw Error(ErrorCode::kNotFound, "cannot begin save " + save_id + ": " + root_ + " does not exist; make it with create_root");
  require(made, "make directory", attempt);
  // 2
  FileStatus found;
  const int looked = files_.status(path_of(kFencedMark + save_id), false, found);
  if (looked != -ENOENT) {
    files_.remove_directory(attempt);
    require(looked, "inspect", path_of(kFencedMark + save_id));
    throw Error(ErrorCode::kFenced, "cannot begin save " + save_id + " in " + root_ + ": another rank or job has ended it");
  }
  // 3
  if (const int synced = files_.sync_directory(root_); synced < 0) {
    files_.remove_directory(attempt);
    throw system_error("sync directory", root_, -synced);
  }
}

void FileStore::publish(const std::string& save_id, ByteSpan record, Overwrite overwrite) {
  check_attempt_id(save_id);
  const std::string attempt = path_of(kOpenMark + save_id);
  const std::string commit = attempt + kRecordFile;
  require_directory_of_ours(attempt);
  // 1, 2, 3, 4
  try {
    const auto writer = make_file_writer(files_, attempt, commit, {});
    writer->write_at(0, record);
    writer->sync(record.size());
  } catch (const Error& error) {
    FileStatus found;
    if (means_gone(files_.status(attempt, false, found))) throw fenced(save_id, root_);
    if (error.code() == ErrorCode::kAlreadyExists)
      throw Error(ErrorCode::kUnavailable, "cannot create " + commit +
                                               ": a record is there already, of a publication that is running or has " +
                                               "stopped half-way; fence the attempt and save again");
    throw;
  }
  try {
    // 5
    place_record(commit, overwrite, save_id);
  } catch (...) {
    // The attempt stays open, so that the caller can try again.
    files_.remove_file(commit);
    throw;
  }
  // 6
  if (const int synced = files_.sync_directory(root_); synced < 0)
    throw Error(ErrorCode::kUnavailable, std::string(system_error("sync directory", root_, -synced).what()) + "; save " + save_id +
                                             " was published, but may not survive a power loss");
  // 7: a failure here has no effect on the checkpoint; the next clean-up fences and clears the
  // rest.
  files_.remove_directory(attempt);
}

// Publish 5: the only step that makes the checkpoint exist.
void FileStore::place_record(const std::string& commit, Overwrite overwrite, const std::string& save_id) {
  const std::string metadata = path_of(kCommitRecordName);
  bool linked = false;
  int result = 0;
  if (overwrite == Overwrite::kAllowed) {
    result = files_.rename(commit, metadata);
  } else {
    result = files_.rename_exclusively(commit, metadata);
    if (means_unknown_operation(result)) {
      // link() creates the new name as atomically as a rename and also fails if the name is taken.
      // After a fence has unlinked the file, link() fails because its source is gone.
      result = files_.link(commit, metadata);
      linked = result >= 0;
      if (means_unknown_operation(result) || result == -EPERM)
        throw Error(ErrorCode::kUnsupported,
                    "cannot publish save " + save_id + " in " + root_ +
                        " without overwriting: its file system has neither exclusive rename nor hard links, so "
                        "it cannot be refused atomically; allow overwriting, or save to another file system");
    }
  }
  if (means_gone(result)) throw fenced(save_id, root_);
  if (result == -EEXIST)
    throw Error(ErrorCode::kAlreadyExists,
                "cannot publish save " + save_id + ": " + metadata + " is there already. Nothing was changed");
  require(result, "rename to .metadata", commit);
  if (linked) files_.remove_file(commit);  // harmless if this fails
}

void FileStore::fence(const std::string& save_id) {
  check_attempt_id(save_id);
  for (const char* mark : {kOpenMark, kFencedMark}) require_directory_of_ours(path_of(mark + save_id));
  // 1
  set_aside(save_id);
  // 2
  const std::string tombstone = path_of(kFencedMark + save_id);
  require(files_.remove_file(tombstone + kRecordFile), "remove", tombstone + kRecordFile, means_gone);
  // 3
  replace_by_fresh(save_id);
  // 4
  // Another process may have cleared this attempt already, so it was fenced before.
  require(files_.sync_directory(tombstone), "sync directory", tombstone, means_gone);
  require(files_.sync_directory(root_), "sync directory", root_);
}

// Fence 1.
void FileStore::set_aside(const std::string& save_id) {
  const std::string attempt = path_of(kOpenMark + save_id);
  const std::string tombstone = path_of(kFencedMark + save_id);
  bool marked = false;
  int result = 0;
  for (int tries = 0; tries < kFenceTriesMax; ++tries) {
    result = files_.rename(attempt, tombstone);
    if (result >= 0) return;
    if (means_not_empty(result)) {
      // A tombstone that is not empty is from a fence that stopped between 1 and 2.
      files_.remove_file(tombstone + kRecordFile);
    } else if (means_gone(result)) {
      if (marked) return;
      result = files_.make_directory(tombstone);
      if (result == -ENOENT) {
        create_root();  // a fence must succeed even if the store was never created
      } else if (result < 0 && result != -EEXIST) {
        throw system_error("make directory", tombstone, -result);
      } else {
        marked = true;  // retry the rename: the attempt may have begun in between
      }
    } else {
      throw system_error("rename to .fenced-" + save_id, attempt, -result);
    }
  }
  throw system_error("rename to .fenced-" + save_id, attempt, -result);
}

// Fence 3.
void FileStore::replace_by_fresh(const std::string& save_id) {
  const std::string tombstone = path_of(kFencedMark + save_id);
  const std::string fresh = tombstone + kFreshMark;
  require(files_.make_directory(fresh), "make directory", fresh, means_not_empty);
  int result = 0;
  for (int tries = 0; tries < kFenceTriesMax; ++tries) {
    result = files_.rename(fresh, tombstone);
    if (result >= 0 || means_gone(result)) return;  // gone: another fence of the same attempt has used it
    if (!means_not_empty(result)) break;
    files_.remove_file(tombstone + kRecordFile);  // left by a zombie's publish 1
  }
  files_.remove_directory(fresh);
}

std::vector<std::string> FileStore::open_attempts() { return attempts_named(kOpenMark); }

std::vector<std::string> FileStore::fenced_attempts() { return attempts_named(kFencedMark); }

bool FileStore::has_attempt(const std::string& save_id) {
  check_attempt_id(save_id);
  // In this order, as a fence may come between the two.
  for (const char* mark : {kOpenMark, kFencedMark}) {
    const std::string path = path_of(mark + save_id);
    FileStatus found;
    const int looked = files_.status(path, false, found);
    require(looked, "look for", path, means_gone);
    if (looked >= 0) return true;
  }
  return false;
}

std::vector<std::string> FileStore::attempts_named(const char* mark) {
  const std::string prefix = mark;
  std::vector<std::string> ids;
  for (const DirectoryEntry& entry : entries_of_root()) {
    if (entry.kind != FileKind::kDirectory || entry.name.compare(0, prefix.size(), prefix) != 0) continue;
    const std::string id = entry.name.substr(prefix.size());
    try {
      check_attempt_id(id);
    } catch (const Error&) {
      continue;  // not Cairn's, or the new directory of a fence
    }
    ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

void FileStore::clear_attempt(const std::string& save_id) {
  check_attempt_id(save_id);
  const std::string tombstone = path_of(kFencedMark + save_id);
  FileStatus found;
  if (files_.status(tombstone, false, found) == -ENOENT) {
    if (files_.status(path_of(kOpenMark + save_id), false, found) >= 0)
      throw Error(ErrorCode::kPrecondition,
                  "cannot clear save " + save_id + " in " + root_ + ": its attempt is open; fence it first");
    return;
  }
  require_directory_of_ours(tombstone);
  sync_removals();
  require(files_.remove_file(tombstone + kRecordFile), "remove", tombstone + kRecordFile, means_gone);
  files_.remove_directory(tombstone + kFreshMark);  // left by a fence that stopped half-way
  require(files_.remove_directory(tombstone), "remove directory", tombstone, means_gone);
}

}  // namespace cairn
