#include <cairn/base/process_name.hpp>

#include <unistd.h>

#include <chrono>
#include <fstream>
#include <sstream>

namespace cairn {
namespace {

// Returns the time at which this machine was started, in seconds since 1970; 0 if unknown.
std::int64_t boot_time() {
  std::ifstream file("/proc/stat");
  for (std::string line; std::getline(file, line);) {
    std::int64_t seconds = 0;
    if (std::istringstream words(line); words >> line && line == "btime" && words >> seconds) return seconds;
  }
  return 0;
}

}  // namespace

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

std::string machine_name() {
  std::string name;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), name);
  if (name.empty()) name = host_name();
  char network[64] = "";
  if (::readlink("/proc/thread-self/ns/net", network, sizeof(network) - 1) > 0) name += std::string("/") + network;
  return name;
}

std::string process_name(std::uint64_t process, const std::string& host) {
  return "process " + std::to_string(process) + (host.empty() ? "" : " on " + host);
}

std::string process_name() { return process_name(static_cast<std::uint64_t>(::getpid()), host_name()); }

bool is_running(std::uint64_t process, WallTime then) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  std::getline(file, text);
  // The second field, in parentheses, may contain anything. The state is the third, the start the
  // 22nd.
  const auto name_end = text.rfind(')');
  if (name_end == std::string::npos) return false;
  std::istringstream fields(text.substr(name_end + 1));
  std::string state, skipped;
  fields >> state;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  std::int64_t ticks = 0;
  if (!(fields >> ticks) || state == "Z" || state == "X") return false;
  const auto started = std::chrono::seconds(boot_time() + ticks / ::sysconf(_SC_CLK_TCK));
  // Another process may have this id by now. The time of the boot is rounded.
  return then.time_since_epoch() + std::chrono::seconds(2) >= started;
}

}  // namespace cairn
