#include <cairn/planning/plan.hpp>

#include <algorithm>
#include <utility>

#include <cairn/base/error.hpp>

namespace cairn {
namespace {

bool is_short_text(std::string_view text) {
  return text.size() <= 7 && std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

// Adds an item of the local plan to the runs.
void add_item(std::size_t item, std::vector<PlanPart::Run>& runs) {
  if (runs.empty() || runs.back().begin + runs.back().items != item) runs.push_back({static_cast<std::uint32_t>(item), 0});
  ++runs.back().items;
}

}  // namespace

std::optional<PlanPart> part_of_plan(const SavePlan& local, const SavePlan& part) {
  if (part.items.size() > local.items.size()) return std::nullopt;
  PlanPart found{{}, {}, !part.mappings->empty(), part.planner_data, part.storage_data};
  const bool has_same_names = part.names.shares_with(local.names);
  if (found.has_mappings && !(has_same_names && part.mappings == local.mappings)) return std::nullopt;
  if (has_same_names && part.items.shares_with(local.items)) {
    if (!local.items.empty()) found.runs.push_back({0, static_cast<std::uint32_t>(local.items.size())});
    return found;
  }
  const auto first = local.items.begin(), end = local.items.end();
  const auto find = [&](auto begin, const WriteItem& b) {
    return std::find_if(begin, end, [&](const WriteItem& a) {
      return a.type == b.type && (has_same_names ? a.name == b.name : local.names[a.name] == part.names[b.name]) &&
             a.size == b.size && a.properties == b.properties && a.per_rank == b.per_rank && a.frozen == b.frozen;
    });
  };
  // A part has tensors before bytes objects, both in the order of the local plan: the search begins
  // once more at the first item.
  auto next = first;
  bool is_second_pass = false;
  for (std::size_t i = 0; i < part.items.size(); ++i, ++next) {
    const WriteItem& item = part.items[i];
    next = find(next, item);
    if (next == end && !std::exchange(is_second_pass, true)) next = find(first, item);
    if (next == end) return std::nullopt;
    add_item(static_cast<std::size_t>(next - first), found.runs);
    if (item.type != WriteItemType::kByteIO && item.chunk != next->chunk)
      found.chunks.emplace_back(static_cast<std::uint32_t>(i), item.chunk);
  }
  return found;
}

std::optional<SavePlan> plan_of_part(const SavePlan& local, const PlanPart& part) {
  SavePlan plan;
  plan.names = local.names;
  if (part.has_mappings) plan.mappings = local.mappings;
  plan.planner_data = part.planner_data;
  plan.storage_data = part.storage_data;
  std::size_t items = 0;
  for (const auto& [begin, count] : part.runs) {
    if (begin > local.items.size() || count > local.items.size() - begin) return std::nullopt;
    items += count;
    if (items > local.items.size()) return std::nullopt;
  }
  if (part.runs.size() == 1 && items == local.items.size()) {
    plan.items = local.items;
  } else {
    std::vector<WriteItem>& taken = plan.items.edit();
    taken.reserve(items);
    for (const auto& [begin, count] : part.runs)
      taken.insert(taken.end(), local.items.begin() + begin, local.items.begin() + begin + count);
  }
  for (const auto& [item, chunk] : part.chunks) {
    const std::size_t dims = item < items ? plan.items[item].size.size() : 0;
    if (item >= items || chunk.offsets.size() != dims || chunk.sizes.size() != dims) return std::nullopt;
    plan.items[item].chunk = chunk;
  }
  return plan;
}

std::uint64_t hash_of_short_text(std::string_view text) noexcept {
  if (!is_short_text(text)) return 0;
  std::uint64_t hash = 0;
  for (const char c : text) hash = hash << 8 | static_cast<unsigned char>(c);
  return hash;
}

std::string short_text_in(std::uint64_t content_hash) {
  std::string text;
  for (; content_hash != 0; content_hash >>= 8) text.insert(text.begin(), static_cast<char>(content_hash & 0xFF));
  return is_short_text(text) ? text : "";
}

bool has_tensor_hashes(const SavePlan& plan) noexcept {
  return std::any_of(plan.items.begin(), plan.items.end(),
                     [](const WriteItem& item) { return item.type != WriteItemType::kByteIO && item.content_hash != 0; });
}

std::uint64_t WriteItem::payload_bytes() const {
  if (type == WriteItemType::kByteIO) return content_bytes;
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(static_cast<std::uint64_t>(volume(chunk.sizes)), element_size(properties.dtype), &bytes))
    throw Error(ErrorCode::kInvalidArgument, "cannot count the bytes of a " + std::string(to_string(properties.dtype)) +
                                                 " chunk of size " + to_string(chunk.sizes) + ": more than 64 bits can count");
  return bytes;
}

std::string describe_read_once(const LoadPlans& local, const LoadPlans& global) {
  auto mode = ReadOnce::kWorld;
  std::uint64_t needed = 0, received = 0;
  for (const auto& plan : local) {
    if (!plan) return "read_once: off";  // the rank keeps its plan
    mode = std::min(mode, plan->offer.mode);
    for (const FileRange& range : plan->offer.needs) needed += range.end - range.begin;
  }
  if (mode <= ReadOnce::kOff) return "read_once: off";
  for (const auto& plan : global)
    for (const SharedRange& range : plan->shared ? plan->shared->ranges : std::vector<SharedRange>())
      if (range.receivers.empty()) received += range.bytes.end - range.bytes.begin;
  std::string by = mode == ReadOnce::kHost ? "host" : "world";
  if (mode == ReadOnce::kWorld && local.size() > kWorldRanksMax)
    by = "host, because there are more than " + std::to_string(kWorldRanksMax) + " ranks";
  return "read_once: " + by + ", of " + std::to_string(needed) + " bytes that the ranks need, " + std::to_string(received) +
         " come from other ranks";
}

}  // namespace cairn
