#include <cairn/runtime/metrics_server.hpp>

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <string_view>
#include <system_error>
#include <utility>

#include <cairn/base/error.hpp>
#include <cairn/base/signals_blocked.hpp>

namespace cairn {
namespace {

constexpr std::size_t kRequestBytesMax = 8192;
constexpr std::chrono::milliseconds kRequestPatience{2000};

Socket listen_at(const std::string& address) {
  const HostPort place = split_address(address);
  return listen_on(place.host, place.port);
}

using Steady = std::chrono::steady_clock;

bool is_ready(int descriptor, short events, Steady::time_point until) {
  pollfd waited{descriptor, events, 0};
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Steady::now());
    const int count = left.count() < 0 ? 0 : ::poll(&waited, 1, static_cast<int>(left.count()) + 1);
    if (count >= 0 || errno != EINTR) return count > 0;
  }
}

// Reads up to the empty line after the headers. Returns "" if that does not arrive in time.
std::string read_request(int client, Steady::time_point until) {
  std::string request;
  while (request.size() < kRequestBytesMax && request.find("\r\n\r\n") == std::string::npos) {
    if (!is_ready(client, POLLIN, until)) return "";
    char bytes[1024];
    const ssize_t count = ::recv(client, bytes, sizeof bytes, MSG_DONTWAIT);
    if (count == 0) return "";
    if (count < 0 && errno != EAGAIN && errno != EINTR) return "";
    if (count > 0) request.append(bytes, static_cast<std::size_t>(count));
  }
  return request.find("\r\n\r\n") == std::string::npos ? "" : request;
}

void send_all(int client, std::string_view text, Steady::time_point until) {
  while (!text.empty() && is_ready(client, POLLOUT, until)) {
    const ssize_t count = ::send(client, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && errno != EAGAIN && errno != EINTR) return;
    if (count > 0) text.remove_prefix(static_cast<std::size_t>(count));
  }
}

std::string response(const char* status, const char* type, const std::string& body, bool has_body) {
  return std::string("HTTP/1.1 ") + status + "\r\nContent-Type: " + type + "\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\nConnection: close\r\n\r\n" + (has_body ? body : "");
}

}  // namespace

MetricsServer::MetricsServer(const std::string& address, std::function<std::string()> text)
    : text_(std::move(text)),
      listener_(listen_at(address)),
      port_(split_address(to_string(local_endpoint(listener_))).port),
      end_(::eventfd(0, EFD_CLOEXEC)) {
  if (!end_.valid()) throw system_error("prepare to serve metrics", address, errno);
  ::fcntl(listener_.get(), F_SETFL, ::fcntl(listener_.get(), F_GETFL) | O_NONBLOCK);
  try {
    const SignalsBlocked blocked;
    thread_ = std::thread([this] { serve(); });
    pthread_setname_np(thread_.native_handle(), "cairn-metrics");
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::kUnavailable, std::string("cannot start the thread that serves metrics: ") + error.what());
  }
}

MetricsServer::~MetricsServer() {
  const std::uint64_t one = 1;
  while (::write(end_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
  thread_.join();
}

void MetricsServer::serve() noexcept {
  while (true) {
    pollfd waited[] = {{listener_.get(), POLLIN, 0}, {end_.get(), POLLIN, 0}};
    if (::poll(waited, 2, -1) < 0 && errno != EINTR) return;
    if (waited[1].revents != 0) return;
    if (waited[0].revents == 0) continue;
    const Socket client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!client.valid()) {
      // Out of descriptors: the client stays in the queue, so `poll` would return again at once.
      // Wait a little.
      if (errno == EMFILE || errno == ENFILE) is_ready(end_.get(), POLLIN, Steady::now() + kRequestPatience / 10);
      continue;
    }
    try {
      answer(client);
    } catch (...) {  // out of memory: the client will retry
    }
  }
}

void MetricsServer::answer(const Socket& client) const {
  const auto until = Steady::now() + kRequestPatience;
  const std::string request = read_request(client.get(), until);
  const std::string first = request.substr(0, request.find("\r\n"));
  const std::string method = first.substr(0, first.find(' '));
  const std::size_t path_at = std::min(first.size(), method.size() + 1);
  const std::string path = first.substr(path_at, first.find_first_of(" ?", path_at) - path_at);
  const bool is_head = method == "HEAD";
  std::string text;
  if (first.find(" HTTP/1.") == std::string::npos)
    text = response("400 Bad Request", "text/plain", "this is no request\n", true);
  else if (method != "GET" && !is_head)
    text = response("405 Method Not Allowed", "text/plain", "only GET is understood\n", true);
  else if (path != "/metrics")
    text = response("404 Not Found", "text/plain", "the metrics are at /metrics\n", !is_head);
  else
    text = response("200 OK", "text/plain; version=0.0.4; charset=utf-8", text_(), !is_head);
  send_all(client.get(), text, until);
}

}  // namespace cairn
