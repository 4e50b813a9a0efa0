// Ranks that own links and nothing else, for tests of links. A test can inspect and wait for the
// events that each rank hears.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <caf/actor_registry.hpp>
#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/event_based_actor.hpp>
#include <caf/exit_reason.hpp>
#include <caf/io/middleman.hpp>
#include <caf/scoped_actor.hpp>
#include <caf/send.hpp>

#include <cairn/actors/links/links.hpp>
#include <cairn/actors/links/plain_transform.hpp>
#include <cairn/actors/links/tcp_links.hpp>
#include <cairn/actors/links/tls_transform.hpp>
#include <cairn/tests/support/leak_check.hpp>
#include <cairn/tests/support/plain.hpp>

namespace cairn::testing {

// Far above the time that any of these tests needs on a busy machine. Only a hang reaches it.
inline constexpr std::chrono::seconds kPatience{60};

inline RuntimeOptions usual_options() {
  RuntimeOptions options;
  options.connect_deadline = std::chrono::seconds(20);
  return options;
}

struct LinkEvent {
  enum Kind { kUp, kMessage, kDown, kRefused } kind = kUp;
  int rank = 0;
  SharedBytes bytes;
  LinkDownCause cause = LinkDownCause::kClosed;
  std::string why;
};

// The events that one rank heard, in order. Thread-safe.
class LinkLog {
 public:
  void add(LinkEvent event) {
    std::lock_guard<std::mutex> lock(mutex_);
    events_.push_back(std::move(event));
    changed_.notify_all();
  }

  // Waits until `enough` holds of all events so far. Returns false if it does not within kPatience.
  bool wait(const std::function<bool(const std::vector<LinkEvent>&)>& enough) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return enough(events_); });
  }

  // Waits for the `count`th message of `rank`.
  bool wait_messages(int rank, std::size_t count) {
    return wait([=](const std::vector<LinkEvent>& events) { return count_of(events, LinkEvent::kMessage, rank) >= count; });
  }
  bool wait_up(int rank, std::size_t count = 1) {
    return wait([=](const std::vector<LinkEvent>& events) { return count_of(events, LinkEvent::kUp, rank) >= count; });
  }
  // Returns whether such an event arrives within 200 ms. For events that the test may have to
  // trigger again.
  bool wait_for_any(const std::function<bool(const LinkEvent&)>& wanted) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, std::chrono::milliseconds(200),
                             [&] { return std::any_of(events_.begin(), events_.end(), wanted); });
  }
  // Waits for LinkDown number `number` of `rank`. Returns an event with an empty `why` if none
  // came.
  LinkEvent wait_down(int rank, std::size_t number = 1) {
    wait([=](const std::vector<LinkEvent>& events) { return count_of(events, LinkEvent::kDown, rank) >= number; });
    for (const auto& event : events()) {
      if (event.kind == LinkEvent::kDown && event.rank == rank && --number == 0) return event;
    }
    return {};
  }

  std::vector<LinkEvent> events() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return events_;
  }
  std::vector<std::string> messages(int rank) const {
    std::vector<std::string> texts;
    for (const auto& event : events()) {
      if (event.kind == LinkEvent::kMessage && event.rank == rank) texts.push_back(*event.bytes);
    }
    return texts;
  }
  std::size_t count(LinkEvent::Kind kind, int rank) const { return count_of(events(), kind, rank); }
  // Releases all bytes received, as an owner does after handling a message.
  void forget() {
    std::lock_guard<std::mutex> lock(mutex_);
    events_.clear();
  }

 private:
  static std::size_t count_of(const std::vector<LinkEvent>& events, LinkEvent::Kind kind, int rank) {
    std::size_t count = 0;
    for (const auto& event : events) count += event.kind == kind && event.rank == rank ? 1 : 0;
    return count;
  }
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<LinkEvent> events_;
};

class LinkSystem {
 public:
  LinkSystem() : system_(config_) {}
  // By now all ranks have ended. An actor that is still running would never end.
  ~LinkSystem() {
    const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (system_.registry().running() > 0 && std::chrono::steady_clock::now() < patience) std::this_thread::yield();
    CHECK_MESSAGE(system_.registry().running() == 0, "actors left behind");
  }
  caf::actor_system& operator*() { return system_; }

 private:
  struct Config : caf::actor_system_config {
    Config() {
      load<caf::io::middleman>();
      set("scheduler.policy", caf::atom("sharing"));
      set("scheduler.max-threads", 2);
      set("scheduler.max-throughput", 64);
    }
  };
  Config config_;
  caf::actor_system system_;
};

// The links of one world, by kind.
struct MemoryKind {
  explicit MemoryKind(int world_size) : factory_(make_memory_links(world_size)) {}
  LinksFactory& of(int) { return *factory_; }
  std::shared_ptr<LinksFactory> factory_;
};

inline constexpr const char* kIncarnation = "0123456789abcdef0123456789abcdef";

// Counts what the TCP links of a rank say of connections.
struct LinkCounters {
  std::atomic<std::uint64_t> connections{0}, garbage{0}, oversize{0}, wrong_secret{0}, handshake_deadline{0}, crowded_out{0},
      door_shut{0};

  void count(std::string_view what) {
    const std::pair<std::string_view, std::atomic<std::uint64_t>*> known[] = {
        {"accepted", &connections},
        {"refused: garbage", &garbage},
        {"refused: a frame that is too long", &oversize},
        {"refused: no proof of the job's secret", &wrong_secret},
        {"refused: no hello before handshake_deadline", &handshake_deadline},
        {"refused: the oldest of too many unauthenticated connections", &crowded_out},
        {"door shut: no descriptor is free", &door_shut}};
    for (const auto& [text, counter] : known)
      if (text == what) ++*counter;
  }
};

