// `cairn doctor`: finds what would make saves slow or fail here.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timex.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <cairn/runtime/library_versions.hpp>
#include <cairn/tools/commands.hpp>
#include <cairn/tools/doctor_checks.hpp>
#include <cairn/tools/terminal.hpp>

namespace cairn::tools {
namespace {

constexpr std::size_t kFoundColumn = 28;  // the column at which findings begin

constexpr const char* kDoctorExamples = R"(Examples:
  cairn doctor run           checks this machine, and the disk that holds run
  cairn doctor               checks only the machine
  cairn doctor run --json    prints JSON

Writes a file of at most --test-size to DIR, reads it back, and removes it. Run this command on the
machines of the ranks, as the same user and with the same limits.
Exits with 1 if it finds a problem. A problem would make saves fail; a warning only makes them slow.)";

struct DoctorOptions {
  std::string directory;
  std::uint64_t test_bytes = 256u << 20;
  bool json = false;
};

const char* to_string(Health health) { return health == Health::kOk ? "ok" : health == Health::kWarning ? "warning" : "problem"; }

std::string coloured_health(Health health) {
  const std::string text = fmt::format("{:<8}", to_string(health));
  return coloured(health == Health::kOk ? Colour::kGood : health == Health::kWarning ? Colour::kWarning : Colour::kBad, text);
}

Finding check_versions() {
  std::string text;
  for (const LibraryVersion& library : library_versions())
    text += (text.empty() ? "" : ", ") + library.name + " " + library.version;
  return {"versions", Health::kOk, text, ""};
}

// A limit that must be at least `wanted`.
struct Limit {
  const char* name;
  __rlimit_resource resource;
  rlim_t wanted;
  Health otherwise;
  const char* effect;
};
constexpr Limit kLimits[] = {
    {"open files", RLIMIT_NOFILE, 4096, Health::kWarning,
     "a rank has connections to others and files open: in worlds of hundreds of ranks it runs out of them. ulimit -n 65536"},
    {"file size", RLIMIT_FSIZE, RLIM_INFINITY, Health::kProblem,
     "a rank that writes more than that into its file fails with no_space. ulimit -f unlimited"},
    {"locked memory", RLIMIT_MEMLOCK, 64u << 20, Health::kWarning,
     "page-locked staging memory for copies from devices may be refused: they are then several times slower. ulimit -l unlimited"},
    {"address space", RLIMIT_AS, RLIM_INFINITY, Health::kWarning,
     "LibTorch and staging memory reserve much: allocations may fail. ulimit -v unlimited"},
};

Finding check_limit(const Limit& limit) {
  constexpr rlim_t kFilesNeeded = 1024;  // below that, saves of small worlds fail, too
  struct rlimit limits {};
  const rlim_t value = ::getrlimit(limit.resource, &limits) == 0 ? limits.rlim_cur : RLIM_INFINITY;
  const bool is_count = limit.resource == RLIMIT_NOFILE;
  return finding(value >= limit.wanted, limit.name,
                 value == RLIM_INFINITY ? "unlimited"
                 : is_count             ? std::to_string(value)
                                        : human_bytes(value),
                 is_count && value < kFilesNeeded ? Health::kProblem : limit.otherwise, limit.effect);
}

class Socket {
 public:
  Socket() : descriptor_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
  ~Socket() { ::close(descriptor_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int get() const { return descriptor_; }

 private:
  const int descriptor_;  // -1: every use fails with EBADF
};

sockaddr_in address_of(in_addr_t host, std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(host);
  address.sin_port = htons(port);
  return address;
}

// Connects over loopback to a port that the system chooses.
Finding check_loopback() {
  const Socket server, client;
  sockaddr_in address = address_of(INADDR_LOOPBACK, 0);
  socklen_t length = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  const bool connects = server.get() >= 0 && client.get() >= 0 && ::bind(server.get(), any, length) == 0 &&
                        ::listen(server.get(), 1) == 0 && ::getsockname(server.get(), any, &length) == 0 &&
                        ::connect(client.get(), any, length) == 0;
  return finding(connects, "loopback",
                 connects ? "ranks of this machine reach each other" : fmt::format("cannot connect: {}", std::strerror(errno)),
                 Health::kProblem, "ranks of one machine talk over 127.0.0.1: bring the interface lo up, and allow TCP there");
}

// Checks that MASTER_PORT, which the rendezvous uses, is free on this machine.
Finding check_master_port() {
  const char* const text = std::getenv("MASTER_PORT");
  if (text == nullptr || *text == '\0') return {"MASTER_PORT", Health::kOk, "not set: cairn-launch chooses a free one", ""};
  const int port = std::atoi(text);
  if (port < 1 || port > 65535)
    return {"MASTER_PORT", Health::kProblem, text, "no rank would find the others: give a number from 1 to 65535"};
  const Socket server;
  const sockaddr_in address = address_of(INADDR_ANY, static_cast<std::uint16_t>(port));
  const int yes = 1;
  ::setsockopt(server.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  const bool is_free = ::bind(server.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  return finding(is_free, "MASTER_PORT", is_free ? text : fmt::format("{}: {}", text, std::strerror(errno)), Health::kWarning,
                 "a job that has its rank 0 here could not assemble, unless it is this very job that runs: choose another port");
}

Finding check_clock() {
  struct timex state {};
  const bool in_step = ::adjtimex(&state) >= 0 && (state.status & STA_UNSYNC) == 0;
  return finding(in_step, "clock", in_step ? "kept in step by NTP or PTP" : "not kept in step by NTP or PTP", Health::kWarning,
                 "times in logs of several machines differ; cairn trace aligns clocks by messages. Run chrony, or its like");
}

int doctor(const DoctorOptions& options) {
  std::vector<Finding> findings;
  findings.push_back(check_versions());
  for (const Limit& limit : kLimits) findings.push_back(check_limit(limit));
  findings.push_back(check_loopback());
  findings.push_back(check_master_port());
  findings.push_back(check_clock());
  if (!options.directory.empty()) {
    const auto path = local_path(options.directory);
    if (!path) throw WrongUse(fmt::format("{} is no directory of this machine", printable(options.directory)));
    for (Finding& one : check_place(*path, options.test_bytes)) findings.push_back(std::move(one));
  }
  const auto worst = std::max_element(findings.begin(), findings.end(), [](const Finding& a, const Finding& b) {
                       return a.health < b.health;
                     })->health;
  if (options.json) {
    Json json{{"health", to_string(worst)}, {"checks", Json::array()}};
    for (const Finding& one : findings)
      json["checks"].push_back(
          {{"name", one.name}, {"health", to_string(one.health)}, {"found", one.found}, {"effect", one.effect}});
    print_json(json);
  } else {
    for (const Finding& one : findings) {
      print_line(fmt::format("{} {:<18} {}", coloured_health(one.health), one.name, printable(one.found)), kFoundColumn);
      if (!one.effect.empty()) print_line(fmt::format("{:{}}{}", "", kFoundColumn, one.effect), kFoundColumn);
    }
    if (options.directory.empty()) std::cout << "Name a directory to look at its disk as well.\n";
  }
  return worst == Health::kProblem ? kFoundBad : kFine;
}

}  // namespace

Finding finding(bool is_right, const char* name, std::string found, Health otherwise, std::string effect) {
  return {name, is_right ? Health::kOk : otherwise, std::move(found), is_right ? "" : std::move(effect)};
}

void add_doctor(CLI::App& app, Run& chosen) {
  const auto options = std::make_shared<DoctorOptions>();
  auto* const command = app.add_subcommand("doctor", "Find what would make saves slow or fail on this machine");
  command->footer(kDoctorExamples);
  command->add_option("DIR", options->directory, "The directory in which checkpoints will be saved");
  command->add_option("--test-size", options->test_bytes, "Largest size of the file that measures the disk")
      ->transform(CLI::AsSizeValue(false))
      ->type_name("SIZE")
      ->default_str("256MiB");
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([options, &chosen] { chosen = [options] { return doctor(*options); }; });
}

}  // namespace cairn::tools
