// The status line at the bottom of a terminal, which is standard error or the device that
// CAIRN_STATUS_TERMINAL names. It is redrawn in place, and other output appears above it. Internal.
#pragma once

#include <string_view>

namespace cairn {

// Returns whether there is a terminal that can redraw a line.
bool has_status_terminal() noexcept;
// Returns the terminal's width in columns, at least 20, or 80 if unknown.
int status_columns() noexcept;

// Draws `text` as the status line of the process, which has only one. `text` must be one line, no
// wider than the terminal. If the terminal is blocked (stopped by Ctrl-S), returns without drawing.
// Thread-safe.
void draw_status(std::string_view text) noexcept;
void clear_status() noexcept;

}  // namespace cairn
