// Serves one text at /metrics over HTTP/1.1, for Prometheus scrapers. Internal.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include <cairn/actors/links/socket.hpp>

namespace cairn {

class MetricsServer {
 public:
  // Listens at "host:port" and answers on a thread of its own, one request at a time. A client has
  // two seconds to send its request and receive the answer. `text` is called on that thread. Throws
  // kInvalidArgument, kUnavailable.
  MetricsServer(const std::string& address, std::function<std::string()> text);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  int port() const { return port_; }

 private:
  void serve() noexcept;
  void answer(const Socket& client) const;

  const std::function<std::string()> text_;
  const Socket listener_;
  const int port_;
  const Socket end_;  // an eventfd: readable when the thread must end
  std::thread thread_;
};

}  // namespace cairn
