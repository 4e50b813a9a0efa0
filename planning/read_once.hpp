// Decides which rank reads the bytes that several ranks need, and passes them on to the others.
// Pure: the same offers give the same result.
//
// Bytes are shared in whole checksum blocks, so that a reader can check what it passes on. If ranks
// need different columns of the same rows, they need the same blocks, which are read once too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace cairn {

// The ranks that share reads.
enum class ReadOnce : std::uint8_t {
  kAuto = 1,  // kHost if the bytes come over a network (see LoadOptions::read_once), else kOff
  kOff,       // every rank reads what it needs
  kHost,      // the ranks of one host: each host reads a byte once
  kWorld,     // all ranks: a byte is read once. Above kWorldRanksMax ranks: as kHost
};

// More ranks than this would connect each with each.
inline constexpr std::size_t kWorldRanksMax = 64;

// Bytes of a data file; `file` is an index into Metadata::files.
struct FileRange {
  std::uint32_t file = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// The needs and the place of one rank.
struct ReadOffer {
  ReadOnce mode = ReadOnce::kOff;  // never kAuto; kOff: the rank takes no part
  std::string host;                // equal on ranks that can share memory
  std::string address;             // of its transport: the text of a DataAddress
  std::vector<FileRange> needs;    // whole blocks; ascending by file and begin; they do not overlap
};

// Bytes that one rank reads for itself and others.
struct SharedRange {
  FileRange bytes;
  std::uint32_t reader = 0;
  std::vector<std::uint32_t> receivers;  // on the reader; empty on the receivers
};

// The part of one rank. Each reader sends each receiver the shared bytes of both in the order of
// `ranges`, as one stream.
struct SharedReads {
  std::uint64_t stream = 0;                                      // the number of the load's streams
  std::vector<SharedRange> ranges;                               // to read or receive; ascending by file and begin
  std::vector<std::pair<std::uint32_t, std::string>> addresses;  // of the ranks to which this one sends
};

// Returns the parts, by rank. All of them are empty if any rank takes no part. If modes differ, the
// smaller one counts. `block_bytes`: of a checksum block.
std::vector<SharedReads> plan_read_once(const std::vector<ReadOffer>& offers, std::uint64_t block_bytes);

}  // namespace cairn
