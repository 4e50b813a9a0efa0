#include <cairn/actors/links/tcp_links.hpp>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <caf/io/middleman.hpp>

#include <cairn/actors/links/plain_transform.hpp>
#include <cairn/actors/links/tcp_actor.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/base/process_name.hpp>

namespace cairn {
namespace {

std::size_t descriptors_open() {
  std::size_t count = 0;
  std::error_code unknown;
  for (auto it = std::filesystem::directory_iterator("/proc/self/fd", unknown);
       !unknown && it != std::filesystem::directory_iterator(); it.increment(unknown))
    ++count;
  return count;
}

caf::behavior tcp_links(tcp::Broker* self, std::shared_ptr<tcp::Setup> setup) { return self->state.start(std::move(setup)); }

class TcpLinksFactory : public LinksFactory {
 public:
  explicit TcpLinksFactory(TcpLinksConfig config)
      : listener_(std::move(config.listener)), config_(std::make_shared<TcpLinksConfig>(std::move(config))) {
    if (!listener_.valid()) throw Error(ErrorCode::kInvalidArgument, "TCP links: need a listening socket");
    loopback_only_ = !config_->transform;
    if (loopback_only_) {
      config_->transform = plain_transform();
      check_loopback(local_endpoint(listener_));
    }
    for (const auto& address : config_->addresses) {
      const auto endpoint = numeric_endpoint(address);
      if (endpoint && loopback_only_) check_loopback(*endpoint);
    }
  }

  caf::actor spawn(caf::actor_system& system, int rank, const RuntimeOptions& options, const caf::actor& owner) override {
    if (rank < 0 || rank >= static_cast<int>(config_->addresses.size())) {
      throw Error(ErrorCode::kInvalidArgument, "TCP links: rank " + std::to_string(rank) + " has none of the " +
                                                   std::to_string(config_->addresses.size()) + " addresses");
    }
    if (options.frame_bytes_max < kFrameBytesMin || options.frame_bytes_max > kFrameBytesLimit) {
      throw Error(ErrorCode::kInvalidArgument, "TCP links: frame_bytes_max " + std::to_string(options.frame_bytes_max) +
                                                   " is not between " + std::to_string(kFrameBytesMin) + " bytes and 1 GiB");
    }
    auto setup = std::make_shared<tcp::Setup>();
    if (std::exchange(has_spawned_, true)) listen_again();
    // A copy, because `listen_again` needs the socket.
    setup->listener = Socket(::fcntl(listener_.get(), F_DUPFD_CLOEXEC, 0));
    if (!setup->listener.valid())
      throw system_error("duplicate", "the descriptor that rank " + std::to_string(rank) + " listens on", errno);
    setup->config = config_;
    setup->loopback_only = loopback_only_;
    setup->identity = {config_->incarnation, rank, static_cast<int>(config_->addresses.size()), options.frame_bytes_max,
                       process_name()};
    setup->options = options;
    setup->owner = caf::actor_cast<caf::weak_actor_ptr>(owner);
    return system.middleman().spawn_broker(tcp_links, std::move(setup));
  }

 private:
  // Listens at the same address with a new socket: the last links actor shuts its own one down when
  // it ends. The old socket holds the port until the new one is bound.
  void listen_again() {
    ::shutdown(listener_.get(), SHUT_RDWR);  // the last actor may still be ending
    const HostPort at = split_address(to_string(local_endpoint(listener_)));
    listener_ = listen_on(at.host, at.port);
  }

  Socket listener_;
  const std::shared_ptr<TcpLinksConfig> config_;  // without its listener
  bool has_spawned_ = false;
  bool loopback_only_ = false;
};

}  // namespace

void provide_descriptors(int rank, int world_size, int ranks_here, int store_clients) {
  constexpr std::size_t kOfCallsMin = 16;  // the minimum that a save or load opens
  constexpr std::size_t kOfRankMin = 6;    // the minimum of a rank that does not coordinate
  constexpr std::size_t kOfRank = 32;      // actors, connections and files of a rank that does not coordinate
  constexpr std::size_t kSpare = 256;
  if (world_size == 1) return;
  const auto others = static_cast<std::size_t>(world_size) - 1;
  static Mutex one_at_a_time;  // ranks of this process read and raise the limit in turn
  const MutexLock lock(one_at_a_time);
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) throw system_error("ask for", "the limit of descriptors", errno);
  const std::size_t open = descriptors_open();
  // A link is a data connection and a heartbeat connection.
  const auto neighbours = static_cast<std::size_t>(ranks_here) - 1;
  const auto clients = static_cast<std::size_t>(store_clients);
  const std::size_t needed = open + 2 * others + clients + kOfRankMin * neighbours + kOfCallsMin;
  if (limit.rlim_max < needed)
    throw Error(ErrorCode::kPrecondition,
                "the hard limit of file descriptors is too low (ulimit -Hn is " + std::to_string(limit.rlim_max) + ", of which " +
                    std::to_string(open) + " are open): rank " + std::to_string(rank) + " of " + std::to_string(world_size) +
                    " needs " + std::to_string(needed) + ", two for each other rank" +
                    (clients == 0 ? "" : " and one for each client of the store at MASTER_PORT") +
                    (neighbours == 0 ? "" : " and " + std::to_string(kOfRankMin) + " more for each one in this process") +
                    "; raise it to " + std::to_string(2 * needed) + " or more");
  // Three per rank, as a connection may be about to replace another. Twice that, for the trainer
  // and for other ranks of this process. A store client of LibTorch 1 has two connections.
  const rlim_t wanted =
      std::min<rlim_t>(limit.rlim_max, 2 * (open + 3 * others + clients) + kOfRank * static_cast<std::size_t>(ranks_here) + kSpare);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0)
    throw system_error("raise", "the limit of descriptors (ulimit -n) to " + std::to_string(wanted), errno);
}

std::shared_ptr<LinksFactory> make_tcp_links(TcpLinksConfig config) { return std::make_shared<TcpLinksFactory>(std::move(config)); }

}  // namespace cairn
