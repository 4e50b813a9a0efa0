// Serves one text at /metrics over HTTP/1.1, for Prometheus scrapers. Internal.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include <cairn/actors/links/socket.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/signals_blocked.hpp>

namespace cairn {

class MetricsServer {
 public:
  // Listens at "host:port" and answers on a thread of its own, which calls `text`. Serves one
  // client at a time. Each has `client_deadline` to send its request and receive the answer. Throws
  // kInvalidArgument for a malformed address, kUnavailable if the address cannot be bound or the
  // thread cannot be started.
  MetricsServer(const std::string& address, std::function<std::string()> text,
                std::chrono::milliseconds client_deadline = std::chrono::seconds(2))
      : text_(std::move(text)),
        client_deadline_(client_deadline),
        listener_(listen_on(split_address(address).host, split_address(address).port)),
        end_(::eventfd(0, EFD_CLOEXEC)) {
    if (!end_.valid()) throw system_error("prepare to serve metrics", address, errno);
    // A client may give up between `poll` and `accept`, which would then block.
    ::fcntl(listener_.get(), F_SETFL, ::fcntl(listener_.get(), F_GETFL) | O_NONBLOCK);
    try {
      thread_ = start_thread("cairn-metrics", [this] { serve(); });
    } catch (const std::system_error& error) {
      throw Error(ErrorCode::kUnavailable, std::string("cannot start the thread that serves metrics: ") + error.what());
    }
  }
  // Disconnects a client that is being served.
  ~MetricsServer() {
    const std::uint64_t one = 1;
    // Wakes the thread, which may be in `poll` without a timeout.
    while (::write(end_.get(), &one, sizeof one) < 0 && errno == EINTR) {
    }
    thread_.join();
  }

  int port() const { return split_address(to_string(local_endpoint(listener_))).port; }

 private:
  using Steady = std::chrono::steady_clock;
  static constexpr std::size_t kRequestBytesMax = 8192;
  static constexpr std::chrono::milliseconds kDescriptorWait{200};

  static bool may_continue() { return errno == EAGAIN || errno == EINTR; }

  void serve() noexcept {
    while (await(listener_, POLLIN, Steady::time_point::max())) {
      const Socket client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (client.valid()) {
        try {
          serve_client(client);
        } catch (...) {  // out of memory: the client will retry
        }
      } else if (!may_continue()) {
        // Out of descriptors: the client stays in the queue, so `poll` would return again at once.
        await(end_, POLLIN, Steady::now() + kDescriptorWait);
      }
    }
  }

  // Returns false at the deadline, if `poll` fails, or if the server must end.
  bool await(const Socket& socket, short events, Steady::time_point deadline) const {
    std::array<pollfd, 2> waited{{{end_.get(), POLLIN, 0}, {socket.get(), events, 0}}};
    while (true) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Steady::now()).count();
      const int timeout_ms = deadline == Steady::time_point::max() ? -1 : static_cast<int>(std::max(left, decltype(left){0}));
      const int ready = ::poll(waited.data(), waited.size(), timeout_ms);
      if (ready >= 0 || errno != EINTR) return ready > 0 && waited[0].revents == 0;
    }
  }

  void serve_client(const Socket& client) const {
    const Steady::time_point deadline = Steady::now() + client_deadline_;
    std::string request;
    while (request.find("\r\n\r\n") == std::string::npos && request.size() < kRequestBytesMax) {
      if (!await(client, POLLIN, deadline)) return;
      char bytes[1024];
      const ssize_t count = ::recv(client.get(), bytes, sizeof bytes, 0);
      if (count == 0 || (count < 0 && !may_continue())) return;
      request.append(bytes, static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    }
    const std::string answer = answer_to(request);
    for (std::string_view left = answer; !left.empty();) {
      if (!await(client, POLLOUT, deadline)) return;
      const ssize_t count = ::send(client.get(), left.data(), left.size(), MSG_NOSIGNAL);
      if (count < 0 && !may_continue()) return;
      left.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    }
  }

  std::string answer_to(const std::string& request) const {
    constexpr std::string_view kKnown = "GET /metrics";
    const bool is_known =
        request.compare(0, kKnown.size(), kKnown) == 0 && request.find_first_of(" ?", kKnown.size()) == kKnown.size();
    const std::string body = is_known ? text_() : "only GET /metrics is answered\n";
    return std::string("HTTP/1.1 ") + (is_known ? "200 OK" : "404 Not Found") +
           "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: " + std::to_string(body.size()) +
           "\r\nConnection: close\r\n\r\n" + body;
  }

  const std::function<std::string()> text_;
  const std::chrono::milliseconds client_deadline_;
  const Socket listener_;
  const Socket end_;  // an eventfd: readable when the thread must end
  std::thread thread_;
};

}  // namespace cairn
