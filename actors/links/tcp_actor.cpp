// Links over TCP: one broker per rank, on the network thread, with all of that rank's connections.
//
//   owns        the listening socket, its connections, and each peer's queue of messages to send
//   talks to    its owner; the same actor of other ranks, in the frames of messages/link.proto
//   deadlines   connect_deadline for an opening, with its retries; handshake_deadline for one
//               connection, doubled when no answer came; `heartbeat_timeout`;
//               drain_deadline for last frames: a refusal, a goodbye, and, when the actor ends,
//               messages that still wait
//   on death    of a peer: LinkDown; of the owner: as LinkClose
//
// A link is a data connection and a heartbeat connection, both opened by the same side. It is up
// from the exchange of hellos on the data connection until either connection ends:
//
//   apart --- send --------> opening --- hello accepted by the peer ---> up
//     |                         |                                        ^ |
//     +-- peer's hello accepted +----------------------------------------+ |
//   apart <--- closed, silent, ... ----------------------------------------+
//
// If two ranks open at once, the connection of the lower rank wins. The lower rank refuses the
// other connection if its own hello is already sent; otherwise it accepts the other. The higher
// rank drops its own attempt when the lower rank's hello arrives. Messages are sent only after
// hellos were exchanged, so this loses and reorders nothing.
//
// The messages of one link are sent whole, one after another, in sections. Only a few sections are
// encoded ahead. So a large message delays neither other links nor the heartbeats, which have a
// connection of their own.
#include <cairn/actors/links/exit_reason.hpp>
#include <cairn/actors/links/tcp_actor.hpp>

#include <algorithm>

#include <sys/resource.h>

#include <caf/io/middleman.hpp>

#include <cairn/base/utf8.hpp>

namespace cairn::tcp {
namespace {

constexpr std::size_t kProcessTextMax = 300;  // of what a peer says of itself

std::size_t descriptors_max() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? std::min<std::size_t>(limit.rlim_cur, 1u << 20) : 1024;
}

}  // namespace

void release(Unread& unread, std::size_t bytes) {
  const auto left = unread.bytes.fetch_sub(bytes) - bytes;
  if (left > unread.resume_at || !unread.halted.exchange(false)) return;
  if (auto links = unread.links.lock()) caf::anon_send(caf::actor_cast<caf::actor>(links), ResumeReading{unread.rank, unread.link});
}

SharedBytes counted(std::string text, const std::shared_ptr<Unread>& unread) {
  unread->bytes.fetch_add(text.size());
  return SharedBytes(new std::string(std::move(text)), [unread](const std::string* bytes) {
    const auto size = bytes->size();
    delete bytes;
    release(*unread, size);
  });
}

caf::behavior TcpLinks::start(std::shared_ptr<Setup> setup) {
  setup_ = std::move(setup);
  peers_ = std::vector<Peer>(static_cast<std::size_t>(world_size()));
  asked_back_.assign(peers_.size(), false);
  linked_.assign(peers_.size(), false);
  // All ranks of the world may connect at once.
  unauthenticated_connections_max_ =
      std::clamp<std::size_t>(options().unauthenticated_connections_max, 1, std::max<std::size_t>(descriptors_max() / 8, 8));
  unauthenticated_connections_max_ = std::max(unauthenticated_connections_max_, peers_.size());
  beat_interval_ = std::max(options().heartbeat_timeout / 4, milliseconds(1));
  tick_interval_ = std::clamp(options().heartbeat_timeout / 8, milliseconds(1), milliseconds(250));
  last_tick_ = now();
  door_ = self_->add_doorman(setup_->listener.release());
  self_->set_down_handler([this](caf::down_msg&) { begin_close("its supervisor died"); });
  self_->set_exception_handler([this](std::exception_ptr& exception) {
    caf::error reason = exit_reason_of(exception);
    say_last_words("its links actor died: " + describe_exit(reason));
    return reason;
  });
  self_->set_exit_handler([this](caf::exit_msg&) { begin_close("it was told to exit"); });
  // The owner may have ended already. CAF may monitor only a strong reference: it would follow a
  // weak one to a dead actor.
  if (auto owner = setup_->owner.lock()) {
    self_->monitor(caf::actor_cast<caf::actor>(owner));
  } else {
    begin_close("its supervisor died");
  }
  tell_self_later(tick_interval_, Tick{});
  return {
      [this](const LinkSend& message) { on_send(message); },
      [this](const LinkOpen& message) { on_open(message.rank); },
      [this](const LinkDrop& message) { on_drop(message); },
      [this](LinkClose) { begin_close("it leaves the world", /*leaves=*/true); },
      [this](OpeningStep step) { on_opening_step(step.opening); },
      [this](Tick) { on_tick(); },
      [this](const ResumeReading& resume) { on_resume(resume); },
      [this](SocketClosed) {
        --closing_sockets_;
        quit_when_done();
      },
      [this](const caf::io::new_connection_msg& message) { on_accepted(message.handle); },
      [this](const caf::io::new_data_msg& message) { on_bytes(message); },
      [this](const caf::io::data_transferred_msg& message) { on_transferred(message); },
      [this](const caf::io::connection_closed_msg& message) { on_closed(message.handle); },
      [this](const caf::io::acceptor_closed_msg&) { begin_close("its listening socket failed"); },
  };
}

