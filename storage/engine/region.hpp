// A box within a stored chunk, as byte ranges of the file that holds the chunk's elements in row-major order. Pure.
//
// The box's own elements, row-major too, are its *run of bytes*: what TensorBytes calls positions.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <cairn/planning/box.hpp>

namespace cairn {

class Region {
 public:
  // A part of a file that holds some of the region, with gaps no larger than asked for.
  struct Span {
    std::uint64_t begin = 0;  // bytes from the start of the file
    std::uint64_t end = 0;
    std::uint64_t first = 0;  // position of its first byte in the region's run of bytes
    bool dense = false;       // there is no gap
  };

  Region() = default;
  // Plain bytes.
  Region(std::uint64_t file_offset, std::uint64_t length);
  // `lengths` elements from `offsets` on, of a chunk of `chunk_sizes` whose first element is at `payload_offset`. Throws kMismatch
  // if that does not lie within the chunk.
  Region(std::uint64_t payload_offset, const Extents& chunk_sizes, const Extents& offsets, const Extents& lengths,
         std::size_t element_bytes);

  std::uint64_t size_bytes() const { return size_bytes_; }

  // The spans, ascending, so that no two are closer than `gap_max` + 1 bytes. None if the region is empty.
  std::vector<Span> spans(std::uint64_t gap_max) const;

  // Calls `visit(file offset, position, length)` for each contiguous part that lies within [begin, end) of the file, ascending.
  using Visit = std::function<void(std::uint64_t offset, std::uint64_t position, std::uint64_t length)>;
  void visit(std::uint64_t begin, std::uint64_t end, const Visit& visit) const;

 private:
  // One loop over what is inside it, outermost first. All in bytes.
  struct Level {
    std::uint64_t count = 0;
    std::uint64_t stride = 0;
    std::uint64_t extent = 0;  // of one round: from its first to the end of its last byte
    std::uint64_t bytes = 0;   // of the region in one round
  };
  void visit_level(std::size_t level, std::uint64_t base, std::uint64_t position, std::uint64_t begin, std::uint64_t end,
                   const Visit& visit) const;

  std::uint64_t begin_ = 0;      // in the file
  std::uint64_t run_bytes_ = 0;  // of the contiguous parts
  std::uint64_t size_bytes_ = 0;
  std::vector<Level> levels_;
};

}  // namespace cairn
