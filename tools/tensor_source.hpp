// The source of tensors for commands: a checkpoint in any store, a state dict that torch.save
// wrote, or files in the safetensors format. Reads data only when asked, and caches none.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <torch/types.h>

#include <cairn/base/bytes.hpp>
#include <cairn/planning/metadata.hpp>
#include <cairn/state/state_dict.hpp>
#include <cairn/storage/checkpoint_writer.hpp>

namespace cairn::tools {

// Selects whether reading a part of a tensor in a PyTorch checkpoint verifies it. PyTorch has only
// one checksum per chunk, so verifying reads the whole chunk in addition. Whole tensors, and all
// data written by Cairn, are always verified.
enum class CheckParts { kYes, kNo };

// Not thread-safe, but `read` and `read_bytes` of the two implementations may be called on any
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
  // Returns a text that changes if the content does. Conversions use it to resume.
  virtual std::string identity() const = 0;

  // Returns the elements of `box` of a tensor, dense, in memory, in the carrier_type_of the stored
  // dtype. Throws kUnsupported for a dtype without such a type, kCorrupt, and the store's errors.
  virtual torch::Tensor read(const std::string& fqn, const Box& box) = 0;
  // Return the content of a key that is not a tensor: `read_bytes` as torch.save bytes,
  // `read_value` as a value. Throw kUnsupported for unknown classes, and for tensors within values
  // if LibTorch lacks their dtype.
  virtual Bytes read_bytes(const std::string& fqn) = 0;
  virtual Value read_value(const std::string& fqn) = 0;

  // Returns why the elements of a tensor, or the bytes of a value, cannot be read, as far as their
  // types tell; "" if they can.
  virtual std::string why_unreadable(const std::string& fqn) const;

 protected:
  // Throws kUnsupported, naming the key, if the elements or bytes cannot be read.
  void require_readable(const std::string& fqn) const;
};

// Opens a path or URL of a checkpoint, or the path that `tensor_files_at` takes. Joins the parts of
// a checkpoint that ranks saved for themselves, and names ranks without a part on standard error.
// Throws what open_existing throws. Throws kCorrupt and kUnsupported if `place` is neither. Throws
// kMismatch if the parts are not of one save.
std::unique_ptr<TensorSource> open_tensor_source(const std::string& place, CheckParts check);

struct TensorFile {
  std::filesystem::path path;
  std::set<std::string> promised;  // the keys that an index says are in it; empty without an index
};

// Returns the files of tensors at `place`, or nothing if there are no such files. A file stands for
// itself, or, if it is an index (`*.safetensors.index.json`), for those that it names. A directory
// without a commit record stands for its index, or else for its files in the safetensors format.
// Throws what find_safetensors_files throws.
std::vector<TensorFile> tensor_files_at(const std::string& place);

// Opens a state dict that torch.save wrote, or files in the safetensors format, and maps the files.
// Tensors are read on demand, and each storage of torch.save is verified against its checksum. If a
// file is truncated meanwhile, the process dies of SIGBUS. Throws kUnsupported, with their names,
// for classes that plain state dicts do not contain. Throws kCorrupt.
std::unique_ptr<TensorSource> open_tensor_files(const std::string& place, const std::vector<TensorFile>& files);

// Reads all of such files. Returns all faults, then everything that cannot be checked, such as
// safetensors elements, which have no checksums. Calls `progress` as verify_checkpoint does.
std::vector<VerifyFault> verify_tensor_files(const std::string& place, const std::vector<TensorFile>& files,
                                             const std::function<void(std::uint64_t, std::uint64_t)>& progress);

}  // namespace cairn::tools
