// Switches for the bugs that plant_bugs.py plants in copies of the shipping sources.
#pragma once

#include <string>

#include <cairn/storage/stores/file_system.hpp>

namespace cairn::planted {

// The number of the active bug, -1 for none.
int& active();
inline bool is_on(int number) { return active() == number; }

// Implements the bug "overwrites in place", before the rename.
void overwrite_in_place(FileSystem& files, const std::string& from, const std::string& to);

}  // namespace cairn::planted
