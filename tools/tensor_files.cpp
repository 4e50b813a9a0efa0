#include <cairn/tools/tensor_source.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include <fmt/format.h>
#include <torch/torch.h>

#include <cairn/base/digest.hpp>
#include <cairn/state/leaf_reader.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/format/safetensors.hpp>
#include <cairn/storage/hugging_face.hpp>
#include <cairn/storage/read_part.hpp>
#include <cairn/tools/commands.hpp>

namespace cairn::tools {
namespace {

class MappedFile {
 public:
  explicit MappedFile(const std::string& path) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // waits for no writer of a pipe
    if (file < 0) throw system_error("open", path, errno);
    if (::fstat(file, &status_) != 0) {
      const int why = errno;
      ::close(file);
      throw system_error("look at", path, why);
    }
    if (!S_ISREG(status_.st_mode)) {
      ::close(file);
      throw Error(ErrorCode::kCorrupt, printable(path) + " is not a regular file");
    }
    // Mapped privately and writable, because LibTorch has no read-only tensors.
    void* const begin =
        size() == 0 ? nullptr : ::mmap(nullptr, size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file, 0);
    const int why = errno;
    ::close(file);
    if (begin == MAP_FAILED) throw system_error("map", path, why);
    begin_ = static_cast<char*>(begin);
  }
  ~MappedFile() {
    if (begin_ != nullptr) ::munmap(begin_, size());
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::size_t size() const { return static_cast<std::size_t>(status_.st_size); }
  char* begin() const { return begin_; }
  ByteSpan bytes() const { return {begin_, size()}; }
  std::string identity() const {
    return fmt::format("{}:{}:{}:{}.{:09}", status_.st_dev, status_.st_ino, status_.st_size, status_.st_mtim.tv_sec,
                       status_.st_mtim.tv_nsec);
  }

 private:
  struct stat status_ {};
  char* begin_ = nullptr;
};

class TorchFileSource final : public TensorSource {
 public:
  explicit TorchFileSource(const std::filesystem::path& path)
      : path_(std::filesystem::absolute(path).lexically_normal().string()),
        file_(path_),
        archive_(file_.bytes(), printable(path_)) {
    const Dict saved = read_saved_dict(
        archive_, [this](const std::string& key, at::ScalarType type) { return elements_of(key, type); }, carried_);
    for (FlatEntry& entry : flatten(saved)) {
      Metadata::Entry described = BytesStorageMetadata{};
      if (entry.value.is_tensor()) {
        const torch::Tensor& tensor = entry.value.tensor();
        TensorStorageMetadata stored;
        if (const auto carried = carried_.find(tensor.unsafeGetTensorImpl()); carried != carried_.end()) {
          stored.properties.dtype = carried->second.dtype;
          stored.properties.requires_grad = carried->second.requires_grad;
          stored.unknown_dtype = carried->second.unknown_dtype;
        } else {
          stored.properties.dtype = *dtype_of(tensor.scalar_type());
          stored.properties.requires_grad = tensor.requires_grad();
        }
        stored.size = extents_of(tensor.sizes());
        stored.chunks = {Box::whole(stored.size)};
        described = std::move(stored);
      }
      metadata_.state_dict_metadata.emplace_back(entry.fqn, std::move(described));
      metadata_.planner_data.emplace_back(entry.fqn, std::move(entry.path));
      values_.emplace(std::move(entry.fqn), std::move(entry.value));
    }
  }

  const Metadata& metadata() const override { return metadata_; }
  std::string name() const override { return printable(path_); }
  const char* writer() const override { return "torch.save"; }
  std::string identity() const override { return file_.identity(); }

  torch::Tensor read(const std::string& fqn, const Box& box) override {
    require_readable(fqn);
    const torch::Tensor& tensor = values_.at(fqn).tensor();
    check_storage(tensor);
    return with_torch("read " + fqn, [&] { return part_of(tensor, box.offsets, box.sizes).clone(at::MemoryFormat::Contiguous); });
  }
  Bytes read_bytes(const std::string& fqn) override { return serialize_leaf(read_value(fqn)); }
  Value read_value(const std::string& fqn) override {
    require_readable(fqn);
    const Value& value = values_.at(fqn);
    for_each_tensor_in(value, [this](const torch::Tensor& tensor) { check_storage(tensor); });
    return value;
  }
  std::string why_unreadable(const std::string& fqn) const override {
    std::string reason = TensorSource::why_unreadable(fqn);
    for_each_tensor_in(values_.at(fqn), [&](const torch::Tensor& tensor) {
      const auto carried = carried_.find(tensor.unsafeGetTensorImpl());
      if (carried == carried_.end()) return;
      const CarriedType& type = carried->second;
      reason = fmt::format("it holds, in a tuple, a tensor of torch.{}, which the LibTorch in use lacks",
                           type.dtype == DType::kUnknown ? type.unknown_dtype : to_string(type.dtype));
    });
    return reason;
  }

 private:
  torch::Tensor elements_of(const std::string& key, at::ScalarType type) {
    const TorchArchive::Storage storage = archive_.storage(key);
    const auto width = static_cast<std::uint64_t>(c10::elementSize(type));
    const auto count = static_cast<std::int64_t>(storage.size_bytes / width);
    char* const begin = file_.begin() + storage.offset;
    if (reinterpret_cast<std::uintptr_t>(begin) % width != 0) {  // not aligned: written by a program other than torch.save
      const Bytes bytes = archive_.read_storage(key);
      torch::Tensor copied = torch::empty({count}, type);
      if (count > 0) std::memcpy(copied.data_ptr(), bytes.data(), copied.nbytes());
      return copied;
    }
    if (count > 0) unchecked_.emplace(begin, storage);
    return torch::from_blob(begin, {count}, torch::TensorOptions().dtype(type));
  }

