// Serves one text at /metrics over HTTP/1.1, for Prometheus scrapers. Internal.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <cairn/actors/links/socket.hpp>

namespace cairn {

class MetricsServer {
 public:
  // Listens at "host:port" and answers on a thread of its own, which calls `text`. Serves up to 16
  // clients at a time; for one more, disconnects the oldest. A client has `client_deadline` to send
  // its request and receive the answer. Throws kInvalidArgument for a malformed address,
  // kUnavailable if the address cannot be bound or the thread cannot be started.
  MetricsServer(const std::string& address, std::function<std::string()> text,
                std::chrono::milliseconds client_deadline = std::chrono::seconds(2));
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  int port() const { return port_; }

 private:
  using Steady = std::chrono::steady_clock;
  struct Client {
    Socket socket;
    Steady::time_point deadline;
    std::string request;
    std::string answer;  // empty until the request has arrived
    std::size_t sent = 0;
  };

  void serve() noexcept;
  bool serve_ready(std::vector<Client>& clients) const;
  bool proceed(Client& client) const;
  std::string answer(const std::string& request) const;

  const std::function<std::string()> text_;
  const std::chrono::milliseconds client_deadline_;
  const Socket listener_;
  const int port_;
  const Socket end_;  // an eventfd: readable when the thread must end
  std::thread thread_;
};

}  // namespace cairn
