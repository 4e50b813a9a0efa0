#include <cairn/actors/protocol/plan_cache.hpp>

#include <algorithm>

namespace cairn::protocol {
namespace {

bool is_bytes_object(const WriteItem& item) { return item.type == WriteItemType::kByteIO; }

}  // namespace

ContentColumns content_of(const SavePlan& plan) {
  ContentColumns columns;
  const bool with_tensors = has_tensor_hashes(plan);
  for (const auto& item : plan.items) {
    if (with_tensors || is_bytes_object(item)) columns.hashes.push_back(item.content_hash);
    if (is_bytes_object(item)) columns.bytes.push_back(item.content_bytes);
  }
  return columns;
}

std::shared_ptr<const SavePlan> refreshed(std::shared_ptr<const SavePlan> kept, const std::vector<std::uint64_t>& hashes,
                                          const std::vector<std::uint64_t>& bytes) {
  const auto count = static_cast<std::size_t>(std::count_if(kept->items.begin(), kept->items.end(), is_bytes_object));
  const bool with_tensors = hashes.size() == kept->items.size();
  if (bytes.size() != count || (!with_tensors && hashes.size() != count)) return nullptr;
  if (hashes.empty() && !has_tensor_hashes(*kept)) return kept;
  auto plan = std::make_shared<SavePlan>(*kept);
  auto hash = hashes.begin();
  auto size = bytes.begin();
  for (auto& item : plan->items) {
    const bool is_bytes = is_bytes_object(item);
    item.content_hash = with_tensors || is_bytes ? *hash++ : 0;
    if (is_bytes) item.content_bytes = *size++;
  }
  return plan;
}

}  // namespace cairn::protocol
