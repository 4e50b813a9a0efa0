#include <cairn/tools/terminal.hpp>

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <cairn/base/settings.hpp>
#include <cairn/base/status_line.hpp>
#include <cairn/base/utf8.hpp>
#include <cairn/tools/commands.hpp>

namespace cairn::tools {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kSilentFor{2000};
constexpr std::chrono::milliseconds kRedraw{100};
constexpr int kBarColumns = 30;
constexpr std::size_t kColumnWidthMax = 80;  // names of data files have about 65

bool has_colours() {
  static const bool has = [] {
    const std::string terminal = environment_value("TERM");
    return environment_value("NO_COLOR").empty() && is_output_terminal() && !terminal.empty() && terminal != "dumb";
  }();
  return has;
}

}  // namespace

std::size_t display_width(const std::string& text) {
  std::size_t width = 0;
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] == '\033') {  // a colour code ends with 'm'
      const auto end = text.find('m', at);
      at = end == std::string::npos ? text.size() : end + 1;
      continue;
    }
    at += std::max<std::size_t>(1, utf8_character_bytes(std::string_view(text).substr(at)));
    ++width;
  }
  return width;
}

std::string coloured(Colour colour, const std::string& text) {
  return has_colours() ? fmt::format("\033[{}m{}\033[0m", static_cast<int>(colour), text) : text;
}

bool is_output_terminal() { return ::isatty(STDOUT_FILENO) == 1; }

int output_columns() {
  constexpr int kWithoutTerminal = 100;
  struct winsize size {};
  if (!is_output_terminal() || ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kWithoutTerminal;
  return size.ws_col;
}

void print_line(const std::string& text, std::size_t indent) {
  constexpr int kColumnsMin = 40;
  if (!is_output_terminal()) {
    std::cout << text << '\n';
    return;
  }
  const auto columns = static_cast<std::size_t>(std::max(kColumnsMin, output_columns()));
  std::size_t used = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = std::min(text.find_first_not_of(' ', at), text.size());
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    std::size_t gap = begin - at;
    if (used + gap + display_width(word) > columns) {
      gap = used > 0 ? indent : std::min(gap, indent);
      if (std::exchange(used, 0) > 0) std::cout << '\n';
    }
    std::cout << std::string(gap, ' ') << word;
    used += gap + display_width(word);
    at = end;
  }
  std::cout << '\n';
}

bool agrees_to_remove() {
  if (::isatty(STDIN_FILENO) != 1)
    throw WrongUse("nothing was removed, as there is no terminal to ask at: --yes removes without asking");
  std::cout << "Remove them? [y/N] " << std::flush;
  std::string answer;
  std::getline(std::cin, answer);
  if (answer == "y" || answer == "Y" || answer == "yes") return true;
  std::cout << "nothing was removed\n";
  return false;
}

void Table::add(std::vector<std::string> row) {
  widths_.resize(std::max(widths_.size(), row.size()));
  for (std::size_t i = 0; i < row.size(); ++i) widths_[i] = std::max(widths_[i], std::min(display_width(row[i]), kColumnWidthMax));
  rows_.push_back(std::move(row));
}

void Table::print() const {
  constexpr std::size_t kIndent = 4;
  for (const auto& row : rows_) {
    std::size_t last = row.size();
    while (last > 1 && row[last - 1].empty()) --last;
    std::string line;
    for (std::size_t i = 0; i + 1 < last; ++i)
      line += row[i] + std::string(widths_[i] - std::min(display_width(row[i]), widths_[i]) + 2, ' ');
    print_line(line + row[last - 1], kIndent);
  }
}

ProgressBar::ProgressBar(std::string doing)
    : doing_(std::move(doing)), on_terminal_(has_status_terminal()), start_(steady_clock::now()), drawn_(start_) {}

ProgressBar::~ProgressBar() {
  if (shown_) clear_status();
}

void ProgressBar::update(std::uint64_t done, std::uint64_t all) {
  const MutexLock lock(mutex_);
  done_ = std::max(done_, done);
  const auto now = steady_clock::now();
  if (!on_terminal_ || all == 0 || now - start_ < kSilentFor || (shown_ && now - drawn_ < kRedraw)) return;
  drawn_ = now;
  draw(all);
}

void ProgressBar::draw(std::uint64_t all) {
  const double part = std::min(1.0, static_cast<double>(done_) / static_cast<double>(all));
  const double seconds = std::chrono::duration<double>(drawn_ - start_).count();
  const std::string rest = fmt::format("{:3.0f} % of {}, {}/s, {} left", 100 * part, human_bytes(all),
                                       human_bytes(static_cast<std::uint64_t>(static_cast<double>(done_) / seconds)),
                                       human_seconds(part > 0 ? seconds / part - seconds : 0));
  const int room = status_columns() - static_cast<int>(display_width(doing_) + display_width(rest)) - 2;
  const int columns = std::min(room, kBarColumns);
  std::string bar;
  for (int i = 0; i < columns; ++i) bar += i < part * columns ? "█" : "░";
  const std::string line = room < -1 ? fmt::format("{} {:3.0f} %", doing_, 100 * part)
                                     : doing_ + " " + bar + (room < 1 ? "" : " ") + rest;
  draw_status(line);
  shown_ = true;
}

std::uint64_t ProgressBar::done() const {
  const MutexLock lock(mutex_);
  return done_;
}

}  // namespace cairn::tools