void TcpLinks::on_send(const LinkSend& message) {
  if (closing_ || message.bytes == nullptr) return;
  const int to = message.rank;
  if (to < 0 || to >= world_size()) {
    tell_owner(LinkDown{to, LinkDownCause::kUnreachable,
                        "rank " + std::to_string(to) + " is not one of this world's " + std::to_string(world_size())});
    return;
  }
  const std::size_t size = message.bytes->size() + (message.shared ? message.shared->size() : 0);
  if (size > options().message_bytes_max) {
    go_down(
        to, LinkDownCause::kOverflow,
        "a message of " + std::to_string(size) + " bytes exceeds message_bytes_max " + std::to_string(options().message_bytes_max),
        true);
    return;
  }
  if (to == rank()) {
    if (!std::exchange(spoke_to_self_, true)) tell_owner(LinkUp{to});
    tell_owner(LinkMessage{to, whole(message)});
    return;
  }
  auto& target = peer(to);
  // A single message may exceed the limit, a queue must not.
  if (!target.outgoing.empty() && target.outgoing.bytes() + size > options().unsent_bytes_max) {
    go_down(to, LinkDownCause::kOverflow,
            "more than unsent_bytes_max " + std::to_string(options().unsent_bytes_max) + " bytes wait for " + describe(to));
    return;
  }
  target.outgoing.push(message.bytes, message.shared);
  asked_back_[static_cast<std::size_t>(to)] = false;
  if (target.up) {
    pump(to);
  } else if (target.data_opening == 0) {
    target.data_opening = begin_opening(to, v1::LINK_PURPOSE_DATA, draw_link());
  } else {
    openings_.at(target.data_opening).asked = true;
  }
}

void TcpLinks::on_open(int to) {
  if (closing_ || to < 0 || to >= world_size() || to == rank() || peer(to).up) return;
  auto& opening = peer(to).data_opening;
  if (opening == 0)
    opening = begin_opening(to, v1::LINK_PURPOSE_DATA, draw_link());
  else
    openings_.at(opening).asked = true;
}

std::uint64_t TcpLinks::draw_link() {
  std::uint64_t link = 0;
  while (link == 0) link = random_->next();
  return link;
}

void TcpLinks::on_drop(const LinkDrop& message) {
  for (int of = 0; of < world_size(); ++of) {
    const auto& other = peer(of);
    if ((message.rank != -1 && message.rank != of) || of == rank() || (!other.up && other.data_opening == 0)) continue;
    go_down(of, LinkDownCause::kClosed, "the link to " + describe(of) + " was dropped on purpose");
  }
}

// Encodes as much as the socket can take soon.
void TcpLinks::pump(int to) {
  auto& target = peer(to);
  if (!target.up || target.data->stage != Stage::kEstablished) return;
  auto& connection = *target.data;
  const auto frame_bytes = std::min(target.frame_bytes_max, options().frame_bytes_max);
  while (!target.outgoing.empty() && connection.unsent < kEncodedBytesMax)
    write(connection, target.outgoing.next_frame(frame_bytes));
  if (closing_ && target.outgoing.empty()) leave(target.data, make_goodbye(closing_why_, false, closing_leaves_));
}

void TcpLinks::come_up(const ConnectionPtr& connection, const v1::LinkHello& hello) {
  const int from = connection->rank;
  auto& other = peer(from);
  connection->stage = Stage::kEstablished;
  strangers_.erase(connection->id);
  connection->reader.set_frame_bytes_max(options().frame_bytes_max);
  self_->configure_read(connection->handle, caf::io::receive_policy::at_most(kReadBytes));
  linked_[static_cast<std::size_t>(from)] = true;
  other.up = true;
  other.link = hello.link();
  other.frame_bytes_max = hello.frame_bytes_max();
  other.process = printable_utf8(hello.process().substr(0, kProcessTextMax));
  other.data = connection;
  other.incoming.emplace(options().message_bytes_max);
  other.unread = std::make_shared<Unread>();
  other.unread->resume_at = options().unread_bytes_max / 2;
  other.unread->links = caf::weak_actor_ptr(self_->ctrl());
  other.unread->rank = from;
  other.unread->link = other.link;
  other.heard = now();
  tell_owner(LinkUp{from});
  pump(from);
}

void TcpLinks::take_beats(const ConnectionPtr& connection) {
  auto& other = peer(connection->rank);
  connection->stage = Stage::kEstablished;
  strangers_.erase(connection->id);
  other.beats = connection;
  other.heard = now();
}

// Ends everything between this rank and `of`: openings, connections, and messages waiting to be
// sent.
void TcpLinks::go_down(int of, LinkDownCause cause, const std::string& why, bool say_goodbye) {
  Peer old;
  std::swap(old, peer(of));
  if (of == rank()) spoke_to_self_ = false;
  cancel_opening(old.data_opening);
  cancel_opening(old.beats_opening);
  if (old.data) {
    if (say_goodbye && old.data->stage == Stage::kEstablished) {
      leave(old.data, make_goodbye(why, cause == LinkDownCause::kSilent));
    } else if (old.data->stage != Stage::kLeaving) {
      discard(old.data);
    }
  }
  if (old.beats) discard(old.beats);
  if (!closing_) tell_owner(LinkDown{of, cause, why});
}

