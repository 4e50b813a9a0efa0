#include <cairn/storage/engine/read_engine.hpp>

#include <algorithm>
#include <string>
#include <utility>

#include <cairn/base/error.hpp>
#include <cairn/storage/format/trailer.hpp>

namespace cairn {
namespace {

// Limits of one task: large enough for the store, small enough to share the work evenly. In an
// object store a task is a request, and the thread waits for its first byte.
constexpr std::uint64_t kTaskBytesMax = 4u << 20;
constexpr std::uint64_t kRequestBytesMax = 16u << 20;

std::size_t task_bytes(const ReadEngineOptions& options, std::uint64_t limit) {
  const std::uint64_t share =
      // Each thread needs a block at the same time. Whole checksum blocks, because a task never
      // splits one.
      options.bytes_in_flight_max / std::max(1u, options.threads) / kChecksumBlockBytes * kChecksumBlockBytes;
  if (options.bytes_in_flight_max < kChecksumBlockBytes)
    throw Error(ErrorCode::kInvalidArgument, "bytes_in_flight_max (" + std::to_string(options.bytes_in_flight_max) +
                                                 ") must be at least " + std::to_string(kChecksumBlockBytes));
  return static_cast<std::size_t>(std::clamp<std::uint64_t>(share, kChecksumBlockBytes, limit));
}

}  // namespace

ReadEngine::ReadEngine(const ReadEngineOptions& options)
    : options_(options),
      ring_(std::make_shared<StagingRing>(options.bytes_in_flight_max, task_bytes(options, kTaskBytesMax))),
      current_(options.threads, "cairn-read") {}

Future<bool> ReadEngine::read(ReadRequest request) {
  if (request.plan->items.empty()) return ready_future(true);
  return current_.begin("a reader serves one load at a time: wait for the one under way, or use another reader", [&] {
    const bool is_object_store = request.store->traits().part_bytes_min > 0;
    const std::size_t block_bytes = task_bytes(options_, is_object_store ? kRequestBytesMax : kTaskBytesMax);
    if (ring_->block_bytes() != block_bytes) ring_ = std::make_shared<StagingRing>(options_.bytes_in_flight_max, block_bytes);
    return std::make_shared<ReadJob>(std::move(request), ring_);
  });
}

std::vector<FileRange> ReadEngine::needs(ReadRequest request) { return ReadJob(std::move(request), ring_).needs(); }

}  // namespace cairn
