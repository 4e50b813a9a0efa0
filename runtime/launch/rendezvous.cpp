#include <cairn/runtime/launch/rendezvous.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <future>
#include <optional>
#include <sstream>
#include <thread>

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <torch/version.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cairn/actors/links/socket.hpp>
#include <cairn/actors/links/tcp_links.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/log.hpp>
#include <cairn/base/random.hpp>
#include <cairn/base/rank_text.hpp>
#include <cairn/base/signals_blocked.hpp>
#include <cairn/runtime/launch/meeting_store.hpp>

namespace cairn {
namespace {

using std::chrono::steady_clock;

// The longest pause between two attempts to connect to the store.
constexpr std::chrono::milliseconds kPauseMax{50};
// How long a connection to a store must last before it counts. The process of a killed job takes
// some time to end, and may still accept connections. Rank 0, which expects no store, waits longer.
constexpr std::chrono::milliseconds kHold{100};
constexpr std::chrono::milliseconds kHoldOfHost{500};
// The time beyond all deadlines of a conversation with a store, after which the store counts as
// silent.
constexpr std::chrono::milliseconds kSilentStore{3000};
// For one connection attempt that only checks for a listener, and for one question.
constexpr std::chrono::milliseconds kProbe{1000};

constexpr const char* kNoStore = "who listens there does not answer as a store does; see which program it is";

// Counts the secrets that a rank has asked the store for.
std::string secrets_key(int rank) { return "cairn/secrets/" + std::to_string(rank); }

// The store cannot tell a second process of a rank from the same process that comes again.
std::string came_more_than_once(const std::vector<int>& ranks) {
  return "; " + name_ranks(ranks) +
         " came more than once: see whether two processes have the same RANK (a rank also comes again for its next world, or to "
         "try again)";
}

// Identifies this machine and network namespace: each has a loopback of its own, as containers do.
// Used to check that other ranks can reach a loopback address.
std::string machine_name() {
  std::string name;
  std::ifstream boot_id("/proc/sys/kernel/random/boot_id");
  if (!std::getline(boot_id, name) || name.empty()) {
    char host[256] = "";
    ::gethostname(host, sizeof(host) - 1);
    name = host;
  }
  char network[64] = "";
  if (::readlink("/proc/thread-self/ns/net", network, sizeof(network) - 1) > 0) name += std::string("/") + network;
  return name;
}

bool only_local(const std::string& address) { return address.rfind("127.", 0) == 0 || address.rfind("[::1]", 0) == 0; }

constexpr const char* kSigned = "cairn rendezvous v1";  // purpose, part of each signature
constexpr const char* kSameSecret = "give all ranks the same secret (WorldOptions::secret_file, CAIRN_SECRET_FILE)";

// A rank's entry in the store: "<world size> <machine> <address> <signature>".
struct Card {
  int world_size = 0;
  std::string machine;
  std::string address;
  std::string signature;
};

// Returns the signed part of a card.
std::string content(const Card& card) { return std::to_string(card.world_size) + " " + card.machine + " " + card.address; }
std::string encode(const Card& card) { return content(card) + " " + card.signature; }

Card decode_card(const std::string& text) {
  Card card;
  std::istringstream fields(text);
  fields >> card.world_size >> card.machine >> card.address >> card.signature;
  return card;
}

// Rank 0's verdict is the assembly or an error: "0\n<signature>\n<incarnation>\n<address>\n…" or
// "<code>\n<text>". `content` returns the signed part.
std::string content(const Assembly& assembly) {
  std::string text = assembly.incarnation;
  for (const auto& address : assembly.addresses) text += "\n" + address;
  return text;
}

std::string encode(const Error& error) { return std::to_string(static_cast<int>(error.code())) + "\n" + error.what(); }

struct Verdict {
  std::string signature;
  Assembly assembly;
};

Verdict decode_verdict(const std::string& text) {
  std::istringstream lines(text);
  std::string line;
  std::getline(lines, line);
  if (line != "0")
    throw Error(static_cast<ErrorCode>(std::atoi(line.c_str())), text.substr(std::min(text.size(), line.size() + 1)));
  Verdict verdict;
  std::getline(lines, verdict.signature);
  std::getline(lines, verdict.assembly.incarnation);
  while (std::getline(lines, line)) verdict.assembly.addresses.push_back(line);
  return verdict;
}

std::string seconds(std::chrono::milliseconds time) {
  std::ostringstream text;
  text << static_cast<double>(time.count()) / 1000 << " s";
  return text.str();
}

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

// Runs `talk`, which uses a LibTorch store, on a thread of its own, and throws kDeadline if it does
// not return in time. LibTorch's stores wait forever for a server that does not answer: a stopped
// process, or a program that is not a store. The thread is then left running, so `talk` must own
// what it needs.
template <class Result>
Result bounded_talk(std::function<Result()> talk, const Deadline& deadline, const std::string& silence) {
  std::packaged_task<Result()> task(std::move(talk));
  auto result = task.get_future();
  std::thread thread = start_thread("cairn-meeting", std::move(task));
  const auto limit = deadline.left() + MeetingStore::kFarewell + kSilentStore;
  if (result.wait_for(limit) != std::future_status::ready) {
    thread.detach();
    throw Error(ErrorCode::kDeadline, silence);
  }
  // A process that exits while the thread ends would leave OpenSSL's state of the thread behind.
  thread.join();
  return result.get();
}

// One rank's side of one rendezvous.
class Meeting {
 public:
  Meeting(c10d::Store& store, int rank, int world_size, const Deadline& deadline, const Secret& secret, Duration first_notice)
      : rank_(rank),
        world_size_(world_size),
        secret_(secret),
        whole_store_(store),
        generation_(store.add(joins_key(rank), 1)),
        store_(store, "cairn/" + std::to_string(generation_) + "/", "the world of " + std::to_string(world_size) + " ranks", rank,
               world_size, deadline, first_notice) {}

