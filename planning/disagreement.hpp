// What ranks say differently of one key, as one error that names keys and ranks. Internal to planning.
#pragma once

#include <string>
#include <vector>

#include <cairn/planning/plan.hpp>

namespace cairn {

struct RankItem {
  int rank = 0;
  const WriteItem* item = nullptr;
};

class Disagreements {
 public:
  // The items of one key, by rank: not all of them agree.
  void add_values(const std::string& fqn, const std::vector<RankItem>& items);
  // Marked per rank, yet several ranks use the name.
  void add_shared_per_rank(const std::string& fqn, const std::vector<RankItem>& items);
  void add_paths(const std::string& fqn, int rank, const Path& path, int other_rank, const Path& other_path);

  // Throws kMismatch naming every key, up to a bound.
  void throw_if_any() const;

 private:
  void add(std::string text);

  std::size_t count_ = 0;
  std::vector<std::string> texts_;
};

}  // namespace cairn
