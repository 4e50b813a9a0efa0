// A file that appears under its name only when it is complete. Until then it is written beside that
// name, as "<name>.cairn-partial". A process that is killed with SIGKILL leaves the partial file,
// which the next one empties.
#pragma once

#include <cstdint>
#include <string>

#include <cairn/base/bytes.hpp>

namespace cairn::tools {

enum class Existing { kRefused, kReplaced };

class PartialFile {
 public:
  // Locks the partial file until it is finished or removed. Throws kAlreadyExists if the path
  // exists; with kReplaced, only if it is neither a regular file nor a symbolic link. Throws
  // kPrecondition if another process has locked the partial file, and file system errors.
  PartialFile(std::string path, Existing existing);
  ~PartialFile();  // removes the partial file if it is unfinished
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  // Returns whether an earlier process left bytes in the partial file, which are gone now.
  bool starts_over() const { return starts_over_; }
  void write_at(std::uint64_t offset, ByteSpan bytes);
  // Completes the file: truncates it to `length`, syncs it and renames it into place, so that it
  // survives power loss. With kRefused, throws kAlreadyExists if a file has appeared meanwhile.
  void finish(std::uint64_t length);

 private:
  void open();
  void rename_into_place();

  const std::string path_;
  const std::string partial_path_;
  const Existing existing_;
  int descriptor_ = -1;
  bool starts_over_ = false;
  bool finished_ = false;
};

}  // namespace cairn::tools
