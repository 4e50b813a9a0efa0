// Writes one object of a file store.
#pragma once

#include <memory>
#include <string>

#include <cairn/storage/store.hpp>
#include <cairn/storage/stores/file_system.hpp>

namespace cairn {

// Creates the file at `path`, below the store's `root`. Throws kAlreadyExists and kNoSpace. Throws
// kNotFound if its directory does not exist.
std::unique_ptr<ObjectWriter> make_file_writer(FileSystem& files, const std::string& root, const std::string& path,
                                               const CreateOptions& options);

}  // namespace cairn
