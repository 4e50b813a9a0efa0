#include <cairn/formats/torch_archive.hpp>

#include <charconv>
#include <utility>

#include <cairn/base/digest.hpp>
#include <cairn/base/error.hpp>
#include <cairn/formats/unicode.hpp>
#include <cairn/formats/unpickler.hpp>

namespace cairn {
namespace {

constexpr std::string_view kPickleName = "data.pkl";
constexpr std::uint64_t kTensorPickleBytesMax = 1 << 20;  // the pickle of one tensor takes a few hundred bytes
constexpr std::int64_t kVersionMin = 1;
constexpr std::int64_t kVersionMax = 10;  // the highest that PyTorch 2 reads; it writes 3

}  // namespace

TorchArchive::TorchArchive(std::uint64_t size_bytes, ZipReader::ReadAt read_at, std::string what)
    : zip_(size_bytes, std::move(read_at), std::move(what)) {
  check_kind();
}

TorchArchive::TorchArchive(ByteSpan archive, std::string what) : zip_(archive, std::move(what)) { check_kind(); }

void TorchArchive::check_kind() {
  if (zip_.entries().empty()) throw Error(ErrorCode::kCorrupt, what() + ": an empty zip archive");
  // PyTorch takes the folder's name from the first entry.
  const auto& first = zip_.entries().front().name;
  const auto slash = first.find('/');
  if (slash == std::string::npos)
    throw Error(ErrorCode::kCorrupt,
                what() + ": a zip archive, but not of torch.save: \"" + printable(first) + "\" is in no folder");
  folder_ = first.substr(0, slash + 1);
  if (zip_.find(folder_ + "constants.pkl") != nullptr)
    throw Error(ErrorCode::kUnsupported, what() + ": a TorchScript module, not a saved value");

  const auto* version_entry = zip_.find(folder_ + "version");
  // Some versions of PyTorch keep it in this folder.
  if (version_entry == nullptr) version_entry = zip_.find(folder_ + ".data/version");
  if (version_entry == nullptr)
    throw Error(ErrorCode::kCorrupt, what() + ": a zip archive, but not of torch.save: it has no version");
  // A version has a few digits. A larger entry is not read.
  const auto text = version_entry->size_bytes <= 16 ? zip_.read(*version_entry) : Bytes();
  std::int64_t version = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), version);
  if (error != std::errc() || (end != text.data() + text.size() && *end != '\n'))
    throw Error(ErrorCode::kCorrupt, what() + ": the archive's version is no number");
  if (version < kVersionMin || version > kVersionMax)
    throw Error(ErrorCode::kUnsupported, what() + ": archive version " + std::to_string(version) + "; known are " +
                                             std::to_string(kVersionMin) + " to " + std::to_string(kVersionMax));
  if (const auto* order = zip_.find(folder_ + "byteorder"); order != nullptr) {
    const auto name = order->size_bytes <= 16 ? zip_.read(*order) : Bytes();
    if (name == "big")
      throw Error(ErrorCode::kUnsupported, what() + ": written on a big-endian machine; save it again on a little-endian one");
    if (name != "little")
      throw Error(ErrorCode::kCorrupt, what() + ": byte order \"" + printable(name) + "\" is neither little nor big");
  }
}

const ZipReader::Entry& TorchArchive::entry(std::string_view name) const {
  const auto* found = zip_.find(folder_ + std::string(name));
  if (found == nullptr) throw Error(ErrorCode::kCorrupt, what() + ": the archive has no entry \"" + printable(name) + "\"");
  return *found;
}

Bytes TorchArchive::pickle(std::uint64_t bytes_max) const {
  const auto& found = entry(kPickleName);
  // Before reading: the size comes from the archive and may be anything.
  if (found.size_bytes > bytes_max)
    throw Error(ErrorCode::kUnsupported, what() + ": its pickle has " + std::to_string(found.size_bytes) +
                                             " bytes, more than the " + std::to_string(bytes_max) + " that are read here");
  return zip_.read(found);
}

// Returns only the place of the bytes: the caller reads as much of them as it needs.
TorchArchive::Storage TorchArchive::storage(std::string_view key) const {
  const auto& found = entry("data/" + std::string(key));
  return {zip_.data_offset(found), found.size_bytes, found.crc32};
}

