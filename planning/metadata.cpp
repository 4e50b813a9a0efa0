#include <cairn/planning/metadata.hpp>

namespace cairn {

std::string to_string(const Path& path) {
  std::string text;
  for (std::size_t i = 0; i < path.size(); ++i) {
    if (i > 0) text += '.';
    if (const auto* key = std::get_if<std::string>(&path[i])) {
      text += *key;
    } else {
      text += std::to_string(std::get<std::int64_t>(path[i]));
    }
  }
  return text;
}

std::string describe_path(const Path& path) {
  std::string text;
  for (const PathElement& step : path) {
    if (const auto* index = std::get_if<std::int64_t>(&step)) {
      text += '[' + std::to_string(*index) + ']';
    } else {
      text += "[\"" + std::get<std::string>(step) + "\"]";
    }
  }
  return text.empty() ? "[]" : text;
}

const Metadata::Entry* Metadata::find(const std::string& fqn) const {
  // Two threads may build the index at once. Both build the same one, and the later store wins.
  auto map = index_.load();
  if (!map || map->size() != state_dict_metadata.size()) {
    auto fresh = std::make_shared<NameIndex::Map>();
    fresh->reserve(state_dict_metadata.size());
    for (std::size_t i = 0; i < state_dict_metadata.size(); ++i) fresh->emplace(state_dict_metadata[i].first, i);
    map = std::move(fresh);
    index_.store(map);
  }
  const auto found = map->find(fqn);
  // The index may be out of date if the caller forgot `reindex`. It must not lead outside the list.
  if (found == map->end() || found->second >= state_dict_metadata.size()) return nullptr;
  return &state_dict_metadata[found->second].second;
}

Metadata::Entry* Metadata::find(const std::string& fqn) { return const_cast<Entry*>(std::as_const(*this).find(fqn)); }

void Metadata::reindex() { index_.store(nullptr); }

}  // namespace cairn
