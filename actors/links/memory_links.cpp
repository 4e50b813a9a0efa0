// Links between the ranks of one process: no sockets, only mailboxes.
//
//   owns        the sessions with its peers, and messages for peers that have not come yet
//   talks to    its owner; the links actors of other ranks, which it finds in a hub that the ranks
//               of one world share
//   deadlines   connect_deadline for a peer that has not come yet
//   on death    of a peer: LinkDown; of the owner: it ends
//
// A session is one direction of one link. Every message carries its session number, so that
// messages still in flight when a link went down are recognised and dropped. The opener says hello,
// and the other side answers with its own hello:
//
//   apart --- send, or a hello arrives ---> up --- bye, peer ended, overflow ---> apart
//
// The actors refer to each other weakly, so that no reference cycle keeps them alive.
#include <atomic>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include <caf/actor_cast.hpp>
#include <caf/actor_control_block.hpp>
#include <caf/event_based_actor.hpp>
#include <caf/send.hpp>

#include <cairn/actors/links/exit_reason.hpp>
#include <cairn/actors/links/links.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/mutex.hpp>

namespace cairn {
namespace {

// Bytes sent to a peer and not yet released there.
using Gauge = std::shared_ptr<std::atomic<std::size_t>>;

struct Hello {
  int from = 0;
  std::uint64_t session = 0;
};
struct Data {
  int from = 0;
  std::uint64_t session = 0;
  SharedBytes bytes;
};
struct Bye {
  int from = 0;
  std::uint64_t session = 0;
  std::string why;
};
struct PeerCame {
  int rank = 0;
};
struct ConnectDeadline {
  int rank = 0;
  std::uint64_t wait = 0;
};

}  // namespace
}  // namespace cairn

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cairn::Hello)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cairn::Data)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cairn::Bye)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cairn::PeerCame)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cairn::ConnectDeadline)

namespace cairn {
namespace {

// The registry through which the ranks of one world find each other.
class Hub {
 public:
  explicit Hub(int world_size) : world_size_(world_size), places_(static_cast<std::size_t>(world_size)) {}

  int world_size() const { return world_size_; }

  // Returns the actors that were waiting for this rank.
  std::vector<caf::weak_actor_ptr> enter(int rank, const caf::strong_actor_ptr& actor) {
    const MutexLock lock(mutex_);
    auto& place = places_[static_cast<std::size_t>(rank)];
    place.actor = actor.get();
    place.came = true;
    return std::exchange(place.waiters, {});
  }

  // `dies`: its supervisor starts another one, for which others wait.
  void leave(int rank, const caf::actor_control_block* actor, bool dies) {
    const MutexLock lock(mutex_);
    auto& place = places_[static_cast<std::size_t>(rank)];
    if (place.actor.get() != actor) return;
    place.actor = nullptr;
    place.came = !dies;
  }

  struct Found {
    caf::strong_actor_ptr actor;  // null: not present
    bool came = false;            // it is present, or has left
  };
  // If the rank has not come, `waiter` gets PeerCame when it does.
  Found find(int rank, const caf::strong_actor_ptr& waiter) {
    const MutexLock lock(mutex_);
    auto& place = places_[static_cast<std::size_t>(rank)];
    Found found{place.actor.lock(), place.came};
    if (!found.came) place.waiters.emplace_back(waiter.get());
    return found;
  }

  std::uint64_t new_session() { return next_session_.fetch_add(1); }

 private:
  struct Place {
    caf::weak_actor_ptr actor;
    bool came = false;
    std::vector<caf::weak_actor_ptr> waiters;
  };
  const int world_size_;
  Mutex mutex_;
  std::vector<Place> places_ CAIRN_GUARDED_BY(mutex_);
  std::atomic<std::uint64_t> next_session_{1};
};

class MemoryLinks : public caf::event_based_actor {
 public:
  MemoryLinks(caf::actor_config& config, std::shared_ptr<Hub> hub, int rank, const RuntimeOptions& options, const caf::actor& owner)
      : caf::event_based_actor(config),
        hub_(std::move(hub)),
        rank_(rank),
        options_(options),
        owner_(caf::actor_cast<caf::weak_actor_ptr>(owner)),
        owner_address_(owner.address()),
        peers_(static_cast<std::size_t>(hub_->world_size())) {}

  const char* name() const override { return "memory links"; }

