// One write of WriteEngine: the state that its threads share.
//
//   digest: (with `reuse`) computed from the caller's tensors, before any file is opened
//   file:   waiting -> opening -> open -> closing -> closed
//   unit:   filled -> (waits for its turn) -> in its turn: checksums of items, suffixes, appends
//           -> checksummed -> written
//   tail:   tensors filled in -> (all units are checksummed) -> bytes objects and trailer appended
//
// A unit is a staging block that is full of tensors. With compression or other transforms, the
// length of an item is known only when it is written: a unit is then a part of a tensor, which is
// compressed into a staging block and appended to the file in its turn. Units of a file begin in
// their order, so that the first one never waits. A thread stays with its file while it finds work
// there, because most file systems run writes to one file one after another.
//
// One lock guards all state, except for parts that one thread at a time uses: the block that a
// thread fills, the file that it opens or closes, its block's entries in the checksum tables of the
// file, and what the unit uses whose turn it is.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <cairn/base/digest.hpp>
#include <cairn/base/future.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/base/running_work.hpp>
#include <cairn/planning/plan.hpp>
#include <cairn/storage/engine/checksums.hpp>
#include <cairn/storage/engine/item_data.hpp>
#include <cairn/storage/engine/job.hpp>
#include <cairn/storage/engine/staging_ring.hpp>
#include <cairn/storage/format/file_layout.hpp>
#include <cairn/storage/format/trailer.hpp>
#include <cairn/storage/format/zstd_item.hpp>
#include <cairn/storage/store.hpp>
#include <cairn/storage/stream_transform.hpp>

namespace cairn {

class ReusableFiles;

struct WriteRequest {
  std::shared_ptr<Store> store;
  const SavePlan* plan = nullptr;  // must stay valid until the future is ready
  std::shared_ptr<ItemSource> source;
  std::vector<WriteFile> files;  // each contains items of `plan`
  std::string save_id;
  int rank = 0;
  bool sync = true;           // makes the files survive power loss
  bool direct = true;         // bypasses the page cache if the store can
  bool copy_first = false;    // ends copying as early as the staging memory allows
  bool low_priority = false;  // runs the writing threads at low priority
  // Not null: its digests are computed first, and it may take over files. If the write fails, links
  // to such files remain.
  std::shared_ptr<ReusableFiles> reuse = nullptr;
};

// Estimates a file's length, because bytes objects are encoded only later. The store reserves this
// much space and truncates the file when it is closed.
std::uint64_t expected_bytes(const SavePlan& plan, const FileLayout& layout);

// Changes that a save makes to all its items before it writes them.
struct ItemChanges {
  int zstd_level = 0;                            // 0: tensors are not compressed
  std::vector<StreamTransform> transforms = {};  // the last one is applied first

  bool any() const { return zstd_level != 0 || !transforms.empty(); }
};

class WriteJob : public Job<std::vector<FileResult>> {
 public:
  // With `changes`, the layouts of `request` have no tensors: all items are among the
  // `unsized_items`. The ring must then have at least two blocks.
  WriteJob(WriteRequest request, std::shared_ptr<StagingRing> ring, unsigned threads, ItemChanges changes);
  ~WriteJob() override;

  void run(unsigned threads) noexcept override;

 private:
  // A tensor while its file is being written.
  struct Item {
    std::uint32_t item = 0;                // index into the plan's items
    const PlacedTensor* placed = nullptr;  // null if its length is not known
    std::uint64_t first_unit = 0;          // the first unit with some of the payload
    std::uint32_t crc32 = 0;               // of the payload up to the unit whose turn it is
    bool in_one_unit = false;              // only one thread uses the item
    // Guarded by mutex_, unless `in_one_unit`:
    std::shared_ptr<const ElementRun> data;   // held from the first copy to the last
    std::size_t units_left = 0;               // units that have not copied their part
    bool resolving = false;
  };

  // The checksum of an item's bytes in one unit.
  struct ItemPart {
    Item* item = nullptr;
    std::uint64_t length = 0;
    std::uint32_t crc32 = 0;
  };

  struct File;

  // A unit or the tail of a file, with its staging block.
  struct Block {
    File* file = nullptr;
    std::uint64_t index = 0;
    std::uint64_t begin = 0;  // bytes from the start of the file
    std::uint64_t end = 0;
    StagingBlock memory;
    std::vector<ChecksummedPart> known;
    std::vector<ItemPart> parts;
    std::vector<Item*> ending;  // archives whose suffix, or a part of it, lies in this block
  };

  // A block of a file of changed items that is full.
  struct FullBlock {
    std::uint64_t begin = 0;
    StagingBlock memory;
    std::size_t length = 0;
  };

  // The end of a file that is written from front to back, in a staging block that is reused.
  struct OpenEnd {
    StagingBlock* memory = nullptr;
    std::uint64_t begin = 0;                        // offset of the block in the file
    std::size_t used = 0;                           // bytes used in the block
    BlockChecksums checksums{kChecksumBlockBytes};  // of the content

    std::uint64_t position() const { return begin + used; }  // in the file
  };

  enum class Stage : std::uint8_t { kWaiting, kOpening, kOpen, kClosing, kClosed };

