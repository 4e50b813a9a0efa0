// Records the progress of a conversion, so that the same command resumes an interrupted one. A file
// beside the output, with one line of JSON per finished step. Each line is synced. A process that
// converts there holds a lock on the file.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <cairn/tools/commands.hpp>

namespace cairn::tools {

class ConversionLog {
 public:
  // Opens or creates the log at `path`. `identity` is equal if and only if source and options are.
  // If the log is of another conversion, its entries become `stale`. Throws kPrecondition if
  // another process is converting there, and file system errors.
  ConversionLog(std::string path, const Json& identity);
  ~ConversionLog();  // keeps the file
  ConversionLog(const ConversionLog&) = delete;
  ConversionLog& operator=(const ConversionLog&) = delete;

  // Returns the entries of the same conversion, in order, without a line that was cut off.
  const std::vector<Json>& entries() const { return entries_; }
  // Returns the entries of an earlier, different conversion. The caller removes what that left
  // behind.
  const std::vector<Json>& stale() const { return stale_; }
  // Adds an entry. It survives power loss once this returns.
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
