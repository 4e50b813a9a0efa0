#include <cairn/storage/engine/write_engine.hpp>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include <cairn/base/error.hpp>
#include <cairn/storage/format/trailer.hpp>

namespace cairn {
namespace {

std::size_t staging_block_bytes(const WriteEngineOptions& options) {
  if (options.bytes_in_flight_max < kChecksumBlockBytes || options.block_bytes < kChecksumBlockBytes)
    throw Error(ErrorCode::kInvalidArgument, "bytes_in_flight_max (" + std::to_string(options.bytes_in_flight_max) +
                                                 ") and block_bytes (" + std::to_string(options.block_bytes) +
                                                 ") must each be at least " + std::to_string(kChecksumBlockBytes));
  // Whole checksum blocks, so that each block can be checksummed alone.
  const std::uint64_t bytes = std::min(options.bytes_in_flight_max, options.block_bytes);
  return static_cast<std::size_t>(bytes / kChecksumBlockBytes * kChecksumBlockBytes);
}

}  // namespace

WriteEngine::WriteEngine(const WriteEngineOptions& options)
    : ring_(options.bytes_in_flight_max, staging_block_bytes(options)), pool_(options.threads, "cairn-write") {}

Future<std::vector<FileResult>> WriteEngine::write(WriteRequest request) {
  if (request.files.empty()) return ready_future(std::vector<FileResult>{});
  const auto job = current_.begin("a writer serves one save at a time: wait for the one under way, or use another writer", [&] {
    ring_.keep();
    auto made = std::make_shared<WriteJob>(std::move(request), ring_, pool_.threads());
    pool_.start(made);
    return made;
  });
  return job->future();
}

void WriteEngine::stop() noexcept { current_.stop(); }

}  // namespace cairn
