#include <atomic>
#include <cstdlib>
#include <string_view>
#include <utility>

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <cairn/base/log.hpp>
#include <cairn/training/c10d_backends.hpp>

namespace cairn::training {
namespace {

// If a collective fails or is late, c10d would end the process, or write reports for minutes on
// threads that the group waits for. ProcessGroup reports the failure instead. Other NCCL groups of
// the process obey the environment.
class OwnNcclGroup : public c10d::ProcessGroupNCCL {
 public:
  OwnNcclGroup(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, c10::intrusive_ptr<Options> options)
      : ProcessGroupNCCL(store, rank, size, std::move(options)) {
    asyncErrorHandling_ = c10d::NoHandling;  // no race: the watchdog reads this only after a collective has failed
    end_monitor(*this, 0);
  }

 private:
  // Stops the monitor thread. It would end the process if the watchdog hangs, and write reports
  // when collectives fail.
  template <class Group>
  static auto end_monitor(Group& group, int) -> decltype(group.heartbeatMonitor_->stop()) {
    return group.heartbeatMonitor_->stop();
  }
  // Before LibTorch 2.8 only TORCH_NCCL_ENABLE_MONITORING and TORCH_NCCL_DUMP_ON_TIMEOUT control
  // that thread.
  template <class Group>
  static void end_monitor(Group& group, long) {
    const char* const enabled = std::getenv("TORCH_NCCL_ENABLE_MONITORING");
    if (enabled != nullptr && std::string_view(enabled) == "0") return;
    write_log(LogLevel::kWarning, group.getRank(),
              "this LibTorch ends the process when a collective of NCCL hangs: to get an error instead, set "
              "TORCH_NCCL_ENABLE_MONITORING=0 and TORCH_NCCL_DUMP_ON_TIMEOUT=0 before the first group is made");
  }
};

class NcclBackend : public C10dBackend {
 public:
  explicit NcclBackend(c10::intrusive_ptr<OwnNcclGroup> group) : C10dBackend(group), group_(std::move(group)) {}
  ~NcclBackend() override {
    try {
      if (!aborted_) group_->shutdown();
    } catch (const std::exception&) {  // a peer is gone, so there is nobody to notify
    }
  }

  void abort() override {
    aborted_ = true;
    group_->abort();
  }

 private:
  const c10::intrusive_ptr<OwnNcclGroup> group_;
  std::atomic<bool> aborted_{false};
};

}  // namespace

std::unique_ptr<C10dBackend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                               std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = 2 * timeout;  // later than ProcessGroup's own timeout
  return std::make_unique<NcclBackend>(c10::make_intrusive<OwnNcclGroup>(store, rank, size, std::move(options)));
}

}  // namespace cairn::training