std::string TorchArchive::shortage(const TensorDescription& tensor) const {
  const std::uint64_t bytes = storage(tensor.storage_key).size_bytes;
  if (bytes >= tensor.storage_bytes) return "";
  return "a storage of " + std::to_string(bytes) + " bytes, where " + std::to_string(tensor.storage_bytes) + " are described";
}

Bytes TorchArchive::read_storage(std::string_view key) const { return zip_.read(entry("data/" + std::string(key))); }

// Reads the pickle alone, which is small. The elements stay where they are.
ArchivedTensor read_archived_tensor(const TorchArchive& archive) {
  const auto pickle = archive.pickle(kTensorPickleBytesMax);
  const auto tree = unpickle(pickle, archive.what(), tensor_globals());
  ArchivedTensor result;
  result.description = describe_tensor(tree.root());
  result.storage = archive.storage(result.description.storage_key);
  // Compares pickle and zip directory: reads within the description then stay within the storage.
  if (result.storage.size_bytes < result.description.storage_bytes)
    throw Error(ErrorCode::kCorrupt, archive.what() + ": the tensor's storage has " + std::to_string(result.storage.size_bytes) +
                                         " bytes, its description says " + std::to_string(result.description.storage_bytes));
  return result;
}

// The small entries come before the storages, whose positions then follow from their lengths alone.
TorchArchiveWriter::TorchArchiveWriter(ByteSpan pickle, WriteAt write_at) : write_at_(std::move(write_at)) {
  const auto whole = [this](std::string_view name, ByteSpan data) {
    begin(std::string(name), data.size(), 0);
    append(data);
    end_storage();
  };
  // The pickle comes first, as in torch.save: readers take the folder's name from the first entry.
  whole(kPickleName, pickle);
  whole("byteorder", std::string_view("little"));
  whole("version", std::string_view("3\n"));
}

void TorchArchiveWriter::begin(std::string name, std::uint64_t size_bytes, std::uint64_t alignment) {
  check_invariant(left_ == 0, "an entry of an archive was begun before the one before it was whole");
  entries_.push_back({"archive/" + std::move(name), at_, size_bytes, 0});
  // The data begins where the local header ends, so the header is padded to align the data.
  const auto end = at_ + zip::local_header_length(entries_.back().name, size_bytes);
  Bytes header;
  zip::append_local_header(header, entries_.back().name, size_bytes, alignment == 0 ? 0 : zip::padding_for(end, alignment));
  write_at_(at_, header);
  at_ += header.size();
  left_ = size_bytes;
}

void TorchArchiveWriter::begin_storage(std::uint64_t size_bytes) {
  // As PyTorch aligns storages.
  constexpr std::uint64_t kAlignment = 64;
  begin("data/" + std::to_string(storages_++), size_bytes, kAlignment);
}

void TorchArchiveWriter::append(ByteSpan bytes) {
  check_invariant(bytes.size() <= left_, "more was appended to an entry of an archive than announced");
  write_at_(at_, bytes);
  // Computed along the way: the descriptor after the data holds it.
  entries_.back().crc32 = crc32(entries_.back().crc32, bytes);
  at_ += bytes.size();
  left_ -= bytes.size();
}

void TorchArchiveWriter::end_storage() {
  check_invariant(left_ == 0, "an entry of an archive ended before it was whole");
  Bytes descriptor;
  zip::append_descriptor(descriptor, entries_.back().size, entries_.back().crc32);
  write_at_(at_, descriptor);
  at_ += descriptor.size();
}

std::uint64_t TorchArchiveWriter::finish() {
  check_invariant(left_ == 0, "an archive was finished before its last entry was whole");
  Bytes directory;
  zip::append_directory(directory, entries_, at_);
  write_at_(at_, directory);
  return at_ + directory.size();
}

Bytes write_torch_archive(ByteSpan pickle, const std::vector<ByteSpan>& storages) {
  Bytes out;
  TorchArchiveWriter writer(pickle, [&](std::uint64_t, ByteSpan bytes) { out.append(bytes.data(), bytes.size()); });
  for (const ByteSpan& storage : storages) {
    writer.begin_storage(storage.size());
    writer.append(storage);
    writer.end_storage();
  }
  writer.finish();
  return out;
}

}  // namespace cairn