 protected:
  caf::behavior make_behavior() override {
    // The owner may have ended already. CAF may monitor only a strong reference: it would follow a
    // weak one to a dead actor.
    auto owner = owner_.lock();
    if (owner == nullptr) {
      leave();
      return {};
    }
    monitor(caf::actor_cast<caf::actor>(owner));
    set_exception_handler(exit_reason_of);
    set_down_handler([this](caf::down_msg& down) { on_down(down); });
    return {
        [this](const LinkSend& message) { on_send(message); },
        [this](const LinkOpen& message) { on_open(message.rank); },
        [this](const LinkDrop& message) { on_drop(message); },
        [this](LinkClose) { leave(); },
        [this](const Hello& hello) { on_hello(hello); },
        [this](const Data& data) { on_data(data); },
        [this](const Bye& bye) { on_bye(bye); },
        [this](PeerCame came) { on_peer_came(came.rank); },
        [this](ConnectDeadline deadline) { on_connect_deadline(deadline); },
    };
  }

  void on_exit() override {
    hub_->leave(rank_, ctrl(), !leaves_);
    peers_.clear();
  }

 private:
  struct Peer {
    caf::weak_actor_ptr actor;        // the monitored peer; null: apart
    std::uint64_t out = 0;            // session of sent messages; 0: apart
    std::uint64_t in = 0;             // session of accepted messages; 0: none yet
    Gauge unsent;                     // of session `out`, or of that wait
    std::uint64_t wait = 0;           // number of the current wait for a peer that has not come; 0: none
    std::deque<SharedBytes> waiting;  // messages sent during that wait
  };

  void leave(caf::error reason = {}) {
    leaves_ = true;
    quit(std::move(reason));
  }

  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }

  template <class Message>
  void tell(const caf::weak_actor_ptr& to, Message&& message) {
    if (auto actor = to.lock()) send(caf::actor_cast<caf::actor>(actor), std::forward<Message>(message));
  }

  void on_send(const LinkSend& message) {
    if (message.rank < 0 || message.rank >= hub_->world_size() || message.bytes == nullptr) {
      tell(owner_,
           LinkDown{message.rank, LinkDownCause::kUnreachable,
                    "rank " + std::to_string(message.rank) + " is not one of this world's " + std::to_string(hub_->world_size())});
      return;
    }
    auto& to = peer(message.rank);
    const SharedBytes bytes = whole(message);
    if (bytes->size() > options_.message_bytes_max) {
      go_down(message.rank, LinkDownCause::kOverflow,
              "a message of " + std::to_string(bytes->size()) + " bytes exceeds message_bytes_max " +
                  std::to_string(options_.message_bytes_max));
      return;
    }
    if (to.out == 0 && to.wait == 0) open(message.rank);
    if (to.out == 0 && to.wait == 0) return;
    if (to.unsent->load() + bytes->size() > options_.unsent_bytes_max && to.unsent->load() != 0) {
      go_down(message.rank, LinkDownCause::kOverflow,
              "more than unsent_bytes_max " + std::to_string(options_.unsent_bytes_max) + " bytes wait to be received");
      return;
    }
    // The bytes count as unsent until the last holder, including the peer's owner, releases them.
    to.unsent->fetch_add(bytes->size());
    SharedBytes counted(bytes.get(), [bytes, gauge = to.unsent](const std::string* text) { gauge->fetch_sub(text->size()); });
    if (to.out != 0)
      tell(to.actor, Data{rank_, to.out, std::move(counted)});
    else
      to.waiting.push_back(std::move(counted));
  }

  void on_open(int rank) {
    if (rank < 0 || rank >= hub_->world_size() || rank == rank_) return;
    if (peer(rank).out == 0 && peer(rank).wait == 0) open(rank);
  }

  void on_drop(const LinkDrop& message) {
    for (int rank = 0; rank < hub_->world_size(); ++rank) {
      const auto& other = peer(rank);
      if ((message.rank != -1 && message.rank != rank) || rank == rank_ || (other.out == 0 && other.wait == 0)) continue;
      go_down(rank, LinkDownCause::kClosed, "the link to rank " + std::to_string(rank) + " was dropped on purpose");
    }
  }

  // Afterwards the link is up, or waits for its peer, or was reported as unreachable.
  void open(int rank) {
    auto& to = peer(rank);
    to.unsent = std::make_shared<std::atomic<std::size_t>>(0);
    auto found = hub_->find(rank, ctrl());
    if (found.actor != nullptr) {
      come_up(rank, found.actor);
    } else if (found.came) {
      tell(owner_, LinkDown{rank, LinkDownCause::kUnreachable, "rank " + std::to_string(rank) + " has left the world"});
    } else {
      to.wait = ++waits_;
      delayed_send(this, options_.connect_deadline, ConnectDeadline{rank, to.wait});
    }
  }

  void come_up(int rank, const caf::strong_actor_ptr& actor) {
    auto& to = peer(rank);
    to.actor = actor.get();
    to.out = hub_->new_session();
    if (to.unsent == nullptr) to.unsent = std::make_shared<std::atomic<std::size_t>>(0);
    monitor(caf::actor_cast<caf::actor>(actor));
    tell(to.actor, Hello{rank_, to.out});
    tell(owner_, LinkUp{rank});
  }

