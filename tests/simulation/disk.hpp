// The file system that all ranks of a world share, like a directory on a file server, and one
// process's view of it. Every operation takes time, during which other ranks run. It may fail. It
// has no effect once the process has been killed.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <cairn/storage/stores/file_system.hpp>
#include <cairn/tests/support/simulated_file_system.hpp>

namespace cairn::simulation {

using Survival = testing::SimulatedFileSystem::Survival;

// The outcome of one operation, chosen before the operation happens.
struct Verdict {
  int error = 0;        // errno to report; 0: report the real result
  bool happens = true;  // may be true with an error, as when the reply of a server is lost
};

// One process's view of the disk.
class DiskClient : public FileSystem {
 public:
  struct Host {
    virtual ~Host() = default;
    // Called before an operation that changes something. May suspend the fiber.
    virtual Verdict before_operation(const char* operation, const std::string& path) = 0;
    // Called after the operation has happened.
    virtual void after_operation(const char* operation, const std::string& path) = 0;
  };

  DiskClient(testing::SimulatedFileSystem& files, Host& host) : files_(files), host_(host) {}

  // From now on, no operation has an effect.
  void cut_off() { cut_off_ = true; }
  // The process has ended: closes its handles. If `survival` is given, the machine is lost as well,
  // and `survival` says which unsynced data the disk keeps.
  void abandon(const Survival* survival);
  std::size_t open_handles() const { return written_.size() + read_.size(); }

  int open_for_reading(const std::string& path) noexcept override;
  int create_exclusively(const std::string& path) noexcept override;
  int close(int file) noexcept override;
  ssize_t read_at(int file, void* destination, std::size_t size, std::uint64_t offset) noexcept override;
  ssize_t write_at(int file, const void* source, std::size_t size, std::uint64_t offset) noexcept override;
  int bypass_cache(int file, bool on) noexcept override;
  int allocate(int file, std::uint64_t length) noexcept override;
  int truncate(int file, std::uint64_t length) noexcept override;
  int sync_data(int file) noexcept override;
  int status_of(int file, FileStatus& status) noexcept override;
  int status(const std::string& path, bool follow, FileStatus& status) noexcept override;
  int list_directory(const std::string& path, std::vector<DirectoryEntry>& entries) override;
  int make_directory(const std::string& path) noexcept override;
  int remove_directory(const std::string& path) noexcept override;
  int remove_file(const std::string& path) noexcept override;
  int rename(const std::string& from, const std::string& to) noexcept override;
  int rename_exclusively(const std::string& from, const std::string& to) noexcept override;
  int link(const std::string& from, const std::string& to) noexcept override;
  int sync_directory(const std::string& path) noexcept override;

 private:
  template <class Act>
  auto operate(const char* operation, const std::string& path, Act act) noexcept -> decltype(act());

  testing::SimulatedFileSystem& files_;
  Host& host_;
  bool cut_off_ = false;
  std::set<int> written_;  // open handles
  std::set<int> read_;
};

}  // namespace cairn::simulation
