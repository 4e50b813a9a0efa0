// The checks of `cairn doctor` that concern the machine.
#include <cairn/tools/doctor_checks.hpp>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timex.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include <fmt/format.h>

#include <cairn/base/clock.hpp>
#include <cairn/runtime/library_versions.hpp>
#include <cairn/tools/commands.hpp>

namespace cairn::tools {
namespace {

std::string limit_text(rlim_t limit, bool bytes) {
  if (limit == RLIM_INFINITY) return "unlimited";
  return bytes ? human_bytes(limit) : std::to_string(limit);
}

rlim_t limit_of(int resource) {
  struct rlimit limit {};
  return ::getrlimit(static_cast<__rlimit_resource>(resource), &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

class Socket {
 public:
  Socket() : descriptor_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
  ~Socket() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

// Connects over loopback to a port that the system chooses. Returns "" or the error.
std::string loopback_fault() {
  const Socket server, client;
  if (server.get() < 0 || client.get() < 0) return fmt::format("no socket: {}", std::strerror(errno));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (::bind(server.get(), any, length) != 0) return fmt::format("no port: {}", std::strerror(errno));
  if (::listen(server.get(), 1) != 0 || ::getsockname(server.get(), any, &length) != 0)
    return fmt::format("cannot listen: {}", std::strerror(errno));
  if (::connect(client.get(), any, length) != 0) return fmt::format("cannot connect: {}", std::strerror(errno));
  return "";
}

// Checks that MASTER_PORT, which the rendezvous uses, is free on this machine.
Finding master_port() {
  const char* const text = std::getenv("MASTER_PORT");
  if (text == nullptr || *text == '\0') return {"MASTER_PORT", Health::kOk, "not set: cairn-launch chooses a free one", ""};
  const int port = std::atoi(text);
  if (port < 1 || port > 65535)
    return {"MASTER_PORT", Health::kProblem, text, "no rank would find the others: give a number from 1 to 65535"};
  const Socket server;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  const int yes = 1;
  ::setsockopt(server.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (::bind(server.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0)
    return {"MASTER_PORT", Health::kOk, text, ""};
  return {"MASTER_PORT", Health::kWarning, fmt::format("{}: {}", text, std::strerror(errno)),
          "a job that has its rank 0 here could not assemble, unless it is this very job that runs: choose another port"};
}

}  // namespace

const char* to_string(Health health) {
  switch (health) {
    case Health::kOk:
      return "ok";
    case Health::kWarning:
      return "warning";
    case Health::kProblem:
      return "problem";
  }
  return "?";
}

std::vector<Finding> check_versions() {
  std::string text;
  for (const LibraryVersion& library : library_versions())
    text += (text.empty() ? "" : ", ") + library.name + " " + library.version;
  return {{"versions", Health::kOk, text, ""}};
}

std::vector<Finding> check_limits() {
  std::vector<Finding> findings;
  constexpr rlim_t kFilesNeeded = 1024, kFilesWanted = 4096;
  const rlim_t files = limit_of(RLIMIT_NOFILE);
  findings.push_back(
      {"open files",
       files < kFilesNeeded   ? Health::kProblem
       : files < kFilesWanted ? Health::kWarning
                              : Health::kOk,
       limit_text(files, false),
       files < kFilesWanted
           ? "a rank has connections to others and files open: in worlds of hundreds of ranks it runs out of them. ulimit -n 65536"
           : ""});
  const rlim_t file_size = limit_of(RLIMIT_FSIZE);
  findings.push_back({"file size", file_size == RLIM_INFINITY ? Health::kOk : Health::kProblem, limit_text(file_size, true),
                      file_size == RLIM_INFINITY
                          ? ""
                          : "a rank that writes more than that into its file fails with no_space. ulimit -f unlimited"});
  constexpr rlim_t kLockedWanted = 64u << 20;
  const rlim_t locked = limit_of(RLIMIT_MEMLOCK);
  findings.push_back({"locked memory", locked < kLockedWanted ? Health::kWarning : Health::kOk, limit_text(locked, true),
                      locked < kLockedWanted ? "page-locked staging memory for copies from devices may be refused: they are then "
                                               "several times slower. ulimit -l unlimited"
                                             : ""});
  const rlim_t core = limit_of(RLIMIT_CORE);
  findings.push_back({"core dumps", Health::kOk, core == 0 ? "off" : limit_text(core, true), ""});
  const rlim_t memory = limit_of(RLIMIT_AS);
  findings.push_back(
      {"address space", memory == RLIM_INFINITY ? Health::kOk : Health::kWarning, limit_text(memory, true),
       memory == RLIM_INFINITY ? "" : "LibTorch and staging memory reserve much: allocations may fail. ulimit -v unlimited"});
  return findings;
}

std::vector<Finding> check_network() {
  const std::string fault = loopback_fault();
  std::vector<Finding> findings{
      {"loopback", fault.empty() ? Health::kOk : Health::kProblem, fault.empty() ? "ranks of this machine reach each other" : fault,
       fault.empty() ? "" : "ranks of one machine talk over 127.0.0.1: bring the interface lo up, and allow TCP there"}};
  findings.push_back(master_port());
  return findings;
}

std::vector<Finding> check_clock() {
  std::vector<Finding> findings;
  const double year =
      1970 + std::chrono::duration<double>(system_clock().wall_now().time_since_epoch()).count() / (365.2425 * 86400);
  if (year < 2024)
    findings.push_back({"clock", Health::kWarning, fmt::format("it is set to the year {:.0f}", year - 0.5),
                        "ages, logs and traces of ranks do not fit together; the order of checkpoints is not affected. Set it"});
  else
    findings.push_back({"clock", Health::kOk, "wall clock and monotonic clock run", ""});
  struct timex state {};
  const int answer = ::adjtimex(&state);
  const bool in_step = answer >= 0 && answer != TIME_ERROR && (state.status & STA_UNSYNC) == 0;
  findings.push_back(
      {"clock in step", in_step ? Health::kOk : Health::kWarning,
       answer < 0 ? fmt::format("unknown: {}", std::strerror(errno))
       : in_step  ? "kept by NTP or PTP"
                  : "not kept in step by NTP or PTP",
       in_step ? "" : "times in logs of several machines differ; cairn trace aligns clocks by messages. Run chrony, or its like"});
  return findings;
}

}  // namespace cairn::tools
