#include <cairn/tests/simulation/network.hpp>

#include <algorithm>

namespace cairn::simulation {

using std::chrono::microseconds;
using std::chrono::milliseconds;

Network::Network(VirtualTime& time, Dice& dice, Coverage& coverage, const RuntimeOptions& options, std::vector<End*> ends)
    : time_(time),
      dice_(dice),
      coverage_(coverage),
      options_(options),
      ends_(std::move(ends)),
      gone_(ends_.size()),
      frozen_(ends_.size()),
      unplugged_(ends_.size()) {}

bool Network::blocked(int a, int b) const {
  if (unplugged_[static_cast<std::size_t>(a)] || unplugged_[static_cast<std::size_t>(b)]) return true;
  const auto found = blocked_until_.find(std::minmax(a, b));
  return found != blocked_until_.end() && found->second > time_.now();
}

Duration Network::delay() {
  if (dice_.chance(2)) return dice_.between(milliseconds(5), milliseconds(400));
  return dice_.between(microseconds(50), milliseconds(3));
}

Duration Network::detection() { return options_.heartbeat_timeout + dice_.between(Duration(0), options_.heartbeat_timeout / 4); }

// Delivers events of a connection in order, and not while the path is blocked.
void Network::pass(int from, int to, std::uint64_t connection, std::function<void()> arrive) {
  Duration& last = last_arrival_[{from, to}];
  last = std::max(last, time_.now() + delay());
  auto event = std::make_shared<std::function<void()>>();
  *event = [this, from, to, connection, arrive = std::move(arrive), weak = std::weak_ptr(event)] {
    const auto until = blocked_until_.find(std::minmax(from, to));
    if (until != blocked_until_.end() && until->second > time_.now()) {
      Duration& latest = last_arrival_[{from, to}];
      latest = std::max(latest, until->second);
      return time_.after(until->second - time_.now(), [again = weak.lock()] { (*again)(); });
    }
    const auto open = connections_.find({to, from});
    if (open != connections_.end() && open->second == connection) arrive();
  };
  time_.after(last - time_.now(), [event] { (*event)(); });
}

void Network::deliver(int from, int to, std::uint64_t connection, std::shared_ptr<const std::string> bytes) {
  pass(from, to, connection,
       [this, from, to, bytes = std::move(bytes)] { ends_[static_cast<std::size_t>(to)]->link_message(from, bytes); });
}

void Network::send(int from, int to, std::shared_ptr<const std::string> bytes) {
  const auto open_now = connections_.find({from, to});
  if (open_now != connections_.end()) return deliver(from, to, open_now->second, std::move(bytes));
  const auto opening = openings_.find({from, to});
  if (opening != openings_.end()) {
    opening->second.waiting.push_back(std::move(bytes));
    return;
  }
  open_link(from, to);
  openings_[{from, to}].waiting.push_back(std::move(bytes));
}

void Network::open_link(int from, int to) {
  if (connections_.count({from, to}) != 0 || openings_.count({from, to}) != 0) return;
  openings_[{from, to}].deadline = time_.now() + options_.connect_deadline;
  time_.after(delay(), [this, from, to] { open(from, to); });
}

void Network::open(int from, int to) {
  const auto opening = openings_.find({from, to});
  if (opening == openings_.end() || gone_[static_cast<std::size_t>(from)]) return;
  if (connections_.count({from, to}) != 0) return;  // the other side has opened the connection
  if (!gone_[static_cast<std::size_t>(to)] && !frozen_[static_cast<std::size_t>(to)] && !blocked(from, to))
    return connect(from, to);
  if (time_.now() < opening->second.deadline) return time_.after(milliseconds(100), [this, from, to] { open(from, to); });
  openings_.erase(opening);
  coverage_.hit("link unreachable");
  ends_[static_cast<std::size_t>(from)]->link_down({to, LinkDownCause::kUnreachable, "no connection before the deadline"});
}

void Network::connect(int from, int to) {
  // A connection that the other side still has is stale. That side reads the old farewell first.
  const auto farewell = farewells_.find({from, to});
  disconnect(to, from, LinkDownCause::kClosed, farewell == farewells_.end() ? "opened anew" : farewell->second);
  const std::uint64_t connection = ++last_connection_;
  for (const Pair& pair : {Pair(from, to), Pair(to, from)}) {
    connections_[pair] = connection;
    ends_[static_cast<std::size_t>(pair.first)]->link_up(pair.second);
  }
  for (const Pair& pair : {Pair(from, to), Pair(to, from)}) {
    const auto opening = openings_.find(pair);
    if (opening == openings_.end()) continue;
    for (auto& bytes : opening->second.waiting) deliver(pair.first, pair.second, connection, std::move(bytes));
    openings_.erase(opening);
  }
  for (const int end : {from, to})
    if (frozen_[static_cast<std::size_t>(end)]) detect_silence(end == from ? to : from, end);
}

// Closes one end. The other end learns it when the path is free.
void Network::disconnect(int here, int there, LinkDownCause cause, const std::string& why, const std::string& why_there,
                         bool is_told) {
  const auto found = connections_.find({here, there});
  if (found == connections_.end()) return;
  const std::uint64_t connection = found->second;
  connections_.erase(found);
  const bool was_silent = cause == LinkDownCause::kSilent;
  coverage_.hit(was_silent ? "link silent" : "link closed");
  if (is_told) ends_[static_cast<std::size_t>(here)]->link_down({there, cause, why});
  const auto theirs = was_silent && frozen_[static_cast<std::size_t>(there)] ? LinkDownCause::kGaveUp : LinkDownCause::kClosed;
  farewells_.erase({there, here});
  farewells_[{here, there}] = why_there;
  pass(here, there, connection, [this, here, there, theirs, why_there] { disconnect(there, here, theirs, why_there); });
}

bool Network::silent(int here, int there) const { return blocked(here, there) || frozen_[static_cast<std::size_t>(there)]; }

// Gives the peer up if it is still silent after the detection time.
void Network::detect_silence(int here, int there) {
  const auto found = connections_.find({here, there});
  if (found == connections_.end()) return;
  time_.after(detection(), [this, here, there, connection = found->second] {
    const auto now = connections_.find({here, there});
    if (now == connections_.end() || now->second != connection || !silent(here, there)) return;
    disconnect(here, there, LinkDownCause::kSilent, "no sign of life");
  });
}

void Network::block(int a, int b, Duration length) {
  Duration& until = blocked_until_[std::minmax(a, b)];
  until = std::max(until, time_.now() + length);
  cuts_[std::minmax(a, b)].push_back({time_.now(), until});
  detect_silence(a, b);
  detect_silence(b, a);
}

std::vector<Span> Network::cuts(int a, int b) const {
  const auto found = cuts_.find(std::minmax(a, b));
  return found == cuts_.end() ? std::vector<Span>{} : found->second;
}

void Network::reset(int a, int b) {
  const auto found = connections_.find({a, b});
  if (found == connections_.end()) return;
  for (const Pair& pair : {Pair(a, b), Pair(b, a)}) {
    time_.after(delay(), [this, pair, connection = found->second] {
      const auto now = connections_.find(pair);
      if (now != connections_.end() && now->second == connection)
        disconnect(pair.first, pair.second, LinkDownCause::kClosed, "connection reset");
    });
  }
}

void Network::end_links(int rank, const std::string& why) {
  for (int peer = 0; peer < static_cast<int>(ends_.size()); ++peer) {
    openings_.erase({rank, peer});
    disconnect(rank, peer, LinkDownCause::kClosed, why, "rank " + std::to_string(rank) + " closed the link: " + why, false);
  }
}

void Network::freeze(int rank) {
  frozen_[static_cast<std::size_t>(rank)] = true;
  for (std::size_t peer = 0; peer < ends_.size(); ++peer) detect_silence(static_cast<int>(peer), rank);
}

void Network::thaw(int rank) { frozen_[static_cast<std::size_t>(rank)] = false; }

void Network::remove(int rank, bool machine) {
  gone_[static_cast<std::size_t>(rank)] = true;
  for (std::size_t i = 0; i < ends_.size(); ++i) {
    const int peer = static_cast<int>(i);
    openings_.erase({rank, peer});
    if (peer == rank) continue;
    if (machine)
      detect_silence(peer, rank);
    else
      disconnect(rank, peer, LinkDownCause::kClosed, "");
  }
  if (machine) unplugged_[static_cast<std::size_t>(rank)] = true;
}

}  // namespace cairn::simulation
