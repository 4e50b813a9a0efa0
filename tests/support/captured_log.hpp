// Captures the log lines written during this object's lifetime, in place of standard error.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include <cairn/base/log.hpp>

namespace cairn::testing {

class CapturedLog {
 public:
  explicit CapturedLog(LogLevel level = LogLevel::kWarning) : level_before_(log_level()) {
    set_log_level(level);
    set_log_sink([lines = lines_](const LogLine& line) {
      std::lock_guard lock(lines->mutex);
      lines->text += std::string(to_string(line.level)) + " rank " + std::to_string(line.rank) + ": ";
      lines->text.append(line.text).append("\n");
    });
  }
  ~CapturedLog() {
    set_log_sink(nullptr);
    set_log_level(level_before_);
  }
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;

  // Returns one line per entry: "warning rank 0: <text>".
  std::string text() const {
    std::lock_guard lock(lines_->mutex);
    return lines_->text;
  }

 private:
  struct Lines {
    std::mutex mutex;
    std::string text;
  };
  const LogLevel level_before_;
  const std::shared_ptr<Lines> lines_ = std::make_shared<Lines>();
};

// Returns how often `part` is in the text.
inline std::size_t times_in(const std::string& text, const std::string& part) {
  std::size_t times = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++times;
  return times;
}

}  // namespace cairn::testing
