#include <cairn/tools/tensor_source.hpp>

#include <fmt/format.h>

#include <cairn/base/digest.hpp>
#include <cairn/formats/safetensors.hpp>
#include <cairn/formats/torch_archive.hpp>
#include <cairn/storage/checkpoint_bytes.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/mapped_file.hpp>
#include <cairn/storage/read_metadata.hpp>
#include <cairn/storage/safetensors_files.hpp>
#include <cairn/storage/saved_files.hpp>
#include <cairn/storage/verify_checkpoint.hpp>
#include <cairn/tools/commands.hpp>

namespace cairn::tools {
namespace {

class SavedFilesSource final : public TensorSource {
 public:
  SavedFilesSource(const std::filesystem::path& path, bool is_file)
      : path_(std::filesystem::absolute(path).lexically_normal().string()),
        is_file_(is_file),
        files_(is_file ? open_torch_save(path_) : open_torch_checkpointing(path_)) {}

  const Metadata& metadata() const override { return files_->metadata(); }
  std::string name() const override { return printable(path_); }
  const char* writer() const override { return is_file_ ? "torch.save" : "torch_checkpointing"; }
  bool is_file() const override { return is_file_; }

  Bytes read(const std::string& fqn, const Box& box) override { return files_->read(fqn, box); }
  Bytes read_bytes(const std::string& fqn) override { return files_->bytes(fqn); }
  SavedValue read_value(const std::string& fqn) override { return files_->value(fqn); }
  std::string why_unreadable(const std::string& fqn) const override { return files_->why_unreadable(fqn); }

 private:
  const std::string path_;
  const bool is_file_;
  const std::unique_ptr<SavedFiles> files_;
};

class SafetensorsSource final : public TensorSource {
 public:
  SafetensorsSource(std::string name, const std::vector<TensorFile>& files) : name_(std::move(name)) {
    SafetensorsFiles chosen;
    for (const auto& [path, promised] : files) chosen[path.filename().string()] = promised;
    auto store = open_store(std::filesystem::absolute(files.front().path).parent_path().string());
    metadata_ = safetensors_metadata(*store, chosen);
    Metadata readable = metadata_;
    for (auto& [fqn, entry] : readable.state_dict_metadata)
      if (auto packed = as_packed_bytes(std::get<TensorStorageMetadata>(entry))) entry = std::move(*packed);
    reader_.emplace(std::move(store), std::make_shared<const Metadata>(std::move(readable)), true);
  }

  const Metadata& metadata() const override { return metadata_; }
  std::string name() const override { return name_; }
  const char* writer() const override { return "safetensors"; }
  bool is_file() const override { return true; }

  Bytes read(const std::string& fqn, const Box& box) override {
    require_readable(fqn);
    return reader_->elements(fqn, std::get<TensorStorageMetadata>(*metadata_.find(fqn)), box);
  }
  Bytes read_packed(const std::string& fqn, const Box& box) override {
    return reader_->elements(fqn, *as_packed_bytes(std::get<TensorStorageMetadata>(*metadata_.find(fqn))), box);
  }
  Bytes read_bytes(const std::string& fqn) override { throw InternalError("no value is in " + name_ + ": " + fqn); }
  SavedValue read_value(const std::string& fqn) override { throw InternalError("no value is in " + name_ + ": " + fqn); }

 private:
  const std::string name_;
  std::optional<CheckpointBytes> reader_;
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
  if (!named && is_torch_checkpointing(*open_store(std::filesystem::absolute(*path).string()))) return {{*path, {}}};
  const std::filesystem::path directory = named ? std::filesystem::absolute(*named).parent_path() : *path;
  std::vector<TensorFile> files;
  for (auto& [name, promised] : find_safetensors_files(*open_store(std::filesystem::absolute(directory).string()), index))
    files.push_back({directory / name, std::move(promised)});
  // A save that ended meanwhile made a checkpoint, and the list may lack some of its files.
  if (!named && std::filesystem::exists(*path / kCommitRecordName, error)) return {};
  return files;
}

std::unique_ptr<TensorSource> open_tensor_files(const std::string& place, const std::vector<TensorFile>& files) {
  std::error_code error;
  if (std::filesystem::is_directory(files.front().path, error))
    return std::make_unique<SavedFilesSource>(files.front().path, false);
  if (files.size() > 1 || is_safetensors(MappedFile(files.front().path.string()).bytes()))
    return std::make_unique<SafetensorsSource>(printable(place), files);
  return std::make_unique<SavedFilesSource>(files.front().path, true);
}

std::vector<VerifyFault> verify_tensor_files(const std::string& place, const std::vector<TensorFile>& files,
                                             const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  std::vector<VerifyFault> faults, unchecked;
  const auto add = [&](const std::string& object, std::uint64_t offset, const std::string& what, bool is_unchecked) {
    (is_unchecked ? unchecked : faults).push_back({object, offset, "", what, is_unchecked});
  };
  std::uint64_t done = 0;
  const auto check_archive = [&](const std::string& object, const MappedFile& file, std::uint64_t all) {
    const ZipReader zip(file.bytes(), printable(object));
    if (!zip.has_checksums()) add(object, 0, "its entries: the archive has no checksums", true);
    const std::uint64_t before = done;
    for (const auto& entry : zip.entries()) {
      const std::uint64_t offset = zip.data_offset(entry);
      if (entry.crc32 && crc32(0, {file.begin() + offset, entry.size_bytes}) != *entry.crc32)
        add(object, offset, fmt::format("the checksum of {} does not match", printable(entry.name)), false);
      progress(done += entry.size_bytes, all);
    }
    progress(done = before + file.size(), all);
  };
  try {
    std::error_code error;
    if (std::filesystem::is_directory(files.front().path, error)) {
      const std::vector<FileInfo> items = open_tensor_files(place, files)->metadata().files;
      std::uint64_t all = 0;
      for (const FileInfo& item : items) all += item.length.value_or(0);
      for (const FileInfo& item : items) {
        if (!item.length) continue;
        const MappedFile file((files.front().path / item.name).string());
        if (file.bytes().view().substr(0, 2) == "PK")
          check_archive(item.name, file, all);
        else
          add(item.name, 0, "its content: the format has no checksums", true);
      }
    } else if (const MappedFile file(files.front().path.string()); files.size() == 1 && !is_safetensors(file.bytes())) {
      check_archive(place, file, file.size());
    }
    if (!faults.empty()) return faults;
    const auto source = open_tensor_files(place, files);
    if (source->writer() == std::string_view("safetensors"))
      add(place, 0, "the elements: the safetensors format has no checksums", true);
    for (const auto& [fqn, entry] : source->metadata().state_dict_metadata)
      if (const std::string why = source->why_unreadable(fqn); !why.empty()) add(place, 0, printable(fqn) + ": " + why, true);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCorrupt && error.code() != ErrorCode::kUnsupported) throw;
    add(place, 0, error.what(), error.code() == ErrorCode::kUnsupported);
  }
  faults.insert(faults.end(), unchecked.begin(), unchecked.end());
  return faults;
}

}  // namespace cairn::tools
