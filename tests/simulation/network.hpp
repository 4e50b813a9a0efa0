// The connections between the ranks of one job, with the contract of actors/links. Messages on a
// connection arrive once and in order, or the connection ends. A peer that stays silent too long is
// given up. A message to a rank without a connection opens one, or ends in LinkDown.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <cairn/actors/links/links.hpp>
#include <cairn/actors/options.hpp>
#include <cairn/tests/simulation/agreement.hpp>
#include <cairn/tests/simulation/coverage.hpp>
#include <cairn/tests/simulation/virtual_time.hpp>

namespace cairn::simulation {

class Network {
 public:
  // One rank's end. Calls may come at any moment; a frozen end queues them until it thaws.
  struct End {
    virtual ~End() = default;
    virtual void link_up(int peer) = 0;
    virtual void link_down(const LinkDown& down) = 0;
    virtual void link_message(int peer, const std::shared_ptr<const std::string>& bytes) = 0;
  };

  Network(VirtualTime& time, Dice& dice, Coverage& coverage, const RuntimeOptions& options, std::vector<End*> ends);

  // Sends `bytes`. `from` and `to` must differ.
  void send(int from, int to, std::shared_ptr<const std::string> bytes);
  // Opens a connection unless there is one.
  void open_link(int from, int to);

  // Passes nothing between the two ranks for `length`.
  void block(int a, int b, Duration length);
  // Returns the intervals during which the two ranks were blocked from each other.
  std::vector<Span> cuts(int a, int b) const;
  // Breaks the connection; everything in flight on it is lost.
  void reset(int a, int b);
  // All connections of the rank end, and their other ends learn why. New ones can be made at once.
  void end_links(int rank, const std::string& why);
  // Stops the process from reading and answering until `thaw`.
  void freeze(int rank);
  void thaw(int rank);
  // Ends the process. Its kernel closes its connections, unless the machine (`machine`) is lost as
  // well.
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
  void disconnect(int here, int there, LinkDownCause cause, const std::string& why,
                  const std::string& why_there = "closed by the peer", bool is_told = true);
  void detect_silence(int here, int there);
  bool silent(int here, int there) const;

  VirtualTime& time_;
  Dice& dice_;
  Coverage& coverage_;
  const RuntimeOptions options_;
  std::vector<End*> ends_;
  std::vector<bool> gone_, frozen_, unplugged_;
  std::uint64_t last_connection_ = 0;
  std::map<Pair, std::uint64_t> connections_;  // current connection of each end; absent: down
  std::map<Pair, std::string> farewells_;      // on their way from the first rank to the second
  std::map<Pair, Duration> last_arrival_;      // latest arrival from the first rank at the second
  std::map<Pair, Duration> blocked_until_;     // (smaller, larger)
  std::map<Pair, std::vector<Span>> cuts_;     // (smaller, larger)
  std::map<Pair, Opening> openings_;
};

}  // namespace cairn::simulation
