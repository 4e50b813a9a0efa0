// One write of WriteEngine: the state that its threads share.
//
//   file:   waiting -> opening -> open -> closing -> closed
//   block:  filled -> (parked until all checksums that it contains are known) -> checksummed
//           -> written
//   tail:   tensors filled in -> (parked until all blocks of its file are checksummed)
//           -> completed and written
//
// One lock guards all state, except for parts that one thread at a time uses: the block that a
// thread fills, the file that it opens or closes, and its block's entries in the checksum tables of
// the file.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <cairn/base/future.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/base/running_work.hpp>
#include <cairn/planning/plan.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/storage/engine/checksums.hpp>
#include <cairn/storage/engine/job_end.hpp>
#include <cairn/storage/engine/staging_ring.hpp>
#include <cairn/storage/engine/tensor_bytes.hpp>
#include <cairn/storage/engine/worker_pool.hpp>
#include <cairn/storage/format/file_layout.hpp>
#include <cairn/storage/format/trailer.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {

struct WriteRequest {
  std::shared_ptr<Store> store;
  const SavePlan* plan = nullptr;  // must stay valid until the future is ready, as must `planner`
  SavePlanner* planner = nullptr;
  std::vector<WriteFile> files;  // each contains items of `plan`
  std::string save_id;
  int rank = 0;
  bool sync = true;           // makes the files survive power loss
  bool direct = true;         // bypasses the page cache if the store can
  bool copy_first = false;    // fills all available staging blocks before anything is written
  bool low_priority = false;  // runs the writing threads at low priority from now on
};

// Estimates a file's length, because bytes objects are encoded only later. The store reserves this
// much space and truncates the file when it is closed.
std::uint64_t expected_bytes(const SavePlan& plan, const FileLayout& layout);

// Ask the planner for the data of `item`, an index into the plan's items. Throw kMismatch or
// kUnsupported if the data does not fit the plan.
std::shared_ptr<const TensorBytes> resolve_tensor(const WriteRequest& request, std::uint32_t item);
Bytes resolve_bytes(const WriteRequest& request, std::uint32_t item);

// Throws kUnsupported if staging blocks do not have the alignment that a writer of `store` needs.
void require_alignment(const ObjectWriter& writer, const Store& store);

// Returns the trailer's entry for an item, without its position and checksum.
TrailerItem trailer_item_of(const SavePlan& plan, std::uint32_t item);

// Lowers the priority of the calling thread. If a sandbox refuses, the thread runs at normal
// priority.
void lower_thread_priority() noexcept;

class WriteJob : public PoolWork, public JobEnd<std::vector<FileResult>> {
 public:
  WriteJob(WriteRequest request, std::shared_ptr<StagingRing> ring, unsigned threads);
  ~WriteJob() override;

  void run() noexcept override;
  void cancel() noexcept override;
  void finish() noexcept override;

 private:
  struct Block;

  // A tensor while its file is being written.
  struct Item {
    const PlacedTensor* placed = nullptr;
    std::shared_ptr<const TensorBytes> data;  // held from the first copy to the last
    bool resolving = false;
    std::uint64_t first_block = 0;          // first block with some of the payload
    std::size_t parts_missing = 0;          // blocks of the payload not yet checksummed
    std::vector<std::uint32_t> part_crc32;  // by block, starting at first_block
    std::uint32_t crc32 = 0;                // covers the payload; valid when no part is missing
    std::vector<Block*> waiting;            // parked blocks that need this checksum

    bool sealed() const { return parts_missing == 0; }
  };

  enum class Stage : std::uint8_t { kWaiting, kOpening, kOpen, kClosing, kClosed };

  struct File {
    const WriteFile* source = nullptr;
    Stage stage = Stage::kWaiting;
    std::unique_ptr<ObjectWriter> writer;
    std::vector<Item> items;
    std::uint64_t whole_blocks = 0;  // blocks full of tensors; the rest is the tail
    std::uint64_t next_block = 0;    // next block to assign
    std::uint64_t checksummed = 0;   // number of whole blocks
    std::uint64_t written = 0;       // number of whole blocks
    Block* tail = nullptr;           // set when the tail is assigned
    bool tail_filled = false;        // the tensors' part of the tail is copied
    bool tail_begun = false;
    bool tail_written = false;
    std::vector<std::uint32_t> block_crc32;   // by checksum block
    std::vector<std::uint32_t> staged_crc32;  // by staging block
    FileResult result;
  };

  // A staging block of a file.
  struct Block {
    File* file = nullptr;
    std::uint64_t index = 0;
    std::uint64_t begin = 0;  // bytes from the start of the file
    std::uint64_t end = 0;
    StagingBlock memory;
    std::vector<ChecksummedPart> parts;
    std::vector<Item*> owed;   // archives whose suffix, or a part of it, is not filled in yet
    std::size_t unsealed = 0;  // unsealed items among `owed`, while parked
  };

  struct Task {
    enum class Kind : std::uint8_t { kOpen, kFill, kComplete, kFillTail, kTail, kClose } kind = Kind::kOpen;
    File* file = nullptr;
    Block* block = nullptr;
  };

  // Returns the next task for a free thread, if one can run now.
  std::optional<Task> next_task() CAIRN_REQUIRES(mutex_);
  std::optional<Task> next_task_of(File& file) CAIRN_REQUIRES(mutex_);
  std::optional<Task> next_completable() CAIRN_REQUIRES(mutex_);
  Block* new_block(File& file, std::uint64_t index) CAIRN_REQUIRES(mutex_);
  void perform(const Task& task);
  void fail(std::exception_ptr error) noexcept;

  void open(File& file);
  void close(File& file);
  void fill_tail(Block& block);
  void write_tail(Block& block);
  void fill_and_complete(Block& block);
  void complete(Block& block);
  void drop(Block& block);

  // Fills in what is known so far: prefixes and payloads. Adds archives whose suffix is still to
  // come to `owed`.
  void fill(Block& block);
  void fill_payload(Block& block, Item& item);
  void fill_owed(Block& block);
  void seal_part(Block& block, Item& item, std::uint32_t crc32);
  void copy_overlap(const Block& block, std::uint64_t offset, ByteSpan bytes) const;
  std::shared_ptr<const TensorBytes> resolve(Item& item);
  Bytes encode_trailer_of(const File& file, std::vector<std::uint32_t> block_crc32,
                          const std::vector<std::uint32_t>& bytes_crc32) const;

  const WriteRequest request_;
  const std::shared_ptr<StagingRing> shared_ring_;
  StagingRing& ring_;
  const unsigned files_open_max_;
  const Work work_;               // the work of the thread that started the write
  const CurrentStreams streams_;  // the streams of the thread that started the write
  std::atomic<bool> failed_{false};  // set under the lock; read without it to stop early

  Mutex mutex_;
  CondVar changed_;
  std::vector<File> files_ CAIRN_GUARDED_BY(mutex_);
  std::size_t first_open_ CAIRN_GUARDED_BY(mutex_) = 0;  // all files before it are closed
  std::size_t next_to_open_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::size_t closed_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::vector<std::unique_ptr<Block>> blocks_ CAIRN_GUARDED_BY(mutex_);  // being filled, parked or being written
  std::deque<Block*> completable_ CAIRN_GUARDED_BY(mutex_);              // filled, and every checksum is known
  std::exception_ptr error_ CAIRN_GUARDED_BY(mutex_);                    // the first error
};

}  // namespace cairn
