// Checks that readers make when they open one of Cairn's data files: its length and its trailer.
#pragma once

#include <cstdint>
#include <string>

#include <cairn/planning/metadata.hpp>
#include <cairn/storage/format/trailer.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {

// Throws kNotFound if the file is missing, kCorrupt if its length differs from the commit record.
void check_file_length(Store& store, const FileInfo& file);

// Reads and checks the trailer of a file whose length and trailer length are in the commit record.
// The block checksums must combine to the record's checksum of the whole file. A block that matches
// the trailer is therefore known to belong to this file. Throws kCorrupt, kUnsupported and the
// store's errors.
Trailer read_trailer(Store& store, const FileInfo& file);

}  // namespace cairn
