// What this library was built from. Internal.
#pragma once

#include <string>
#include <vector>

namespace cairn {

struct LibraryVersion {
  std::string name;     // "LibTorch"
  std::string version;  // "1.13.1"; "none" where the build goes without
};

// Cairn first.
std::vector<LibraryVersion> library_versions();

}  // namespace cairn
