// A store in a directory: objects are files, and names are paths below the directory.
//
//   <root>/<name>                  an object
//   <root>/.metadata               the commit record
//   <root>/.attempt-<save id>/     an open attempt; contains `commit` while the record is written
//   <root>/.fenced-<save id>/      a fenced attempt, empty
//
// Reading follows links to files; `list` does not follow links to directories. Below the root
// nothing is removed, renamed or created through a link: such calls throw kPermission. The root
// itself may be a link (see `leads_elsewhere`); saves then go to its target. Before a mark that
// says which files are dead (a fenced attempt, a removal's mark) is removed, removals at the root
// are synced. An object "a" and an object "a/b" cannot both exist, as for files and directories.
//
// Requirements on the file system: `rename` and `unlink` are atomic and take effect exactly once,
// for all machines that share the directory. Names survive power loss once their directory is
// synced. Local Linux file systems and POSIX-compliant parallel ones meet these requirements.
// `publish` with Overwrite::kRefused also needs exclusive rename or hard links; it throws
// kUnsupported if the file system has neither.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <cairn/storage/store.hpp>
#include <cairn/storage/stores/file_system.hpp>

namespace cairn {

class FileStore : public Store {
 public:
  // `path` is absolute, or relative to the working directory of this call. `files` is borrowed and
  // must outlive the store.
  explicit FileStore(const std::string& path, FileSystem& files = system_files());

  std::string url() const override { return root_; }
  bool is_shared() const override { return true; }
  StoreTraits traits() const override;
  void create_root() override;

  std::unique_ptr<ObjectWriter> create(const ObjectName& name, const CreateOptions& options = {}) override;
  std::uint64_t link(const std::string& source, const ObjectName& name, bool is_durable = true) override;
  void read(const ObjectName& name, const std::vector<ReadRange>& ranges) override;
  std::uint64_t size_bytes(const ObjectName& name) override;
  bool exists(const ObjectName& name) override;
  bool is_taken(const ObjectName& name) override;
  std::vector<ObjectInfo> list(const ObjectName& prefix = "") override;
  std::vector<ObjectName> children() override;
  void remove(const ObjectName& name) override;

  void begin_attempt(const std::string& save_id, Overwrite overwrite = Overwrite::kAllowed) override;
  void publish(const std::string& save_id, ByteSpan record, Overwrite overwrite) override;
  void fence(const std::string& save_id) override;
  std::vector<std::string> open_attempts() override;
  std::vector<std::string> fenced_attempts() override;
  bool has_attempt(const std::string& save_id) override;
  void clear_attempt(const std::string& save_id) override;

  void retract(const ObjectName& mark = "", const std::string& text = "") override;
  bool leads_elsewhere() override;
  void remove_root() override;

 private:
  std::string path_of(const ObjectName& name) const;
  void make_parents(const ObjectName& name);
  void refuse_links_above(const ObjectName& name);
  void require_directory_of_ours(const std::string& path);
  // Returns nothing if there is no such entry, or if a parent in the path is a file.
  std::optional<FileStatus> status_at(const std::string& path, bool follow, const char* action);
  bool is_directory(const std::string& path);
  std::vector<DirectoryEntry> entries_of_root();  // none if there is no root
  void sync_names_up_from(std::string directory);
  void remember_durable(const std::string& directory);
  void place_record(const std::string& commit, Overwrite overwrite, const std::string& save_id);
  void set_aside(const std::string& save_id);
  void replace_by_fresh(const std::string& save_id);
  std::vector<std::string> attempts_named(const char* mark);
  void sync_removals();

  std::string root_;  // absolute, without a trailing '/' unless it is "/"
  FileSystem& files_;
};

// Creates the file at `path`, below the store's `root`. Throws kAlreadyExists and kNoSpace. Throws
// kNotFound if its directory does not exist.
std::unique_ptr<ObjectWriter> make_file_writer(FileSystem& files, const std::string& root, const std::string& path,
                                               const CreateOptions& options);

// Syncs the directories from that of the file at `path` up to the store's `root`.
void sync_directories_up(FileSystem& files, const std::string& root, const std::string& path);

// Creates the store for a "file:" URL or a plain path.
std::shared_ptr<Store> open_file_store(const std::string& url);

}  // namespace cairn
