// Objects of a file store. The commit protocol is in file_attempts.cpp.
#include <cairn/storage/stores/file_store.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <limits>

#include <unistd.h>

#include <cairn/base/error.hpp>
#include <cairn/storage/presence.hpp>
#include <cairn/storage/stores/url.hpp>

namespace cairn {
namespace {

std::string absolute_root(const std::string& path) {
  std::string root = path;
  if (root.empty() || root.front() != '/') {
    const std::unique_ptr<char, decltype(&std::free)> here(::getcwd(nullptr, 0), &std::free);
    if (!here) throw system_error("find the working directory, below which lies", path, errno);
    root = here.get() + ("/" + root);
  }
  // One place has one name: texts and comparisons depend on it.
  while (root.size() > 1 && root.back() == '/') root.pop_back();
  return root;
}

std::string parent_directory(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == 0 ? "/" : path.substr(0, slash);
}

// Closes an open file at the end of the scope. For files that are only read, so close errors do not
// matter.
class OpenFile {
 public:
  OpenFile(FileSystem& files, int file) : files_(files), file_(file) {}
  ~OpenFile() { files_.close(file_); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

 private:
  FileSystem& files_;
  int file_;
};

// If a parent in the path is a file, no object has this name, as if the path did not exist.
bool means_absent(int result) { return result == -ENOENT || result == -ENOTDIR; }

Error not_an_object(const std::string& path) {
  return Error(ErrorCode::kNotFound, "cannot use " + path + " as an object: it is no regular file");
}

}  // namespace

FileStore::FileStore(const std::string& path, FileSystem& files) : root_(absolute_root(path)), files_(files) {}

std::string FileStore::path_of(const ObjectName& name) const { return root_.back() == '/' ? root_ + name : root_ + "/" + name; }

std::optional<FileStatus> FileStore::status_at(const std::string& path, bool follow, const char* action) {
  FileStatus found;
  const int result = files_.status(path, follow, found);
  require(result, action, path, means_absent);
  return result < 0 ? std::nullopt : std::optional(found);
}

bool FileStore::is_directory(const std::string& path) {
  const auto found = status_at(path, true, "inspect");
  return found && found->kind == FileKind::kDirectory;
}

StoreTraits FileStore::traits() const {
  StoreTraits traits;
  traits.writes = files_.writes(root_);
  traits.has_links = true;
  return traits;
}

void FileStore::create_root() {
  std::vector<std::string> missing;
  std::string existing = root_;
  for (; !is_directory(existing); existing = parent_directory(existing)) {
    missing.push_back(existing);
    if (existing == "/") break;
  }
  // Before the new directories: a synced entry is lost if the directory above it is not on disk.
  sync_names_up_from(existing);
  remember_durable(existing);
  for (auto path = missing.rbegin(); path != missing.rend(); ++path) {
    const int result = files_.make_directory(*path);
    // Another rank may create the same directory at the same time.
    if (result < 0 && !(result == -EEXIST && is_directory(*path))) throw system_error("make directory", *path, -result);
    require(files_.sync_directory(parent_directory(*path)), "sync directory", parent_directory(*path));
    remember_durable(*path);
  }
}

void FileStore::remember_durable(const std::string& directory) {
  FileStatus status;
  if (files_.status(directory, true, status) >= 0) files_.durable.add(directory, status);
}

// Syncs the parents of an existing directory, up to the root of the file system. They may be new
// and not synced: a rank that has failed since, or a user, may have created them a moment ago.
// Permission errors are ignored, because the creator may have had more permissions than this
// process. Directories that this process has synced before are not synced again.
void FileStore::sync_names_up_from(std::string directory) {
  while (directory != "/") {
    const std::string parent = parent_directory(directory);
    FileStatus here, above;
    if (files_.status(directory, true, here) >= 0) {
      if (files_.durable.has(directory, here)) return;
      // A mount point: its name is not an entry of the parent's file system.
      if (files_.status(parent, true, above) >= 0 && here.device != above.device) return;
    }
    const int synced = files_.sync_directory(parent);
    if (synced < 0 && synced != -EACCES && synced != -EPERM && synced != -EROFS)
      throw system_error("sync directory", parent + ", above " + root_, -synced);
    directory = parent;
  }
}

// Not durable: the writer's `sync` syncs the directories up to the root.
void FileStore::make_parents(const ObjectName& name) {
  refuse_links_above(name);
  for (std::size_t slash = name.find('/'); slash != std::string::npos; slash = name.find('/', slash + 1)) {
    const std::string directory = path_of(name.substr(0, slash));
    const int result = files_.make_directory(directory);
    if (result == -EEXIST) continue;  // if it is a file, creating the object will report that
    if (result == -ENOENT) return;    // the root does not exist; creating the object will report that
    require(result, "make directory", directory);
  }
}

std::unique_ptr<ObjectWriter> FileStore::create(const ObjectName& name, const CreateOptions& options) {
  check_object_name(name);
  make_parents(name);
  try {
    return make_file_writer(files_, root_, path_of(name), options);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kNotFound && !is_directory(root_))
      throw Error(ErrorCode::kNotFound, std::string(error.what()) + " (the store's root does not exist: make it with create_root)");
    throw;
  }
}

std::uint64_t FileStore::link(const std::string& source, const ObjectName& name, bool is_durable) {
  check_object_name(name);
  const std::string path = path_of(name);
  const auto from = local_path(source);
  if (!from) return Store::link(source, name, is_durable);
  make_parents(name);
  const int linked = files_.link(*from, path);
  if (linked == -EPERM || linked == -EXDEV || linked == -EOPNOTSUPP || linked == -ENOSYS)
    throw Error(ErrorCode::kUnsupported, std::string(system_error("link to " + source + " as", path, -linked).what()));
  require(linked, "link to " + source + " as", path);
  try {
    const auto found = status_at(path, false, "inspect");
    // A symbolic link has just got a second name, or the new name is gone.
    if (!found || found->kind != FileKind::kRegular) throw not_an_object(source);
    if (is_durable) sync_directories_up(files_, root_, path);
    return found->size_bytes;
  } catch (...) {
    files_.remove_file(path);
    throw;
  }
}

void FileStore::read(const ObjectName& name, const std::vector<ReadRange>& ranges) {
  check_object_name(name);
  const std::string path = path_of(name);
  const int file = files_.open_for_reading(path);
  if (means_absent(file)) throw Error(ErrorCode::kNotFound, std::string(system_error("read", path, ENOENT).what()));
  require(file, "open for reading", path);
  OpenFile closer(files_, file);
  FileStatus found;
  require(files_.status_of(file, found), "inspect", path);
  if (found.kind != FileKind::kRegular) throw not_an_object(path);
  for (const ReadRange& range : ranges) {
    std::size_t done = 0;
    // A read may return less than was asked for, such as at 2 GiB or from a network file system.
    while (done < range.destination.size()) {
      const std::size_t left = range.destination.size() - done;
      const ssize_t result = files_.read_at(file, range.destination.data() + done, left, range.offset + done);
      // An offset beyond the largest possible file is also past the end of this object.
      if (result == 0 || (result == -EINVAL && range.offset + done > static_cast<std::uint64_t>(std::numeric_limits<off_t>::max())))
        throw Error(ErrorCode::kCorrupt, "cannot read " + std::to_string(range.destination.size()) + " bytes at " +
                                             std::to_string(range.offset) + " of " + path + ": it ends at " +
                                             std::to_string(found.size_bytes) +
                                             "; it was cut short, or is not the object it should be");
      if (result < 0)
        throw system_error("read " + std::to_string(left) + " bytes at " + std::to_string(range.offset + done) + " of", path,
                           static_cast<int>(-result));
      done += static_cast<std::size_t>(result);
    }
  }
}

std::uint64_t FileStore::size_bytes(const ObjectName& name) {
  check_object_name(name);
  const std::string path = path_of(name);
  const auto found = status_at(path, true, "find the size of");
  if (!found) throw Error(ErrorCode::kNotFound, std::string(system_error("find the size of", path, ENOENT).what()));
  if (found->kind != FileKind::kRegular) throw not_an_object(path);
  return found->size_bytes;
}

bool FileStore::exists(const ObjectName& name) {
  check_object_name(name);
  const auto found = status_at(path_of(name), true, "look for");
  return found && found->kind == FileKind::kRegular;
}

bool FileStore::is_taken(const ObjectName& name) {
  check_object_name(name);
  return status_at(path_of(name), false, "look for").has_value();
}

std::vector<ObjectInfo> FileStore::list(const ObjectName& prefix) {
  check_object_prefix(prefix);
  std::vector<ObjectInfo> objects;
  // Directory names end with '/' and are relative to the root. Starts with the deepest directory
  // that all matches share.
  std::vector<std::string> directories{prefix.substr(0, prefix.rfind('/') + 1)};
  while (!directories.empty()) {
    const std::string directory = std::move(directories.back());
    directories.pop_back();
    const std::string path = directory.empty() ? root_ : path_of(directory.substr(0, directory.size() - 1));
    std::vector<DirectoryEntry> entries;
    const int result = files_.list_directory(path, entries);
    // Absent, or removed during the listing. A root that is a file is the caller's error.
    if (result == -ENOENT || (result == -ENOTDIR && !directory.empty())) continue;
    require(result, "list directory", path);
    for (const DirectoryEntry& entry : entries) {
      const std::string name = directory + entry.name;
      if (name.compare(0, prefix.size(), prefix) != 0) continue;
      if (entry.kind == FileKind::kDirectory) directories.push_back(name + "/");
      if (entry.kind != FileKind::kRegular && entry.kind != FileKind::kLink) continue;
      FileStatus found;
      const int status = files_.status(path_of(name), true, found);
      if (means_absent(status) || status == -ELOOP) continue;  // removed meanwhile, or a dangling link
      require(status, "inspect", path_of(name));
      if (found.kind == FileKind::kRegular) objects.push_back({name, found.size_bytes});
    }
  }
  std::sort(objects.begin(), objects.end(), [](const ObjectInfo& a, const ObjectInfo& b) { return a.name < b.name; });
  return objects;
}

std::vector<DirectoryEntry> FileStore::entries_of_root() {
  std::vector<DirectoryEntry> entries;
  require(files_.list_directory(root_, entries), "list directory", root_, [](int result) { return result == -ENOENT; });
  return entries;
}

std::vector<ObjectName> FileStore::children() {
  std::vector<ObjectName> names;
  for (const DirectoryEntry& entry : entries_of_root()) {
    bool is_place = entry.kind == FileKind::kDirectory;
    if (entry.kind == FileKind::kLink) {
      // A checkpoint may be a link to its real place and is then a child like any other. A dangling
      // link is not.
      FileStatus found;
      is_place = files_.status(path_of(entry.name), true, found) >= 0 && found.kind == FileKind::kDirectory;
    }
    if (is_place) names.push_back(entry.name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Throws if a directory in `name` is a link, because the object is then in another place.
void FileStore::refuse_links_above(const ObjectName& name) {
  for (std::size_t slash = name.find('/'); slash != std::string::npos; slash = name.find('/', slash + 1)) {
    const std::string directory = path_of(name.substr(0, slash));
    FileStatus found;
    if (files_.status(directory, false, found) < 0) return;  // the caller's own operation reports this
    if (found.kind == FileKind::kLink)
      throw Error(ErrorCode::kPermission, "cannot change " + path_of(name) + ": " + directory + " is a symbolic link");
  }
}

void FileStore::remove(const ObjectName& name) {
  check_object_name(name);
  refuse_links_above(name);
  if (save_id_of_mark(name)) sync_removals();
  require(files_.remove_file(path_of(name)), "remove", path_of(name), means_absent);
}

// Called before a mark that says which files are dead is removed: a power loss must not bring the
// files back without the mark.
void FileStore::sync_removals() { require(files_.sync_directory(root_), "sync directory", root_, means_absent); }

bool FileStore::leads_elsewhere() {
  const auto found = status_at(root_, false, "inspect");
  return found && found->kind == FileKind::kLink;
}

void FileStore::retract(const ObjectName& mark, const std::string& text) {
  if (leads_elsewhere())
    throw Error(ErrorCode::kPermission,
                "cannot remove the checkpoint at " + root_ +
                    ": that is a link, and what it leads to may belong to another run; remove the link itself");
  Store::retract(mark, text);
  // Done before anything else is removed, so that no power loss brings the record back without its
  // data.
  sync_removals();
}

void FileStore::remove_root() {
  const auto stays = [](int result) { return result == -ENOTEMPTY || result == -EEXIST || means_absent(result); };
  require(files_.remove_directory(root_), "remove directory", root_, stays);  // ENOTDIR: the root is a link
}

std::shared_ptr<Store> open_file_store(const std::string& url) {
  const StoreUrl parts = split_url(url);
  if (!parts.authority.empty() && parts.authority != "localhost")
    throw Error(ErrorCode::kInvalidArgument, "cannot open store \"" + url + "\": it names host \"" + parts.authority +
                                                 "\"; the path of a file: URL begins with a third '/', as in file:///" +
                                                 parts.authority + parts.path);
  if (parts.path.empty()) throw Error(ErrorCode::kInvalidArgument, "cannot open store \"" + url + "\": it has no path");
  return std::make_shared<FileStore>(parts.path);
}

}  // namespace cairn
