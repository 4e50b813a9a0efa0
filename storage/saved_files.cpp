// Files of torch.save.
#include <cairn/storage/saved_files.hpp>

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <cairn/base/descriptor.hpp>
#include <cairn/base/digest.hpp>
#include <cairn/base/error.hpp>
#include <cairn/formats/unicode.hpp>
#include <cairn/messages/columns.hpp>
#include <cairn/planning/global_plan.hpp>
#include <cairn/storage/engine/strided_bytes.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {
namespace {

// Returns the files beside `path` whose names differ from its name in one number only, for each
// number in it, the last first.
std::vector<std::vector<std::string>> siblings_of(const std::filesystem::path& path) {
  const std::string own = path.filename().string();
  const auto is_digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
  std::vector<std::vector<std::string>> siblings;
  for (std::size_t end = own.size(); end > 0; --end) {
    if (!is_digit(own[end - 1]) || (end < own.size() && is_digit(own[end]))) continue;
    std::size_t begin = end;
    while (begin > 0 && is_digit(own[begin - 1])) --begin;
    std::vector<std::string>& found = siblings.emplace_back();
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(path.parent_path(), error)) {
      const std::string name = entry.path().filename().string();
      const std::size_t rest = own.size() - end;
      if (name == own || name.size() <= begin + rest || name.compare(0, begin, own, 0, begin) != 0 ||
          name.compare(name.size() - rest, rest, own, end, rest) != 0)
        continue;
      if (std::all_of(name.begin() + static_cast<std::ptrdiff_t>(begin), name.end() - static_cast<std::ptrdiff_t>(rest), is_digit))
        found.push_back(entry.path().string());
    }
    std::sort(found.begin(), found.end());
  }
  return siblings;
}

// Describes a tensor of one chunk. A file of torch.save has no larger unit.
TensorStorageMetadata stored_as(const TensorDescription& tensor) {
  TensorStorageMetadata stored;
  stored.properties.dtype = tensor.dtype;
  stored.properties.requires_grad = tensor.requires_grad;
  if (tensor.dtype == DType::kUnknown) stored.unknown_dtype = tensor.unknown_dtype;
  stored.size = tensor.sizes;
  stored.chunks = {Box::whole(tensor.sizes)};
  return stored;
}

// One file, and those beside it that have other parts of its DTensors. Elements are read where they
// are in the file.
class TorchSaveFile final : public SavedFiles {
 public:
  // `alone`: without joining the parts of DTensors.
  TorchSaveFile(const std::string& path, const std::string& key, bool alone)
      : file_(path), archive_(file_.bytes(), printable(path)) {
    std::vector<SavedEntry> entries = saved_entries(archive_, key);
    if (!alone) join_parts(entries, path);
    for (SavedEntry& entry : entries)
      if (joined_.count(entry.within) == 0) add(std::move(entry));
  }

  // An opaque value can be read as what it is: an archive.
  std::string why_unreadable(const std::string& fqn) override {
    const SavedValue& found = values_.at(fqn);
    if (found.tensor && found.tensor->dtype == DType::kUnknown)
      return "its type is torch." + found.tensor->unknown_dtype + ", which this version of Cairn does not know";
    return found.is_opaque() ? "" : found.why;
  }

  // Checks the elements of tensors in the value, too, such as those in a tuple.
  SavedValue value(const std::string& fqn) override {
    const SavedValue& found = readable(fqn);
    if (!found.is_opaque() && !found.tensor)
      for (const TensorDescription& tensor : pickle_leaf(found, BlobsAs::kBytes).tensors) elements_of(tensor);
    return found;
  }

  Bytes bytes(const std::string& fqn) override {
    const PickledLeaf pickled = pickle_leaf(readable(fqn), BlobsAs::kOwnType);
    std::vector<Bytes> elements;
    for (const TensorDescription& tensor : pickled.tensors) elements.push_back(elements_of(tensor).dense());
    return write_torch_archive(pickled.pickle, {elements.begin(), elements.end()});
  }

  SavedElements elements(const std::string& fqn, std::size_t chunk) override {
    const SavedValue& found = readable(fqn);
    const auto parts = joined_.find(fqn);
    if (parts == joined_.end()) return elements_of(found.tensor.value());
    const auto& [owner, local] = parts->second.at(chunk);
    return owner->elements_of(local);
  }

