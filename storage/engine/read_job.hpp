// One read of ReadEngine: the state that its threads share.
//
//   stage 0   open the files: check their lengths, read their trailers
//   stage 1   with verify_first: read and check everything that stage 2 will read
//   stage 2   read, check, copy, commit
//
// Tasks of one stage run in parallel; the next stage begins when all of them are done.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <cairn/base/future.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/base/running_work.hpp>
#include <cairn/formats/torch_archive.hpp>
#include <cairn/planning/metadata.hpp>
#include <cairn/planning/plan.hpp>
#include <cairn/planning/read_once.hpp>
#include <cairn/storage/engine/data_file.hpp>
#include <cairn/storage/engine/item_data.hpp>
#include <cairn/storage/engine/job.hpp>
#include <cairn/storage/engine/rank_streams.hpp>
#include <cairn/storage/engine/region.hpp>
#include <cairn/storage/engine/staging_ring.hpp>
#include <cairn/storage/format/zstd_item.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {

struct ReadRequest {
  std::shared_ptr<Store> store;
  std::shared_ptr<const Metadata> metadata;
  const LoadPlan* plan = nullptr;  // must stay valid until the future is ready
  std::shared_ptr<ItemDestination> destination;
  std::shared_ptr<OpenedFiles> opened;  // shared by all reads of one checkpoint that make the same checks
  bool keep_blocks = false;             // keeps checked blocks in `opened` for later reads
  int rank = 0;                         // for error texts
  bool verify = true;                   // checks the bytes read
  bool verify_first = false;            // checks all bytes this rank needs before it changes any value
  std::shared_ptr<const SharedReads> shared{};  // null: this rank reads all itself
  std::shared_ptr<RankStreams> streams{};       // set if `shared` is
};

// A wrapped item is shared if it has at most this many stored bytes, because a rank holds all of
// them while it waits for the rest.
inline constexpr std::uint64_t kSharedItemBytesMax = std::uint64_t{64} << 20;

class ReadJob : public Job<bool> {
 public:
  ReadJob(ReadRequest request, std::shared_ptr<StagingRing> ring);
  void run(unsigned threads) noexcept override;
  // Returns the blocks that could be shared, as ReadOffer::needs has them.
  std::vector<FileRange> needs() const;

 private:
  enum Stage { kOpen, kVerify, kRead };

  // Parts of an item with gaps of at most this size are read as one range. Stores and checksum
  // blocks work in units of about this size anyway.
  static constexpr std::uint64_t kGapBytesMax = std::uint64_t{64} * 1024;

  // The destination of an item: a run of elements, or the buffer of a bytes object.
  struct Destination {
    std::shared_ptr<const ElementRun> elements;
    Bytes bytes;

    bool is_on_host() const { return !elements || elements->is_on_host(); }
    char* direct() { return elements ? elements->direct() : bytes.data(); }
    void write(std::uint64_t position, ByteSpan from);
  };

  struct Task;
  struct Item {
    const ReadItem* item = nullptr;
    const StorageInfo* storage = nullptr;
    Region region;                                  // within its file; not used if is_wrapped()
    const TensorStorageMetadata* tensor = nullptr;  // null: a bytes object
    const Box* chunk = nullptr;                     // of `tensor`
    bool in_one_task = false;                       // only one thread uses the item
    // Guarded by mutex_, unless `in_one_task`:
    std::shared_ptr<Destination> destination;  // held from the first copy to the last
    bool resolving = false;
    std::size_t missing = 0;  // parts still to be read
    // Set while this stands for the stored bytes of a shared wrapped item. The task reads the
    // tensors from them.
    std::shared_ptr<Task> wrapped{};

    // Returns whether the item must be opened to find its elements in the file: it is transformed
    // (compressed, for example), or a tensor in an archive of PyTorch.
    bool is_wrapped() const { return !storage->transforms.empty() || (tensor && storage->payload_offset == 0); }
    // Returns the place of the elements, if those of the chunk begin at `payload_offset`. Throws
    // kMismatch if the chunk lacks some.
    Region region_at(std::uint64_t payload_offset) const {
      return {payload_offset, chunk->sizes, item->storage_offsets, item->lengths, element_size(tensor->properties.dtype)};
    }
  };

  // A range of a file that an item needs, possibly with small gaps.
  struct Span {
    Region::Span range;
    std::uint32_t item = 0;
  };

  struct File {
    const FileInfo* info = nullptr;
    std::vector<Span> spans;          // sorted by begin
    std::shared_ptr<const DataFile> opened;

    std::uint64_t content_bytes() const { return opened->content_bytes; }
    std::uint32_t grid_bytes() const { return opened->checksum_block_bytes; }
    bool is_checked() const { return !opened->block_crc32.empty(); }
    std::atomic<bool> has_warned{false};  // that it is read from the fallback
  };

  // A range of a file to read.
  struct Piece {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };

