// Environment variables for one test.
#pragma once

#include <cstdlib>
#include <map>
#include <optional>
#include <string>

namespace cairn::testing {

// Sets or unsets variables, and restores the old values when destroyed.
class Environment {
 public:
  explicit Environment(const std::map<std::string, std::optional<std::string>>& values) {
    for (const auto& [name, value] : values) {
      const char* const old = std::getenv(name.c_str());
      old_[name] = old == nullptr ? std::nullopt : std::optional<std::string>(old);
      set(name, value);
    }
  }
  ~Environment() {
    for (const auto& [name, value] : old_) set(name, value);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  static void set(const std::string& name, const std::optional<std::string>& value) {
    if (value) {
      ::setenv(name.c_str(), value->c_str(), 1);
    } else {
      ::unsetenv(name.c_str());
    }
  }
  std::map<std::string, std::optional<std::string>> old_;
};

}  // namespace cairn::testing
