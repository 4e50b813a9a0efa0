// What a conversion that was interrupted has done so far, so that the same command goes on there. A file beside what is being written, a
// line of JSON for each thing done, each synced; locked for as long as one process converts there.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace cairn::tools {

class ConversionLog {
 public:
  // Opens or makes the log at `path`. `identity`: equal if and only if source and options are. Of a log of another conversion only
  // `stale` is left. Throws kPrecondition if another process converts there now; what the file system says.
  ConversionLog(std::string path, const nlohmann::ordered_json& identity);
  ~ConversionLog();  // leaves it
  ConversionLog(const ConversionLog&) = delete;
  ConversionLog& operator=(const ConversionLog&) = delete;

  // Of the same conversion, in order; a line that was cut off while it was written is none.
  const std::vector<nlohmann::ordered_json>& entries() const { return entries_; }
  // Entries of another conversion that was here, which the caller removes the remains of.
  const std::vector<nlohmann::ordered_json>& stale() const { return stale_; }
  // Survives power loss once it returns.
  void add(nlohmann::ordered_json entry);
  void remove() noexcept;

 private:
  void append(const std::string& text);

  const std::string path_;
  int file_ = -1;
  std::vector<nlohmann::ordered_json> entries_;
  std::vector<nlohmann::ordered_json> stale_;
};

}  // namespace cairn::tools