void TcpLinks::on_resume(const ResumeReading& resume) {
  auto& sender = peer(resume.rank);
  if (!sender.up || sender.link != resume.link) return;
  // Posted for the reason given at `close_later`. By then reading may be halted again, or the
  // connection closed.
  self_->backend().post([self = caf::strong_actor_ptr(self_->ctrl()), broker = self_,
                         connection = std::weak_ptr<Connection>(sender.data), unread = sender.unread] {
    const auto still = connection.lock();
    if (still && !still->ended && !unread->halted.load()) broker->trigger(still->handle);
  });
}

// Returns whether this thread was stalled a short time ago, or is reading for the first time since.
bool TcpLinks::stood_still() const {
  return now() - last_tick_ > stall_min() || (last_stall_ && now() - *last_stall_ < options().heartbeat_timeout);
}

void TcpLinks::on_tick() {
  const auto time = now();
  // If this thread itself was stalled, data that peers sent in the meantime is still unread. So no
  // peer is found late or silent in this tick.
  const bool stalled = time - last_tick_ > stall_min();
  last_tick_ = time;
  if (stalled) last_stall_ = time;
  refusals_told_ = 0;
  watch_door();
  std::vector<ConnectionPtr> late;
  for (const auto& [handle, connection] : connections_) {
    if (!stalled && connection->stage != Stage::kEstablished && time >= connection->deadline) late.push_back(connection);
  }
  for (const auto& connection : late) {
    if (connection->ended) continue;
    if (connection->stage == Stage::kAccepted) turned_away("refused: no hello before handshake_deadline");
    if (connection->stage == Stage::kOpened) {
      auto& answer_timeout = openings_.at(connection->opening).answer_timeout;
      answer_timeout = std::min(answer_timeout * 2, std::max(options().handshake_deadline, options().connect_deadline));
      try_again(connection->opening, "no answer to a hello");
    } else {
      discard(connection);
    }
  }
  for (int of = 0; of < world_size(); ++of) {
    auto& other = peer(of);
    if (!other.up) continue;
    if (stalled) other.heard = time;
    // Until the heartbeat connection is up, the peer may have nothing to send.
    if (time - other.heard >
        (other.beats ? options().heartbeat_timeout : std::max(options().heartbeat_timeout, options().connect_deadline))) {
      const std::string why = "nothing was heard of " + describe(of) + " for " +
                              std::to_string(std::chrono::duration_cast<milliseconds>(time - other.heard).count()) + " ms";
      // Both connections get the goodbye: if the peer ever reads again, it may read either one
      // first.
      if (other.beats) leave(std::exchange(other.beats, nullptr), make_goodbye(why, true));
      go_down(of, LinkDownCause::kSilent, why, true);
    } else if (other.beats && other.beats->unsent == 0 && time - other.last_beat >= beat_interval_ - tick_interval_ / 2) {
      other.last_beat = time;
      v1::LinkFrame beat;
      beat.mutable_beat();
      write(*other.beats, encode_frame(beat));
    }
  }
  if (closing_ && time >= closing_deadline_) {
    while (!connections_.empty()) discard(connections_.begin()->second);
  }
  quit_when_done();
  if (!closing_ || !connections_.empty()) tell_self_later(tick_interval_, Tick{});
}

// This actor is about to end, and its connections with it. Its peers may hear why.
void TcpLinks::say_last_words(const std::string& why) {
  for (const auto& [handle, connection] : connections_) {
    try {
      if (connection->stage == Stage::kEstablished) write(*connection, encode_frame(make_goodbye(why)));
    } catch (...) {  // as the exception that ends this actor
    }
  }
}

// Lets every link send its waiting messages and a goodbye, then ends.
void TcpLinks::begin_close(const std::string& why, bool leaves) {
  if (std::exchange(closing_, true)) return;
  closing_why_ = why;
  closing_leaves_ = leaves;
  closing_deadline_ = now() + options().drain_deadline;
  close_door();
  while (!openings_.empty()) cancel_opening(openings_.begin()->first);
  std::vector<ConnectionPtr> strangers;
  for (const auto& [handle, connection] : connections_) {
    if (connection->stage == Stage::kAccepted) strangers.push_back(connection);
  }
  for (const auto& connection : strangers) discard(connection);
  for (int of = 0; of < world_size(); ++of) pump(of);
  quit_when_done();
}

void TcpLinks::quit_when_done() {
  if (!closing_) return;
  // The heartbeat connection closes last, so that the peer sees the goodbye first.
  for (auto& other : peers_) {
    if (other.up && other.data->ended && other.beats) discard(other.beats);
  }
  if (connections_.empty() && closing_sockets_ == 0) self_->quit();
}

}  // namespace cairn::tcp