  // Visits the tensors within a plain value: those in a tuple, as flattening splits all other
  // containers of tensors.
  template <class Visit>
  static void for_each_tensor_in(const Value& value, const Visit& visit) {
    if (!value.is_ivalue()) return;
    std::unordered_set<const void*> seen;  // a node may be referenced several times
    value.ivalue().visit([&](const c10::IValue& node) {
      if (node.isPtrType() && !seen.insert(node.internalToPointer()).second) return true;
      if (node.isTensor()) visit(node.toTensor());
      return false;
    });
  }

  void check_storage(const torch::Tensor& tensor) {
    const auto found = unchecked_.find(tensor.storage().data());
    if (found == unchecked_.end()) return;
    const auto [begin, storage] = *found;
    if (crc32(0, {begin, storage.size_bytes}) != storage.crc32)
      throw Error(ErrorCode::kCorrupt, name() + " is damaged: the checksum of a tensor's elements does not match");
    unchecked_.erase(found);
  }

  const std::string path_;
  const MappedFile file_;
  const TorchArchive archive_;
  Metadata metadata_;
  std::unordered_map<std::string, Value> values_;
  CarriedTypes carried_;
  std::map<const void*, TorchArchive::Storage> unchecked_;  // by the address of their first byte
};

class SafetensorsSource final : public TensorSource {
 public:
  SafetensorsSource(std::string name, const std::vector<TensorFile>& files) : name_(std::move(name)) {
    SafetensorsFiles chosen;
    for (const auto& [path, promised] : files) {
      chosen[path.filename().string()] = promised;
      identity_ += MappedFile(path.string()).identity() + ";";
    }
    StorageContext context;
    context.checkpoint_id = std::filesystem::absolute(files.front().path).parent_path().string();
    reader_.reset(context.checkpoint_id);
    metadata_ = reader_.read_metadata_of(chosen);
    reader_.set_up_storage_reader(metadata_, context);
  }

  const Metadata& metadata() const override { return metadata_; }
  std::string name() const override { return name_; }
  const char* writer() const override { return "safetensors"; }
  std::string identity() const override { return identity_; }

  torch::Tensor read(const std::string& fqn, const Box& box) override {
    require_readable(fqn);
    return read_part(reader_, fqn, std::get<TensorStorageMetadata>(*metadata_.find(fqn)), box);
  }
  Bytes read_bytes(const std::string& fqn) override { return serialize_leaf(read_value(fqn)); }
  Value read_value(const std::string& fqn) override { throw InternalError("no value is in " + name_ + ": " + fqn); }

 private:
  const std::string name_;
  std::string identity_;
  HuggingFaceStorageReader reader_;
  Metadata metadata_;
};

}  // namespace

std::vector<TensorFile> tensor_files_at(const std::string& place) {
  const auto named = file_at(place);
  const std::string index = named ? named->filename().string() : "";
  if (named && !ends_with(index, kSafetensorsIndexEnd)) return {{*named, {}}};
  std::error_code error;
  const auto path = local_path(place);
  const bool is_directory = path && std::filesystem::is_directory(*path, error);
  if (!named && (!is_directory || std::filesystem::exists(*path / kCommitRecordName, error))) return {};
  const std::filesystem::path directory = named ? std::filesystem::absolute(*named).parent_path() : *path;
  std::vector<TensorFile> files;
  for (auto& [name, promised] : find_safetensors_files(*open_store(std::filesystem::absolute(directory).string()), index))
    files.push_back({directory / name, std::move(promised)});
  return files;
}

std::unique_ptr<TensorSource> open_tensor_files(const std::string& place, const std::vector<TensorFile>& files) {
  if (files.size() > 1 || is_safetensors(MappedFile(files.front().path.string()).bytes()))
    return std::make_unique<SafetensorsSource>(printable(place), files);
  return std::make_unique<TorchFileSource>(files.front().path);
}

std::vector<VerifyFault> verify_tensor_files(const std::string& place, const std::vector<TensorFile>& files,
                                             const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  std::vector<VerifyFault> faults, unchecked;
  const auto add = [&](std::uint64_t offset, const std::string& what, bool is_unchecked) {
    (is_unchecked ? unchecked : faults).push_back({place, offset, "", what, is_unchecked});
  };
  try {
    const MappedFile file(files.front().path.string());
    if (files.size() == 1 && !is_safetensors(file.bytes())) {
      const ZipReader zip(file.bytes(), printable(place));
      std::uint64_t done = 0;
      for (const auto& entry : zip.entries()) {
        const std::uint64_t offset = zip.data_offset(entry);
        if (crc32(0, {file.begin() + offset, entry.size_bytes}) != entry.crc32)
          add(offset, fmt::format("the checksum of {} does not match", printable(entry.name)), false);
        progress(done += entry.size_bytes, file.size());
      }
      progress(file.size(), file.size());
      if (!faults.empty()) return faults;
    }
    const auto source = open_tensor_files(place, files);
    if (source->writer() == std::string_view("safetensors")) add(0, "the elements: the safetensors format has no checksums", true);
    for (const auto& [fqn, entry] : source->metadata().state_dict_metadata)
      if (const std::string why = source->why_unreadable(fqn); !why.empty()) add(0, printable(fqn) + ": " + why, true);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCorrupt && error.code() != ErrorCode::kUnsupported) throw;
    add(0, error.what(), error.code() == ErrorCode::kUnsupported);
  }
  faults.insert(faults.end(), unchecked.begin(), unchecked.end());
  return faults;
}

}  // namespace cairn::tools
