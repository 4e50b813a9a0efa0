// Reads and writes the archives of torch.save and torch.load without LibTorch: a zip file with a
// pickle and the tensors' raw storages.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <cairn/base/bytes.hpp>
#include <cairn/formats/pickle_value.hpp>
#include <cairn/formats/zip_format.hpp>
#include <cairn/formats/zip_reader.hpp>
#include <cairn/planning/box.hpp>
#include <cairn/planning/dtype.hpp>

namespace cairn {

struct TensorDescription;

// An open archive. All its entries lie in one folder, which may have any name.
class TorchArchive {
 public:
  // Opens an archive as ZipReader does. Also checks that it was written by torch.save in a known
  // version, and that it is little-endian. Throws kCorrupt and kUnsupported.
  TorchArchive(std::uint64_t size_bytes, ZipReader::ReadAt read_at, std::string what);
  TorchArchive(ByteSpan archive, std::string what);

  // Returns the pickle of the saved object after a CRC-32 check. Throws kUnsupported, without
  // reading it, if it is longer than `bytes_max`.
  Bytes pickle(std::uint64_t bytes_max = std::numeric_limits<std::uint64_t>::max()) const;

  // A storage, found by its key in the pickle.
  struct Storage {
    std::uint64_t offset = 0;  // its bytes begin here, counted from the start of the archive
    std::uint64_t size_bytes = 0;
    std::optional<std::uint32_t> crc32;  // covers its bytes; absent if the archive has no checksums
  };
  bool has_storage(std::string_view key) const { return zip_.find(folder_ + "data/" + std::string(key)) != nullptr; }
  Storage storage(std::string_view key) const;     // throws kCorrupt if there is none
  Bytes read_storage(std::string_view key) const;  // checks the CRC-32, if there is one
  // Returns how a tensor's storage falls short of what the pickle says of it; "" if it does not.
  std::string shortage(const TensorDescription& tensor) const;

  bool has_checksums() const { return zip_.has_checksums(); }
  const std::string& what() const { return zip_.what(); }

 private:
  void check_kind();
  const ZipReader::Entry& entry(std::string_view name) const;

  ZipReader zip_;
  std::string folder_;  // including the '/'
};

// A tensor as described by a pickle. Sizes, strides and offset are in elements. All elements lie
// within the storage if it has at least `storage_bytes` bytes.
struct TensorDescription {
  DType dtype = DType::kFloat32;
  std::string unknown_dtype;  // PyTorch's name of the type if `dtype` is kUnknown
  Extents sizes;
  Extents strides;
  std::uint64_t storage_offset = 0;
  std::string storage_key;
  std::uint64_t storage_bytes = 0;  // according to the pickle
  bool requires_grad = false;
  bool is_conjugated = false;  // the tensor is the conjugate of the stored elements: PyTorch's lazy conj()
  bool is_negated = false;     // the tensor is the negative of the stored elements: PyTorch's lazy neg()

  // Returns whether the elements are contiguous in row-major order.
  bool is_contiguous() const;
};

// Returns the classes and functions that pickles of tensors name, to pass to `unpickle`.
const std::vector<PickleGlobal>& tensor_globals();
// Returns whether `value` is a tensor, a parameter, a buffer, or a DTensor of which it has all
// elements.
bool is_tensor(const PickleValue& value);
// Returns the description of a tensor. Throws kCorrupt if `value` is not a tensor or the pickle is
// inconsistent. Throws kUnsupported for an unknown property of a tensor, and for a negated tensor
// of a type that Cairn cannot negate.
TensorDescription describe_tensor(const PickleValue& value);
// A DTensor, of which each rank's file has a part.
struct DistributedPart {
  PickleValue local;  // a tensor
  Extents size;       // of the whole
  Box box;            // of `local` within the whole
  bool requires_grad = false;
};
// Returns nothing for any other value, and for a DTensor whose part is not known: one with pending
// sums, with shards in another order than that of the mesh, or of another version of PyTorch.
std::optional<DistributedPart> distributed_part(const PickleValue& value);

// Returns the names of the dtypes (torch.float32, …) and of torch.Size, to pass to `unpickle`. The
// two functions below convert values that have these names.
const std::vector<PickleGlobal>& dtype_globals();
DType dtype_of(const PickleValue& value);      // kUnknown for a type that DType lacks; throws kCorrupt if not a dtype
Extents extents_of(const PickleValue& value);  // reads a torch.Size, tuple or list of ints; throws kCorrupt if one is negative

// The content of an archive that holds one tensor, such as a stored chunk.
struct ArchivedTensor {
  TensorDescription description;
  TorchArchive::Storage storage;
};
// Reads such an archive. Also checks that the storage has at least the size that the pickle gives.
ArchivedTensor read_archived_tensor(const TorchArchive& archive);

// Writes an archive sequentially: the pickle, then the storages "0", "1", … that the pickle names,
// each aligned to 64 bytes. A storage may be appended in any number of pieces.
class TorchArchiveWriter {
 public:
  using WriteAt = std::function<void(std::uint64_t offset, ByteSpan bytes)>;  // `offset` is from the start of the archive

  TorchArchiveWriter(ByteSpan pickle, WriteAt write_at);

  void begin_storage(std::uint64_t size_bytes);
  void append(ByteSpan bytes);
  // Ends the storage. Call it when all bytes of the storage have been appended.
  void end_storage();
  // Returns the length of the whole archive.
  std::uint64_t finish();

 private:
  void begin(std::string name, std::uint64_t size_bytes, std::uint64_t alignment);

  WriteAt write_at_;
  std::uint64_t at_ = 0;
  std::uint64_t left_ = 0;  // bytes of the entry still to be written
  std::uint64_t storages_ = 0;
  std::vector<zip::Entry> entries_;
};

// Returns a whole archive in memory: the pickle and the storages "0", "1", … that it names, each
// aligned to 64 bytes.
Bytes write_torch_archive(ByteSpan pickle, const std::vector<ByteSpan>& storages);

}  // namespace cairn
