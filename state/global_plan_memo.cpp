#include <cairn/state/global_plan_memo.hpp>

#include <string_view>
#include <unordered_map>

#include <cairn/planning/require_coverage.hpp>

namespace cairn {
namespace {

Digest digest_of(const std::vector<SavePlan>& plans, const GlobalPlanOptions& options) {
  DigestBuilder builder;
  builder.add(static_cast<std::uint64_t>(options.dedup))
      .add(static_cast<std::uint64_t>(options.rank_values))
      .add(options.split_above_bytes);
  builder.add(static_cast<std::uint64_t>(plans.size()));
  for (const SavePlan& plan : plans) {
    const Digest digest = plan_digest(plan);
    builder.add(ByteSpan(digest.data(), digest.size()));
  }
  return builder.finish();
}

// Returns whether every bytes object has the same value on all ranks that hold it.
bool values_agree(const std::vector<SavePlan>& plans) {
  std::unordered_map<std::string_view, const WriteItem*> first;
  for (const SavePlan& plan : plans) {
    for (const WriteItem& item : plan.items) {
      if (item.type != WriteItemType::kByteIO || item.per_rank) continue;
      const auto [known, is_new] = first.emplace(plan.names[item.name], &item);
      if (is_new) continue;
      if (known->second->content_hash != item.content_hash || known->second->content_bytes != item.content_bytes) return false;
    }
  }
  return true;
}

// Copies the current hashes and sizes of `local` to `planned`. Returns false if `planned` has an
// object that `local` lacks.
bool refresh(const SavePlan& local, SavePlan& planned) {
  std::vector<const WriteItem*> by_name(local.names.size(), nullptr);
  for (const WriteItem& item : local.items) {
    if (item.type == WriteItemType::kByteIO) by_name[item.name] = &item;
  }
  for (WriteItem& item : planned.items) {
    if (item.type != WriteItemType::kByteIO) continue;
    const auto id = local.names.find(planned.names[item.name]);
    if (!id || by_name[*id] == nullptr) return false;
    item.content_hash = by_name[*id]->content_hash;
    item.content_bytes = by_name[*id]->content_bytes;
  }
  return true;
}

}  // namespace

GlobalSavePlan GlobalPlanMemo::plan(std::vector<SavePlan> local_plans, const GlobalPlanOptions& options) {
  const Digest key = digest_of(local_plans, options);
  // If ranks disagree, run the full planner: it reports how they differ.
  if (key_ == key && (options.rank_values == RankValues::kLowestRankWins || values_agree(local_plans))) {
    GlobalSavePlan result = result_;
    bool refreshed = result.plans.size() == local_plans.size();
    for (std::size_t rank = 0; refreshed && rank < local_plans.size(); ++rank)
      refreshed = refresh(local_plans[rank], result.plans[rank]);
    if (refreshed) return result;
  }
  key_.reset();
  GlobalSavePlan result = create_global_save_plan(std::move(local_plans), options);
  // Check before any rank writes. Cached plans have already passed this check.
  require_coverage(result.metadata, "cannot plan the save");
  result_ = result;
  key_ = key;
  return result;
}

}  // namespace cairn
