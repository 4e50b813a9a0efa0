// States in files of others, without tensors of LibTorch: a file of torch.save, the files of
// torch_checkpointing, a file of safetensors. Internal.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include <sys/stat.h>

#include <cairn/base/bytes.hpp>
#include <cairn/base/error.hpp>
#include <cairn/formats/saved_value.hpp>
#include <cairn/planning/metadata.hpp>
#include <cairn/planning/plan.hpp>
#include <cairn/storage/storage_context.hpp>

namespace cairn {

// A file mapped into memory. If it is truncated meanwhile, a process that reads it dies of SIGBUS.
class MappedFile {
 public:
  // Throws kNotFound and kPermission, and kCorrupt for anything but a regular file. Does not block
  // on a pipe that has no writer.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::size_t size() const { return static_cast<std::size_t>(status_.st_size); }
  char* begin() const { return begin_; }
  ByteSpan bytes() const { return {begin_, size()}; }

 private:
  struct stat status_ {};
  char* begin_ = nullptr;
};

// Elements in memory: a strided view of a mapped file, or of a copy.
struct SavedElements {
  std::size_t element_bytes = 1;
  char* first = nullptr;  // may be unaligned
  Extents sizes;
  Extents strides;                     // in elements
  std::shared_ptr<const void> memory;  // owns the elements, if they are not in a mapped file

  // Returns the part of the view that `box` describes.
  SavedElements part(const Box& box) const;
  // Returns the elements in row-major order.
  Bytes dense() const;
};

// Files are mapped: if one is truncated meanwhile, the process dies of SIGBUS. Not thread-safe, but
// not bound to a thread either.
class SavedFiles {
 public:
  virtual ~SavedFiles() = default;
  const Metadata& metadata() const { return metadata_; }
  // The defaults of these functions are for files that have no unreadable keys, no values or no
  // tensors.
  //
  // Returns why `value` or `elements` would throw kUnsupported or kMismatch, or "".
  virtual std::string why_unreadable(const std::string& /*fqn*/) { return ""; }
  // Returns what is no tensor. Throws kUnsupported, naming the key, if it cannot be read.
  virtual SavedValue value(const std::string& fqn) { throw InternalError("no value: " + fqn); }
  // Returns it as bytes of torch.save. Throws kUnsupported for an opaque value, too.
  virtual Bytes bytes(const std::string& fqn) { throw InternalError("no value: " + fqn); }
  // Returns the elements of chunk `chunk` of a tensor. Checks the storage that holds them against
  // its checksum, if it has one, before it is first read. Throws kCorrupt, kMismatch and
  // kUnsupported.
  virtual SavedElements elements(const std::string& fqn, std::size_t /*chunk*/) { throw InternalError("no tensor: " + fqn); }
  // Returns the elements of a box of a tensor in row-major order, from all its chunks.
  Bytes read(const std::string& fqn, const Box& box);
  // Says which rank reads, of how many. Otherwise it is the only one.
  virtual void set_context(const StorageContext&) {}

 protected:
  Metadata metadata_;
};

// Opens a file of torch.save, as TorchSaveReader (state/torch_save.hpp) says.
std::unique_ptr<SavedFiles> open_torch_save(const std::string& path, const std::string& key = "");
// Opens a directory of torch_checkpointing, as TorchCheckpointingReader says.
std::unique_ptr<SavedFiles> open_torch_checkpointing(const std::string& url);

}  // namespace cairn
