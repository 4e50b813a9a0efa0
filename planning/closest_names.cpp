#include <cairn/planning/closest_names.hpp>

#include <algorithm>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

namespace cairn {
namespace {

// Bound the time of an error message. One comparison costs the product of both lengths.
constexpr std::size_t kComparedNamesMax = 20'000;
constexpr std::size_t kComparedLengthMax = 256;

// Returns the number of letters to insert, delete or replace to turn one text into the other.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  // The usual table of Levenshtein distances, of which only the last row is kept.
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t exchanged = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({exchanged, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::vector<std::string> closest_names(const std::string& name, const Metadata& metadata, SuggestPrefixes prefixes,
                                       std::size_t count) {
  // A set, because many names share a prefix.
  std::set<std::string> candidates;
  const auto add = [&](const std::string& stored) {
    if (candidates.size() >= kComparedNamesMax) return;
    for (std::size_t dot = stored.find('.'); dot != std::string::npos && prefixes == SuggestPrefixes::kYes;
         dot = stored.find('.', dot + 1))
      candidates.insert(stored.substr(0, dot));
    candidates.insert(stored);
  };
  for (const auto& [stored, entry] : metadata.state_dict_metadata) add(stored);
  for (const std::string_view stored : metadata.others.names) add(std::string(stored));
  std::vector<std::pair<std::size_t, std::string>> ranked;
  ranked.reserve(candidates.size());
  for (const std::string& candidate : candidates) {
    ranked.emplace_back(edit_distance(std::string_view(name).substr(0, kComparedLengthMax),
                                      std::string_view(candidate).substr(0, kComparedLengthMax)),
                        candidate);
  }
  count = std::min(count, ranked.size());
  // Equal distances are ordered by name, so that every rank suggests the same.
  std::partial_sort(ranked.begin(), ranked.begin() + static_cast<std::ptrdiff_t>(count), ranked.end());
  std::vector<std::string> closest;
  for (std::size_t i = 0; i < count; ++i) closest.push_back(std::move(ranked[i].second));
  return closest;
}

std::string closest_names_text(const std::string& name, const Metadata& metadata, SuggestPrefixes prefixes) {
  std::string text;
  for (const std::string& close : closest_names(name, metadata, prefixes)) text += (text.empty() ? "\"" : ", \"") + close + '"';
  return text.empty() ? "the checkpoint is empty" : "the closest are " + text;
}

}  // namespace cairn
