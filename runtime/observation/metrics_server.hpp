// Serves one text at /metrics over HTTP/1.1, for Prometheus scrapers. Internal.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include <cairn/actors/links/socket.hpp>

namespace cairn {

class MetricsServer {
 public:
  // Listens at "host:port" and answers on a thread of its own, which calls `text`. Serves one
  // client at a time. Each has `client_deadline` to send its request and receive the answer. Throws
  // kInvalidArgument for a malformed address, kUnavailable if the address cannot be bound or the
  // thread cannot be started.
  MetricsServer(const std::string& address, std::function<std::string()> text,
                std::chrono::milliseconds client_deadline = std::chrono::seconds(2));
  // Disconnects a client that is being served.
  ~MetricsServer();

  int port() const { return split_address(to_string(local_endpoint(listener_))).port; }

 private:
  using Steady = std::chrono::steady_clock;

  void serve() noexcept;
  // Returns false at the deadline, if `poll` fails, or if the server must end.
  bool await(const Socket& socket, short events, Steady::time_point deadline) const;
  void serve_client(const Socket& client) const;
  std::string answer_to(const std::string& request) const;

  const std::function<std::string()> text_;
  const std::chrono::milliseconds client_deadline_;
  const Socket listener_;
  const Socket end_;  // an eventfd: readable when the thread must end
  std::thread thread_;
};

}  // namespace cairn