  // Returns the elements of a tensor of this file, without those of its siblings. Each storage is
  // checked once, however many tensors are views of it.
  SavedElements elements_of(const TensorDescription& tensor) {
    const TorchArchive::Storage storage = archive_.storage(tensor.storage_key);
    // Also checked when the file was opened. Reading on would read what is not the file's.
    if (const std::string why = archive_.shortage(tensor); !why.empty())
      throw Error(ErrorCode::kCorrupt, archive_.what() + " is damaged: it has " + why);
    SavedElements elements{element_size(tensor.dtype), file_.begin() + storage.offset, tensor.sizes, tensor.strides, nullptr};
    if (tensor.is_conjugated || tensor.is_negated) {
      // All of the storage, because a view may claim any number of elements.
      const auto resolved = std::make_shared<Bytes>(archive_.read_storage(tensor.storage_key));
      apply_lazy_bits({resolved->data(), resolved->size()}, tensor.dtype, tensor.is_conjugated, tensor.is_negated);
      elements.first = resolved->data();
      elements.memory = resolved;
    } else if (checked_.count(tensor.storage_key) == 0) {
      if (storage.crc32 && crc32(0, {elements.first, storage.size_bytes}) != *storage.crc32)
        throw Error(ErrorCode::kCorrupt, archive_.what() + " is damaged: the checksum of a tensor's elements does not match");
      checked_.insert(tensor.storage_key);
    }
    elements.first += tensor.storage_offset * elements.element_bytes;
    return elements;
  }

 private:
  // Makes tensors of the DTensors that this file and its siblings have all parts of. Tries one set
  // of siblings after the other, because it is not known which number in the name is the rank. A
  // sibling's part counts only if size and type are the same, and only if no other part has its
  // box.
  void join_parts(std::vector<SavedEntry>& entries, const std::filesystem::path& path) {
    if (std::none_of(entries.begin(), entries.end(), [](const SavedEntry& entry) { return entry.value.part.has_value(); })) return;
    for (const std::vector<std::string>& names : siblings_of(path)) {
      std::vector<std::unique_ptr<TorchSaveFile>> opened;
      for (const std::string& name : names) {
        try {
          opened.push_back(std::make_unique<TorchSaveFile>(name, "", true));
        } catch (const Error&) {  // of another format, or damaged: it has no part
        }
      }
      for (SavedEntry& entry : entries) {
        if (!entry.value.part) continue;
        const DistributedPart own = *entry.value.part;
        TensorDescription whole = describe_tensor(own.local);
        std::vector<Box> boxes{own.box};
        std::vector<std::pair<TorchSaveFile*, TensorDescription>> parts{{this, whole}};
        for (const auto& sibling : opened) {
          const auto found = sibling->values_.find(entry.fqn);
          if (found == sibling->values_.end() || !found->second.part) continue;
          const DistributedPart& part = *found->second.part;
          TensorDescription local = describe_tensor(part.local);
          if (part.size != own.size || stored_as(local).type_name() != stored_as(whole).type_name()) continue;
          if (std::find(boxes.begin(), boxes.end(), part.box) != boxes.end()) continue;
          boxes.push_back(part.box);
          parts.emplace_back(sibling.get(), std::move(local));
        }
        if (!check_coverage(entry.fqn, own.size, boxes).empty()) continue;
        whole.sizes = own.size;
        entry.value = {entry.value.saved, entry.value.value, std::move(whole)};
        boxes_.emplace(entry.fqn, std::move(boxes));
        joined_.emplace(entry.fqn, std::move(parts));
      }
      for (auto& sibling : opened) siblings_.push_back(std::move(sibling));
    }
  }

  // Takes the first of several entries with one name. Those within opaque values come last.
  void add(SavedEntry entry) {
    if (values_.count(entry.fqn) > 0) return;
    Metadata::Entry described = BytesStorageMetadata{};
    if (entry.value.tensor) {
      TensorStorageMetadata tensor = stored_as(*entry.value.tensor);
      if (const auto found = boxes_.find(entry.fqn); found != boxes_.end()) tensor.chunks = found->second;
      described = std::move(tensor);
    } else if (entry.value.is_opaque()) {
      std::string opaque = printable(entry.value.opaque);
      if (const auto& part = entry.value.part)
        opaque += ", of which there is only the part " + to_string(part->box) + " of size " + to_string(part->size);
      described = BytesStorageMetadata{{}, std::move(opaque)};
    }
    metadata_.state_dict_metadata.emplace_back(entry.fqn, std::move(described));
    metadata_.planner_data.emplace_back(entry.fqn, std::move(entry.path));
    values_.emplace(std::move(entry.fqn), std::move(entry.value));
  }

