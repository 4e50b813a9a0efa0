// Copies data files and whole checkpoints from one store to another. Internal: for tiers and
// `cairn cp`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include <cairn/base/bytes.hpp>
#include <cairn/storage/format/trailer.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {

// Reads the trailer of one of Cairn's data files, which has the checksums of its blocks. Returns
// nothing for other objects. `bytes` is the length of the object. Throws kCorrupt.
std::optional<Trailer> trailer_of(Store& store, const ObjectName& name, std::uint64_t bytes);
// Compares bytes of a data file with the checksums of its blocks. `begin`, the offset of the bytes,
// is a multiple of the size of a block. Bytes beyond the content are not compared. Throws kCorrupt.
void check_blocks(const Trailer& trailer, std::uint64_t begin, ByteSpan bytes, const std::string& object);

// Reads the first `bytes` of an object, on up to `threads` threads, and returns their CRC-32. Calls
// `read` with the size of each piece, on several threads at once.
std::uint32_t read_crc32(Store& store, const ObjectName& name, std::uint64_t bytes, unsigned threads,
                         const std::function<void(std::size_t bytes)>& read = {});

// Sets the options for an object of `bytes` that is written in pieces of about `piece_bytes`.
// Returns the size of the pieces that the store accepts: a multiple of every block size.
std::uint64_t prepare_pieces(const StoreTraits& traits, std::uint64_t bytes, std::uint64_t piece_bytes, CreateOptions& options);
// Writes an object piece by piece, on up to `threads` threads. `fill` makes the piece at offset
// `begin`, and `wrote` is told the size of each piece that was written; both are called on several
// threads at once. Ends at the first exception, and rethrows it.
void write_pieces(ObjectWriter& writer, std::uint64_t bytes, std::uint64_t piece_bytes, unsigned threads,
                  const std::function<void(std::uint64_t begin, MutableByteSpan piece)>& fill,
                  const std::function<void(std::size_t bytes)>& wrote);

struct CheckpointCopy {
  std::uint64_t bytes = 0;  // of all data files
  std::size_t files = 0;
  bool starts_over = false;  // files of an earlier copy or save, which had not ended, were removed first
};

// Copies the checkpoint at `from` to `to`, as save `save_id`, with the steps of publication.hpp:
//
//  1  remove what earlier copies left at `to`, and open an attempt there
//  2  copy the data files; each block is compared with its checksum. The names and trailers get the
//     new save id, and nothing else changes
//  3  read the copies back, and compare them with the checksums of what was sent
//  4  publish the record. It keeps commit sequence, step and user metadata
//
// If a step fails, removes what was copied. A crash leaves an open attempt, which the next copy or
// save to this place removes with its files. Calls `progress` with the bytes done and their total:
// each byte counts twice, written and read back. An exception of `progress` ends the copy.
//
// Throws kAlreadyExists if there is a checkpoint at `to`; kNotFound if there is none at `from`;
// kUnsupported if its data files are not in Cairn's own format; kCorrupt for damage at either
// place.
CheckpointCopy copy_checkpoint(Store& from, Store& to, const std::string& save_id, unsigned threads,
                               const std::function<void(std::uint64_t done, std::uint64_t all)>& progress = {});

}  // namespace cairn
