#include <cairn/tests/simulation/disk.hpp>

namespace cairn::simulation {

template <class Act>
auto DiskClient::operate(const char* operation, const std::string& path, Act act) noexcept -> decltype(act()) {
  if (cut_off_) return -EIO;
  const Verdict verdict = host_.before_operation(operation, path);
  if (cut_off_) return -EIO;  // killed in the meantime
  if (verdict.error != 0 && !verdict.happens) return -verdict.error;
  const auto result = act();
  if (cut_off_) return -EIO;
  if (result >= 0) host_.after_operation(operation, path);
  return verdict.error == 0 ? result : -verdict.error;
}

void DiskClient::abandon(const Survival* survival) {
  cut_off_ = true;
  for (const int file : written_) {
    if (survival != nullptr) files_.lose_unsynced(file, *survival);
    files_.close(file);
  }
  for (const int file : read_) files_.close(file);
  written_.clear();
  read_.clear();
}

int DiskClient::open_for_reading(const std::string& path) noexcept {
  if (cut_off_) return -EIO;
  const int file = files_.open_for_reading(path);
  if (file >= 0) read_.insert(file);
  return file;
}

int DiskClient::create_exclusively(const std::string& path) noexcept {
  int file = -1;
  const int result = operate("create", path, [&] { return file = files_.create_exclusively(path); });
  if (file < 0) return result;
  if (cut_off_ || result < 0)
    files_.close(file);
  else
    written_.insert(file);
  return result;
}

int DiskClient::close(int file) noexcept {
  if (cut_off_) return -EIO;
  written_.erase(file);
  read_.erase(file);
  return files_.close(file);
}

ssize_t DiskClient::read_at(int file, void* destination, std::size_t size, std::uint64_t offset) noexcept {
  return cut_off_ ? -EIO : files_.read_at(file, destination, size, offset);
}

ssize_t DiskClient::write_at(int file, const void* source, std::size_t size, std::uint64_t offset) noexcept {
  return operate("write", "", [&] { return files_.write_at(file, source, size, offset); });
}

int DiskClient::bypass_cache(int file, bool on) noexcept { return files_.bypass_cache(file, on); }

int DiskClient::allocate(int file, std::uint64_t length) noexcept {
  return operate("allocate", "", [&] { return files_.allocate(file, length); });
}

int DiskClient::truncate(int file, std::uint64_t length) noexcept {
  return operate("truncate", "", [&] { return files_.truncate(file, length); });
}

int DiskClient::sync_data(int file) noexcept {
  return operate("sync", "", [&] { return files_.sync_data(file); });
}

int DiskClient::status_of(int file, FileStatus& status) noexcept { return cut_off_ ? -EIO : files_.status_of(file, status); }

int DiskClient::status(const std::string& path, bool follow, FileStatus& status) noexcept {
  return cut_off_ ? -EIO : files_.status(path, follow, status);
}

int DiskClient::list_directory(const std::string& path, std::vector<DirectoryEntry>& entries) {
  return cut_off_ ? -EIO : files_.list_directory(path, entries);
}

int DiskClient::make_directory(const std::string& path) noexcept {
  return operate("make directory", path, [&] { return files_.make_directory(path); });
}

int DiskClient::remove_directory(const std::string& path) noexcept {
  return operate("remove directory", path, [&] { return files_.remove_directory(path); });
}

int DiskClient::remove_file(const std::string& path) noexcept {
  return operate("remove", path, [&] { return files_.remove_file(path); });
}

int DiskClient::rename(const std::string& from, const std::string& to) noexcept {
  return operate("rename", to, [&] { return files_.rename(from, to); });
}

int DiskClient::rename_exclusively(const std::string& from, const std::string& to) noexcept {
  return operate("rename", to, [&] { return files_.rename_exclusively(from, to); });
}

int DiskClient::link(const std::string& from, const std::string& to) noexcept {
  return operate("link", to, [&] { return files_.link(from, to); });
}

int DiskClient::sync_directory(const std::string& path) noexcept {
  return operate("sync directory", path, [&] { return files_.sync_directory(path); });
}

}  // namespace cairn::simulation
