#include <cairn/planning/plan.hpp>

#include <algorithm>

#include <cairn/base/error.hpp>

namespace cairn {
namespace {

bool is_short_text(std::string_view text) {
  return text.size() <= 7 && std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

}  // namespace

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
