// The actor behind TCP links; internal to this folder. tcp_actor.cpp describes it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <caf/actor_cast.hpp>
#include <caf/actor_control_block.hpp>
#include <caf/io/broker.hpp>
#include <caf/send.hpp>
#include <caf/stateful_actor.hpp>

#include <cairn/actors/links/frames.hpp>
#include <cairn/actors/links/handshake.hpp>
#include <cairn/actors/links/links.hpp>
#include <cairn/actors/links/tcp_links_config.hpp>
#include <cairn/base/clock.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/random.hpp>

namespace cairn::tcp {

using std::chrono::milliseconds;

// The maximum number of encoded bytes that wait for the socket, per connection. Exceeded by at most
// one frame.
inline constexpr std::size_t kEncodedBytesMax = 1u << 20;
// The sizes of read buffers. CAF keeps a connection's buffer until the connection is closed.
inline constexpr std::size_t kReadBytes = 64u << 10;      // of a link's data connection
inline constexpr std::size_t kSmallReadBytes = 4u << 10;  // of any other connection
// The limits of the delay between two attempts to connect to a rank (see Opening).
inline constexpr milliseconds kBackoffMin{10};
inline constexpr milliseconds kBackoffMax{500};
// The maximum number of refusals reported to the owner between two ticks, so that strangers cannot
// fill the owner's mailbox.
inline constexpr int kRefusalsTold = 16;
inline constexpr const char* kGarbage = "refused: garbage";  // no frame, no hello, or a frame out of place
// The maximum number of threads that resolve host names for one rank at a time.
inline constexpr int kLookupsMax = 8;
// The limits of the interval between two checks of a pending connect or lookup.
inline constexpr milliseconds kLookMin{1};
inline constexpr milliseconds kLookMax{50};

// Continues an Opening (see below): starts its next attempt, or checks the pending one.
struct OpeningStep {
  std::uint64_t opening = 0;
};
struct Tick {};  // periodic: checks deadlines, and sends heartbeats
// A discarded socket has been closed.
struct SocketClosed {};
// The owner has released so many of a peer's bytes that reading can resume.
struct ResumeReading {
  int rank = 0;
  std::uint64_t link = 0;
};

}  // namespace cairn::tcp

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cairn::tcp::OpeningStep)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cairn::tcp::Tick)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cairn::tcp::SocketClosed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cairn::tcp::ResumeReading)

