#include <cairn/actors/read_streams.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <cairn/actors/links/data_stream.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/base/parallel.hpp>
#include <cairn/base/signals_blocked.hpp>

namespace cairn {
namespace {

// Streams that break never end with this code, so it means that a rank has failed or was stopped.
constexpr ErrorCode kRankStopped = ErrorCode::kPrecondition;
constexpr const char* kWhyStopped = "the rank has failed, or was told to stop";

Error mismatch(std::uint32_t from) {
  return Error(ErrorCode::kCorrupt, "rank " + std::to_string(from) +
                                        " has passed on other bytes than this rank expected: the values cannot be trusted. "
                                        "Load without read_once");
}

class ReadStreams final : public RankStreams {
 public:
  ReadStreams(std::shared_ptr<Transport> transport, std::shared_ptr<const SharedReads> shared, std::chrono::milliseconds deadline,
              std::function<void(const std::string&)> on_broken)
      : transport_(std::move(transport)), shared_(std::move(shared)), deadline_(deadline), on_broken_(std::move(on_broken)) {
    // The maps keep their keys from here on, so that each stream's user needs no lock for them.
    for (const auto& [rank, address] : shared_->addresses) to_[rank];
    for (const SharedRange& range : shared_->ranges)
      if (range.receivers.empty()) from_[range.reader];
    if (to_.empty()) return;
    try {
      opener_ = start_thread("cairn-open", [this] { open(); });
    } catch (const std::system_error&) {  // no thread available: open on this one
      open();
    }
  }
  ~ReadStreams() override {
    if (opener_.joinable()) opener_.join();
    if (!is_stopped_) return;
    for (const auto& [rank, from] : from_)
      if (!from.stream) turn_away(rank, kRankStopped, kWhyStopped, nullptr);
  }

  void send(std::uint32_t to, ByteSpan bytes) noexcept override {
    with(to, [&](DataStream& stream) { stream.send(bytes); });
  }

  void finish_sending() noexcept override {
    for (const auto& [rank, address] : shared_->addresses) with(rank, [](DataStream& stream) { stream.finish(); });
  }

  void stop() noexcept override {
    if (is_stopped_.exchange(true)) return;
    std::vector<std::weak_ptr<DataStream>> live;
    {
      const MutexLock lock(mutex_);
      live.swap(live_);
    }
    changed_.notify_all();
    for (const auto& weak : live)
      if (const auto stream = weak.lock()) stream->fail(kRankStopped, kWhyStopped);
    transport_->wake();
  }

  void decline(std::uint32_t from, const std::string& why) noexcept override {
    from_.at(from).is_broken = true;
    broken(from, false, why.c_str());
    turn_away(from, ErrorCode::kUnavailable, why, &is_stopped_);
  }

  bool receive(std::uint32_t from, MutableByteSpan bytes) override {
    if (from_.at(from).is_broken) return false;
    while (bytes.size() > 0) {
      std::size_t received = 0;
      try {
        received = receive_some(from, bytes);
      } catch (const Error& error) {
        broken(from, false, error.what());
        return false;
      }
      if (received == 0) throw mismatch(from);
      bytes = {bytes.data() + received, bytes.size() - received};
    }
    return true;
  }

  void finish_receiving(std::uint32_t from) override {
    if (from_.at(from).is_broken) return;
    std::array<char, 1> end{};
    std::size_t more = 0;
    try {
      more = receive_some(from, {end.data(), end.size()});
    } catch (const Error&) {  // every byte is here
    }
    if (more > 0) throw mismatch(from);
  }

  void report() noexcept override {
    const MutexLock lock(mutex_);
    if (broken_ == 0 || is_stopped_) return;
    try {
      on_broken_(std::to_string(broken_) + (broken_ == 1 ? " stream broke: " : " streams broke, the first: ") + first_);
    } catch (const std::exception&) {  // out of memory
    }
  }

 private:
  using Stream = std::shared_ptr<DataStream>;
  struct From {
    bool is_broken = false;
    Stream stream;  // null: not claimed
  };

  // Lets `stop` end the stream.
  void add(const std::shared_ptr<DataStream>& stream) {
    const MutexLock lock(mutex_);
    live_.push_back(stream);
    if (is_stopped_) stream->fail(kRankStopped, kWhyStopped);
  }

