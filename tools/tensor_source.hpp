// The source of tensors for commands: a checkpoint in any store, a state dict that torch.save
// wrote, or files in the safetensors format. Reads data only when asked, and caches none.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <cairn/base/bytes.hpp>
#include <cairn/formats/saved_value.hpp>
#include <cairn/planning/metadata.hpp>
#include <cairn/storage/verify_checkpoint.hpp>

namespace cairn::tools {

// Selects whether reading a part of a tensor in a PyTorch checkpoint verifies that part. PyTorch
// has only one checksum per chunk, so verifying also reads the whole chunk. Whole tensors, and all
// data written by Cairn, are always verified.
enum class CheckParts { kYes, kNo };

// Not thread-safe, but not bound to a thread either: `read` and `read_bytes` may be called on any
// thread, one call at a time.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  // Returns names, shapes and nesting. In a file, every tensor is one chunk of unknown position.
  virtual const Metadata& metadata() const = 0;
  // Returns a name for messages.
  virtual std::string name() const = 0;
  // Returns the program or format: "Cairn", "PyTorch", "torch.save" or "safetensors".
  virtual const char* writer() const = 0;

  // Returns whether this is a file, which no rank wrote, and of which nothing is known of places.
  virtual bool is_file() const { return false; }
  // Returns whether each value has bytes of its own, which `read_bytes` returns as they are.
  virtual bool has_archives() const { return false; }

  // Returns the elements of `box` of a tensor, in row-major order. Throws kUnsupported for an
  // unknown dtype, kCorrupt for damaged data, and the store's errors.
  virtual Bytes read(const std::string& fqn, const Box& box) = 0;
  // Returns bytes of a tensor for which as_packed_bytes returns something; `box` counts bytes.
  virtual Bytes read_packed(const std::string& fqn, const Box& box);
  // Return the content of a key that is not a tensor: `read_bytes` as torch.save bytes,
  // `read_value` as a value, which may be opaque. Throw kUnsupported for tensors of unknown types
  // within values in files. `read_bytes` does so for opaque values in files, too.
  virtual Bytes read_bytes(const std::string& fqn) = 0;
  virtual SavedValue read_value(const std::string& fqn) = 0;

  // Returns the reason why a tensor or a value cannot be read, as far as it is known without
  // reading elements of tensors; "" if no reason is known.
  virtual std::string why_unreadable(const std::string& fqn) const;
  // Does the same, and also gives a reason for an opaque value.
  std::string why_not_convertible(const std::string& fqn);

 protected:
  // Throws kUnsupported, naming the key, if the elements or bytes cannot be read.
  void require_readable(const std::string& fqn) const;
};

// Describes the bytes of a tensor in a safetensors file whose type Cairn lacks, as a tensor of one
// dimension. Returns nothing for other tensors, and for parts.
std::optional<TensorStorageMetadata> as_packed_bytes(const TensorStorageMetadata& stored);

// Opens the checkpoint at a path or URL, or the tensor files at a path (see tensor_files_at). Joins
// the parts of a checkpoint that ranks saved for themselves, and names ranks without a part on
// standard error. Throws what open_existing throws. Throws kCorrupt for damaged data or an unknown
// format, kUnsupported for content that Cairn cannot read, and kMismatch if the parts are not of
// one save.
std::unique_ptr<TensorSource> open_tensor_source(const std::string& place, CheckParts check);

struct TensorFile {
  std::filesystem::path path;
  std::set<std::string> promised;  // the keys that the index says are in this file; empty without an index
};

// Returns the tensor files at `place`; empty if there are none. For an index
// (`*.safetensors.index.json`), returns the files that it names; for any other file, that file. For
// a directory without a commit record, uses its index, or else its files in the safetensors format.
// Throws what find_safetensors_files throws.
std::vector<TensorFile> tensor_files_at(const std::string& place);

// Opens a state dict that torch.save wrote, or files in the safetensors format, and maps the files.
// Tensors are read on demand, and each storage of torch.save is verified against its checksum. If a
// file is truncated while it is mapped, the process dies of SIGBUS. Throws kUnsupported for a file
// that holds neither a dict nor an object. Throws kCorrupt.
std::unique_ptr<TensorSource> open_tensor_files(const std::string& place, const std::vector<TensorFile>& files);

// Reads these files completely. Returns all faults, then everything that cannot be checked, such as
// safetensors elements, which have no checksums. Calls `progress` as verify_checkpoint does.
std::vector<VerifyFault> verify_tensor_files(const std::string& place, const std::vector<TensorFile>& files,
                                             const std::function<void(std::uint64_t, std::uint64_t)>& progress);

}  // namespace cairn::tools
