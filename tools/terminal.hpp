// Terminal output: colours, columns, a progress bar. Files and pipes get plain text.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <cairn/base/mutex.hpp>

namespace cairn::tools {

// Returns the columns that a text takes on a terminal: its characters, without colour codes.
std::size_t display_width(const std::string& text);

// Returns the text in colour if standard output is a terminal with colours and NO_COLOR
// (https://no-color.org) is not set; otherwise unchanged.
enum class Colour { kGood = 32, kBad = 31, kWarning = 33, kDim = 2, kBold = 1 };  // SGR codes
std::string coloured(Colour colour, const std::string& text);
// Returns whether standard output is a terminal.
bool is_output_terminal();
// Returns the width of the terminal at standard output; 100 if it is not a terminal.
int output_columns();
// Prints a line. If standard output is a terminal, breaks the line between words to fit the width,
// and indents the lines that follow.
void print_line(const std::string& text, std::size_t indent);

// Asks whether to remove what was listed. Returns the answer; if it is no, says that nothing was
// removed. Throws WrongUse, which names the option --yes, if standard input is no terminal.
bool agrees_to_remove();

// A table whose columns are as wide as their widest cell, up to 80 characters. A wider cell pushes
// the rest of its own row to the right. The last column is not padded. Rows are printed by
// `print_line`.
class Table {
 public:
  explicit Table(std::vector<std::string> heading) { add(std::move(heading)); }
  Table() = default;
  void add(std::vector<std::string> row);
  void print() const;

 private:
  std::vector<std::vector<std::string>> rows_;
  std::vector<std::size_t> widths_;
};

// Shows a bar, percentage, rate and time left in the last line of the terminal at standard error,
// once two seconds have passed. Shows nothing without a terminal. The destructor erases the bar.
// Thread-safe.
class ProgressBar {
 public:
  explicit ProgressBar(std::string doing);
  ~ProgressBar();
  // Sets the bytes done and in total. `done` values may arrive in any order: the largest counts.
  void update(std::uint64_t done, std::uint64_t all);
  std::uint64_t done() const;

 private:
  void draw(std::uint64_t all) CAIRN_REQUIRES(mutex_);

  const std::string doing_;
  const bool on_terminal_;
  const std::chrono::steady_clock::time_point start_;
  mutable Mutex mutex_;
  std::chrono::steady_clock::time_point drawn_ CAIRN_GUARDED_BY(mutex_);
  std::uint64_t done_ CAIRN_GUARDED_BY(mutex_) = 0;
  bool shown_ CAIRN_GUARDED_BY(mutex_) = false;
};

}  // namespace cairn::tools
