// A file that appears under its name only when it is complete. Until then it is written beside that
// name, as "<name>.cairn-partial". A process that is killed with SIGKILL leaves the partial file
// and a log of its progress, and the same conversion resumes there.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <nlohmann/json.hpp>

#include <cairn/base/bytes.hpp>
#include <cairn/tools/conversion_log.hpp>

namespace cairn::tools {

// Returns the name of the partial file of `path`.
std::string partial_path_of(const std::string& path);

enum class Existing { kRefused, kReplaced };

class PartialFile {
 public:
  // Throws kAlreadyExists if the path exists; with kReplaced, only if it is neither a regular file
  // nor a symbolic link. Throws what ConversionLog throws, and file system errors.
  PartialFile(std::string path, const Json& identity, Existing existing);
  // If the file is unfinished, removes it and its log, except after `keep_for_later` if `recorded`
  // is not null.
  ~PartialFile();
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  // Returns the last value passed to `record`, possibly by an earlier process; null if there is
  // none. Everything that was written before that call is in the file.
  const Json& recorded() const { return recorded_; }
  void write_at(std::uint64_t offset, ByteSpan bytes);
  // Syncs the bytes written so far, and logs `place`, the caller's position to resume at.
  void record(Json place);
  void keep_for_later() { keep_ = true; }
  bool is_kept() const { return keep_ && !recorded_.is_null(); }
  // Completes the file: truncates it to `length`, syncs it and renames it into place, so that it
  // survives power loss. With kRefused, throws kAlreadyExists if a file has appeared meanwhile.
  void finish(std::uint64_t length);

 private:
  void rename_into_place();

  const std::string path_;
  const std::string partial_path_;
  const Existing existing_;
  std::unique_ptr<ConversionLog> log_;
  int descriptor_ = -1;
  bool finished_ = false;
  bool keep_ = false;
  Json recorded_;
};

}  // namespace cairn::tools
