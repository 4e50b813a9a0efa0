// Sockets of the TCP links actor: reading, writing and closing.
#include <cairn/actors/links/tcp_actor.hpp>

#include <cerrno>
#include <new>
#include <optional>
#include <utility>

#include <fcntl.h>

#include <caf/io/middleman.hpp>
#include <caf/send.hpp>

#include <cairn/base/error.hpp>

namespace cairn::tcp {

ConnectionPtr TcpLinks::adopt(caf::io::connection_handle handle, Stage stage, ConnectionSide side) {
  auto connection = std::make_shared<Connection>();
  connection->id = ++numbers_;
  connection->handle = handle;
  connection->stage = stage;
  connection->deadline = now() + options().handshake_deadline;
  connection->transform = setup_->config->transform(side);
  connections_[handle] = connection;
  if (stage == Stage::kAccepted) enter(connection);
  self_->ack_writes(handle, true);
  self_->configure_read(handle, caf::io::receive_policy::at_most(kSmallReadBytes));
  auto& wire = self_->wr_buf(handle);
  const auto before = wire.size();
  connection->transform->start(wire);
  connection->unsent += wire.size() - before;
  self_->flush(handle);
  return connection;
}

void TcpLinks::write(Connection& connection, const std::string& frame) {
  if (connection.ended) return;
  auto& wire = self_->wr_buf(connection.handle);
  const auto before = wire.size();
  connection.transform->send(frame, wire);
  connection.unsent += wire.size() - before;
  self_->flush(connection.handle);
}

// Sends the hello on a connection that this rank opened, as soon as the transform is ready.
void TcpLinks::introduce(Connection& connection) {
  if (connection.stage != Stage::kOpened || connection.introduced || !connection.transform->ready()) return;
  connection.introduced = true;
  write(connection, encode_frame(make_hello(setup_->identity, connection.purpose, openings_.at(connection.opening).link)));
}

// Sends `last_words` after everything already encoded, then closes. The sending direction is closed
// first, so that a reset does not discard the last words.
void TcpLinks::leave(const ConnectionPtr& connection, const v1::LinkFrame& last_words) {
  if (connection->ended || connection->stage == Stage::kLeaving) return;
  if (!connection->transform->ready()) {
    discard(connection);
    return;
  }
  write(*connection, encode_frame(last_words));
  linger(*connection);
}

// Ends the connection for both directions, but lets the peer receive what was already sent.
void TcpLinks::linger(Connection& connection) {
  connection.stage = Stage::kLeaving;
  if (const auto found = connections_.find(connection.handle); found != connections_.end()) enter(found->second);
  connection.deadline = now() + options().drain_deadline;
  if (connection.unsent == 0) half_close(connection);
}

void TcpLinks::half_close(Connection& connection) { ::shutdown(static_cast<int>(connection.handle.id()), SHUT_WR); }

// Closes the connection and drops unsent bytes. With unsent bytes CAF would keep the descriptor
// open for as long as the peer does not read.
void TcpLinks::discard(const ConnectionPtr& connection) {
  if (connection->ended) return;
  ::shutdown(static_cast<int>(connection->handle.id()), SHUT_RDWR);
  close_later(connection->handle);
  forget(*connection);
}

void TcpLinks::forget(Connection& connection) {
  connection.ended = true;
  strangers_.erase(connection.id);
  connections_.erase(connection.handle);
}

// CAF merges the changes to a socket within one round of the network thread. A socket that is
// activated and closed in the same round never leaves the loop, and its descriptor stays open
// forever. So sockets are closed in the next round.
template <class Handle>
void TcpLinks::close_later(Handle handle) {
  ++closing_sockets_;
  self_->backend().post([self = caf::strong_actor_ptr(self_->ctrl()), broker = self_, handle] {
    broker->close(handle);
    caf::anon_send(caf::actor_cast<caf::actor>(self), SocketClosed{});
  });
}

void TcpLinks::close_door() { close_later(door_); }

// Limits the number of unauthenticated connections: above the limit the oldest is closed.
void TcpLinks::enter(const ConnectionPtr& connection) {
  strangers_.emplace(connection->id, connection);
  if (strangers_.size() <= unauthenticated_connections_max_) return;
  turned_away("refused: the oldest of too many unauthenticated connections");
  discard(ConnectionPtr(strangers_.begin()->second));
}

// Without a free descriptor accept fails in an endless loop, so accepting is suspended until a
// descriptor is free.
void TcpLinks::watch_door() {
  if (closing_) return;
  const Socket probe(::fcntl(static_cast<int>(door_.id()), F_DUPFD_CLOEXEC, 0));
  const bool full = !probe.valid() && (errno == EMFILE || errno == ENFILE);
  if (full == door_halted_) return;
  door_halted_ = full;
  if (full) {
    turned_away("door shut: no descriptor is free");
    self_->halt(door_);
  } else {
    self_->trigger(door_);
  }
}

void TcpLinks::on_accepted(caf::io::connection_handle handle) {
  watch("accepted");
  const auto connection = adopt(handle, Stage::kAccepted, ConnectionSide::kAcceptor);
  if (closing_) discard(connection);
}

void TcpLinks::on_bytes(const caf::io::new_data_msg& message) {
  const auto found = connections_.find(message.handle);
  if (found == connections_.end()) return;
  const auto connection = found->second;
  if (connection->stage == Stage::kLeaving) return;
  if (connection->stage == Stage::kEstablished) peer(connection->rank).heard = now();
  try {
    std::optional<Error> fault;
    auto& wire = self_->wr_buf(connection->handle);
    const auto before = wire.size();
    try {
      connection->transform->receive(ByteSpan(message.buf.data(), message.buf.size()), connection->reader.buffer(), wire);
    } catch (const Error& error) {
      fault = error;
    }
    connection->unsent += wire.size() - before;
    self_->flush(connection->handle);
    if (fault) {
      garbled(connection, *fault);
    } else {
      introduce(*connection);
      read_frames(connection);
    }
  } catch (const std::bad_alloc& error) {
    if (connection->stage != Stage::kEstablished) return misbehaved(connection, error.what());
    go_down(connection->rank, LinkDownCause::kOverflow, "rank " + std::to_string(rank()) + " had no memory to receive a message",
            true);
  } catch (const std::exception& error) {
    misbehaved(connection, error.what());
  }
}

// Handles bytes that the transform rejected. The transform may have written an alert that tells the
// other side why.
void TcpLinks::garbled(const ConnectionPtr& connection, const Error& fault) {
  const bool forbidden = fault.code() == ErrorCode::kPermission;
  if (connection->stage == Stage::kEstablished) return misbehaved(connection, fault.what());
  turned_away(forbidden ? "refused: no proof of the job's secret" : kGarbage);
  if (connection->stage == Stage::kAccepted) {
    linger(*connection);
    ask_back(connection->transform->claimed_rank());
  } else if (forbidden) {
    give_up(connection->opening, LinkDownCause::kForbidden,
            describe(connection->rank) + " and this rank do not share a secret: " + fault.what() + "; give all ranks the same one" +
                (setup_->config->is_given ? ", and the same job id (World::from_addresses)" : ""));
  } else {
    misbehaved(connection, fault.what());
  }
}

void TcpLinks::watch(const char* what) const {
  if (setup_->config->watch) setup_->config->watch(what);
}

void TcpLinks::turned_away(const char* what) {
  watch(what);
  if (closing_ || refusals_told_ >= kRefusalsTold) return;
  ++refusals_told_;
  tell_owner(LinkRefused{what});
}

void TcpLinks::read_frames(const ConnectionPtr& connection) {
  ByteSpan bytes;
  while (!connection->ended && connection->stage != Stage::kLeaving) {
    const auto status = connection->reader.next(bytes);
    if (status == FrameReader::Status::kIncomplete) return;
    if (status == FrameReader::Status::kTooLong) {
      turned_away("refused: a frame that is too long");
      misbehaved(connection, "a frame is longer than allowed");
      return;
    }
    v1::LinkFrame frame;
    if (!frame.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
      turned_away(kGarbage);
      misbehaved(connection, "a frame cannot be decoded");
      return;
    }
    on_frame(connection, frame);
  }
}

void TcpLinks::on_frame(const ConnectionPtr& connection, v1::LinkFrame& frame) {
  if (connection->stage == Stage::kEstablished) {
    on_link_frame(connection, frame);
  } else if (connection->stage == Stage::kOpened) {
    on_answer(connection, frame);
  } else if (is_hello(frame)) {
    on_hello(connection, frame.hello());
  } else {
    turned_away(kGarbage);
    misbehaved(connection, "its first frame is no hello");
  }
}

void TcpLinks::on_link_frame(const ConnectionPtr& connection, v1::LinkFrame& frame) {
  const int from = connection->rank;
  auto& sender = peer(from);
  if (frame.has_goodbye()) {
    const bool gave_up = frame.goodbye().silent() && stood_still();
    const auto cause = gave_up ? LinkDownCause::kGaveUp : frame.goodbye().leaves() ? LinkDownCause::kLeft : LinkDownCause::kClosed;
    go_down(from, cause, "rank " + std::to_string(from) + " closed the link: " + frame.goodbye().why());
    return;
  }
  if (connection->purpose == v1::LINK_PURPOSE_HEARTBEAT) {
    if (!frame.has_beat()) misbehaved(connection, "something else than a beat on the heartbeat connection");
    return;
  }
  if (!frame.has_section()) {
    misbehaved(connection, "something else than messages on the data connection");
    return;
  }
  std::string message;
  if (!sender.incoming->add(*frame.mutable_section(), message)) return;
  auto& unread = *sender.unread;
  tell_owner(LinkMessage{from, counted(std::move(message), sender.unread)});
  if (unread.bytes.load() <= options().unread_bytes_max || unread.halted.exchange(true)) return;
  self_->halt(connection->handle);
  // The owner may have released everything before it could see that reading is halted.
  release(unread, 0);
}

void TcpLinks::misbehaved(const ConnectionPtr& connection, const std::string& what) {
  if (connection->stage == Stage::kAccepted) {
    discard(connection);
  } else if (!connection->ended && connection->stage != Stage::kLeaving) {
    const std::string why = describe(connection->rank) + " does not keep to the protocol: " + what;
    if (connection->stage == Stage::kOpened) {
      give_up(connection->opening, LinkDownCause::kProtocol, why, true);
    } else {
      go_down(connection->rank, LinkDownCause::kProtocol, why, true);
    }
  }
}

void TcpLinks::on_transferred(const caf::io::data_transferred_msg& message) {
  const auto found = connections_.find(message.handle);
  if (found == connections_.end()) return;
  auto& connection = *found->second;
  connection.unsent = message.remaining;
  if (connection.stage == Stage::kLeaving) {
    if (connection.unsent == 0) half_close(connection);
  } else if (connection.stage == Stage::kEstablished && connection.purpose == v1::LINK_PURPOSE_DATA) {
    pump(connection.rank);
  }
}

void TcpLinks::on_closed(caf::io::connection_handle handle) {
  const auto found = connections_.find(handle);
  if (found == connections_.end()) return;
  const auto connection = found->second;
  // The descriptor is still open here. A pending write must fail, or it would keep the descriptor
  // open.
  ::shutdown(static_cast<int>(handle.id()), SHUT_RDWR);
  const auto stage = connection->stage;
  forget(*connection);
  if (stage == Stage::kOpened) {
    openings_.at(connection->opening).connection = nullptr;
    try_again(connection->opening, connection->transform->ready()
                                       ? "it closed the connection without an answer"
                                       : "it closed the connection before it had proven that it knows the job's secret");
  } else if (stage == Stage::kEstablished) {
    go_down(connection->rank, LinkDownCause::kClosed, "the connection to " + describe(connection->rank) + " was closed");
  }
  quit_when_done();
}

}  // namespace cairn::tcp
