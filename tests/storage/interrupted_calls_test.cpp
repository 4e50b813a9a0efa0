// System calls on files that signals interrupt (EINTR).
#include <cairn/tests/support/torch.hpp>

#include <fcntl.h>

#include <cerrno>
#include <cstdarg>
#include <string>

#include <cairn/state/checkpoint_writer.hpp>
#include <cairn/tests/support/interruptions.hpp>
#include <cairn/tests/support/leak_check.hpp>
#include <cairn/tests/support/local_protocol.hpp>
#include <cairn/tests/support/sample_state.hpp>
#include <cairn/tests/support/temporary_directory.hpp>

using namespace cairn;
using namespace cairn::testing;

extern "C" {
int __real_open(const char* path, int flags, ...);
ssize_t __real_pread(int file, void* to, size_t size, off_t offset);
ssize_t __real_pwrite(int file, const void* from, size_t size, off_t offset);
int __real_ftruncate(int file, off_t length);
int __real_fallocate(int file, int mode, off_t offset, off_t length);
int __real_fdatasync(int file);
int __real_fsync(int file);
int __real_close(int file);

int __wrap_open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const int mode = (flags & O_CREAT) != 0 ? va_arg(rest, int) : 0;
  va_end(rest);
  return Interruptions::interrupts("open") ? -1 : __real_open(path, flags, mode);
}
ssize_t __wrap_pread(int file, void* to, size_t size, off_t offset) {
  return Interruptions::interrupts("pread") ? -1 : __real_pread(file, to, size, offset);
}
ssize_t __wrap_pwrite(int file, const void* from, size_t size, off_t offset) {
  return Interruptions::interrupts("pwrite") ? -1 : __real_pwrite(file, from, size, offset);
}
int __wrap_ftruncate(int file, off_t length) {
  return Interruptions::interrupts("ftruncate") ? -1 : __real_ftruncate(file, length);
}
int __wrap_fallocate(int file, int mode, off_t offset, off_t length) {
  return Interruptions::interrupts("fallocate") ? -1 : __real_fallocate(file, mode, offset, length);
}
int __wrap_fdatasync(int file) { return Interruptions::interrupts("fdatasync") ? -1 : __real_fdatasync(file); }
int __wrap_fsync(int file) { return Interruptions::interrupts("fsync") ? -1 : __real_fsync(file); }
// As Linux does, closes the file and reports the interruption. So a second close is a fault.
int __wrap_close(int file) {
  const int result = __real_close(file);
  if (Interruptions::per_call() == 0) return result;
  if (result != 0) ++Interruptions::bad_closes();
  errno = EINTR;
  return -1;
}
}

TEST_CASE_FIXTURE(LeakCheck, "a save and a load go on after every system call that a signal interrupts") {
  const TemporaryDirectory directory;
  std::string never_made;
  SUBCASE("each three times") {}
  SUBCASE("each three times, and a reservation of space as often as it is tried") { never_made = "fallocate"; }
  const StateDict state{{"large", counting({3'000'000})}, {"step", 7}};
  StateDict loaded{{"large", torch::zeros({3'000'000})}, {"step", 0}};
  LocalSave save{directory.path() + "/run/step_7", local_save_id(1)};
  {
    Interruptions signals(3);
    signals.always(never_made);
    save_locally(save, {&state}, [] { return std::make_unique<CheckpointWriter>(); });
    load_locally(save.checkpoint_id, {&loaded}, [] { return std::make_unique<CheckpointReader>(); });
  }
  CHECK(torch::equal(loaded.at("large").tensor(), state.at("large").tensor()));
  CHECK(loaded.at("step").to_int() == 7);
  for (const char* const name : {"open", "pread", "pwrite", "ftruncate", "fallocate", "fdatasync", "fsync"}) {
    CAPTURE(name);
    CHECK(Interruptions::count(name) >= 3);
  }
  CHECK(Interruptions::bad_closes() == 0);
}