  void publish(const std::string& address) {
    Card card{world_size_, machine_name(), address, ""};
    card.signature = sign(card_key(rank_), content(card));
    if (rank_ == 0) store_.set("leader", "here");
    store_.arrive(std::to_string(rank_) + " " + encode(card));
  }

  Assembly lead() {
    try {
      const Assembly assembly = collect();
      store_.set("verdict", "0\n" + sign("verdict", content(assembly)) + "\n" + content(assembly));
      await_readers(world_size_ - 1);
      return assembly;
    } catch (const Error& error) {
      store_.set("verdict", encode(error));
      // Also wait for ranks whose card was refused or not read: the store may end with this rank.
      await_readers(static_cast<int>(store_.arrivals()) - 1);
      throw;
    }
  }

  Assembly follow() {
    if (!store_.poll([this] { return store_.has("verdict"); }, [this] { return missing_for_all(); })) throw unled();
    const std::string verdict = store_.get("verdict");
    store_.add("readers", 1);
    Verdict decoded = decode_verdict(verdict);
    if (decoded.signature != sign("verdict", content(decoded.assembly)))
      throw Error(ErrorCode::kPermission,
                  "what rank 0 says is not signed with the secret of rank " + std::to_string(rank_) + ": " + kSameSecret);
    const auto size = static_cast<int>(decoded.assembly.addresses.size());
    if (size != world_size_) throw different_size(rank_, world_size_, 0, size);
    return std::move(decoded.assembly);
  }

 private:
  static std::string joins_key(int rank) { return "cairn/joins/" + std::to_string(rank); }
  static std::string card_key(int rank) { return "card/" + std::to_string(rank); }  // used in signatures
  // Signs the key along with the text, so that a signed text is invalid under another key or in
  // another generation.
  std::string sign(const std::string& key, const std::string& text) const {
    return secret_.sign(kSigned, store_.prefix() + key + "\n" + text);
  }

