// How the TCP links actor gets connections: attempts, retries, and both sides of the handshake.
#include <cairn/actors/links/tcp_actor.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include <cairn/actors/links/plain_transform.hpp>
#include <cairn/base/signals_blocked.hpp>

namespace cairn::tcp {

std::uint64_t TcpLinks::begin_opening(int to, v1::LinkPurpose purpose, std::uint64_t link) {
  const auto number = ++numbers_;
  auto& opening = openings_[number];
  opening.rank = to;
  opening.purpose = purpose;
  opening.link = link;
  opening.deadline = now() + options().connect_deadline;
  opening.answer_timeout = options().handshake_deadline;
  // Posted as a message, so that the opening cannot fail before its caller has recorded it.
  tell_self(OpeningStep{number});
  return number;
}

void TcpLinks::on_opening_step(std::uint64_t number) {
  const auto found = openings_.find(number);
  if (found == openings_.end() || found->second.connection) return;
  auto& opening = found->second;
  const bool fresh = !opening.socket.valid();
  ConnectProgress progress{ConnectState::kPending, 0};
  if (fresh) {
    std::optional<Endpoint> endpoint;
    try {
      endpoint = find_endpoint(opening);
      if (endpoint && setup_->loopback_only) check_loopback(*endpoint);
    } catch (const Error& error) {
      const std::string trouble = error.what();
      if (error.code() != ErrorCode::kPrecondition) return try_again(number, trouble);
      return give_up(number, LinkDownCause::kForbidden, describe(opening.rank) + ": " + trouble);
    }
    if (endpoint) progress = start_connect(*endpoint, opening.socket);
  } else {
    progress = check_connect(opening.socket);
  }
  if (progress.state == ConnectState::kConnected) {
    hand_shake(number);
  } else if (progress.state == ConnectState::kFailed) {
    opening.socket.reset();
    if (progress.error_number == ECONNREFUSED && has_listened(opening.rank)) {
      give_up(number, LinkDownCause::kUnreachable, describe(opening.rank) + " has ended: nobody listens there any more");
    } else if (progress.error_number == EMFILE) {
      try_again(number, "no free file descriptors (ulimit -n)");
    } else {
      try_again(number, std::strerror(progress.error_number));
    }
  } else if (now() >= opening.deadline) {
    const bool looks_up = !opening.socket.valid();
    opening.socket.reset();
    try_again(number, looks_up ? "its host name was not resolved in time" : "no answer");
  } else {
    if (fresh && opening.socket.valid()) opening.look = kLookMin;
    tell_self_later(opening.look, OpeningStep{number});
    opening.look = std::min(opening.look * 2, kLookMax);
  }
}

// Returns nothing while the host name is being resolved. Throws the error of the lookup.
std::optional<Endpoint> TcpLinks::find_endpoint(Opening& opening) {
  const std::string& address = setup_->config->addresses[static_cast<std::size_t>(opening.rank)];
  if (!opening.lookup) {
    if (auto endpoint = numeric_endpoint(address)) return endpoint;
    if (lookups_->load() >= kLookupsMax) return std::nullopt;
    const auto lookup = std::make_shared<Lookup>();
    const auto body = [lookup, running = lookups_, look_up = setup_->config->look_up, address] {
      try {
        lookup->found = look_up(address);
      } catch (const Error& error) {
        lookup->trouble = error;
      } catch (const std::exception& error) {
        lookup->trouble = Error(ErrorCode::kUnavailable, error.what());
      }
      --*running;
      lookup->done = true;
    };
    try {
      ++*lookups_;
      start_thread("cairn-lookup", body).detach();  // a lookup cannot be cancelled, so the thread owns all it needs
    } catch (const std::system_error&) {
      --*lookups_;
      return std::nullopt;  // no thread could be started: try again later
    }
    opening.lookup = lookup;
  }
  if (!opening.lookup->done) return std::nullopt;
  const auto lookup = std::exchange(opening.lookup, nullptr);
  if (lookup->trouble) throw Error(*lookup->trouble);
  return lookup->found;
}

void TcpLinks::hand_shake(std::uint64_t number) {
  auto& opening = openings_.at(number);
  opening.connection = adopt(self_->add_scribe(opening.socket.release()), Stage::kOpened, ConnectionSide::kOpener);
  // The acceptor's kernel may have queued the connection behind many others, which the acceptor
  // handles one after another. A retry joins the end of that queue, and the acceptor still handles
  // the connection given up. So each retry waits twice as long as the one before it.
  const auto left = std::chrono::duration_cast<milliseconds>(opening.deadline - now());
  opening.connection->deadline =
      now() + (gathering() ? opening.answer_timeout : std::clamp(left, options().handshake_deadline, opening.answer_timeout));
  opening.connection->opening = number;
  opening.connection->rank = opening.rank;
  opening.connection->purpose = opening.purpose;
  introduce(*opening.connection);
}

// The current attempt has failed. Starts another one unless the deadline has passed.
void TcpLinks::try_again(std::uint64_t number, const std::string& trouble) {
  auto& opening = openings_.at(number);
  if (opening.connection) discard(std::exchange(opening.connection, nullptr));
  if (!opening.asked) {
    peer(opening.rank).data_opening = 0;
    cancel_opening(number);
    return;
  }
  if (!gathering() && now() + opening.backoff >= opening.deadline) {
    go_down(opening.rank, LinkDownCause::kUnreachable,
            "cannot connect to " + describe(opening.rank) + " within " + std::to_string(options().connect_deadline.count()) +
                " ms: " + trouble);
    return;
  }
  tell_self_later(opening.backoff, OpeningStep{number});
  opening.backoff = std::min(opening.backoff * 2, kBackoffMax);
}

// Another attempt would fail in the same way, unless the rank has not arrived in this world yet.
void TcpLinks::give_up(std::uint64_t number, LinkDownCause cause, const std::string& why, bool say_goodbye) {
  if (gathering()) {
    try_again(number, why);
  } else {
    go_down(openings_.at(number).rank, cause, why, say_goodbye);
  }
}

void TcpLinks::cancel_opening(std::uint64_t number) {
  const auto found = openings_.find(number);
  if (found == openings_.end()) return;
  const auto connection = found->second.connection;
  openings_.erase(found);
  if (connection) discard(connection);
}

// A peer that does not know the secret claims to be rank `of`. If it is that rank with another
// secret, the owner must learn it, or it would wait for the rank in vain. If it is a stranger, the
// claim must have no effect. So this rank connects to rank `of` at its own address to find out.
void TcpLinks::ask_back(int of) {
  if (closing_ || of < 0 || of >= world_size() || of == rank()) return;
  auto& other = peer(of);
  if (other.up || other.data_opening != 0 || asked_back_[static_cast<std::size_t>(of)]) return;
  asked_back_[static_cast<std::size_t>(of)] = true;
  other.data_opening = begin_opening(of, v1::LINK_PURPOSE_DATA, draw_link());
  openings_.at(other.data_opening).asked = false;
}

// Handles the hello of an opener.
void TcpLinks::on_hello(const ConnectionPtr& connection, const v1::LinkHello& hello) {
  if (const auto fault = find_fault(hello, setup_->identity)) {
    refuse(connection, fault->reason(), fault->why());
    return;
  }
  const int from = static_cast<int>(hello.rank());
  auto& opener = peer(from);
  if (hello.purpose() == v1::LINK_PURPOSE_HEARTBEAT) {
    if (!opener.up || opener.link != hello.link()) {
      refuse(connection, v1::LINK_REFUSAL_REASON_NO_LINK, "there is no such data connection");
    } else if (opener.beats || opener.beats_opening != 0) {
      refuse(connection, v1::LINK_REFUSAL_REASON_DUPLICATE, "rank " + std::to_string(from) + " has a heartbeat connection already");
    } else {
      connection->rank = from;
      connection->purpose = hello.purpose();
      write(*connection, encode_frame(make_hello(setup_->identity, hello.purpose(), hello.link())));
      take_beats(connection);
    }
    return;
  }
  if (opener.up) {
    refuse(connection, v1::LINK_REFUSAL_REASON_DUPLICATE, "rank " + std::to_string(from) + " has a data connection already");
    return;
  }
  if (opener.data_opening != 0) {
    const auto& ours = openings_.at(opener.data_opening);
    if (rank() < from && ours.connection && ours.connection->introduced) {
      refuse(connection, v1::LINK_REFUSAL_REASON_CROSSED, "the connection of the lower rank goes first");
      return;
    }
    cancel_opening(std::exchange(opener.data_opening, 0));
  }
  connection->rank = from;
  connection->purpose = hello.purpose();
  write(*connection, encode_frame(make_hello(setup_->identity, hello.purpose(), hello.link())));
  come_up(connection, hello);
}

// Handles the answer to this rank's hello.
void TcpLinks::on_answer(const ConnectionPtr& connection, const v1::LinkFrame& frame) {
  const int from = connection->rank;
  if (frame.has_refusal()) {
    const auto& refusal = frame.refusal();
    if (may_be_tried_again(refusal.reason())) {
      try_again(connection->opening, "it refuses: " + refusal.why());
    } else if (refusal.reason() == v1::LINK_REFUSAL_REASON_INCARNATION && has_listened(from)) {
      give_up(connection->opening, LinkDownCause::kUnreachable, describe(from) + " has left this world: " + refusal.why());
    } else if (refusal.reason() == v1::LINK_REFUSAL_REASON_INCARNATION && setup_->config->is_given) {
      give_up(connection->opening, LinkDownCause::kOtherWorld,
              describe(from) + " was given other addresses or another job id than this rank: give all ranks the same addresses, " +
                  "in the same order, and the same job id (World::from_addresses)");
    } else {
      give_up(connection->opening, LinkDownCause::kProtocol, describe(from) + " refuses: " + refusal.why());
    }
    return;
  }
  const auto& opening = openings_.at(connection->opening);
  if (!is_hello(frame) || find_fault(frame.hello(), setup_->identity) || frame.hello().rank() != static_cast<std::uint32_t>(from) ||
      frame.hello().link() != opening.link || frame.hello().purpose() != opening.purpose) {
    turned_away(kGarbage);
    misbehaved(connection, "it answered a hello with something else");
    return;
  }
  openings_.erase(connection->opening);
  if (connection->purpose == v1::LINK_PURPOSE_HEARTBEAT) {
    peer(from).beats_opening = 0;
    take_beats(connection);
    return;
  }
  peer(from).data_opening = 0;
  come_up(connection, frame.hello());
  if (peer(from).up) peer(from).beats_opening = begin_opening(from, v1::LINK_PURPOSE_HEARTBEAT, frame.hello().link());
}

void TcpLinks::refuse(const ConnectionPtr& connection, v1::LinkRefusalReason reason, const std::string& why) {
  // LINK_REFUSAL_REASON_CROSSED is not one of them: that happens whenever two ranks open at once.
  static constexpr std::pair<v1::LinkRefusalReason, const char*> kTold[] = {
      {v1::LINK_REFUSAL_REASON_PROTOCOL, "refused: another version of the protocol"},
      {v1::LINK_REFUSAL_REASON_INCARNATION, "refused: another incarnation"},
      {v1::LINK_REFUSAL_REASON_WORLD_SIZE, "refused: another world size"},
      {v1::LINK_REFUSAL_REASON_RANK, "refused: no other rank of this world"},
      {v1::LINK_REFUSAL_REASON_DUPLICATE, "refused: a rank that is connected already"},
      {v1::LINK_REFUSAL_REASON_NO_LINK, "refused: a heartbeat without its link"}};
  for (const auto& [told, what] : kTold)
    if (told == reason) turned_away(what);
  leave(connection, make_refusal(reason, why));
}

}  // namespace cairn::tcp
