// Records the progress of a conversion, so that the same command resumes an interrupted one. The
// log is a file beside the output, with one synced line of JSON per finished step. A process holds
// a lock on the file while it converts.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <cairn/tools/commands.hpp>

namespace cairn::tools {

class ConversionLog {
 public:
  // Opens or creates the log at `path`. Two conversions must have equal `identity` if and only if
  // one can resume the other. If the log belongs to a conversion with another identity, its entries
  // become `stale`. Throws kPrecondition if another process has locked it, and file system errors.
  ConversionLog(std::string path, const Json& identity);
  ~ConversionLog();  // keeps the file
  ConversionLog(const ConversionLog&) = delete;
  ConversionLog& operator=(const ConversionLog&) = delete;

  // Returns the entries of the same conversion, in order, without an incomplete last line.
  const std::vector<Json>& entries() const { return entries_; }
  // Returns the entries of an earlier, different conversion. The caller must remove what that
  // conversion left behind.
  const std::vector<Json>& stale() const { return stale_; }
  // Adds an entry. The entry survives power loss once this returns.
  void add(Json entry);
  void remove() noexcept;

 private:
  void append(const std::string& text);

  const std::string path_;
  int file_ = -1;
  std::vector<Json> entries_;
  std::vector<Json> stale_;
};

}  // namespace cairn::tools
