// Collects the keys on which ranks disagree. Reports them in one error that names keys and ranks.
// Internal to planning.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <cairn/planning/plan.hpp>

namespace cairn {

struct RankItem {
  int rank = 0;
  const WriteItem* item = nullptr;
};

// Returns "'w' differs between ranks: ranks 0, 2-15 have one value, rank 1 another". `items` is
// ordered by rank. Bounded for any number of ranks, but for the name.
std::string describe_difference(const std::string& fqn, const std::vector<RankItem>& items);

class Disagreements {
 public:
  // Adds a key whose items differ between ranks. `items` is ordered by rank.
  void add_values(const std::string& fqn, const std::vector<RankItem>& items);
  // Adds a key that is marked `per_rank` (see WriteItem), but that several ranks use.
  void add_shared_per_rank(const std::string& fqn, const std::vector<RankItem>& items);
  // Adds a key that two ranks nest under different paths.
  void add_paths(const std::string& fqn, int rank, const Path& path, int other_rank, const Path& other_path);

  // Adds those that were found in later names.
  void append(const Disagreements& later);

  // Throws kMismatch if anything was added. Lists the first keys and counts the rest.
  void throw_if_any() const;

 private:
  void add(std::string text);

  std::size_t count_ = 0;
  std::vector<std::string> texts_;
};

// Returns whether each bytes object that several ranks list has one content.
bool have_equal_values(const std::vector<std::shared_ptr<const SavePlan>>& plans);

}  // namespace cairn