struct TcpKind {
  explicit TcpKind(int world_size, const TransformFactory& transform = plain_transform())
      : TcpKind(std::vector<TransformFactory>(static_cast<std::size_t>(world_size), transform)) {}
  // One transform for each rank.
  explicit TcpKind(const std::vector<TransformFactory>& transforms) : transform_(transforms.front()) {
    std::vector<Socket> listeners;
    for (std::size_t rank = 0; rank < transforms.size(); ++rank) {
      listeners.push_back(listen_on("127.0.0.1", 0));
      addresses_.push_back(to_string(local_endpoint(listeners.back())));
    }
    for (std::size_t rank = 0; rank < transforms.size(); ++rank) {
      counters_.push_back(std::make_shared<LinkCounters>());
      TcpLinksConfig config;
      config.listener = std::move(listeners[rank]);
      config.addresses = addresses_;
      config.incarnation = kIncarnation;
      config.transform = transforms[rank];
      config.watch = [counters = counters_.back()](std::string_view what) { counters->count(what); };
      factories_.push_back(make_tcp_links(std::move(config)));
    }
  }
  // Returns rank 0's transform.
  const TransformFactory& transform() const { return transform_; }
  LinksFactory& of(int rank) { return *factories_[static_cast<std::size_t>(rank)]; }
  const LinkCounters& counters(int rank) { return *counters_[static_cast<std::size_t>(rank)]; }
  const std::string& address(int rank) { return addresses_[static_cast<std::size_t>(rank)]; }
  // Ends the rank before it spawns its links, so that its address has no listener.
  void abandon(int rank) { factories_[static_cast<std::size_t>(rank)] = nullptr; }

  TransformFactory transform_;
  std::vector<std::string> addresses_;
  std::vector<std::shared_ptr<LinkCounters>> counters_;
  std::vector<std::shared_ptr<LinksFactory>> factories_;
};

inline constexpr const char* kSecret = "the secret of these tests";

inline TransformFactory tls_of(int rank, std::string_view secret = kSecret, const std::string& incarnation = kIncarnation) {
  return tls_transform(Secret(secret), incarnation, rank);
}

struct TlsKind : TcpKind {
  explicit TlsKind(int world_size) : TcpKind(transforms(world_size)) {}

 private:
  static std::vector<TransformFactory> transforms(int world_size) {
    std::vector<TransformFactory> all;
    for (int rank = 0; rank < world_size; ++rank) all.push_back(tls_of(rank));
    return all;
  }
};

// The links' owner in place of a supervisor: records every event.
class RecordingOwner : public caf::event_based_actor {
 public:
  RecordingOwner(caf::actor_config& config, std::shared_ptr<LinkLog> log) : caf::event_based_actor(config), log_(std::move(log)) {}

 protected:
  caf::behavior make_behavior() override {
    return {
        [this](const LinkUp& up) {
          log_->add({LinkEvent::kUp, up.rank, nullptr, {}, {}});
        },
        [this](const LinkMessage& message) {
          log_->add({LinkEvent::kMessage, message.rank, message.bytes, {}, {}});
        },
        [this](const LinkDown& down) {
          log_->add({LinkEvent::kDown, down.rank, nullptr, down.cause, down.why});
        },
        [this](const LinkRefused& refused) {
          log_->add({LinkEvent::kRefused, -1, nullptr, {}, refused.what});
        },
    };
  }

 private:
  const std::shared_ptr<LinkLog> log_;
};

// One rank: a recording owner and its links. The destructor ends both and waits for their end.
class LinkRank {
 public:
  LinkRank(caf::actor_system& system, LinksFactory& factory, int rank, const RuntimeOptions& options)
      : system_(system), log_(std::make_shared<LinkLog>()) {
    owner_ = system.spawn<RecordingOwner>(log_);
    links_ = factory.spawn(system, rank, options, owner_);
  }
  ~LinkRank() {
    close();
    caf::anon_send_exit(owner_, caf::exit_reason::user_shutdown);
    wait_for(owner_);
  }
  LinkRank(const LinkRank&) = delete;
  LinkRank& operator=(const LinkRank&) = delete;

  LinkLog& log() { return *log_; }
  void send(int rank, std::string text) { send(rank, std::make_shared<const std::string>(std::move(text))); }
  void send(int rank, SharedBytes bytes) { caf::anon_send(links_, LinkSend{rank, std::move(bytes)}); }
  void open(int rank) { caf::anon_send(links_, LinkOpen{rank}); }
  void drop(int rank) { caf::anon_send(links_, LinkDrop{rank}); }
  // Ends the links and waits for their end.
  void close() {
    if (!links_) return;
    caf::anon_send(links_, LinkClose{});
    wait_for(links_);
    links_ = nullptr;
  }
  // Ends the owner; its links must then end by themselves.
  void kill_owner() {
    caf::anon_send_exit(owner_, caf::exit_reason::kill);
    wait_for(links_);
    links_ = nullptr;
  }

 private:
  void wait_for(const caf::actor& actor) {
    caf::scoped_actor self{system_};
    self->wait_for(actor);
  }
  caf::actor_system& system_;
  std::shared_ptr<LinkLog> log_;
  caf::actor owner_;
  caf::actor links_;
};

// The ranks of one world, started when a test wants them. The world's destruction checks for leaks.
template <class Kind>
struct LinkWorld {
  explicit LinkWorld(int world_size) : kind(world_size) {}
  LinkRank come(int rank, const RuntimeOptions& options = usual_options()) { return {*system, kind.of(rank), rank, options}; }

  LeakCheck leaks;
  LinkSystem system;
  Kind kind;
};

}  // namespace cairn::testing
