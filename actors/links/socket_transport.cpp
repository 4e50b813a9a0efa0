#include <cairn/actors/links/socket_transport.hpp>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <iterator>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/un.h>
#include <unistd.h>

#include <cairn/actors/links/data_stream.hpp>
#include <cairn/actors/links/plain_transform.hpp>
#include <cairn/actors/links/tls_transform.hpp>
#include <cairn/base/random.hpp>
#include <cairn/base/signals_blocked.hpp>

namespace cairn {
namespace {

const std::string kProtocol = "cairn-data-1 ";

// A Unix socket, and a name for it in the abstract namespace.
struct LocalSocket {
  explicit LocalSocket(const std::string& name) : socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    if (!socket.valid()) throw system_error("open", "a Unix socket", errno);
    unix_address.sun_family = AF_UNIX;
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 +
                                    name.copy(unix_address.sun_path + 1, sizeof(unix_address.sun_path) - 1));
  }
  const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&unix_address); }
  Socket socket;
  sockaddr_un unix_address{};
  socklen_t length = 0;
};

void check_same_user(const Socket& socket) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 || peer.uid != ::geteuid())
    throw Error(ErrorCode::kPermission, "the peer belongs to another user");
}

void send_at_once(const Socket& socket) {
  const int on = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

class SocketTransport : public Transport {
 public:
  explicit SocketTransport(TransportConfig config)
      : config_(std::move(config)), wakeup_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), tcp_(listen_on(config_.host, config_.port)) {
    if (!wakeup_.valid()) throw system_error("create", "an eventfd", errno);
    const Endpoint bound = local_endpoint(tcp_);
    if (config_.secret.empty()) check_loopback(bound);
    secure_ = config_.secret.empty() ? plain_socket() : tls_socket(config_.secret, config_.incarnation, config_.rank);
    world_ = config_.secret.empty() ? config_.incarnation : config_.secret.sign("cairn data v1 world", config_.incarnation);
    address_ = {config_.rank, to_string(bound), ""};
    if (config_.shared_memory) {
      address_.local_name = "cairn-" + random_hex(*system_random(), 128);
      LocalSocket local(address_.local_name);
      if (::bind(local.socket.get(), local.address(), local.length) != 0 || ::listen(local.socket.get(), SOMAXCONN) != 0)
        throw system_error("listen at", "Unix socket @" + address_.local_name, errno);
      local_ = std::move(local.socket);
    }
    thread_ = start_thread("cairn-data", [this] { serve(); });
  }
  ~SocketTransport() override {
    if (::getpid() != process_) {
      // A forked child has no such thread, and must not end its parent's streams.
      new std::thread(std::move(thread_));  // NOLINT: not destroyed
      return;
    }
    ::eventfd_write(wakeup_.get(), 1);
    thread_.join();
    const MutexLock lock(mutex_);
    for (const auto& stream : live_streams()) stream->end(ErrorCode::kCancelled, "the transport was stopped");
  }

  const DataAddress& address() const override { return address_; }

  std::shared_ptr<DataStream> open(const DataAddress& to, std::uint64_t stream) override {
    std::string why_tcp = to.local_name.empty() ? "the peer offers no shared memory" : "shared memory is switched off";
    if (config_.shared_memory && !to.local_name.empty()) {
      try {
        return open_shared(to, stream);
      } catch (const Error& error) {
        why_tcp = error.what();
      }
    }
    const Endpoint endpoint = resolve_endpoint(to.address);
    if (config_.secret.empty()) check_loopback(endpoint);
    Socket socket;
    const auto progress = start_connect(endpoint, socket);  // `send_frame` waits for its end
    if (progress.state == ConnectState::kFailed)
      throw system_error("connect to", "the data address " + to.address, progress.error_number);
    send_at_once(socket);
    auto bytes = secure_(ConnectionSide::kOpener, socket.get());
    return introduce(std::move(socket), std::move(bytes), SharedWindow(), to.rank, stream, why_tcp);
  }

  std::shared_ptr<DataStream> receive(int from, std::uint64_t stream, std::chrono::nanoseconds deadline,
                                      const std::atomic<bool>* cancelled) override {
    const MutexLock lock(mutex_);
    const auto known = [&]() CAIRN_REQUIRES(mutex_) { return (cancelled && *cancelled) || unclaimed_.count({from, stream}) > 0; };
    const bool is_known = changed_.wait_for(mutex_, deadline, known);
    const std::string what = "receiving stream " + std::to_string(stream) + " from rank " + std::to_string(from) + ": ";
    if (cancelled && *cancelled) throw Error(ErrorCode::kCancelled, what + "the call was cancelled");
    if (!is_known) throw Error(ErrorCode::kDeadline, what + "the rank has not opened it in time");
    return unclaimed_.extract({from, stream}).mapped().stream;
  }

  void wake() noexcept override {
    { const MutexLock lock(mutex_); }
    changed_.notify_all();
  }

 private:
  // A stream for which nobody has called `receive`.
  struct Unclaimed {
    std::shared_ptr<DataStream> stream;
    MonotonicTime deadline;
  };

  // An accepted connection whose hello has not arrived.
  struct Guest {
    MonotonicTime deadline;
    Socket local;  // a Unix socket, through which memory is to be passed
    std::shared_ptr<DataStream> stream;
  };

  std::string hello(int from, int to) const { return kProtocol + std::to_string(from) + " " + std::to_string(to) + " " + world_; }

  std::shared_ptr<DataStream> introduce(Socket socket, std::unique_ptr<ByteSocket> bytes, SharedWindow window, int rank,
                                        std::uint64_t number, const std::string& why_tcp) {
    auto stream = std::make_shared<DataStream>(std::move(socket), std::move(bytes), std::move(window), config_.silence);
    stream->set_peer(rank, number, true, why_tcp);
    {
      const MutexLock lock(mutex_);
      streams_.push_back(stream);
    }
    stream->send_frame(FrameKind::kHello, number, hello(config_.rank, rank));
    stream->expect(FrameKind::kAccepted, number);
    return stream;
  }

  std::shared_ptr<DataStream> open_shared(const DataAddress& to, std::uint64_t number) {
    LocalSocket local(to.local_name);
    if (::connect(local.socket.get(), local.address(), local.length) != 0)
      throw Error(ErrorCode::kUnavailable,
                  std::string("its Unix socket cannot be reached, so it is on another host or in another ") +
                      "network namespace, or has ended (" + std::strerror(errno) + ")");
    check_same_user(local.socket);
    const Socket memory = make_shared_memory(kSharedWindowBytes);
    pass_descriptor(local.socket.get(), memory);
    auto bytes = plain_socket()(ConnectionSide::kOpener, local.socket.get());
    return introduce(std::move(local.socket), std::move(bytes), SharedWindow(memory), to.rank, number, "");
  }

  std::vector<std::shared_ptr<DataStream>> live_streams() CAIRN_REQUIRES(mutex_) {
    std::vector<std::shared_ptr<DataStream>> live;
    for (const auto& weak : streams_)
      if (auto stream = weak.lock()) live.push_back(std::move(stream));
    streams_.assign(live.begin(), live.end());
    return live;
  }

  void serve() {
    const Duration interval = Duration(config_.silence) / 4;
    MonotonicTime next_beat = system_clock().now() + interval;
    bool accepts = true;  // false until the next beat if the process has no free descriptor
    for (;;) {
      MonotonicTime until = next_beat;
      std::vector<pollfd> questions{
          {wakeup_.get(), POLLIN, 0}, {accepts ? tcp_.get() : -1, POLLIN, 0}, {accepts ? local_.get() : -1, POLLIN, 0}};
      for (const Guest& guest : guests_) {
        questions.push_back({guest.stream ? guest.stream->descriptor() : guest.local.get(), POLLIN, 0});
        until = std::min(until, guest.deadline);
      }
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - system_clock().now()).count();
      ::poll(questions.data(), questions.size(), static_cast<int>(std::max<std::int64_t>(left, 0)) + 1);
      if (questions[0].revents != 0) return;
      std::vector<std::shared_ptr<DataStream>> streams;
      const auto now = system_clock().now();
      {
        const MutexLock lock(mutex_);
        if (now >= next_beat) {
          // Ends streams that nobody claimed in time, so that their senders stop waiting.
          for (auto known = unclaimed_.begin(); known != unclaimed_.end();)
            known = known->second.deadline <= now ? unclaimed_.erase(known) : std::next(known);
          streams = live_streams();
        }
      }
      for (const auto& stream : streams) stream->beat();
      if (now >= next_beat) {
        next_beat = now + interval;
        accepts = true;
      }
      std::vector<Guest> guests = std::exchange(guests_, {});
      for (std::size_t i = 0; i < guests.size(); ++i)
        if (now < guests[i].deadline && (questions[3 + i].revents == 0 || greet(guests[i])))
          guests_.push_back(std::move(guests[i]));
      if (questions[1].revents != 0) accepts = accept_from(tcp_);
      if (questions[2].revents != 0) accepts = accept_from(local_) && accepts;
    }
  }

  // Returns false if the process has no free descriptor.
  bool accept_from(const Socket& listener) {
    Socket socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) return errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
    try {
      Guest guest{system_clock().now() + config_.handshake_deadline, Socket(), nullptr};
      if (&listener == &local_) {
        check_same_user(socket);
        guest.local = std::move(socket);
      } else {
        send_at_once(socket);
        auto bytes = secure_(ConnectionSide::kAcceptor, socket.get());
        guest.stream = std::make_shared<DataStream>(std::move(socket), std::move(bytes), SharedWindow(), config_.silence);
      }
      if (guests_.size() >= config_.unauthenticated_connections_max) guests_.erase(guests_.begin());
      guests_.push_back(std::move(guest));
    } catch (const Error&) {
      // Nobody asked: closes the connection.
    }
    return true;
  }

  // Reads what a guest has sent. Returns whether it stays one.
  bool greet(Guest& guest) {
    try {
      if (!guest.stream) {
        const Socket memory = take_descriptor(guest.local.get());
        if (!memory.valid()) return true;
        SharedWindow window(memory);
        auto bytes = plain_socket()(ConnectionSide::kAcceptor, guest.local.get());
        guest.stream = std::make_shared<DataStream>(std::move(guest.local), std::move(bytes), std::move(window), config_.silence);
      }
      const auto frame = guest.stream->try_receive();
      if (frame) admit(guest.stream, *frame);
      return !frame;
    } catch (const Error&) {
      return false;  // closes the connection
    }
  }

  void admit(const std::shared_ptr<DataStream>& stream, const Frame& frame) {
    int rank = -1;
    if (frame.kind == FrameKind::kHello && frame.text.compare(0, kProtocol.size(), kProtocol) == 0)
      std::from_chars(frame.text.data() + kProtocol.size(), frame.text.data() + frame.text.size(), rank);
    // Neither frame blocks: they are the first this way.
    const auto refuse = [&](ErrorCode code, const std::string& why) {
      stream->send_frame(FrameKind::kFailed, static_cast<std::uint64_t>(code), why);
    };
    if (rank < 0 || frame.text != hello(rank, config_.rank))
      return refuse(ErrorCode::kPermission, "this is another rank, of another world, or has another secret or version of Cairn");
    stream->set_peer(rank, frame.number, false, stream->uses_shared_memory() ? "" : "the sender chose it");
    {
      const MutexLock lock(mutex_);
      // Streams that their senders have given up make room for others.
      if (unclaimed_.size() >= config_.unclaimed_streams_max || unclaimed_.count({rank, frame.number}) > 0)
        for (auto known = unclaimed_.begin(); known != unclaimed_.end();)
          known = known->second.stream->is_cut() ? unclaimed_.erase(known) : std::next(known);
      if (unclaimed_.size() >= config_.unclaimed_streams_max)
        return refuse(ErrorCode::kUnavailable,
                      "this rank has " + std::to_string(unclaimed_.size()) + " streams that it has not claimed");
      const Unclaimed made{stream, system_clock().now() + config_.claim_deadline};
      if (!unclaimed_.emplace(std::make_pair(rank, frame.number), made).second)
        return refuse(ErrorCode::kInvalidArgument, "a stream of this number is open");
      streams_.push_back(stream);
    }
    stream->send_frame(FrameKind::kAccepted, frame.number);
    changed_.notify_all();
  }

  const TransportConfig config_;
  const pid_t process_ = ::getpid();
  const Socket wakeup_;
  const Socket tcp_;
  Socket local_;
  DataAddress address_;
  std::string world_;  // known to the ranks of this world
  ByteSocketFactory secure_;
  std::vector<Guest> guests_;  // of the thread; the oldest first
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::weak_ptr<DataStream>> streams_ CAIRN_GUARDED_BY(mutex_);
  std::map<std::pair<int, std::uint64_t>, Unclaimed> unclaimed_ CAIRN_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Transport> make_transport(TransportConfig config) { return std::make_unique<SocketTransport>(std::move(config)); }

}  // namespace cairn
