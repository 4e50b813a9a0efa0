// One write of WriteEngine with compression or other transforms: the state that its threads share.
// The stored length of an item is known only when it is written, so each file is written from front
// to back.
//
//   tasks, in order:  open │ frame │ frame │ … │ bytes object │ … │ close │ open │ …
//   frame:            copy ─ checksum ─ compress ─ (wait for the turn) ─ transform ─ append
//
// Threads copy, checksum and compress frames in parallel, each in a staging block of its own. All
// other steps run in turns, in the order of the tasks: a task waits until all earlier ones have had
// their turn. A task that has filled a block of the file writes it after its turn if another
// staging block is free, while later tasks go on.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <cairn/base/future.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/base/running_work.hpp>
#include <cairn/storage/engine/file_appender.hpp>
#include <cairn/storage/engine/job_end.hpp>
#include <cairn/storage/engine/staged_work.hpp>
#include <cairn/storage/engine/write_job.hpp>
#include <cairn/storage/format/zstd_item.hpp>
#include <cairn/storage/stream_transform.hpp>

namespace cairn {

class CompressJob : public StagedWork, public JobEnd<std::vector<FileResult>> {
 public:
  // The layouts of `request` have no tensors: all items are among the `unsized_items`. Needs a ring
  // of at least two blocks. Compresses tensors at `level` unless that is 0. Then passes all items
  // through `transforms`, the last of them first.
  CompressJob(WriteRequest request, std::shared_ptr<StagingRing> ring, int level, std::vector<StreamTransform> transforms);
  void finish() noexcept override;

 protected:
  std::size_t begin_stage(int stage) override;
  void run_task(int stage, std::size_t index) override;
  std::exception_ptr cancellation() const override;

 private:
  struct Task {
    enum class Kind : std::uint8_t { kOpen, kFrame, kBytes, kClose } kind = Kind::kOpen;
    std::uint32_t file = 0;
    std::uint32_t item = 0;   // kFrame and kBytes: index into the plan
    std::uint64_t begin = 0;  // kFrame: within the payload
    std::uint64_t end = 0;
    bool last = false;  // kFrame: the last frame of its item
  };

  // A tensor while its frames are being written.
  struct Item {
    std::shared_ptr<const TensorBytes> data;
    std::size_t frames_left = 0;  // frames still to be copied
  };

  // A full block of a file, which is to be written.
  struct FullBlock {
    ObjectWriter* writer = nullptr;
    std::uint64_t begin = 0;
    StagingBlock memory;
    std::size_t length = 0;
  };

  // The file or item that is being written. Used by one task at a time, in its turn.
  struct Writing {
    StagingBlock memory;
    std::optional<FileAppender> file;
    std::optional<FullBlock> full;  // a block that the current task has filled
    bool closing = false;
    Trailer trailer;
    std::vector<ZstdFrame> frames;    // of the current item
    std::uint32_t payload_crc32 = 0;  // of the frames so far
    ByteSink sink;                    // of the current item
    std::uint32_t stored_crc32 = 0;
    bool item_ended = false;  // the end has passed all transforms
    std::uint64_t item_begin = 0;
  };

  void add_frames(std::uint32_t file, std::uint32_t item);
  void open(const Task& task);
  void write_frame(const Task& task, std::size_t index);
  void write_bytes(const Task& task);
  void close(const Task& task);
  std::shared_ptr<const TensorBytes> resolve(const Task& task);
  void release(std::uint32_t item);
  void write(ObjectWriter& writer, std::uint64_t begin, StagingBlock& memory, std::size_t length);
  void begin_item();
  void append_frame(ByteSpan frame, std::size_t plain_bytes);
  void append_small_frame(ByteSpan bytes, ZstdCompressor* compressor);
  void end_item(const Task& task);
  void wait_for_turn(std::size_t index);
  StagingBlock staging_block();
  std::unique_ptr<ZstdCompressor> take_compressor();

  const WriteRequest request_;
  const std::shared_ptr<StagingRing> shared_ring_;
  StagingRing& ring_;
  const int level_;
  const std::vector<StreamTransform> transforms_;
  const std::uint64_t frame_bytes_;
  const Work work_;               // the work of the thread that started the write
  const CurrentStreams streams_;  // the streams of the thread that started the write
  std::vector<Task> tasks_;
  std::vector<std::unique_ptr<ObjectWriter>> writers_;  // by file; used by the task whose turn it is
  std::vector<FileResult> results_;                     // by file; used by the task whose turn it is
  Writing writing_;                                     // used by the task whose turn it is

  Mutex mutex_;
  CondVar changed_;
  std::size_t turn_ CAIRN_GUARDED_BY(mutex_) = 0;  // index of the first task that is not done
  std::size_t writes_ CAIRN_GUARDED_BY(mutex_) = 0;  // writes of full blocks in progress
  std::vector<Item> items_ CAIRN_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<ZstdCompressor>> idle_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
