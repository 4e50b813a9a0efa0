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

const Metadata::Entry* Metadata::find(const std::string& fqn, std::size_t likely) const {
  if (likely < state_dict_metadata.size() && state_dict_metadata[likely].first == fqn) return &state_dict_metadata[likely].second;
  // Two threads may build the index at once. Both build the same one, and the later store wins.
  auto names = index_.load();
  if (!names || names->size() != state_dict_metadata.size()) {
    auto fresh = std::make_shared<NameTable>();
    fresh->reserve(state_dict_metadata.size());
    for (const auto& [name, entry] : state_dict_metadata) fresh->intern(name);
    names = std::move(fresh);
    index_.store(names);
  }
  const auto found = names->find(fqn);
  if (!found) return nullptr;
  if (*found < state_dict_metadata.size() && state_dict_metadata[*found].first == fqn) return &state_dict_metadata[*found].second;
  // A name that is there twice, or a caller that forgot `reindex`.
  for (const auto& [name, entry] : state_dict_metadata)
    if (name == fqn) return &entry;
  return nullptr;
}

Metadata::Entry* Metadata::find(const std::string& fqn) { return const_cast<Entry*>(std::as_const(*this).find(fqn)); }

void Metadata::reindex() { index_.store(nullptr); }

}  // namespace cairn
