#include <cairn/planning/metadata.hpp>

#include <algorithm>

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

std::optional<std::size_t> Metadata::position_of(const std::string& fqn, std::size_t likely) const {
  const auto is_at = [&](std::size_t at) { return at < state_dict_metadata.size() && state_dict_metadata[at].first == fqn; };
  // Most callers look up names in their order.
  const auto looked_up = [&](std::size_t at) {
    index_.next.store(at + 1, std::memory_order_relaxed);
    return at;
  };
  if (is_at(likely)) return likely == 0 ? looked_up(0) : likely;
  if (const std::size_t next = index_.next.load(std::memory_order_relaxed); is_at(next)) return looked_up(next);
  const auto known = index_.load();
  const auto names = known && known->size() == state_dict_metadata.size() ? known : make_index();
  const auto found = names->find(fqn);
  if (!found) return std::nullopt;
  if (is_at(*found)) return looked_up(*found);
  // A name that is there twice, or a caller that forgot `reindex`.
  for (std::size_t at = 0; at < state_dict_metadata.size(); ++at)
    if (is_at(at)) return at;
  return std::nullopt;
}

const Metadata::Entry* Metadata::find(const std::string& fqn, std::size_t likely) const {
  const auto at = position_of(fqn, likely);
  return at ? &state_dict_metadata[*at].second : nullptr;
}

Metadata::Entry* Metadata::find(const std::string& fqn) { return const_cast<Entry*>(std::as_const(*this).find(fqn)); }

// Two threads may build the index at once. Both build the same one, and the later store wins.
std::shared_ptr<const NameTable> Metadata::make_index() const {
  auto names = std::make_shared<NameTable>();
  names->reserve(state_dict_metadata.size());
  for (const auto& [name, entry] : state_dict_metadata) names->intern(name);
  index_.store(names);
  return names;
}

NameTable Metadata::names() const {
  const auto is_same = [](const auto& named, const std::string& name) { return named.first == name; };
  const auto known = index_.load();
  const auto& entries = state_dict_metadata;
  if (known && std::equal(entries.begin(), entries.end(), known->all().begin(), known->all().end(), is_same)) return *known;
  return *make_index();
}

void Metadata::reindex() { index_.store(nullptr); }

void Metadata::reindex(NameTable names) { index_.store(std::make_shared<const NameTable>(std::move(names))); }

}  // namespace cairn
