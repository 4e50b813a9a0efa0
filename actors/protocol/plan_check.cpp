#include <cairn/actors/protocol/plan_check.hpp>

#include <algorithm>
#include <string>

#include <cairn/base/error.hpp>

namespace cairn::protocol {
namespace {

// PyTorch's limit.
constexpr std::size_t kDimsMax = 64;

[[noreturn]] void refuse(const char* hook, std::size_t item, const char* what) {
  throw Error(ErrorCode::kInvalidArgument,
              "the plan that " + std::string(hook) + " returned is not usable: item " + std::to_string(item) + " " + what);
}

bool has_negative(const Extents& extents) {
  return std::any_of(extents.begin(), extents.end(), [](std::int64_t value) { return value < 0; });
}

}  // namespace

void check_plan(const SavePlan& plan, const char* hook) {
  for (std::size_t i = 0; i < plan.items.size(); ++i) {
    const WriteItem& item = plan.items[i];
    if (item.name >= plan.names.size()) refuse(hook, i, "refers to a name that is not in the plan's table");
    if (item.type < WriteItemType::kByteIO || item.type > WriteItemType::kShard) refuse(hook, i, "has an unknown type");
    if (item.type == WriteItemType::kByteIO) continue;
    const std::size_t dims = item.size.size();
    if (dims > kDimsMax) refuse(hook, i, "has more than 64 dimensions");
    if (item.chunk.offsets.size() != dims || item.chunk.sizes.size() != dims)
      refuse(hook, i, "differs in dimensions between its tensor's size and its chunk's offsets and sizes");
    if (has_negative(item.size) || has_negative(item.chunk.offsets) || has_negative(item.chunk.sizes))
      refuse(hook, i, "has a negative size or offset");
  }
  for (const auto& [name, path] : *plan.mappings)
    if (name >= plan.names.size()) refuse(hook, plan.items.size(), "(a mapping) refers to a name that is not in the plan's table");
}

void check_plan(const LoadPlan& plan, const char* hook) {
  for (std::size_t i = 0; i < plan.items.size(); ++i) {
    const ReadItem& item = plan.items[i];
    if (item.dest_name >= plan.names.size() || item.storage_name >= plan.names.size())
      refuse(hook, i, "refers to a name that is not in the plan's table");
    if (item.type < LoadItemType::kByteIO || item.type > LoadItemType::kTensor) refuse(hook, i, "has an unknown type");
    const std::size_t dims = item.lengths.size();
    if (dims > kDimsMax) refuse(hook, i, "has more than 64 dimensions");
    if (item.type == LoadItemType::kTensor && (item.dest_chunk_offset.size() != dims || item.dest_offsets.size() != dims ||
                                               item.storage_chunk_offset.size() != dims || item.storage_offsets.size() != dims))
      refuse(hook, i, "differs in dimensions between its offsets and its lengths");
    if (has_negative(item.dest_chunk_offset) || has_negative(item.dest_offsets) || has_negative(item.storage_chunk_offset) ||
        has_negative(item.storage_offsets) || has_negative(item.lengths))
      refuse(hook, i, "has a negative offset or length");
  }
}

}  // namespace cairn::protocol
