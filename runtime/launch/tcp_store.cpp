#include <cairn/runtime/launch/tcp_store.hpp>

#include <algorithm>
#include <cstring>
#include <sstream>
#include <thread>

#include <poll.h>
#include <sys/socket.h>

#include <torch/version.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cairn/actors/links/socket.hpp>
#include <cairn/actors/links/tcp_links.hpp>
#include <cairn/base/log.hpp>

namespace cairn {
namespace {

using std::chrono::steady_clock;

// The longest pause between two attempts to connect to the store.
constexpr std::chrono::milliseconds kPauseMax{50};
// How long a connection to a store must last before it counts. The process of a killed job takes
// some time to end, and may still accept connections. Rank 0, which expects no store, waits longer.
constexpr std::chrono::milliseconds kHold{100};
constexpr std::chrono::milliseconds kHoldOfHost{500};
// For one connection attempt that only checks for a listener, and for one question.
constexpr std::chrono::milliseconds kProbe{1000};

constexpr const char* kNoStore = "who listens there does not answer as a store does; see which program it is";

bool hangs_up(const Socket& socket, std::chrono::milliseconds within) {
  pollfd question{socket.get(), POLLIN | POLLRDHUP, 0};
  return ::poll(&question, 1, static_cast<int>(within.count())) > 0;  // a store never sends anything unasked
}

// Returns why the host in `address` cannot be resolved; "" if it can.
std::string why_unknown(const std::string& address) {
  try {
    resolve_endpoint(address);
    return "";
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnavailable) throw;  // it will never be one
    return error.what();
  }
}

// Connects `socket`. Returns "" or the error.
std::string connect_once(const std::string& address, steady_clock::time_point end, Socket& socket) {
  try {
    auto progress = start_connect(resolve_endpoint(address), socket);
    while (progress.state == ConnectState::kPending && steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      progress = check_connect(socket);
    }
    return progress.state == ConnectState::kConnected ? ""
           : progress.state == ConnectState::kFailed  ? std::strerror(progress.error_number)
                                                      : "no answer";
  } catch (const Error& error) {
    return error.what();
  }
}

// Tries until the deadline, and at least once, to connect to `address`. The connection must last
// for `hold`. Returns "" or the error. TCPStore's own attempts log complaints, and one that is
// reset ends the process.
std::string try_connect(const std::string& address, std::chrono::milliseconds deadline, std::chrono::milliseconds hold,
                        const std::function<void()>& still_waiting) {
  const auto end = steady_clock::now() + deadline;
  std::string trouble;
  for (auto pause = std::chrono::milliseconds(1);; pause = std::min(pause * 2, kPauseMax)) {
    Socket socket;
    trouble = connect_once(address, std::max(end, steady_clock::now() + kProbe), socket);
    if (trouble.empty() && !hangs_up(socket, hold)) return "";
    if (trouble.empty()) trouble = "it hangs up";
    if (steady_clock::now() >= end) return trouble;
    still_waiting();
    std::this_thread::sleep_for(pause);
  }
}

// Checks that a store serves `address`. Returns "" or the error. Before LibTorch 2, each TCPStore
// has a thread that listens on a connection of its own, and a reset of that connection ends this
// process. A program that exits without accepting the connection causes such a reset. A working
// store closes the connection cleanly when it gets an unknown question; a program that exits
// without reading the question resets the connection.
std::string try_question(const std::string& address) {
#if TORCH_VERSION_MAJOR < 2
  const Deadline deadline = kProbe;
  Socket socket;
  const std::string trouble = connect_once(address, deadline.end(), socket);
  if (!trouble.empty()) return trouble;
  char byte = static_cast<char>(0xff);
  if (::send(socket.get(), &byte, 1, MSG_NOSIGNAL) != 1) return std::strerror(errno);
  if (!hangs_up(socket, deadline.left())) return kNoStore;
  const auto got = ::recv(socket.get(), &byte, 1, MSG_DONTWAIT);
  return got == 0 ? "" : got > 0 ? kNoStore : std::strerror(errno);
#else
  (void)address;
  return "";
#endif
}

// Since LibTorch 2.4 a store asks for libuv by default. A LibTorch that was built without it, such
// as Debian's, refuses such a store, even one that only connects. Returns whether there was
// something to switch off.
template <class Options>
auto switch_off_libuv(Options& options, int) -> decltype(options.useLibUV) {
  return std::exchange(options.useLibUV, false);
}
template <class Options>
bool switch_off_libuv(Options&, long) {
  return false;
}

bool can_host(const Place& place) { return place.rank == 0 && !place.agent_hosts; }

c10::intrusive_ptr<c10d::Store> try_open_store(const Place& place, const std::string& address, const Deadline& deadline,
                                               Duration first_notice) {
  const bool may_host = can_host(place);
  const auto begin = steady_clock::now();
  const auto open = [&](bool is_host, std::chrono::milliseconds patience) {
    c10d::TCPStoreOptions options;
    options.port = static_cast<std::uint16_t>(place.master_port);
    options.isServer = is_host;
    options.waitWorkers = false;
    options.multiTenant = true;
    options.timeout = std::max(patience, kProbe);  // TCPStore counts connecting in seconds
    auto store = open_tcp_store(place.master_host, options);
    store->setTimeout(std::max(deadline.whole(), kProbe));
    return store;
  };
  std::string trouble;
  bool warned = false;
  WaitNotices notices(first_notice);
  const auto still_waiting = [&] {
    const Duration waited = steady_clock::now() - begin;
    if (!notices.is_due(waited)) return;  // without a store, no rank knows of the others
    write_log(LogLevel::kWarning, place.rank,
              std::string("waiting for ") + (place.agent_hosts ? "the launcher's agent" : "rank 0") + " to offer the store at " +
                  address + " (MASTER_ADDR, MASTER_PORT): " + in_whole_seconds(waited, deadline.whole()));
  };
  do {
    if (may_host && !try_connect(address, std::chrono::milliseconds(0), kHoldOfHost, still_waiting).empty()) {
      trouble = why_unknown(address);
      if (!trouble.empty()) {  // TCPStore would log a line for each attempt
        if (const Duration waited = steady_clock::now() - begin; notices.is_due(waited))
          write_log(LogLevel::kWarning, place.rank,
                    "cannot host the store at " + address + " (MASTER_ADDR, MASTER_PORT) yet: " + trouble + ": " +
                        in_whole_seconds(waited, deadline.whole()));
        std::this_thread::sleep_for(kPauseMax);
        continue;
      }
      try {
        return open(/*is_host=*/true, deadline.left());
      } catch (const std::exception&) {  // the trainer was faster, or the code below finds the error
      }
    }
    // The listener may be a process that is about to end, such as a killed rank. Then this rank has
    // to host the store after all.
    const auto patience = may_host ? std::min(deadline.left(), kProbe) : deadline.left();
    trouble = try_connect(address, patience, kHold, still_waiting);
    if (trouble.empty()) trouble = try_question(address);
    if (trouble == kNoStore && !warned) {
      warned = true;
      write_log(LogLevel::kWarning, place.rank,
                address + " (MASTER_ADDR, MASTER_PORT): " + kNoStore + "; trying until the deadline");
    }
    if (!trouble.empty()) continue;
    try {
      return open(/*is_host=*/false, patience);
    } catch (const std::exception& error) {
      trouble = error.what();
    }
  } while (deadline.left() > std::chrono::milliseconds(0));
  const std::string who =
      "rank " + std::to_string(place.rank) + " cannot reach the store at " + address + " (MASTER_ADDR, MASTER_PORT)";
  if (may_host) throw Error(ErrorCode::kUnavailable, who + ", and cannot host it there: " + trouble);
  throw Error(ErrorCode::kDeadline, who + " within " + seconds_text(deadline.whole()) + ": " +
                                        (place.agent_hosts ? "the launcher's agent, which hosts it, is not there: "
                                                           : "rank 0, which hosts it, did not come or has failed: ") +
                                        trouble);
}

}  // namespace

