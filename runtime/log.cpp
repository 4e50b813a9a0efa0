#include <cairn/runtime/log.hpp>

#include <memory>
#include <mutex>

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

namespace cairn {
namespace {

std::shared_ptr<spdlog::logger> logger() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (auto registered = spdlog::get("cairn")) return registered;
  return spdlog::stderr_logger_mt("cairn");
}

}  // namespace

void log_warning(const std::string& text) { logger()->warn("{}", text); }

}  // namespace cairn
