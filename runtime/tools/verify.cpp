// `cairn verify`: reads every byte of a checkpoint and lists all that is wrong with it.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <mutex>

#include <fmt/format.h>

#include <cairn/runtime/tools/commands.hpp>
#include <cairn/storage/checkpoint_writer.hpp>

namespace cairn::tools {
namespace {

// One line on the terminal that counts up; nothing where standard error is not a terminal. Thread-safe.
class ProgressLine {
 public:
  ~ProgressLine() {
    if (shown_ >= 0) std::fputs("\r\033[K", stderr);
  }
  void update(std::uint64_t done, std::uint64_t all) {
    const std::lock_guard lock(mutex_);
    done_ = std::max(done_, done);
    if (!terminal_ || all == 0) return;
    const int percent = static_cast<int>(static_cast<double>(done) / static_cast<double>(all) * 100);
    if (percent == shown_) return;
    shown_ = percent;
    std::fprintf(stderr, "\rverifying: %3d %% of %s", percent, human_bytes(all).c_str());
  }
  std::uint64_t done() const { return done_; }

 private:
  std::mutex mutex_;
  std::uint64_t done_ = 0;
  const bool terminal_ = isatty(STDERR_FILENO) == 1;
  int shown_ = -1;
};

std::string to_line(const VerifyFault& fault) {
  std::string line = fmt::format("{} at offset {}", printable(fault.object), fault.offset);
  if (!fault.fqn.empty()) line += fmt::format(" ({})", printable(fault.fqn));
  return line + ": " + printable(fault.what);
}

}  // namespace

int verify(const VerifyOptions& options) {
  const auto store = open_existing(options.checkpoint);
  std::vector<VerifyFault> faults;
  std::uint64_t bytes = 0;
  {
    ProgressLine progress;
    faults = verify_checkpoint(*store, options.threads, [&](std::uint64_t done, std::uint64_t all) { progress.update(done, all); });
    bytes = progress.done();
  }
  for (const auto& fault : faults) std::cout << "bad: " << to_line(fault) << '\n';
  if (!faults.empty()) {
    std::cout << fmt::format("{}: {} fault{} found\n", printable(store->url()), faults.size(), faults.size() == 1 ? "" : "s");
    return kFoundBad;
  }
  std::cout << fmt::format("{}: fine, {} read\n", printable(store->url()), human_bytes(bytes));
  return kFine;
}

}  // namespace cairn::tools