  // Reads the cards of all ranks that have arrived since the last call.
  void read_arrivals() {
    store_.read_cards([this](const std::string& text) {
      const int rank = std::atoi(text.c_str());
      Card card = decode_card(text.substr(std::min(text.size(), text.find(' '))));
      if (card.world_size != world_size_) throw different_size(rank, card.world_size, rank_, world_size_);
      if (rank < 0 || rank >= world_size_ || cards_[static_cast<std::size_t>(rank)]) return;
      cards_[static_cast<std::size_t>(rank)] = std::move(card);
      ++came_;
    });
  }

  Assembly collect() {
    const auto have_all_come = [&] {
      read_arrivals();
      return came_ == world_size_;
    };
    if (!store_.poll(have_all_come, [this] { return missing(); })) throw incomplete(missing());
    std::vector<int> others;
    for (int rank = 0; rank < world_size_; ++rank) {
      const auto& card = *cards_[static_cast<std::size_t>(rank)];
      if (card.signature != sign(card_key(rank), content(card))) others.push_back(rank);
    }
    if (!others.empty())
      throw Error(ErrorCode::kPermission,
                  name_ranks(others) +
                      (secret_.empty() ? ", unlike rank 0, came with a secret: " : " came without the secret of rank 0: ") +
                      kSameSecret);
    Assembly assembly;
    assembly.incarnation = random_hex(*system_random(), 128);
    const bool on_several_machines =
        std::any_of(cards_.begin(), cards_.end(), [this](const auto& card) { return card->machine != cards_.front()->machine; });
    for (int rank = 0; rank < world_size_; ++rank) {
      const auto& card = *cards_[static_cast<std::size_t>(rank)];
      if (on_several_machines && only_local(card.address)) {
        throw Error(ErrorCode::kInvalidArgument,
                    "rank " + std::to_string(rank) + " listens at " + card.address +
                        ", which ranks on other machines or in other containers cannot reach: " +
                        (secret_.empty() ? "give all ranks the same secret (CAIRN_SECRET_FILE, or CAIRN_SECRET=store), because "
                                           "ranks without one use loopback addresses only"
                                         : "set CAIRN_BIND_ADDRESS, CAIRN_SOCKET_IFNAME or WorldOptions::bind_address of that rank "
                                           "to an address of its network"));
      }
      assembly.addresses.push_back(card.address);
    }
    return assembly;
  }

  // Waits until `count` ranks have read the verdict.
  void await_readers(int count) {
    store_.stay_until([&] { return store_.add("readers", 0) >= count; });
  }

  // Returns the ranks whose cards this rank has not read.
  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (int rank = 0; rank < world_size_; ++rank) {
      if (!cards_[static_cast<std::size_t>(rank)]) ranks.push_back(rank);
    }
    return ranks;
  }

  // Returns the missing ranks if this rank is the one to name them.
  std::vector<int> missing_for_all() {
    if (store_.has("leader")) return {};  // it names them
    if (!store_.is_large() || store_.speaks()) read_arrivals();
    return store_.speaks() ? missing() : std::vector<int>();
  }

  // Returns the error for a world in which rank 0 has published no verdict. In large worlds it
  // names rank 0 only.
  Error unled() {
    if (!store_.is_large()) {
      read_arrivals();
      return incomplete(missing());
    }
    return incomplete(store_.has("leader") ? std::vector<int>() : std::vector<int>{0});
  }

  // Returns the ranks that are here and have begun a later rendezvous, or wait for a later secret,
  // as a second process of the same rank would.
  std::vector<int> come_again() {
    std::vector<int> ranks;
    const auto secrets = whole_store_.add(secrets_key(rank_), 0);
    for (int rank = 0; rank < world_size_; ++rank) {
      if (!cards_[static_cast<std::size_t>(rank)]) continue;
      if (whole_store_.add(joins_key(rank), 0) > generation_ || whole_store_.add(secrets_key(rank), 0) > secrets)
        ranks.push_back(rank);
    }
    return ranks;
  }

