// Git LFS keeps a small text in place of a large file until `git lfs pull` fetches the file.
// Internal.
#pragma once

#include <string_view>

#include <cairn/base/bytes.hpp>

namespace cairn {

// No format that Cairn reads begins with these letters.
inline bool is_git_lfs_pointer(ByteSpan file) {
  return file.size() >= 8 && std::string_view(file.data(), 8) == "version ";
}
inline constexpr const char* kGitLfsPointer =
    "it is a pointer of Git LFS, in place of the file: fetch the file with `git lfs pull`";

}  // namespace cairn
