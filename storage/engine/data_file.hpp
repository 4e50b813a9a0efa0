// A data file of Cairn's as readers open it: checked for its length, with the checksums of its blocks.
#pragma once

#include <cstdint>
#include <string>

#include <cairn/planning/metadata.hpp>
#include <cairn/storage/format/trailer.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {

// Throws kNotFound if the file is missing, kCorrupt if it is not as long as the commit record says.
void check_file_length(Store& store, const FileInfo& file);

// Reads and checks the trailer of a file of which the commit record gives length and trailer length. Its checksums of blocks must
// add up to the record's checksum of the whole file: so whoever checks a block knows that it is of this file and no other. kCorrupt,
// kUnsupported, the store's errors.
Trailer read_trailer(Store& store, const FileInfo& file);

}  // namespace cairn
