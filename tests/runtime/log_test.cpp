// What the library says to people goes where the program wants it.
#include <cairn/tests/support/plain.hpp>
//
#include <memory>
#include <sstream>

#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <cairn/runtime/log.hpp>

namespace cairn::testing {
namespace {

TEST_CASE("warnings go to the program's logger of that name") {
  std::ostringstream written;
  const auto before = spdlog::get("cairn");
  spdlog::drop("cairn");
  spdlog::register_logger(std::make_shared<spdlog::logger>("cairn", std::make_shared<spdlog::sinks::ostream_sink_mt>(written)));
  log_warning("percent % and {braces}");
  spdlog::drop("cairn");
  if (before) spdlog::register_logger(before);
  CHECK(written.str().find("warning") != std::string::npos);
  CHECK(written.str().find("percent % and {braces}") != std::string::npos);
}

TEST_CASE("a warning before the program has a logger of that name leaves the name free") {
  const auto before = spdlog::get("cairn");
  spdlog::drop("cairn");
  log_warning("the log test says this to nobody");
  CHECK(spdlog::get("cairn") == nullptr);
  CHECK_NOTHROW(spdlog::register_logger(std::make_shared<spdlog::logger>("cairn")));
  spdlog::drop("cairn");
  if (before) spdlog::register_logger(before);
}

}  // namespace
}  // namespace cairn::testing
