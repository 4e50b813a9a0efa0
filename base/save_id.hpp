// Save ids: the printable name of one save attempt, globally unique and safe in file names.
//
//   cairn-<incarnation>-<checkpointer>-<counter>
//         32 hex digits  8 hex digits   decimal
//
// Each world draws a random incarnation when it starts, so the ids of two worlds never collide. The
// checkpointer part is the CRC-32 of the checkpointer's name. The coordinator assigns the counter.
// All functions are pure and thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cairn {

// Returns the save id. Throws kInvalidArgument unless `incarnation` has 32 lower-case hexadecimal
// digits. `checkpointer` may be any name.
std::string make_save_id(std::string_view incarnation, std::string_view checkpointer, std::uint64_t counter);

bool is_incarnation(std::string_view text) noexcept;

// Returns the number that stands for `checkpointer` in save ids.
std::uint32_t checkpointer_key(std::string_view checkpointer) noexcept;

// Returns whether `text` has exactly the form above. No other program uses this form by accident.
bool is_save_id(std::string_view text) noexcept;

}  // namespace cairn
