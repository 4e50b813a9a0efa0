#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <tuple>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cairn/base/error.hpp>
#include <cairn/base/random.hpp>
#include <cairn/runtime/tools/safetensors.hpp>
#include <cairn/storage/stores/file_system.hpp>

namespace cairn::tools {
namespace {

constexpr std::size_t kHeaderBytesMax = 100'000'000;  // what readers of the format accept
constexpr std::size_t kHeaderAlignment = 8;
constexpr const char* kMetadataKey = "__metadata__";

std::string little_endian(std::uint64_t value) {
  std::string bytes(sizeof value, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(value >> (8 * i));
  return bytes;
}

std::string header_of(const std::vector<SafetensorsTensor>& tensors, const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[kMetadataKey] = metadata;
  std::uint64_t offset = 0;
  for (const auto& tensor : tensors) {
    const std::uint64_t end = offset + tensor.bytes();
    header[tensor.name] = {
        {"dtype", *safetensors_type(tensor.dtype)}, {"shape", tensor.shape.to_vector()}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');
  return text;
}

std::string parent_of(const std::string& path) {
  const auto parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

void sync_folder_of(const std::string& path) {
  const std::string folder = parent_of(path);
  if (const int result = system_files().sync_directory(folder); result < 0) throw system_error("sync", folder, -result);
}

Error already_there(const std::string& path) {
  return Error(ErrorCode::kAlreadyExists, fmt::format("{} exists already; --force replaces it", path));
}

}  // namespace

std::optional<std::string> safetensors_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return "F64";
    case DType::kFloat32:
      return "F32";
    case DType::kFloat16:
      return "F16";
    case DType::kBFloat16:
      return "BF16";
    case DType::kFloat8E4M3Fn:
      return "F8_E4M3";
    case DType::kFloat8E5M2:
      return "F8_E5M2";
    case DType::kInt64:
      return "I64";
    case DType::kInt32:
      return "I32";
    case DType::kInt16:
      return "I16";
    case DType::kInt8:
      return "I8";
    case DType::kUInt64:
      return "U64";
    case DType::kUInt32:
      return "U32";
    case DType::kUInt16:
      return "U16";
    case DType::kUInt8:
      return "U8";
    case DType::kBool:
      return "BOOL";
    case DType::kComplex32:
    case DType::kComplex64:
    case DType::kComplex128:
    case DType::kFloat8E4M3FnUz:
    case DType::kFloat8E5M2FnUz:
      return std::nullopt;
  }
  return std::nullopt;
}

std::string safetensors_objection(const std::string& name, DType dtype) {
  if (!safetensors_type(dtype)) return fmt::format("the format has no type {}", to_string(dtype));
  if (name == kMetadataKey) return "the format keeps this name for itself";
  try {
    (void)nlohmann::json(name).dump();
  } catch (const nlohmann::json::exception&) {
    return "the name is not valid UTF-8";
  }
  return "";
}

SafetensorsWriter::SafetensorsWriter(std::string path, std::vector<SafetensorsTensor> tensors,
                                     const std::map<std::string, std::string>& metadata, Existing existing)
    : path_(std::move(path)), tensors_(std::move(tensors)), existing_(existing) {
  for (const auto& tensor : tensors_) {
    const std::string objection = safetensors_objection(tensor.name, tensor.dtype);
    if (!objection.empty()) {
      throw Error(ErrorCode::kUnsupported, fmt::format("cannot write {} to {}: {}", tensor.name, path_, objection));
    }
  }
  std::sort(tensors_.begin(), tensors_.end(), [](const auto& a, const auto& b) {
    const auto size_a = element_size(a.dtype), size_b = element_size(b.dtype);
    return std::tie(size_b, a.name) < std::tie(size_a, b.name);
  });
  const std::string header = header_of(tensors_, metadata);
  if (header.size() > kHeaderBytesMax) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("cannot write {}: the header for {} tensors takes {} bytes, the format allows {}", path_,
                            tensors_.size(), header.size(), kHeaderBytesMax));
  }

  struct stat status {};
  if (::lstat(path_.c_str(), &status) == 0) {
    if (existing_ == Existing::kRefused) throw already_there(path_);
    // Renaming over a device or a pipe would replace it, for everybody who uses it.
    if (!S_ISREG(status.st_mode) && !S_ISLNK(status.st_mode)) {
      throw Error(ErrorCode::kAlreadyExists, fmt::format("{} is {}: name the file to write", path_,
                                                         S_ISDIR(status.st_mode) ? "a directory" : "no regular file"));
    }
  }
  partial_path_ = fmt::format("{}.partial-{}", path_, random_hex(*system_random(), 64));
  descriptor_ = ::open(partial_path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor_ < 0) throw system_error("create", partial_path_, errno);
  try {
    write(little_endian(header.size()));
    write(header);
  } catch (...) {
    ::close(descriptor_);
    ::unlink(partial_path_.c_str());
    throw;
  }
}

SafetensorsWriter::~SafetensorsWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!finished_) ::unlink(partial_path_.c_str());
}

void SafetensorsWriter::write(ByteSpan data) {
  std::size_t done = 0;
  while (done < data.size()) {
    const ssize_t written = ::write(descriptor_, data.data() + done, data.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw system_error(fmt::format("write {} bytes to", data.size() - done), partial_path_, errno);
    done += static_cast<std::size_t>(written);
  }
  bytes_written_ += data.size();
}

void SafetensorsWriter::append(ByteSpan data) {
  check_invariant(next_ < tensors_.size(), "more tensors were appended to a safetensors file than announced");
  check_invariant(data.size() == tensors_[next_].bytes(), "a tensor's data does not have the size announced in the header");
  write(data);
  ++next_;
}

void SafetensorsWriter::rename_into_place() {
  const char* const from = partial_path_.c_str();
  const char* const to = path_.c_str();
  if (existing_ == Existing::kReplaced) {
    if (std::rename(from, to) != 0) throw system_error("rename into place", path_, errno);
    return;
  }
  if (::renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0) return;
  // File systems without that flag: a second name, which is exclusive as well.
  if (errno == EINVAL || errno == ENOSYS) {
    if (::link(from, to) == 0) {
      ::unlink(from);
      return;
    }
  }
  if (errno == EEXIST) throw already_there(path_);
  throw system_error("rename into place", path_, errno);
}

void SafetensorsWriter::finish() {
  check_invariant(next_ == tensors_.size(), "a safetensors file was finished before all its tensors were appended");
  if (::fsync(descriptor_) != 0) throw system_error("sync", partial_path_, errno);
  const int closed = ::close(std::exchange(descriptor_, -1));
  if (closed != 0) throw system_error("close", partial_path_, errno);
  rename_into_place();
  finished_ = true;
  sync_folder_of(path_);
}

}  // namespace cairn::tools
