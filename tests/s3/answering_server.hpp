// A server in this process that replaces an S3 server. The test gives its answers.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <thread>

namespace cairn::testing {

// Returns an HTTP response that closes the connection.
inline std::string http_answer(const std::string& status, const std::string& body = "", const std::string& fields = "") {
  return "HTTP/1.1 " + status + "\r\nConnection: close\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" + fields +
         "\r\n" + body;
}

inline std::string s3_error(const std::string& status, const std::string& code) {
  return http_answer(status, "<Error><Code>" + code + "</Code></Error>");
}

class AnsweringServer {
 public:
  // `answer` gets the head of a request and returns all bytes of the answer. Its calls do not
  // overlap.
  explicit AnsweringServer(std::function<std::string(const std::string& head)> answer)
      : answer_(std::move(answer)), listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    if (listener_ < 0 || bind(listener_, generic, size) != 0 || listen(listener_, 64) != 0 ||
        getsockname(listener_, generic, &size) != 0)
      throw std::runtime_error("cannot listen");
    url_ = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    thread_ = std::thread([this] { serve(); });
  }
  ~AnsweringServer() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }
  const std::string& url() const { return url_; }

 private:
  void serve() {
    for (int client = 0; (client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0; ::close(client)) {
      const std::string head = receive(client);
      if (head.empty()) continue;
      const std::string answer = answer_(head);
      send(client, answer.data(), answer.size(), MSG_NOSIGNAL);
    }
  }
  static std::string receive(int client) {
    std::string request;
    std::size_t end = std::string::npos, body = 0;
    char buffer[4096];
    while (end == std::string::npos || request.size() < end + 4 + body) {
      const ssize_t got = recv(client, buffer, sizeof(buffer), 0);
      if (got <= 0) return "";
      request.append(buffer, static_cast<std::size_t>(got));
      if (end != std::string::npos || (end = request.find("\r\n\r\n")) == std::string::npos) continue;
      const std::size_t length = request.find("Content-Length: ");
      if (length < end) body = std::stoul(request.substr(length + 16));
    }
    return request.substr(0, end);
  }

  const std::function<std::string(const std::string&)> answer_;
  const int listener_;
  std::string url_;
  std::thread thread_;
};

}  // namespace cairn::testing
