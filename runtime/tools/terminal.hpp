// What people see: colours, columns, a bar that fills. All of it is for terminals: into a file or a pipe goes plain text.
#pragma once

#include <chrono>
#include <cstdint>
#include <iosfwd>
#include <mutex>
#include <string>
#include <vector>

namespace cairn::tools {

// Columns that a text takes on a terminal, colours not counted: its characters.
std::size_t display_width(const std::string& text);

// Text in colour where standard output is a terminal that has colours and NO_COLOR (https://no-color.org) is not set; else as it is.
enum class Colour { kGood, kBad, kWarning, kDim, kBold };
std::string coloured(Colour colour, const std::string& text);
// Whether standard output, or error, is a terminal.
bool is_output_terminal();
// Columns of the terminal at standard output; 100 where it is none.
int output_columns();

// Rows of text in columns that are as wide as their widest cell; the last one is not padded.
class Table {
 public:
  explicit Table(std::vector<std::string> heading) { add(std::move(heading)); }
  Table() = default;
  void add(std::vector<std::string> row);
  void print(std::ostream& out, const std::string& indent = "  ") const;

 private:
  std::vector<std::vector<std::string>> rows_;
  std::vector<std::size_t> widths_;
};

// "verifying: 42 % of 3.1 GiB" at the bottom of the terminal of standard error, from the second second on; nothing where that is no
// terminal. Thread-safe. Gone when destroyed.
class ProgressBar {
 public:
  explicit ProgressBar(std::string doing);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  // Bytes done, and in all. The first may be called in any order: the largest counts.
  void update(std::uint64_t done, std::uint64_t all);
  std::uint64_t done() const;

 private:
  void draw(std::uint64_t all);

  const std::string doing_;
  const bool on_terminal_;
  const std::chrono::steady_clock::time_point start_;
  mutable std::mutex mutex_;
  std::chrono::steady_clock::time_point drawn_;
  std::uint64_t done_ = 0;
  bool shown_ = false;
};

}  // namespace cairn::tools
