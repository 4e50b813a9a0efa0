// Counts by name the events in the worlds of this process. Tests use the counts to prove that some
// seed took each rare branch.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace cairn::simulation {

class Coverage {
 public:
  void hit(const std::string& what) { ++counts_[what]; }
  std::uint64_t operator[](const std::string& what) const {
    const auto found = counts_.find(what);
    return found == counts_.end() ? 0 : found->second;
  }
  const std::map<std::string, std::uint64_t>& counts() const { return counts_; }

 private:
  std::map<std::string, std::uint64_t> counts_;
};

}  // namespace cairn::simulation
