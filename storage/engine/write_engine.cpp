#include <cairn/storage/engine/write_engine.hpp>

#include <algorithm>
#include <string>
#include <utility>

#include <cairn/base/error.hpp>
#include <cairn/storage/format/trailer.hpp>

namespace cairn {
namespace {

// With compression or other transforms, one block for the file and one for a frame.
unsigned blocks_needed(bool changes_items) { return changes_items ? 2 : 1; }

std::size_t staging_block_bytes(const WriteEngineOptions& options) {
  const std::uint64_t blocks_min = blocks_needed(options.changes.any());
  const std::uint64_t bytes_min = blocks_min * kChecksumBlockBytes;
  if (options.bytes_in_flight_max < bytes_min || options.block_bytes < kChecksumBlockBytes)
    throw Error(ErrorCode::kInvalidArgument, "bytes_in_flight_max (" + std::to_string(options.bytes_in_flight_max) +
                                                 ") must be at least " + std::to_string(bytes_min) +
                                                 ", and block_bytes (" + std::to_string(options.block_bytes) + ") at least " +
                                                 std::to_string(kChecksumBlockBytes));
  // Whole checksum blocks, so that each block can be checksummed alone.
  const std::uint64_t bytes = std::min(options.bytes_in_flight_max / blocks_min, options.block_bytes);
  return static_cast<std::size_t>(bytes / kChecksumBlockBytes * kChecksumBlockBytes);
}

// A part is a request, at whose end the server answers once all of the part is stored. The sending
// thread waits for that, so that small parts leave the server idle.
constexpr std::uint64_t kPartBytesGood = 16u << 20;

// Returns the smallest block that the store accepts as a part of each file. Every block becomes one
// part.
std::uint64_t part_bytes_min(const WriteRequest& request) {
  const StoreTraits traits = request.store->traits();
  std::uint64_t bytes = traits.part_bytes_min;
  if (traits.parts_max > 0)
    for (const WriteFile& file : request.files)
      // A tenth of the parts is left for what the estimate does not know.
      bytes = std::max(bytes, expected_bytes(*request.plan, file.layout) / (traits.parts_max - traits.parts_max / 10) + 1);
  return (bytes + kChecksumBlockBytes - 1) / kChecksumBlockBytes * kChecksumBlockBytes;
}

}  // namespace

WriteEngine::WriteEngine(const WriteEngineOptions& options)
    : bytes_in_flight_max_(options.bytes_in_flight_max),
      block_bytes_(staging_block_bytes(options)),
      changes_(options.changes),
      ring_(std::make_shared<StagingRing>(bytes_in_flight_max_, block_bytes_)),
      current_(options.threads, "cairn-write") {
  if (changes_.zstd_level != 0) ZstdCompressor{changes_.zstd_level};  // throws here rather than in a save
}

Future<std::vector<FileResult>> WriteEngine::write(WriteRequest request) {
  if (request.files.empty()) return ready_future(std::vector<FileResult>{});
  return current_.begin("a writer serves one save at a time: wait for the one under way, or use another writer", [&] {
    auto ring = ring_for(request);
    ring->keep();
    return std::make_shared<WriteJob>(std::move(request), std::move(ring), current_.threads(), changes_);
  });
}

std::shared_ptr<StagingRing> WriteEngine::ring_for(const WriteRequest& request) {
  std::uint64_t needed = std::max<std::uint64_t>(block_bytes_, part_bytes_min(request));
  const unsigned blocks_min = blocks_needed(changes_.any());
  if (needed > bytes_in_flight_max_ / blocks_min)
    throw Error(ErrorCode::kInvalidArgument, "bytes_in_flight_max is " + std::to_string(bytes_in_flight_max_) + ", but " +
                                                 request.store->url() + " takes these files in parts of at least " +
                                                 std::to_string(needed) + " bytes");
  // Two blocks for each thread: one is filled while the other is sent.
  const std::uint64_t share = bytes_in_flight_max_ / (std::uint64_t{2} * current_.threads());
  if (request.store->traits().part_bytes_min > 0)
    while (2 * needed <= std::min(share, kPartBytesGood)) needed *= 2;
  MutexLock lock(mutex_);
  if (ring_->block_bytes() != needed) ring_ = std::make_shared<StagingRing>(bytes_in_flight_max_, static_cast<std::size_t>(needed));
  return ring_;
}

}  // namespace cairn