  Error incomplete(const std::vector<int>& missing) {
    std::ostringstream text;
    text << "the world of " << world_size_ << " ranks did not assemble within " << seconds(store_.deadline().whole()) << ": ";
    if (missing.empty()) {
      text << "rank 0 did not confirm that all had come";
    } else {
      text << name_ranks(missing) << " did not come";
    }
    text << "; see whether their processes run and reach the store, and whether they have the same WORLD_SIZE";
    std::vector<int> twice = come_again();
    const bool is_alone = missing.size() + 1 == cards_.size();
    if (is_alone && generation_ > 1) twice = {rank_};
    if (!twice.empty()) text << came_more_than_once(twice);
    return Error(ErrorCode::kDeadline, text.str());
  }

  static Error different_size(int rank, int its_size, int other, int other_size) {
    return Error(ErrorCode::kMismatch, "rank " + std::to_string(rank) + " expects a world of " + std::to_string(its_size) +
                                           " ranks, but rank " + std::to_string(other) + " expects " +
                                           std::to_string(other_size) + ": set the same WORLD_SIZE on all ranks");
  }

  const int rank_;
  const int world_size_;
  const Secret& secret_;
  c10d::Store& whole_store_;
  const std::int64_t generation_;
  MeetingStore store_;
  // The cards read so far.
  std::vector<std::optional<Card>> cards_ = std::vector<std::optional<Card>>(static_cast<std::size_t>(world_size_));  // by rank
  int came_ = 0;
};

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
  throw Error(ErrorCode::kDeadline, who + " within " + seconds(deadline.whole()) + ": " +
                                        (place.agent_hosts ? "the launcher's agent, which hosts it, is not there: "
                                                           : "rank 0, which hosts it, did not come or has failed: ") +
                                        trouble);
}

}  // namespace

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

Secret share_secret(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size, Deadline deadline,
                    Duration first_notice) {
  const std::string nothing_came = "rank " + std::to_string(rank) + " got no secret from rank 0 through the store within " +
                                   seconds(deadline.whole()) +
                                   ": see whether rank 0 runs, and set CAIRN_SECRET=store, or secret_from_store, on all ranks";
  return bounded_talk<Secret>(
      [=] {
        const auto turn = store->add(secrets_key(rank), 1);
        MeetingStore meeting(*store, "cairn/secret/" + std::to_string(turn) + "/", "the exchange of the job's secret", rank,
                             world_size, deadline, first_notice);
        const std::string key = "drawn";
        if (rank == 0) meeting.set(key, random_hex(*system_random(), 256));
        meeting.arrive(std::to_string(rank));
        const auto missing = [&]() -> std::vector<int> {
          if (!meeting.is_large()) meeting.read_cards([](const std::string&) {});
          if (meeting.speaks() || turn > 1) return {0};
          return {};
        };
        if (!meeting.poll([&] { return meeting.has(key); }, missing))
          throw Error(ErrorCode::kDeadline, nothing_came + (turn > 1 ? came_more_than_once({rank}) : ""));
        return Secret(ByteSpan(meeting.get(key)));
      },
      deadline, nothing_came);
}

std::string host_of_store(c10d::Store& store) {
  if (auto* const prefixed = dynamic_cast<c10d::PrefixStore*>(&store)) return host_of_store(*prefixed->getUnderlyingStore());
  const auto* const served = dynamic_cast<c10d::TCPStore*>(&store);
  return served != nullptr ? served->getHost() : "";
}

Assembly assemble(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size, const std::string& address,
                  Deadline deadline, const Secret& secret, Duration first_notice) {
  return bounded_talk<Assembly>(
      [=] {
        Meeting meeting(*store, rank, world_size, deadline, secret, first_notice);
        meeting.publish(address);
        return rank == 0 ? meeting.lead() : meeting.follow();
      },
      deadline,
      "rank " + std::to_string(rank) +
          ": the store through which the ranks are to meet does not answer: its process stands still, or " +
          "what listens there (MASTER_ADDR, MASTER_PORT) is no store");
}

}  // namespace cairn
