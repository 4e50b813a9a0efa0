// The switches of the bugs that plant_bugs.py plants, for the copies of shipping sources that have them.
#pragma once

#include <string>

#include <cairn/storage/stores/file_system.hpp>

namespace cairn::planted {

// The number of the bug that is switched on, -1 for none.
int& active();
inline bool is_on(int number) { return active() == number; }

// What the bug "overwrites in place" does before the rename.
void overwrite_in_place(FileSystem& files, const std::string& from, const std::string& to);

}  // namespace cairn::planted
