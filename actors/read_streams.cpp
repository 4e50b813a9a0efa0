#include <cairn/actors/read_streams.hpp>

#include <array>
#include <fstream>
#include <map>
#include <thread>
#include <utility>

#include <unistd.h>

#include <cairn/base/error.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/base/signals_blocked.hpp>

namespace cairn {
namespace {

// Streams that break never end with this code, so it means that the rank itself has failed.
constexpr ErrorCode kReaderFailed = ErrorCode::kPrecondition;

class ReadStreams final : public RankStreams {
 public:
  ReadStreams(std::shared_ptr<Transport> transport, std::shared_ptr<const SharedReads> shared, std::chrono::milliseconds deadline,
              std::function<void(const std::string&)> on_broken)
      : transport_(std::move(transport)), shared_(std::move(shared)), deadline_(deadline), on_broken_(std::move(on_broken)) {
    // The maps keep their keys from here on, so that each stream's user needs no lock for them.
    for (const auto& [rank, address] : shared_->addresses) to_[rank];
    for (const SharedRange& range : shared_->ranges) from_[range.reader];
    if (!to_.empty()) opener_ = start_thread("cairn-open", [this] { open(); });
  }
  ~ReadStreams() override {
    if (opener_.joinable()) opener_.join();
  }

  void send(std::uint32_t to, ByteSpan bytes) noexcept override {
    const auto stream = opened(to);
    if (!stream) return;
    try {
      stream->send(bytes);
    } catch (const std::exception& error) {
      broken(to, error);
    }
  }

  void finish_sending() noexcept override {
    for (const auto& [rank, unused] : to_) {
      const auto stream = opened(rank);
      try {
        if (stream) stream->finish();
      } catch (const std::exception& error) {
        broken(rank, error);
      }
    }
  }

  void fail() noexcept override {
    for (const auto& [rank, unused] : to_)
      if (const auto stream = opened(rank)) stream->fail(kReaderFailed, "the rank failed to read");
  }

  bool receive(std::uint32_t from, MutableByteSpan bytes) override {
    From& sender = from_.at(from);
    if (sender.is_broken) return false;
    try {
      if (!sender.stream) sender.stream = transport_->receive(static_cast<int>(from), shared_->stream, deadline_);
      while (bytes.size() > 0) {
        const std::size_t received = sender.stream->receive(bytes);
        if (received == 0) throw Error(ErrorCode::kCorrupt, "the stream of rank " + std::to_string(from) + " ended early");
        bytes = {bytes.data() + received, bytes.size() - received};
      }
      return true;
    } catch (const Error& error) {
      if (error.code() == kReaderFailed) throw ReaderFailed();
      sender.is_broken = true;
      sender.stream.reset();
      on_broken_(std::string("this rank reads for itself what another should have sent: ") + error.what());
      return false;
    }
  }

  void end_receiving(std::uint32_t from, bool is_complete) noexcept override {
    From& sender = from_.at(from);
    if (std::exchange(sender.is_broken, true)) return;
    std::array<char, 1> end{};
    try {
      if (!sender.stream) sender.stream = transport_->receive(static_cast<int>(from), shared_->stream, deadline_);
      if (is_complete) sender.stream->receive({end.data(), end.size()});
    } catch (const std::exception&) {  // the sender is gone
    }
    sender.stream.reset();
  }

 private:
  struct To {
    bool is_known = false;  // whether it was opened or could not be
    std::shared_ptr<DataStream> stream;
  };
  struct From {
    bool is_broken = false;
    std::shared_ptr<DataStream> stream;
  };

  void open() noexcept {
    for (const auto& [rank, address] : shared_->addresses) {
      std::shared_ptr<DataStream> stream;
      try {
        stream = transport_->open(parse_data_address(address), shared_->stream);
      } catch (const std::exception& error) {
        broken(rank, error);
      }
      {
        const MutexLock lock(mutex_);
        to_[rank] = {true, std::move(stream)};
      }
      changed_.notify_all();
    }
  }
  std::shared_ptr<DataStream> opened(std::uint32_t rank) {
    MutexLock lock(mutex_);
    const auto found = to_.find(rank);
    if (found == to_.end()) return nullptr;
    while (!found->second.is_known) changed_.wait(mutex_);
    return found->second.stream;
  }
  void broken(std::uint32_t rank, const std::exception& error) noexcept {
    {
      const MutexLock lock(mutex_);
      to_[rank] = {true, nullptr};
    }
    try {
      on_broken_("rank " + std::to_string(rank) + " must read for itself what this rank should send: " + error.what());
    } catch (...) {  // out of memory
    }
  }

  const std::shared_ptr<Transport> transport_;
  const std::shared_ptr<const SharedReads> shared_;
  const std::chrono::milliseconds deadline_;
  const std::function<void(const std::string&)> on_broken_;
  std::map<std::uint32_t, From> from_;  // each is used by one thread
  Mutex mutex_;
  CondVar changed_;
  std::map<std::uint32_t, To> to_ CAIRN_GUARDED_BY(mutex_);
  std::thread opener_;
};

}  // namespace

std::shared_ptr<RankStreams> make_read_streams(std::shared_ptr<Transport> transport, std::shared_ptr<const SharedReads> shared,
                                               std::chrono::milliseconds deadline,
                                               std::function<void(const std::string&)> on_broken) {
  return std::make_shared<ReadStreams>(std::move(transport), std::move(shared), deadline, std::move(on_broken));
}

std::string host_identity() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  std::array<char, 64> space{};
  const ssize_t length = ::readlink("/proc/self/ns/net", space.data(), space.size());
  return boot.empty() || length <= 0 ? "" : boot + " " + std::string(space.data(), static_cast<std::size_t>(length));
}

}  // namespace cairn
