// The connections between the ranks of one job, as actors/links offers them: messages of a connection arrive once, in order, or
// the connection ends; who stays silent too long is given up; a message to a rank that is down opens a connection, or ends in
// LinkDown.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <cairn/actors/options.hpp>
#include <cairn/actors/protocol/events.hpp>
#include <cairn/tests/simulation/agreement.hpp>
#include <cairn/tests/simulation/coverage.hpp>
#include <cairn/tests/simulation/virtual_time.hpp>

namespace cairn::simulation {

class Network {
 public:
  // One rank's end. Calls may come at any moment; an end that is frozen keeps them until it thaws.
  struct End {
    virtual ~End() = default;
    virtual void link_up(int peer) = 0;
    virtual void link_down(const protocol::PeerDown& down) = 0;
    virtual void link_message(int peer, const std::shared_ptr<const std::string>& bytes) = 0;
  };

  Network(VirtualTime& time, Dice& dice, Coverage& coverage, const RuntimeOptions& options, std::vector<End*> ends);

  // `from` and `to` differ.
  void send(int from, int to, std::shared_ptr<const std::string> bytes);

  // Nothing passes between the two for this long.
  void block(int a, int b, Duration length);
  // When nothing did.
  std::vector<Span> cuts(int a, int b) const;
  // The connection breaks, with what is under way in it.
  void reset(int a, int b);
  // The process neither reads nor answers, until `thaw`.
  void freeze(int rank);
  void thaw(int rank);
  // The process is gone. Its kernel says so, unless the machine went with it.
  void remove(int rank, bool machine);

 private:
  using Pair = std::pair<int, int>;  // (here, there)
  struct Opening {
    Duration deadline{0};
    std::deque<std::shared_ptr<const std::string>> waiting;
  };

  bool blocked(int a, int b) const;
  Duration delay();
  Duration detection();
  void pass(int from, int to, std::uint64_t connection, std::function<void()> arrive);
  void deliver(int from, int to, std::uint64_t connection, std::shared_ptr<const std::string> bytes);
  void open(int from, int to);
  void connect(int from, int to);
  void disconnect(int here, int there, FailureKind kind, const std::string& why);
  void detect_silence(int here, int there);
  bool silent(int here, int there) const;

  VirtualTime& time_;
  Dice& dice_;
  Coverage& coverage_;
  const RuntimeOptions options_;
  std::vector<End*> ends_;
  std::vector<bool> gone_, frozen_, unplugged_;
  std::uint64_t last_connection_ = 0;
  std::map<Pair, std::uint64_t> connections_;  // of each end; absent: down
  std::map<Pair, Duration> last_arrival_;      // of what was sent from the first to the second
  std::map<Pair, Duration> blocked_until_;     // (smaller, larger)
  std::map<Pair, std::vector<Span>> cuts_;     // (smaller, larger)
  std::map<Pair, Opening> openings_;
};

}  // namespace cairn::simulation
