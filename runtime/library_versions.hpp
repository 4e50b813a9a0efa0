// The versions of the libraries that this one was built with: for logs and bug reports.
#pragma once

#include <string>
#include <vector>

namespace cairn {

struct LibraryVersion {
  std::string name;     // "LibTorch"
  std::string version;  // "1.13.1"; "none" if built without the library
};

// Returns all versions, Cairn's first.
std::vector<LibraryVersion> library_versions();

}  // namespace cairn
