#include <cairn/tools/tensor_source.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include <fmt/format.h>
#include <torch/torch.h>

#include <cairn/base/digest.hpp>
#include <cairn/state/leaf_reader.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/tools/commands.hpp>

namespace cairn::tools {
namespace {

class MappedFile {
 public:
  explicit MappedFile(const std::string& path) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) throw system_error("open", path, errno);
    if (::fstat(file, &status_) != 0) {
      const int why = errno;
      ::close(file);
      throw system_error("look at", path, why);
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
  const struct stat& status() const { return status_; }

 private:
  struct stat status_ {};
  char* begin_ = nullptr;
};

class TorchFileSource final : public TensorSource {
 public:
  explicit TorchFileSource(const std::filesystem::path& path)
      : path_(std::filesystem::absolute(path).lexically_normal().string()),
        file_(path_),
        archive_({file_.begin(), file_.size()}, printable(path_)) {
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
  std::string identity() const override {
    const struct stat& status = file_.status();
    return fmt::format("{}:{}:{}:{}.{:09}", status.st_dev, status.st_ino, status.st_size, status.st_mtim.tv_sec,
                       status.st_mtim.tv_nsec);
  }

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

}  // namespace

std::unique_ptr<TensorSource> open_torch_file(const std::filesystem::path& path) { return std::make_unique<TorchFileSource>(path); }

}  // namespace cairn::tools