  struct File {
    const WriteFile* source = nullptr;
    std::unique_ptr<ObjectWriter> writer;
    std::vector<Item> items;
    std::uint64_t units = 0;
    std::vector<std::uint32_t> block_crc32;   // by checksum block
    std::vector<std::uint32_t> staged_crc32;  // by staging block
    FileResult result;
    // Guarded by mutex_:
    Stage stage = Stage::kWaiting;
    std::uint64_t next_unit = 0;    // the next one to begin
    std::uint64_t turn = 0;         // the unit whose turn it is
    std::uint64_t checksummed = 0;  // number of units
    std::uint64_t in_progress = 0;  // units that have begun and are not written
    Block* tail = nullptr;
    bool tail_filled = false;
    bool tail_begun = false;
    bool tail_written = false;
    // Used by the unit whose turn it is, and by the tail:
    std::optional<OpenEnd> open_end;
    std::optional<FullBlock> full;
    std::uint64_t item_begin = 0;   // of the current item
    std::vector<ZstdFrame> frames;  // of the current item
    ByteSink sink;                  // of the current item
    bool item_ended = false;  // the end has passed all transforms
  };

  // A part of a tensor to digest: a block at most.
  struct PartToDigest {
    std::uint32_t item = 0;  // index into the plan's items
    std::uint64_t begin = 0, length = 0;
    Digest128 digest{};
  };

  struct Task {
    enum class Kind : std::uint8_t { kDigest, kOpen, kUnit, kFillTail, kTail, kWrite, kClose } kind = Kind::kOpen;
    File* file = nullptr;
    Block* block = nullptr;
  };

  // Returns the next task for a free thread, if one can run now. `own` is the thread's file.
  std::optional<Task> next_task(File* own) CAIRN_REQUIRES(mutex_);
  std::optional<Task> next_task_of(File& file) CAIRN_REQUIRES(mutex_);
  std::optional<Task> next_to_open() CAIRN_REQUIRES(mutex_);
  Block* new_block(File& file, std::uint64_t index) CAIRN_REQUIRES(mutex_);
  void serve() noexcept;  // runs on each thread, until no task is left to begin
  void perform(const Task& task);
  void finish() noexcept;

  // Digest tensors: write_digests.cpp.
  void plan_digests();
  std::optional<Task> next_to_digest() CAIRN_REQUIRES(mutex_);
  void digest(Block& block);
  void join_digests();
  // Returns the tensor that the digest of an item was made of, if the write is to use it.
  std::shared_ptr<const ElementRun> held(std::uint32_t item);

  void open(File& file, Block* tail);
  bool take_over(File& file, Block* tail);
  void place_items(File& file);
  void close(File& file);
  void drop(Block& block, bool is_unit);
  void wait_for_turn(const Block& block);
  // Passes the turn on. Counts the unit as checksummed at the same moment, because the last unit of
  // a file lets its tail begin.
  void end_turn(const Block& block, bool checksummed);

  // Write tensors whose place is known: write_blocks.cpp.
  void write_block(Block& block);
  void finish_block(Block& block);
  // Fills in what is known: prefixes and payloads. Adds archives whose suffix is still to come to
  // `ending`.
  void fill(Block& block);
  void fill_payload(Block& block, Item& item);
  void fill_suffixes(Block& block);
  void copy_overlap(const Block& block, std::uint64_t offset, ByteSpan bytes) const;
  std::shared_ptr<const ElementRun> resolve(Item& item);
  void copied(Item& item);

  // Write items whose length is not known: write_items.cpp.
  void append_to(File& file, Block& block);
  void append(File& file, ByteSpan bytes, bool is_content = true);
  void flush(File& file);
  void write_part(Block& block);
  void write_tail(Block& block);
  void begin_item(File& file);
  void append_frame(File& file, ByteSpan frame, std::size_t plain_bytes);
  void append_small_frame(File& file, ByteSpan bytes, ZstdCompressor* compressor);
  void end_item(File& file);
  std::unique_ptr<ZstdCompressor> take_compressor();

  const WriteRequest request_;
  const std::shared_ptr<StagingRing> shared_ring_;
  StagingRing& ring_;
  const ItemChanges changes_;
  const unsigned files_open_max_;
  const std::uint64_t frame_bytes_;
  const Work work_;  // the work of the thread that started the write

  std::vector<File> files_;  // the vector itself never changes while threads run
  std::vector<Item> to_digest_;  // by item of the plan
  std::vector<PartToDigest> parts_to_digest_;
  std::size_t next_to_digest_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::size_t digests_left_ CAIRN_GUARDED_BY(mutex_) = 0;  // until it is 0, no file is opened
  std::size_t first_open_ CAIRN_GUARDED_BY(mutex_) = 0;  // all files before it are closed
  std::size_t next_to_open_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::size_t closed_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::uint64_t units_to_copy_ CAIRN_GUARDED_BY(mutex_) = 0;  // units of all files that are not filled
  std::vector<std::unique_ptr<Block>> blocks_ CAIRN_GUARDED_BY(mutex_);
  std::vector<Block*> copied_first_ CAIRN_GUARDED_BY(mutex_);  // with `copy_first`: filled, and to be written
  std::vector<std::unique_ptr<ZstdCompressor>> idle_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
