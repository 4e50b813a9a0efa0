#include <cairn/runtime/log.hpp>

#include <memory>

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

namespace cairn {
namespace {

constexpr const char* kName = "cairn";

std::shared_ptr<spdlog::logger> logger() {
  if (auto registered = spdlog::get(kName)) return registered;
  // Not registered: the name stays free for the program, which may take it later. Never destroyed, as whoever warns may be a static.
  static const auto& own = *new std::shared_ptr<spdlog::logger>(
      std::make_shared<spdlog::logger>(kName, std::make_shared<spdlog::sinks::stderr_sink_mt>()));
  return own;
}

}  // namespace

void log_warning(const std::string& text) { logger()->warn("{}", text); }

}  // namespace cairn