std::string seconds_text(std::chrono::milliseconds time) {
  std::ostringstream text;
  text << static_cast<double>(time.count()) / 1000 << " s";
  return text.str();
}

c10::intrusive_ptr<c10d::TCPStore> open_tcp_store(const std::string& host, c10d::TCPStoreOptions options) {
  if (!options.isServer) switch_off_libuv(options, 0);
  const Deadline deadline = options.timeout;  // NOLINT: not read with a LibTorch without libuv
  while (true) {
    try {
      return c10::make_intrusive<c10d::TCPStore>(host, options);
    } catch (const std::exception&) {
      if (!switch_off_libuv(options, 0)) throw;
    }
    options.timeout = std::max(deadline.left(), kProbe);
  }
}

c10::intrusive_ptr<c10d::Store> open_store(const Place& place, Deadline deadline, Duration first_notice) {
  const std::string address = join_address(place.master_host, place.master_port);
  // LibTorch's store ends the process if it cannot accept a connection.
  provide_descriptors(place.rank, place.world_size, 1, can_host(place) ? place.world_size : 0);
  auto store = bounded_talk<c10::intrusive_ptr<c10d::Store>>(
      [=] { return try_open_store(place, address, deadline, first_notice); }, deadline,
      "rank " + std::to_string(place.rank) + ": who listens at " + address +
          " (MASTER_ADDR, MASTER_PORT) does not speak as a store does; see which program it is");
  if (place.agent_hosts)
    return c10::make_intrusive<c10d::PrefixStore>("cairn/life_" + std::to_string(place.restarts), std::move(store));
  // Two jobs whose names give the same port share one store.
  if (!place.job.empty()) return c10::make_intrusive<c10d::PrefixStore>("cairn/job " + place.job, std::move(store));
  return store;
}

std::string host_of_store(c10d::Store& store) {
  if (auto* const prefixed = dynamic_cast<c10d::PrefixStore*>(&store)) return host_of_store(*prefixed->getUnderlyingStore());
  const auto* const served = dynamic_cast<c10d::TCPStore*>(&store);
  return served != nullptr ? served->getHost() : "";
}

}  // namespace cairn