namespace cairn::tcp {

// The arguments of a broker.
struct Setup {
  std::shared_ptr<const TcpLinksConfig> config;  // without its listener
  Socket listener;
  bool loopback_only = false;
  LinkIdentity identity;
  RuntimeOptions options;
  caf::weak_actor_ptr owner;
};

// Counts the bytes received over one link, until the owner releases them. Each message to the owner
// holds a reference to this struct, and may be released on any thread.
struct Unread {
  std::atomic<std::size_t> bytes{0};
  std::atomic<bool> halted{false};
  std::size_t resume_at = 0;
  caf::weak_actor_ptr links;
  int rank = 0;
  std::uint64_t link = 0;
};

// Subtracts released bytes. If reading was halted and few enough bytes are left, resumes reading.
void release(Unread& unread, std::size_t bytes);
// Returns `text` as shared bytes. They count as unread until the last reference is released.
SharedBytes counted(std::string text, const std::shared_ptr<Unread>& unread);

enum class Stage {
  kAccepted,     // by this rank; no hello received yet
  kOpened,       // by this rank; no answer to its hello yet
  kEstablished,  // the data or heartbeat connection of a link
  kLeaving,      // sends its last frame; ignores what it receives
};

struct Connection {
  std::uint64_t id = 0;  // never reused, unlike `handle`, which is a descriptor
  caf::io::connection_handle handle;
  Stage stage = Stage::kAccepted;
  v1::LinkPurpose purpose = v1::LINK_PURPOSE_UNSPECIFIED;
  int rank = -1;              // the peer's, once known
  std::uint64_t opening = 0;  // the opening that this connection belongs to; for kOpened
  MonotonicTime deadline;     // for all stages but kEstablished
  std::unique_ptr<Transform> transform;
  FrameReader reader{kHelloBytesMax};
  std::size_t unsent = 0;   // bytes not yet taken by the socket
  bool introduced = false;  // this rank's hello was sent
  bool ended = false;       // closed by this rank: ignore events that still refer to it
};
using ConnectionPtr = std::shared_ptr<Connection>;

// The address of a host name, resolved on a thread of its own.
struct Lookup {
  std::atomic<bool> done{false};
  std::optional<Endpoint> found;
  std::optional<Error> trouble;
};

// The attempts to connect to one rank for one purpose, repeated until a deadline.
struct Opening {
  int rank = 0;
  v1::LinkPurpose purpose = v1::LINK_PURPOSE_DATA;
  std::uint64_t link = 0;
  MonotonicTime deadline;
  milliseconds backoff = kBackoffMin;
  milliseconds look = kLookMin;
  milliseconds answer_timeout{0};  // how long the next attempt waits for an answer to its hello
  bool asked = true;               // false: tried once, for `ask_back`; a failure is reported only if retries are useless
  std::shared_ptr<Lookup> lookup;  // looks up this attempt's address, if it is a host name
  Socket socket;                   // the socket of a pending connect
  ConnectionPtr connection;        // during the handshake
};

struct Peer {
  bool up = false;
  std::uint64_t link = 0;
  std::size_t frame_bytes_max = 0;  // the peer's limit
  std::string process;              // as its last hello said; "" before
  ConnectionPtr data;
  ConnectionPtr beats;
  std::uint64_t data_opening = 0;  // 0: none
  std::uint64_t beats_opening = 0;
  MessageSplitter outgoing;
  std::optional<MessageAssembler> incoming;
  std::shared_ptr<Unread> unread;
  MonotonicTime heard;      // last time anything arrived, on either connection
  MonotonicTime last_beat;  // last time a heartbeat was sent
};

class TcpLinks;
using Broker = caf::stateful_actor<TcpLinks, caf::io::broker>;

class TcpLinks {
 public:
  explicit TcpLinks(Broker* self) : self_(self) {}
  const char* name = "tcp links";

  caf::behavior start(std::shared_ptr<Setup> setup);

 private:
  int rank() const { return setup_->identity.rank; }
  int world_size() const { return setup_->identity.world_size; }
  const RuntimeOptions& options() const { return setup_->options; }
  bool all_came() const { return setup_->config->arrival && setup_->config->arrival->complete.load(); }
  bool gathering() const { return setup_->config->arrival && !all_came() && now() < setup_->config->arrival->deadline; }
  // Returns whether the rank is known to have listened in this world.
  bool has_listened(int of) const { return linked_[static_cast<std::size_t>(of)] || all_came(); }
  Peer& peer(int of) { return peers_[static_cast<std::size_t>(of)]; }
  static MonotonicTime now() { return system_clock().now(); }
  std::string describe(int of) const {
    const auto at = static_cast<std::size_t>(of);
    const std::string& process = peers_[at].process;
    return "rank " + std::to_string(of) + " at " + setup_->config->addresses[at] + (process.empty() ? "" : " (" + process + ")");
  }
  template <class Message>
  void tell_owner(Message&& message) {
    if (auto owner = setup_->owner.lock()) self_->send(caf::actor_cast<caf::actor>(owner), std::forward<Message>(message));
  }

  // Sends without a sender. CAF does not empty the mailbox of a broker that has ended. A message
  // there that named the broker as its sender would keep the broker alive forever.
  template <class Message>
  void tell_self(Message message) {
    caf::anon_send(caf::actor_cast<caf::actor>(self_), message);
  }
  template <class Message>
  void tell_self_later(milliseconds delay, Message message) {
    caf::delayed_anon_send(caf::actor_cast<caf::actor>(self_), delay, message);
  }

  // Messages of the owner
  void on_send(const LinkSend& message);
  void on_open(int to);
  void on_drop(const LinkDrop& message);
  void pump(int to);
  std::uint64_t draw_link();