  void on_hello(const Hello& hello) {
    auto& from = peer(hello.from);
    const auto opener = current_sender();
    if (opener == nullptr) return;
    if (from.out != 0 && (from.in != 0 || from.actor.get() != opener.get())) {
      go_down(hello.from, LinkDownCause::kClosed, "rank " + std::to_string(hello.from) + " opened the link anew");
    }
    if (from.out == 0) come_up(hello.from, opener);
    peer(hello.from).in = hello.session;
    flush_waiting(hello.from);
  }

  void on_data(const Data& data) {
    if (peer(data.from).in == data.session) tell(owner_, LinkMessage{data.from, data.bytes});
  }

  void on_bye(const Bye& bye) {
    if (peer(bye.from).in == bye.session) go_down(bye.from, LinkDownCause::kClosed, bye.why);
  }

  void on_down(const caf::down_msg& down) {
    if (down.source == owner_address_) return leave(caf::make_error(caf::sec::runtime_error, "its supervisor died"));
    for (int rank = 0; rank < hub_->world_size(); ++rank) {
      const auto& actor = peer(rank).actor;
      if (actor && actor.get() == caf::actor_cast<caf::actor_control_block*>(down.source)) {
        go_down(rank, LinkDownCause::kClosed,
                "rank " + std::to_string(rank) + " ended" + (down.reason ? ", or its links: " + describe_exit(down.reason) : ""));
      }
    }
  }

  void on_peer_came(int rank) {
    auto& to = peer(rank);
    if (to.wait == 0) return;
    if (auto found = hub_->find(rank, ctrl()); found.actor != nullptr) {
      if (to.out == 0) come_up(rank, found.actor);
      flush_waiting(rank);
    } else {
      go_down(rank, LinkDownCause::kUnreachable, "rank " + std::to_string(rank) + " has left the world");
    }
  }

  void flush_waiting(int rank) {
    auto& to = peer(rank);
    to.wait = 0;
    for (auto& bytes : std::exchange(to.waiting, {})) tell(to.actor, Data{rank_, to.out, std::move(bytes)});
  }

  void on_connect_deadline(ConnectDeadline deadline) {
    if (peer(deadline.rank).wait != deadline.wait) return;
    go_down(deadline.rank, LinkDownCause::kUnreachable,
            "rank " + std::to_string(deadline.rank) + " did not come within " + std::to_string(options_.connect_deadline.count()) +
                " ms");
  }

  void go_down(int rank, LinkDownCause cause, const std::string& why) {
    auto& to = peer(rank);
    if (to.actor) {
      tell(to.actor, Bye{rank_, to.out, "rank " + std::to_string(rank_) + " closed the link: " + why});
      demonitor(caf::actor_cast<caf::actor_addr>(to.actor));
    }
    to = Peer{};
    tell(owner_, LinkDown{rank, cause, why});
  }

  std::shared_ptr<Hub> hub_;
  const int rank_;
  const RuntimeOptions options_;
  const caf::weak_actor_ptr owner_;
  const caf::actor_addr owner_address_;
  std::vector<Peer> peers_;
  std::uint64_t waits_ = 0;
  bool leaves_ = false;  // with its rank
};

class MemoryLinksFactory : public LinksFactory {
 public:
  explicit MemoryLinksFactory(int world_size) : hub_(std::make_shared<Hub>(world_size)) {}

  caf::actor spawn(caf::actor_system& system, int rank, const RuntimeOptions& options, const caf::actor& owner) override {
    if (rank < 0 || rank >= hub_->world_size()) {
      throw Error(ErrorCode::kInvalidArgument, "in-memory links: rank " + std::to_string(rank) + " is not one of this world's " +
                                                   std::to_string(hub_->world_size()));
    }
    auto actor = system.spawn<MemoryLinks>(hub_, rank, options, owner);
    for (const auto& waiter : hub_->enter(rank, caf::actor_cast<caf::strong_actor_ptr>(actor))) {
      if (auto waiting = waiter.lock()) caf::anon_send(caf::actor_cast<caf::actor>(waiting), PeerCame{rank});
    }
    return actor;
  }

 private:
  const std::shared_ptr<Hub> hub_;
};

}  // namespace

std::shared_ptr<LinksFactory> make_memory_links(int world_size) {
  if (world_size < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                "in-memory links for a world of " + std::to_string(world_size) + ": needs at least 1 rank");
  }
  return std::make_shared<MemoryLinksFactory>(world_size);
}

}  // namespace cairn