  // Opens all streams at once, because a rank that cannot be reached may take all the time. Goes on
  // after `stop`, because the receivers learn of it by their streams.
  void open() noexcept {
    for_each_in_parallel(kWorldRanksMax, shared_->addresses.size(), [this](std::size_t index) {
      const auto& [rank, text] = shared_->addresses[index];
      Stream stream;
      try {
        if (std::chrono::steady_clock::now() >= until_) throw Error(ErrorCode::kDeadline, "other ranks took too long to answer");
        stream = transport_->open(parse_data_address(text), shared_->stream);
        add(stream);
      } catch (const std::exception& error) {
        broken(rank, true, error.what());
      }
      const MutexLock lock(mutex_);
      to_[rank] = std::move(stream);
      changed_.notify_all();
    });
  }

  // Ends a stream that this rank will not take, once the sender has opened it.
  void turn_away(std::uint32_t rank, ErrorCode code, const std::string& why, const std::atomic<bool>* cancelled) noexcept {
    try {
      const auto left = std::max<std::chrono::nanoseconds>(until_ - std::chrono::steady_clock::now(), {});
      Stream& stream = from_.at(rank).stream;
      stream = transport_->receive(static_cast<int>(rank), shared_->stream, left, cancelled);
      stream->fail(code, why);
    } catch (const std::exception&) {  // it has not opened one
    }
  }

  template <class Use>
  void with(std::uint32_t rank, Use use) noexcept {
    Stream stream;
    {
      MutexLock lock(mutex_);
      const auto to = to_.find(rank);
      if (to == to_.end()) return;
      while (!to->second && !is_stopped_) changed_.wait(mutex_);
      if (is_stopped_ || !*to->second) return;
      stream = *to->second;
    }
    try {
      use(*stream);
    } catch (const std::exception& error) {
      const auto* const known = dynamic_cast<const Error*>(&error);
      if (!known || known->code() != kRankStopped) broken(rank, true, error.what());
      const MutexLock lock(mutex_);
      to_[rank] = nullptr;
    }
  }

  // Returns 0 at the end.
  std::size_t receive_some(std::uint32_t from, MutableByteSpan to) {
    From& sender = from_.at(from);
    try {
      if (!sender.stream) {
        sender.stream = transport_->receive(static_cast<int>(from), shared_->stream, deadline_, &is_stopped_);
        add(sender.stream);
      }
      return sender.stream->receive(to);
    } catch (const Error& error) {
      sender.is_broken = true;
      if (error.code() == kRankStopped || is_stopped_) throw ReaderFailed();
      throw;
    }
  }

  void broken(std::uint32_t rank, bool is_receiver, const char* why) noexcept {
    try {
      const std::string name = "rank " + std::to_string(rank);
      const MutexLock lock(mutex_);
      if (broken_++ > 0) return;
      first_ = is_receiver ? name + " must read for itself what this rank should send: "
                           : "this rank reads for itself what " + name + " should have sent: ";
      first_ += why;
    } catch (const std::exception&) {  // out of memory
    }
  }

  const std::shared_ptr<Transport> transport_;
  const std::shared_ptr<const SharedReads> shared_;
  const std::chrono::milliseconds deadline_;
  const std::chrono::steady_clock::time_point until_ = std::chrono::steady_clock::now() + deadline_;
  const std::function<void(const std::string&)> on_broken_;
  std::atomic<bool> is_stopped_{false};
  std::map<std::uint32_t, From> from_;  // each is used by one thread
  Mutex mutex_;
  CondVar changed_;
  std::map<std::uint32_t, std::optional<Stream>> to_ CAIRN_GUARDED_BY(mutex_);  // null: could not be opened, or broke
  std::vector<std::weak_ptr<DataStream>> live_ CAIRN_GUARDED_BY(mutex_);
  std::size_t broken_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::string first_ CAIRN_GUARDED_BY(mutex_);  // the first break
  std::thread opener_;
};

}  // namespace

std::shared_ptr<RankStreams> make_read_streams(std::shared_ptr<Transport> transport, std::shared_ptr<const SharedReads> shared,
                                               std::chrono::milliseconds deadline,
                                               std::function<void(const std::string&)> on_broken) {
  return std::make_shared<ReadStreams>(std::move(transport), std::move(shared), deadline, std::move(on_broken));
}

}  // namespace cairn