  const SavedValue& readable(const std::string& fqn) {
    if (const std::string reason = why_unreadable(fqn); !reason.empty())
      throw Error(ErrorCode::kUnsupported, "\"" + printable(fqn) + "\": " + reason);
    return values_.at(fqn);
  }

  const MappedFile file_;
  const TorchArchive archive_;
  std::unordered_map<std::string, SavedValue> values_;
  std::unordered_set<std::string> checked_;  // the keys of storages whose checksum was found to match
  // The parts of joined tensors, by name: their boxes, and where they are.
  std::unordered_map<std::string, std::vector<Box>> boxes_;
  std::unordered_map<std::string, std::vector<std::pair<TorchSaveFile*, TensorDescription>>> joined_;
  std::vector<std::unique_ptr<TorchSaveFile>> siblings_;
};

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) throw system_error("open", path, errno);
  if (::fstat(file.get(), &status_) != 0) throw system_error("look at", path, errno);
  if (!S_ISREG(status_.st_mode)) throw Error(ErrorCode::kCorrupt, printable(path) + " is not a regular file");
  // Mapped privately and writable, because LibTorch has no read-only tensors.
  void* const begin =
      size() == 0 ? nullptr : ::mmap(nullptr, size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file.get(), 0);
  if (begin == MAP_FAILED) throw system_error("map", path, errno);
  begin_ = static_cast<char*>(begin);
}

MappedFile::~MappedFile() {
  if (begin_ != nullptr) ::munmap(begin_, size());
}

SavedElements SavedElements::part(const Box& box) const {
  if (!fits(box, sizes))
    throw Error(ErrorCode::kInvalidArgument, "tensor: the part " + to_string(box) + " does not lie within " + to_string(sizes));
  SavedElements result = *this;
  result.sizes = box.sizes;
  std::int64_t at = 0;
  for (std::size_t dim = 0; dim < sizes.size(); ++dim) at += box.offsets[dim] * strides[dim];
  if (volume(box.sizes) > 0) result.first += at * static_cast<std::int64_t>(element_bytes);
  return result;
}

Bytes SavedElements::dense() const {
  // An expanded tensor has few bytes in its file, and may have any size.
  if (!columns::is_countable(sizes, element_bytes))
    throw Error(ErrorCode::kUnsupported, "a tensor of size " + to_string(sizes) + " has more bytes than can be counted");
  Bytes bytes(static_cast<std::size_t>(volume(sizes)) * element_bytes, '\0');
  if (!bytes.empty()) StridedBytes(first, sizes, strides, element_bytes).read(0, {bytes.data(), bytes.size()});
  return bytes;
}

// Chunks do not overlap, so their order does not matter. What no chunk covers is 0.
Bytes SavedFiles::read(const std::string& fqn, const Box& box) {
  const auto& stored = std::get<TensorStorageMetadata>(*metadata().find(fqn));
  const std::size_t width = element_size(stored.properties.dtype);
  Bytes result(static_cast<std::size_t>(volume(box.sizes)) * width, '\0');
  for (std::size_t chunk = 0; chunk < stored.chunks.size(); ++chunk) {
    const auto common = intersect(stored.chunks[chunk], box);
    if (!common) continue;
    Box from = *common, to = *common;  // relative to the chunk, and to the result
    for (std::size_t dim = 0; dim < box.sizes.size(); ++dim) {
      from.offsets[dim] -= stored.chunks[chunk].offsets[dim];
      to.offsets[dim] -= box.offsets[dim];
    }
    part_of_dense(result.data(), box.sizes, to, width).write(0, elements(fqn, chunk).part(from).dense());
  }
  return result;
}

std::unique_ptr<SavedFiles> open_torch_save(const std::string& url, const std::string& key) {
  const auto path = local_path(url);
  if (!path) throw Error(ErrorCode::kUnsupported, "cannot read " + url + ": files of torch.save are read from directories only");
  return std::make_unique<TorchSaveFile>(path->string(), key, !key.empty());
}

}  // namespace cairn