  // One unit of work for a thread: ranges of a file, one wrapped item, or all items without bytes.
  struct Task {
    File* file = nullptr;
    std::vector<Piece> pieces;         // ascending
    std::vector<std::uint32_t> spans;  // indices of the file's spans that overlap the pieces
    std::vector<std::uint32_t> items;  // used instead of pieces: the reads from one wrapped item, or items without bytes
    bool wrapped = false;
    Piece share{0, std::numeric_limits<std::uint64_t>::max()};  // the bytes of a wrapped tensor's elements that this task reads
    const SharedRange* shared = nullptr;  // the reader, and the receivers, of the pieces; null: they are not shared
    std::size_t turn = 0;                 // of sending, if this rank is the reader

    bool is_received() const { return shared && shared->receivers.empty(); }
  };

  // A range of a task with one target in memory.
  struct Range {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    char* memory = nullptr;
    bool direct = false;                // `memory` belongs to the destination
    std::shared_ptr<const Bytes> kept;  // owns `memory`, if an earlier read has read and checked this block
  };

  // These functions build the tasks: read_tasks.cpp.
  void add_item(std::uint32_t index);
  File& file_of(const StorageInfo& storage);
  void make_tasks();
  void make_tasks(File& file);
  void add_archive(Task task);
  // Returns the first shared range that ends after the place.
  std::vector<SharedRange>::const_iterator shared_after(std::uint32_t file, std::uint64_t offset) const;
  bool is_shared(const StorageInfo& storage) const;
  void add_piece(File& file, Piece piece, Task& task, std::uint64_t& task_bytes);
  void add_part(File& file, Piece piece, const SharedRange* shared, Task& task, std::uint64_t& task_bytes);
  void sort_out_shared();

  // These functions run the tasks: read_job.cpp, and read_archive.cpp for wrapped items.
  void run_stage(Stage stage, unsigned threads);
  void run_task(Stage stage, std::size_t index);
  void start_receivers();
  void finish() noexcept;
  void fail(std::exception_ptr error) noexcept override;
  void open(File& file);
  std::shared_ptr<const DataFile> look_at(const std::shared_ptr<Store>& store, const FileInfo& info);
  // Returns the store that may have a sound copy of a file that is damaged in the request's store;
  // null if there is none. Warns once per file.
  std::shared_ptr<Store> fallback_of(File& file, const char* why);
  // Reads a damaged checksum block a second time, because the damage may have happened in transit,
  // and then from the fallback. Returns whether one of these reads is sound.
  bool read_again(File& file, std::uint64_t offset, MutableByteSpan block);
  void read_ranges(Task& task, bool verify_only);
  bool receive(const Task& task, const std::vector<Range>& ranges);
  void pass_on(const Task& task, const std::vector<Range>& ranges);
  void receive_all(std::uint32_t reader, std::vector<Task>& tasks) noexcept;
  std::vector<Range> place(const Task& task, const StagingBlock& staging, bool verify_only);
  void check(const Task& task, const Range& range);
  void keep_end(const File& file, const Range& range);
  void copy(const Task& task, const Range& range);
  bool checks_archives(const File& file) const;
  // `stored`: the item's bytes, if they are in memory.
  void read_wrapped(const Task& task, bool verify_only, ByteSpan stored = {});
  void read_archive(const Task& task, const PlainItem& item, const std::string& what, bool verify_only);
  void read_object(Item& item, const PlainItem& stored, bool verify_only);
  void read_stored(File& file, std::uint64_t offset, MutableByteSpan to);
  void copy_dense(const Task& task, const TorchArchive& archive, const ArchivedTensor& stored, const ZipReader::ReadAt& read_at,
                  bool verify_only);
  void check_strided(const TorchArchive& archive, const ArchivedTensor& stored);
  void copy_strided(const Task& task, const TorchArchive& archive, const ArchivedTensor& stored);

  std::shared_ptr<Destination> resolve(Item& item);
  std::shared_ptr<Destination> make_destination(const Item& item);
  void release(Item& item);  // call it when a part has been read; the call for the last part commits the item
  StagingBlock staging_block();

  const std::string& name_of(const Item& item) const { return request_.plan->names[item.item->storage_name]; }
  std::size_t index_of(const File& file) const { return static_cast<std::size_t>(file.info - request_.metadata->files.data()); }
  std::string url_of(const StorageInfo& storage) const;
  [[noreturn]] void throw_beyond_end(const Item& item) const;
  // Rethrows the Error in flight with rank, tensor and file in front. Other exceptions pass
  // unchanged.
  [[noreturn]] void rethrow_for(const Item& item) const;
  const Item& item_at(const Task& task, std::uint64_t offset) const;
  std::exception_ptr explain(std::exception_ptr error) const noexcept;

  const ReadRequest request_;
  const std::shared_ptr<StagingRing> shared_ring_;  // keeps ring_ alive
  StagingRing& ring_;
  const Work work_;  // the work of the thread that started the read
  std::vector<Item> items_;
  std::vector<std::unique_ptr<File>> files_;
  std::vector<File*> file_by_index_;  // by index into the metadata's files
  std::vector<Task> tasks_;
  // With shared reads. Made before the threads of receivers, and not changed after that:
  std::map<std::uint32_t, std::vector<Task>> received_;  // by reader
  std::unique_ptr<StagingRing> more_staging_;
  std::vector<std::thread> receivers_;
  std::size_t turn_ = 0;  // guarded by mutex_: the next task that sends

  Mutex strided_mutex_;  // limits memory: one strided archive is loaded at a time
};

}  // namespace cairn
