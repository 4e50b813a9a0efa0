// The checks of `cairn doctor`. Each one reports what it found, the consequence for saves, and what
// to do.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace cairn::tools {

enum class Health : std::uint8_t { kOk = 1, kWarning, kProblem };

struct Finding {
  std::string name;  // "open files"
  Health health = Health::kOk;
  std::string found;   // "1024"
  std::string effect;  // the consequence (slow or failed saves) and what to do; "" if kOk
};

// If `is_right`, returns a finding that is kOk and has no effect. If not, returns one with health
// `otherwise` and `effect`.
Finding finding(bool is_right, const char* name, std::string found, Health otherwise, std::string effect);

// Checks a directory for checkpoints. Writes a file of at most `test_bytes` there, and removes it.
// If the directory is not writable, reports that as a finding.
std::vector<Finding> check_place(const std::filesystem::path& directory, std::uint64_t test_bytes);

}  // namespace cairn::tools
