// The line at the bottom of a terminal that says what is going on: redrawn in place, and lines of the log go above it. Internal.
#pragma once

#include <string>
#include <string_view>

namespace cairn {

// Whether standard error is a terminal that can redraw a line.
bool has_status_terminal() noexcept;
// Its width in columns, at least 20; 80 if it does not tell.
int status_columns() noexcept;

// One for the whole process, thread-safe. Whoever draws last is seen. A terminal that takes nothing just now (stopped by Ctrl-S) is not
// waited for: the line is drawn next time. `text`: one line, no wider than the terminal.
void draw_status(std::string_view text) noexcept;
void clear_status() noexcept;

}  // namespace cairn
