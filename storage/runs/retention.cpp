#include <cairn/storage/runs/retention.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include <cairn/base/error.hpp>
#include <cairn/base/utf8.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/store.hpp>
#include <cairn/storage/tiers.hpp>

namespace cairn {

void check_policy(const RetentionPolicy& policy) {
  if (policy.keep_last && *policy.keep_last == 0)
    throw Error(ErrorCode::kInvalidArgument,
                "RetentionPolicy::keep_last is 0: at least the last checkpoint stays; leave it empty to keep all");
  if (policy.keep_every < 0)
    throw Error(ErrorCode::kInvalidArgument,
                "RetentionPolicy::keep_every is " + std::to_string(policy.keep_every) + ": give a number of steps, or 0");
  if (!policy.keep_last && (policy.keep_every > 0 || policy.keep_best > 0))
    throw Error(ErrorCode::kInvalidArgument, std::string("RetentionPolicy::") +
                                                 (policy.keep_every > 0 ? "keep_every" : "keep_best") +
                                                 " removes nothing without keep_last: set keep_last, too");
  if (policy.keep_best > 0 && policy.metric.empty())
    throw Error(ErrorCode::kInvalidArgument, "RetentionPolicy::keep_best needs the name of a metric");
  if (policy.better != Better::kLower && policy.better != Better::kHigher)
    throw Error(ErrorCode::kInvalidArgument, "RetentionPolicy::better is neither kLower nor kHigher");
}

std::set<std::string> kept_by(const RetentionPolicy& policy, const std::vector<CheckpointInfo>& latest_first) {
  std::set<std::string> kept;
  std::set<std::int64_t> steps;
  std::vector<std::pair<double, const std::string*>> ranked;
  for (std::size_t i = 0; i < latest_first.size(); ++i) {
    const CheckpointInfo& checkpoint = latest_first[i];
    if (i < *policy.keep_last) kept.insert(checkpoint.name);
    // If several checkpoints have this step, only the latest is kept for it.
    if (policy.keep_every > 0 && checkpoint.step && *checkpoint.step % policy.keep_every == 0 &&
        steps.insert(*checkpoint.step).second)
      kept.insert(checkpoint.name);
    const auto metric = checkpoint.annotations.metrics.find(policy.metric);
    // NaN compares with nothing, and would break the sort.
    if (metric != checkpoint.annotations.metrics.end() && std::isfinite(metric->second))
      ranked.emplace_back(policy.better == Better::kLower ? metric->second : -metric->second, &checkpoint.name);
  }
  // A stable sort keeps the later of equal checkpoints first.
  std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (std::size_t i = 0; i < std::min<std::size_t>(policy.keep_best, ranked.size()); ++i) kept.insert(*ranked[i].second);
  return kept;
}

std::string why_unrankable(const RetentionPolicy& policy, const std::vector<CheckpointInfo>& checkpoints) {
  std::set<std::string> known;
  for (const CheckpointInfo& checkpoint : checkpoints)
    for (const auto& [name, value] : checkpoint.annotations.metrics)
      if (std::isfinite(value)) known.insert(printable_utf8(name));
  if (policy.keep_best == 0 || checkpoints.empty() || known.count(printable_utf8(policy.metric)) > 0) return "";
  std::string names;
  for (const std::string& name : known) names += (names.empty() ? "" : ", ") + name;
  return "no checkpoint has a finite value of the metric \"" + printable_utf8(policy.metric) + "\", by which the best are kept (" +
         (names.empty() ? "no checkpoint has metrics" : "the metrics are: " + names) + ")";
}

namespace {

// Checkpoints that share files with the latest sound one are damaged together with it. If all
// others that are kept do, the latest sound one that shares none stays as well.
template <class IsDamaged>
void keep_second_copy(Retention& found, const IsDamaged& is_damaged) {
  const auto is_latest = [&](const RunCheckpoint& one) { return one.name == found.latest_sound; };
  const auto latest = std::find_if(found.checkpoints.begin(), found.checkpoints.end(), is_latest);
  if (latest == found.checkpoints.end() || latest->head.shares_with.empty()) return;
  std::set<std::string> writers(latest->head.shares_with.begin(), latest->head.shares_with.end());
  writers.insert(latest->head.save_id);
  bool is_alone = true;
  const std::string* apart = nullptr;
  for (const CheckpointInfo& info : found.sound) {
    const auto one = std::find_if(latest, found.checkpoints.end(), [&](const auto& other) { return other.name == info.name; });
    if (one == found.checkpoints.end() || is_latest(*one)) continue;
    const auto& others = one->head.shares_with;
    const bool is_apart = writers.count(info.save_id) == 0 && std::none_of(others.begin(), others.end(), [&](const auto& id) {
                            return writers.count(id) > 0;
                          });
    const bool is_kept = found.kept.count(info.name) > 0;
    if (is_kept && is_apart) return;
    is_alone = is_alone && !is_kept;
    if (is_apart && apart == nullptr && !is_damaged(info)) apart = &info.name;
  }
  if (!is_alone && apart != nullptr) found.kept.insert(*apart);
}

}  // namespace

Retention look_at_retention(const RunDirectory& run, const RetentionPolicy& policy) {
  KnownCheckpoints known;
  return look_at_retention(run, policy, run.list(), known);
}

Retention look_at_retention(const RunDirectory& run, const RetentionPolicy& policy, RunDirectory::Listing listing,
                            KnownCheckpoints& known) {
  Retention found;
  for (RunCheckpoint& checkpoint : listing.checkpoints) {
    // Other names were chosen by users, so nothing of theirs is removed.
    if (!is_checkpoint_name(checkpoint.name)) continue;
    found.infos.push_back(info_of(run, checkpoint));
    found.checkpoints.push_back(std::move(checkpoint));
  }
  found.sound = found.infos;
  found.kept = kept_by(policy, found.infos);
  if (found.kept.size() < found.infos.size()) found.why_all = why_unrankable(policy, found.infos);
  if (!found.why_all.empty())
    for (const CheckpointInfo& info : found.infos) found.kept.insert(info.name);
  if (found.kept.size() == found.infos.size()) return found;
  // Otherwise a run whose newest checkpoints are damaged might have none to resume from. Looks only
  // at checkpoints that are kept, because each look takes a few requests.
  std::set<std::string> seen;
  // One fault damages all checkpoints that share the file, although they were whole before.
  const auto shares = [](const RunCheckpoint& one) { return !one.head.shares_with.empty(); };
  if (std::any_of(found.checkpoints.begin(), found.checkpoints.end(), shares)) known.whole.clear();
  const auto is_damaged = [&](const CheckpointInfo& info) {
    if (!seen.insert(info.name).second || known.whole.count(info.save_id) > 0) return false;
    if (known.damaged.count(info.save_id) > 0 || !run.fault_of(info.name, info.save_id).empty()) return true;
    known.whole.insert(info.save_id);
    return false;
  };
  while (true) {
    const std::set<std::string> kept = kept_by(policy, found.sound);
    const auto bad = std::find_if(found.sound.begin(), found.sound.end(),
                                  [&](const CheckpointInfo& info) { return kept.count(info.name) > 0 && is_damaged(info); });
    if (bad == found.sound.end()) {
      found.kept.insert(kept.begin(), kept.end());
      break;
    }
    found.sound.erase(bad);
  }
  if (!found.sound.empty()) {
    found.latest_sound = found.sound.front().name;
    found.kept.insert(found.latest_sound);
  }
  keep_second_copy(found, is_damaged);
  if (found.kept.size() == found.checkpoints.size()) return found;
  // In tiers, the latest checkpoint that the far tier has stays until a later one is copied.
  const auto copied = std::find_if(found.checkpoints.begin(), found.checkpoints.end(), [&](const RunCheckpoint& one) {
    return is_copied(child_url(run.url(), one.name), one.head.save_id);
  });
  if (copied != found.checkpoints.end()) {
    if (is_tiered(run.url())) found.latest_copied = copied->name;
    found.kept.insert(copied->name);
  }
  return found;
}

}  // namespace cairn
