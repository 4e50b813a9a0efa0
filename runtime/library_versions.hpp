// The versions of Cairn and of the libraries that it was built with, for logs and bug reports.
#pragma once

#include <string>
#include <vector>

namespace cairn {

struct LibraryVersion {
  std::string name;     // "LibTorch"
  std::string version;  // "1.13"; "none" if Cairn was built without the library
};

// Returns all versions, Cairn's first.
std::vector<LibraryVersion> library_versions();

}  // namespace cairn