  // Openings
  std::uint64_t begin_opening(int to, v1::LinkPurpose purpose, std::uint64_t link);
  void on_opening_step(std::uint64_t number);
  std::optional<Endpoint> find_endpoint(Opening& opening);
  void hand_shake(std::uint64_t number);
  void try_again(std::uint64_t number, const std::string& trouble);
  void give_up(std::uint64_t number, LinkDownCause cause, const std::string& why, bool say_goodbye = false);
  void cancel_opening(std::uint64_t number);
  void ask_back(int of);

  // Connections
  ConnectionPtr adopt(caf::io::connection_handle handle, Stage stage, ConnectionSide side);
  void write(Connection& connection, const std::string& frame);
  void introduce(Connection& connection);
  void leave(const ConnectionPtr& connection, const v1::LinkFrame& last_words);
  void linger(Connection& connection);
  void half_close(Connection& connection);
  void discard(const ConnectionPtr& connection);
  void forget(Connection& connection);
  void enter(const ConnectionPtr& connection);
  void watch_door();
  void close_door();
  template <class Handle>
  void close_later(Handle handle);

  // Events of sockets
  void on_accepted(caf::io::connection_handle handle);
  void on_bytes(const caf::io::new_data_msg& message);
  void on_transferred(const caf::io::data_transferred_msg& message);
  void on_closed(caf::io::connection_handle handle);
  void read_frames(const ConnectionPtr& connection);
  void on_frame(const ConnectionPtr& connection, v1::LinkFrame& frame);
  void on_hello(const ConnectionPtr& connection, const v1::LinkHello& hello);
  void on_answer(const ConnectionPtr& connection, const v1::LinkFrame& frame);
  void on_link_frame(const ConnectionPtr& connection, v1::LinkFrame& frame);
  void misbehaved(const ConnectionPtr& connection, const std::string& what);
  void garbled(const ConnectionPtr& connection, const Error& fault);
  void turned_away(const char* what);
  void watch(const char* what) const;
  void refuse(const ConnectionPtr& connection, v1::LinkRefusalReason reason, const std::string& why);

  // Links
  void come_up(const ConnectionPtr& connection, const v1::LinkHello& hello);
  void take_beats(const ConnectionPtr& connection);
  void go_down(int of, LinkDownCause cause, const std::string& why, bool say_goodbye = false);
  void on_resume(const ResumeReading& resume);
  milliseconds stall_min() const { return tick_interval_ + options().heartbeat_timeout / 2; }
  bool stood_still() const;
  void on_tick();
  void begin_close(const std::string& why, bool leaves = false);
  void say_last_words(const std::string& why);
  void quit_when_done();

  Broker* const self_;
  std::shared_ptr<Setup> setup_;
  std::vector<Peer> peers_;
  std::vector<bool> asked_back_;  // by rank: whether `ask_back` ran for it since the last LinkSend to it
  std::vector<bool> linked_;      // by rank: whether a link to it has ever been up
  std::unordered_map<caf::io::connection_handle, ConnectionPtr> connections_;
  std::map<std::uint64_t, ConnectionPtr> strangers_;  // unauthenticated or closing connections, oldest first
  std::map<std::uint64_t, Opening> openings_;
  std::shared_ptr<std::atomic<int>> lookups_ = std::make_shared<std::atomic<int>>(0);  // running now
  caf::io::accept_handle door_;                                                        // the listening socket
  bool door_halted_ = false;
  std::size_t closing_sockets_ = 0;  // discarded, not closed yet
  std::size_t unauthenticated_connections_max_ = 0;
  int refusals_told_ = 0;      // since the last tick
  std::uint64_t numbers_ = 0;  // last number given to an opening or connection
  std::unique_ptr<Random> random_ = system_random();
  milliseconds beat_interval_{0};
  milliseconds tick_interval_{0};
  MonotonicTime last_tick_;
  std::optional<MonotonicTime> last_stall_;  // the end of the last stall of this thread
  bool closing_ = false;
  bool spoke_to_self_ = false;
  std::string closing_why_;
  bool closing_leaves_ = false;
  MonotonicTime closing_deadline_;
};

}  // namespace cairn::tcp
