// A box within a stored chunk, as byte ranges of the file that holds the chunk's elements in
// row-major order. This code does no I/O.
//
// The elements of the box, also in row-major order, are its *run of bytes*. Offsets in this run are
// called positions, as in TensorBytes.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <cairn/planning/box.hpp>

namespace cairn {

class Region {
 public:
  // A range of the file that holds some of the region. Its gaps have at most `gap_max` bytes.
  struct Span {
    std::uint64_t begin = 0;  // bytes from the start of the file
    std::uint64_t end = 0;
    std::uint64_t first = 0;  // position of its first byte in the region's run of bytes
    bool dense = false;       // the span has no gap
  };

  Region() = default;
  // Describes a plain byte range.
  Region(std::uint64_t file_offset, std::uint64_t length);
  // A box of `lengths` elements at `offsets` in a chunk of sizes `chunk_sizes`, whose first element
  // is at `payload_offset` in the file. Throws kMismatch if the box is not within the chunk.
  Region(std::uint64_t payload_offset, const Extents& chunk_sizes, const Extents& offsets, const Extents& lengths,
         std::size_t element_bytes);

  std::uint64_t size_bytes() const { return size_bytes_; }

  // Returns the spans, ascending. Any two are more than `gap_max` bytes apart. Returns nothing if
  // the region is empty.
  std::vector<Span> spans(std::uint64_t gap_max) const;

  // Calls `visit(file offset, position, length)` for each contiguous part within [begin, end) of
  // the file, in ascending order.
  using Visit = std::function<void(std::uint64_t offset, std::uint64_t position, std::uint64_t length)>;
  void visit(std::uint64_t begin, std::uint64_t end, const Visit& visit) const;

 private:
  // One of the nested loops over the region, outermost first. All sizes are in bytes.
  struct Level {
    std::uint64_t count = 0;
    std::uint64_t stride = 0;
    std::uint64_t extent = 0;  // from the first to the last byte of one iteration
    std::uint64_t bytes = 0;   // bytes of the region in one iteration
  };
  // Calls `step(file offset, position)` for each repetition of the levels before `stop` that meets
  // [begin, end) of the file. `base` and `position` are those of the repetition of outer levels.
  using Walk = std::function<void(std::uint64_t base, std::uint64_t position)>;
  void walk(std::size_t level, std::size_t stop, std::uint64_t base, std::uint64_t position, std::uint64_t begin, std::uint64_t end,
            const Walk& step) const;

  std::uint64_t begin_ = 0;      // in the file
  std::uint64_t run_bytes_ = 0;  // the size of one contiguous part
  std::uint64_t size_bytes_ = 0;
  std::vector<Level> levels_;
};

}  // namespace cairn
