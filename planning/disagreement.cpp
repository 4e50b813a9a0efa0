#include <cairn/planning/disagreement.hpp>

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <cairn/base/error.hpp>
#include <cairn/base/rank_text.hpp>

namespace cairn {
namespace {

// Bound the error text. Every rank of the attempt gets a copy of it.
constexpr std::size_t kKeysShownMax = 20;
constexpr std::size_t kVariantsShownMax = 8;

// The item that one or more ranks hold under a key.
struct Variant {
  const WriteItem* item;
  std::vector<int> ranks;
};

bool same(const WriteItem& a, const WriteItem& b) {
  if ((a.type == WriteItemType::kByteIO) != (b.type == WriteItemType::kByteIO)) return false;
  // Plans carry a hash of each bytes object, not its content.
  if (a.type == WriteItemType::kByteIO) return a.content_hash == b.content_hash && a.content_bytes == b.content_bytes;
  return a.size == b.size && a.properties.dtype == b.properties.dtype;
}

std::string text_of(const WriteItem& item) {
  if (item.type == WriteItemType::kByteIO) {
    std::string value = short_text_in(item.content_hash);
    return value.empty() ? "a value of " + std::to_string(item.content_bytes) + " bytes" : value;
  }
  return "a " + std::string(to_string(item.properties.dtype)) + " tensor of size " + to_string(item.size);
}

// Quotes text keys but not list indices, because "list.0" may mean either.
std::string quoted(const Path& path) {
  std::string text;
  for (const PathElement& element : path) {
    if (!text.empty()) text += ", ";
    const auto* key = std::get_if<std::string>(&element);
    text += key ? "'" + *key + "'" : std::to_string(std::get<std::int64_t>(element));
  }
  return "(" + text + ")";
}

void add_rank(std::vector<int>& ranks, int rank) {
  if (ranks.empty() || ranks.back() != rank) ranks.push_back(rank);
}

// Returns the variants, and the number of items that are of further variants.
std::pair<std::vector<Variant>, std::size_t> variants_of(const std::vector<RankItem>& items,
                                                         bool (*same)(const WriteItem&, const WriteItem&)) {
  std::vector<Variant> variants;
  std::size_t unlisted = 0;
  for (const RankItem& held : items) {
    const auto known = std::find_if(variants.begin(), variants.end(), [&](const Variant& v) { return same(*v.item, *held.item); });
    if (known != variants.end()) {
      add_rank(known->ranks, held.rank);
    } else if (variants.size() < kVariantsShownMax) {
      variants.push_back({held.item, {held.rank}});
    } else {
      ++unlisted;
    }
  }
  return {std::move(variants), unlisted};
}

}  // namespace

std::string describe_difference(const std::string& fqn, const std::vector<RankItem>& items) {
  const auto [variants, unlisted] =
      variants_of(items, [](const WriteItem& a, const WriteItem& b) { return a.content_hash == b.content_hash; });
  std::string text = "'" + fqn + "' differs between ranks: ";
  for (std::size_t i = 0; i < variants.size(); ++i) {
    if (i > 0) text += ", ";
    text += name_ranks(variants[i].ranks);
    text += i > 1 ? " yet another" : i > 0 ? " another" : variants[i].ranks.size() > 1 ? " have one value" : " has one value";
  }
  if (unlisted > 0) text += ", and " + std::to_string(unlisted) + " more ranks yet others";
  return text;
}

void Disagreements::add(std::string text) {
  if (++count_ <= kKeysShownMax) texts_.push_back(std::move(text));
}

void Disagreements::add_values(const std::string& fqn, const std::vector<RankItem>& items) {
  // Later keys are only counted, so their texts are not made.
  if (count_ >= kKeysShownMax) {
    ++count_;
    return;
  }
  const auto found = variants_of(items, same);
  const std::vector<Variant>& variants = found.first;
  std::string text = "'" + fqn + "' is ";
  for (std::size_t i = 0; i < variants.size(); ++i) {
    if (i > 0) text += ", ";
    // Two values may differ and yet have the same description, such as bytes objects of equal
    // length.
    const bool seen = std::any_of(variants.begin(), variants.begin() + static_cast<std::ptrdiff_t>(i),
                                  [&](const Variant& v) { return text_of(*v.item) == text_of(*variants[i].item); });
    text += (seen ? "another such on " : text_of(*variants[i].item) + " on ") + name_ranks(variants[i].ranks);
  }
  if (found.second > 0) text += ", and yet others on " + std::to_string(found.second) + " more";
  add(std::move(text));
}

void Disagreements::add_shared_per_rank(const std::string& fqn, const std::vector<RankItem>& items) {
  std::vector<int> ranks;
  for (const RankItem& held : items) add_rank(ranks, held.rank);
  add("'" + fqn + "' is marked as each rank's own, yet " + name_ranks(ranks) + " save it under one name");
}

void Disagreements::add_paths(const std::string& fqn, int rank, const Path& path, int other_rank, const Path& other_path) {
  add("'" + fqn + "' lies at " + quoted(path) + " on rank " + std::to_string(rank) + " and at " + quoted(other_path) + " on rank " +
      std::to_string(other_rank));
}

void Disagreements::append(const Disagreements& later) {
  for (std::size_t i = 0; i < later.texts_.size() && texts_.size() < kKeysShownMax; ++i) texts_.push_back(later.texts_[i]);
  count_ += later.count_;
}

void Disagreements::throw_if_any() const {
  if (count_ == 0) return;
  std::string text = "cannot join the plans of all ranks, they disagree: ";
  for (std::size_t i = 0; i < texts_.size(); ++i) text += (i > 0 ? "; " : "") + texts_[i];
  if (count_ > texts_.size()) text += "; and " + std::to_string(count_ - texts_.size()) + " more";
  text += ". Make the values equal, mark with per_rank what differs on purpose, or choose RankValues::kLowestRankWins";
  throw Error(ErrorCode::kMismatch, text);
}

// A repeated plan needs this alone: the digests of the local plans cover all but the contents of
// bytes objects.
bool have_equal_values(const std::vector<std::shared_ptr<const SavePlan>>& plans) {
  std::unordered_map<std::string_view, const WriteItem*> first;
  for (const auto& plan : plans)
    for (const WriteItem& item : plan->items) {
      if (item.type != WriteItemType::kByteIO) continue;
      const WriteItem& other = *first.emplace(plan->names[item.name], &item).first->second;
      if (other.content_hash != item.content_hash || other.content_bytes != item.content_bytes) return false;
    }
  return true;
}

}  // namespace cairn
