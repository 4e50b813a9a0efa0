// Save ids: the printable form of one save attempt, unique for ever, safe in file names.
//
//   cairn-<incarnation>-<checkpointer>-<counter>
//         32 hex digits  8 hex digits   decimal
//
// The incarnation is drawn at random once per life of a world, so two worlds never meet in one id; the checkpointer's part is the
// CRC-32 of its name; the counter is the coordinator's. Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cairn {

// `incarnation`: 32 lower-case hexadecimal digits, else kInvalidArgument. `checkpointer`: any name.
std::string make_save_id(std::string_view incarnation, std::string_view checkpointer, std::uint64_t counter);

bool is_incarnation(std::string_view text) noexcept;

// The checkpointer's part of a save id, as a number.
std::uint32_t checkpointer_key(std::string_view checkpointer) noexcept;

// Whether `text` has exactly the form above: nothing that another program would name by chance.
bool is_save_id(std::string_view text) noexcept;

}  // namespace cairn
