#include <cairn/runtime/observation/metrics_server.hpp>

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <system_error>
#include <utility>

#include <cairn/base/error.hpp>
#include <cairn/base/signals_blocked.hpp>

namespace cairn {
namespace {

// Anybody who reaches the port can connect. These limit the memory and descriptors that they take.
constexpr std::size_t kRequestBytesMax = 8192;
constexpr std::size_t kClientsMax = 16;
constexpr int kDescriptorWaitMs = 200;

Socket listen_at(const std::string& address) {
  const HostPort place = split_address(address);
  return listen_on(place.host, place.port);
}

std::string response(const char* status, const char* type, const std::string& body, bool has_body) {
  return std::string("HTTP/1.1 ") + status + "\r\nContent-Type: " + type + "\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\nConnection: close\r\n\r\n" + (has_body ? body : "");
}

}  // namespace

MetricsServer::MetricsServer(const std::string& address, std::function<std::string()> text,
                             std::chrono::milliseconds client_deadline)
    : text_(std::move(text)),
      client_deadline_(client_deadline),
      listener_(listen_at(address)),
      port_(split_address(to_string(local_endpoint(listener_))).port),
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

MetricsServer::~MetricsServer() {
  const std::uint64_t one = 1;
  // Wakes the thread, which may be in `poll` without a timeout.
  while (::write(end_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
  thread_.join();
}

void MetricsServer::serve() noexcept {
  std::vector<Client> clients;  // oldest first
  for (bool goes_on = true; goes_on;) {
    try {
      goes_on = serve_ready(clients);
    } catch (...) {  // out of memory: the clients will retry
      clients.clear();
    }
  }
}

bool MetricsServer::serve_ready(std::vector<Client>& clients) const {
  std::array<pollfd, 2 + kClientsMax> waited{{{end_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}}};
  std::size_t count = 2;
  for (const Client& client : clients)
    waited[count++] = {client.socket.get(), static_cast<short>(client.answer.empty() ? POLLIN : POLLOUT), 0};
  int timeout_ms = -1;
  if (!clients.empty()) {
    // All clients have the same patience, so the oldest one's deadline comes first.
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(clients.front().deadline - Steady::now());
    timeout_ms = static_cast<int>(std::max(left.count(), std::chrono::milliseconds::rep{0}));
  }
  // Ends the server if `poll` fails: without waiting, this thread would spin.
  if (::poll(waited.data(), count, timeout_ms) < 0 && errno != EINTR) return false;
  if (waited[0].revents != 0) return false;
  const auto now = Steady::now();
  count = 2;
  for (auto client = clients.begin(); client != clients.end();) {
    const bool ready = waited[count++].revents != 0;
    if (now >= client->deadline || (ready && !proceed(*client)))
      client = clients.erase(client);
    else
      ++client;
  }
  if (waited[1].revents == 0) return true;
  Socket accepted(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!accepted.valid()) {
    // Out of descriptors: the client stays in the queue, so `poll` would return again at once.
    // Wait a little.
    if (errno == EMFILE || errno == ENFILE) ::poll(waited.data(), 1, kDescriptorWaitMs);
    return true;
  }
  // The oldest makes room, so that clients that hang cannot lock out a collector.
  if (clients.size() == kClientsMax) clients.erase(clients.begin());
  clients.push_back({std::move(accepted), now + client_deadline_, {}, {}, 0});
  return true;
}

// Reads from or writes to a client whose socket is ready. Returns false once it is finished or has
// closed the connection.
bool MetricsServer::proceed(Client& client) const {
  const auto may_continue = [] { return errno == EAGAIN || errno == EINTR; };
  if (client.answer.empty()) {
    char bytes[1024];
    const ssize_t count = ::recv(client.socket.get(), bytes, sizeof bytes, 0);
    if (count <= 0) return count < 0 && may_continue();
    client.request.append(bytes, static_cast<std::size_t>(count));
    const bool complete = client.request.find("\r\n\r\n") != std::string::npos;
    if (!complete && client.request.size() < kRequestBytesMax) return true;
    // A request that is too long is answered like one without a first line.
    client.answer = answer(complete ? client.request : "");
  }
  const ssize_t count =
      ::send(client.socket.get(), client.answer.data() + client.sent, client.answer.size() - client.sent, MSG_NOSIGNAL);
  if (count < 0) return may_continue();
  client.sent += static_cast<std::size_t>(count);
  return client.sent < client.answer.size();
}

std::string MetricsServer::answer(const std::string& request) const {
  const std::string first = request.substr(0, request.find("\r\n"));
  const std::string method = first.substr(0, first.find(' '));
  const std::size_t path_at = std::min(first.size(), method.size() + 1);
  const std::string path = first.substr(path_at, first.find_first_of(" ?", path_at) - path_at);
  const bool is_head = method == "HEAD";
  if (first.find(" HTTP/1.") == std::string::npos)
    return response("400 Bad Request", "text/plain", "this is no request\n", true);
  if (method != "GET" && !is_head)
    return response("405 Method Not Allowed", "text/plain", "only GET is understood\n", true);
  if (path != "/metrics") return response("404 Not Found", "text/plain", "the metrics are at /metrics\n", !is_head);
  return response("200 OK", "text/plain; version=0.0.4; charset=utf-8", text_(), !is_head);
}

}  // namespace cairn
