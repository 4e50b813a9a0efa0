// Serves one text over HTTP/1.1, to whoever asks for /metrics: what a scraper needs, and nothing else. Internal.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include <cairn/actors/links/socket.hpp>

namespace cairn {

class MetricsServer {
 public:
  // Listens at "host:port" and answers on a thread of its own, one request at a time; who says nothing for two seconds is cut off. `text` is called on
  // that thread. Throws kInvalidArgument, kUnavailable.
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
  const Socket end_;  // an eventfd: readable once the thread is to end
  std::thread thread_;
};

}  // namespace cairn
