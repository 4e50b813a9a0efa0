// The archives that torch.save writes and torch.load reads, without LibTorch: a zip of a pickle and of the tensors' raw storages.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <cairn/base/bytes.hpp>
#include <cairn/planning/box.hpp>
#include <cairn/planning/dtype.hpp>
#include <cairn/state/pickle/pickle_value.hpp>
#include <cairn/state/pickle/zip_format.hpp>
#include <cairn/state/pickle/zip_reader.hpp>

namespace cairn {

// An archive, opened: entries are found by their names within the archive's own folder, whatever that is called.
class TorchArchive {
 public:
  // As ZipReader's; checks also that this is an archive of torch.save, of a known version, little-endian. Throws kCorrupt,
  // kUnsupported.
  TorchArchive(std::uint64_t size_bytes, ZipReader::ReadAt read_at, std::string what);
  TorchArchive(ByteSpan archive, std::string what);

  // The pickle of the saved object, CRC-32 checked. kUnsupported if it is longer than `bytes_max`: nothing of it is read then.
  Bytes pickle(std::uint64_t bytes_max = std::numeric_limits<std::uint64_t>::max()) const;

  // A storage, by the key that the pickle gives it.
  struct Storage {
    std::uint64_t offset = 0;  // of its bytes, from the archive's begin
    std::uint64_t size_bytes = 0;
    std::uint32_t crc32 = 0;  // of its bytes
  };
  Storage storage(std::string_view key) const;     // kCorrupt if there is none
  Bytes read_storage(std::string_view key) const;  // CRC-32 checked

  const std::string& what() const { return zip_.what(); }

 private:
  void check_kind();
  const ZipReader::Entry& entry(std::string_view name) const;

  ZipReader zip_;
  std::string folder_;  // with the '/'
};

// A tensor as a pickle describes it. Sizes, strides and offset are in elements. Every element that it can reach lies within its
// storage, if that has at least `storage_bytes` bytes.
struct TensorDescription {
  DType dtype = DType::kFloat32;
  Extents sizes;
  Extents strides;
  std::uint64_t storage_offset = 0;
  std::string storage_key;
  std::uint64_t storage_bytes = 0;  // as the pickle says
  bool requires_grad = false;
  bool is_conjugated = false;  // the elements are stored conjugated: PyTorch's lazy conj()
  bool is_negated = false;     // stored negated: PyTorch's lazy neg()

  // The elements lie one after the other in row-major order.
  bool is_contiguous() const;
};

// The classes and functions that tensors are pickled with, for `unpickle`.
const std::vector<PickleGlobal>& tensor_globals();
// Whether `value` is a tensor or a parameter.
bool is_tensor(const PickleValue& value);
// Its description. kCorrupt if it is not sound, kUnsupported for tensors of other kinds and dtypes.
TensorDescription describe_tensor(const PickleValue& value);
// torch.float32 and the like, and torch.Size; for `unpickle` and to read what it found.
const std::vector<PickleGlobal>& dtype_globals();
DType dtype_of(const PickleValue& value);      // kCorrupt if it is no dtype
Extents extents_of(const PickleValue& value);  // of a torch.Size, tuple or list of ints; kCorrupt if one is negative

// The one tensor that an archive holds: what a stored chunk of a tensor is.
struct ArchivedTensor {
  TensorDescription description;
  TorchArchive::Storage storage;
};
// Checks that the storage is as long as the pickle says.
ArchivedTensor read_archived_tensor(const TorchArchive& archive);

// Writes an archive from its begin to its end: the pickle, then the storages "0", "1", … that it names, each on a multiple of 64 bytes, in as many
// parts as the caller likes. Where everything lies follows from the lengths, so that what was written once may be passed over.
class TorchArchiveWriter {
 public:
  using WriteAt = std::function<void(std::uint64_t offset, ByteSpan bytes)>;  // from the archive's begin

  TorchArchiveWriter(ByteSpan pickle, WriteAt write_at);

  void begin_storage(std::uint64_t size_bytes);
  void append(ByteSpan bytes);
  // As `append` of so many bytes that are in their place already; `crc32`: of all bytes of this storage up to there.
  void pass_over(std::uint64_t bytes, std::uint32_t crc32);
  // Of what this storage has so far.
  std::uint32_t storage_crc32() const { return entries_.back().crc32; }
  // All bytes of it were appended.
  void end_storage();
  // Returns the length of the whole archive.
  std::uint64_t finish();

 private:
  void begin(std::string name, std::uint64_t size_bytes, std::uint64_t alignment);

  WriteAt write_at_;
  std::uint64_t at_ = 0;
  std::uint64_t left_ = 0;  // bytes of the entry that are to come
  std::uint64_t storages_ = 0;
  std::vector<zip::Entry> entries_;
};

// A whole archive in memory: the pickle, and the storages "0", "1", … that it names, each on a multiple of 64 bytes.
Bytes write_torch_archive(ByteSpan pickle, const std::vector<ByteSpan>& storages);

}  // namespace cairn
