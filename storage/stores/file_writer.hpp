// Writes one object of a file store.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include <cairn/base/shared_mutex.hpp>
#include <cairn/storage/store.hpp>
#include <cairn/storage/stores/file_system.hpp>

namespace cairn {

// Many threads may write at once. `sync`, `close` and `discard` wait for running writes.
class FileWriter : public ObjectWriter {
 public:
  // Creates the file at `path`, below the store's `root`. Throws kAlreadyExists and kNoSpace.
  // Throws kNotFound if its directory does not exist.
  FileWriter(FileSystem& files, std::string root, std::string path, const CreateOptions& options);
  ~FileWriter() override;
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write_at(std::uint64_t offset, ByteSpan bytes) override;
  std::size_t alignment_bytes() const override { return alignment_; }
  void sync(std::uint64_t length) override;
  void close(std::uint64_t length) override;
  void discard() noexcept override;

 private:
  enum class State : std::uint8_t { kWriting, kFinished, kDiscarded };

  void require_writing(const char* action) const CAIRN_REQUIRES_SHARED(mutex_);
  void finish(std::uint64_t length, bool durable);
  void take_name() CAIRN_REQUIRES(mutex_);
  bool names_this_file() noexcept;

  FileSystem& files_;
  const std::string root_;
  const std::string final_path_;
  std::string path_;  // with `appears_whole`, a temporary name until the file is complete
  std::size_t alignment_ = 1;

  SharedMutex mutex_;  // shared while writing; exclusive to change the members below
  State state_ CAIRN_GUARDED_BY(mutex_) = State::kWriting;
  int file_ CAIRN_GUARDED_BY(mutex_) = -1;
  FileStatus identity_;
  std::atomic<bool> bypasses_cache_{false};
};

}  // namespace cairn
