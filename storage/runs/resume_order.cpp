#include <cairn/storage/runs/resume_order.hpp>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <tuple>

#include <cairn/base/error.hpp>
#include <cairn/base/log.hpp>
#include <cairn/base/utf8.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/presence.hpp>

namespace cairn {
namespace {

std::optional<std::int64_t> recorded_step(const RunCheckpoint& checkpoint) {
  return checkpoint.head.step ? checkpoint.head.step : step_of_name(checkpoint.name);
}

// Returns why a place has a record for each rank, instead of one for all; "" if it has none.
std::string why_by_ranks(Store& place) {
  try {
    if (has_parts(place.children()))
      return std::string("each rank has saved its part for itself (use_collectives off): ") + kMergeAdvice;
  } catch (const Error& error) {
    // Trouble of the store says nothing about the place.
    if (!tells_of_the_record(error)) throw;
  }
  return "";
}

constexpr std::size_t kOtherNamesMax = 10;  // that the warning below names

// Warns of checkpoints that the manager does not consider, if it has found no other.
void log_other_names(const ResumeOrder& order, const RunDirectory& run) {
  if (order.other_names.empty()) return;
  const std::size_t count = std::min(order.other_names.size(), kOtherNamesMax);
  const auto can_be_read = [&](const ObjectName& name) {
    try {
      return run.why_unreadable(name).empty();
    } catch (const Error&) {  // trouble of the store
      return false;
    }
  };
  std::string readable, unreadable;
  for (std::size_t i = 0; i < count; ++i) {
    std::string& names = can_be_read(order.other_names[i]) ? readable : unreadable;
    names += (names.empty() ? "" : ", ") + printable_utf8(order.other_names[i]);
  }
  std::string text = "nothing was restored: " + printable_utf8(run.url()) +
                     " has no checkpoint of Cairn's, and of others only those called step_<n> are used";
  if (!readable.empty()) text += ". Rename one of these to resume from it: " + readable;
  if (!unreadable.empty()) text += ". These cannot be read (cairn verify tells why): " + unreadable;
  if (count < order.other_names.size()) text += ". There are " + std::to_string(order.other_names.size() - count) + " more";
  write_log(LogLevel::kWarning, 0, text);
}

struct GoneMeanwhile {};  // the checkpoint that is being looked at

}  // namespace

ResumeOrder resume_order(const RunDirectory& run, RunDirectory::Listing listing) {
  if (listing.refusal) std::rethrow_exception(listing.refusal);
  ResumeOrder order;
  order.listing = std::move(listing);
  std::vector<RunCheckpoint> by_pytorch;
  for (const ObjectName& name : order.listing.others) {
    const auto step = step_of_name(name);
    if (!step)
      order.other_names.push_back(name);
    else if (const std::string why = run.why_unreadable(name); !why.empty())
      order.passed_over.push_back({name, why});
    else
      by_pytorch.push_back({name, {{0, step, 0, "", "", {}, {}}, ""}});
  }
  std::sort(by_pytorch.begin(), by_pytorch.end(), [](const RunCheckpoint& a, const RunCheckpoint& b) {
    return std::tie(*a.head.step, a.name) > std::tie(*b.head.step, b.name);
  });

  const std::vector<RunCheckpoint>& by_cairn = order.listing.checkpoints;
  std::int64_t largest_step = -1;
  // If a run was set back, earlier checkpoints have larger steps than the latest.
  for (const RunCheckpoint& checkpoint : by_cairn) largest_step = std::max(largest_step, recorded_step(checkpoint).value_or(-1));
  const auto latest_step = by_cairn.empty() ? std::nullopt : recorded_step(by_cairn.front());
  // PyTorch's checkpoints have no sequence number, so only steps can be compared.
  const bool are_comparable = by_cairn.empty() || latest_step;
  const auto first_earlier = std::find_if(by_pytorch.begin(), by_pytorch.end(), [&](const RunCheckpoint& checkpoint) {
    return !are_comparable || *checkpoint.head.step <= largest_step;
  });
  for (auto checkpoint = first_earlier; checkpoint != by_pytorch.end(); ++checkpoint) {
    if (latest_step && *checkpoint->head.step <= *latest_step) break;
    const std::string& latest = by_cairn.front().name;
    const std::string reason = latest_step ? "Cairn has also saved step " + std::to_string(largest_step) : latest + " has no step";
    order.passed_over.push_back(
        {checkpoint->name, "PyTorch saved it, and whether before or after " + latest + " is unknown: " + reason});
  }
  // PyTorch's that are surely later come first. Those of unknown order come last.
  order.candidates.assign(by_pytorch.begin(), first_earlier);
  order.candidates.insert(order.candidates.end(), by_cairn.begin(), by_cairn.end());
  order.candidates.insert(order.candidates.end(), first_earlier, by_pytorch.end());

  const auto first_step = order.candidates.empty() ? std::nullopt : recorded_step(order.candidates.front());
  for (const ObjectName& name : order.listing.without_record) {
    const auto step = step_of_name(name);
    // Earlier places would not be resumed from in any case.
    if (!step || (first_step && *step <= *first_step)) continue;
    if (std::string why = why_by_ranks(*run.open(name)); !why.empty()) order.passed_over.push_back({name, std::move(why)});
  }
  return order;
}

std::optional<ResumeOrder> resume_order(const RunDirectory& run, DataWithoutRecord policy) {
  ResumeOrder order = resume_order(run, run.list());
  const std::vector<ObjectName> unrecorded = run.unrecorded(order.listing.without_record);
  const ObjectName& lost = order.listing.lost_latest;
  if (unrecorded.empty() && lost.empty()) return order;
  std::string names;
  for (const ObjectName& name : unrecorded) {
    names += (names.empty() ? "" : ", ") + printable_utf8(name);
    order.passed_over.push_back({name, "its data files have no commit record"});
  }
  std::string text, advice;
  if (!names.empty()) {
    text = "there are data files without a commit record (" + std::string(kCommitRecordName) + ") in " + names +
           ". The run may have been copied without hidden files: " + printable_utf8(run.url());
    advice = ". Restore the records or move these places away, or choose by ";
  } else {
    text = "the latest checkpoint was " + printable_utf8(lost) +
           ", and its record is gone, although Cairn has not removed it: " + printable_utf8(run.url());
    advice = ". Put it back, or go on without it by ";
    order.passed_over.push_back({lost, "its record is gone"});
  }
  if (policy == DataWithoutRecord::kRefuse)
    throw Error(ErrorCode::kCorrupt, text + advice + "CheckpointManagerOptions::data_without_record");
  if (policy == DataWithoutRecord::kStartAnew) {
    write_log(LogLevel::kWarning, 0, "nothing was restored, as the options say: " + text);
    return std::nullopt;
  }
  return order;
}

std::optional<ChosenCheckpoint> first_sound(const ResumeOrder& order, const std::string& run,
                                            const std::function<std::string(const RunCheckpoint&)>& fault_of) {
  std::vector<PassedOver> passed_over = order.passed_over;
  for (const RunCheckpoint& checkpoint : order.candidates) {
    const auto same = [&](const PassedOver& one) { return one.name == checkpoint.name; };
    passed_over.erase(std::remove_if(passed_over.begin(), passed_over.end(), same), passed_over.end());
    const std::string why = fault_of(checkpoint);
    if (why.empty()) return ChosenCheckpoint{checkpoint, std::move(passed_over)};
    passed_over.push_back({checkpoint.name, why});
  }
  if (passed_over.empty()) return std::nullopt;
  std::string text = "none of the checkpoints in " + run + " can be used. Mend one, or move them away to start anew:";
  for (const auto& [name, why] : passed_over) text += "\n  " + name + ": " + why;
  throw Error(ErrorCode::kCorrupt, text);
}

void require_run(const RunDirectory& run, bool is_checkpoint) {
  if (is_checkpoint)
    throw Error(ErrorCode::kPrecondition,
                run.url() + " is a checkpoint, not a run: pass the directory that holds it, probably " + parent_url(run.url()));
}

std::optional<ChosenCheckpoint> choose_checkpoint(const RunDirectory& run, DataWithoutRecord policy,
                                                  const std::vector<PassedOver>& damaged) {
  std::vector<ObjectName> seen;  // places in the previous look
  for (int tries = 1;; ++tries) {
    const auto order = resume_order(run, policy);
    require_run(run, order ? order->listing.is_checkpoint : run.is_checkpoint());
    if (!order) return std::nullopt;
    std::optional<ChosenCheckpoint> found;
    try {
      found = first_sound(*order, run.url(), [&](const RunCheckpoint& checkpoint) {
        const auto known =
            std::find_if(damaged.begin(), damaged.end(), [&](const PassedOver& one) { return one.name == checkpoint.name; });
        if (known != damaged.end()) return known->why;
        const std::string fault = run.fault_of(checkpoint.name);
        if (!fault.empty() && tries < kRestoreTriesMax && run.is_gone(checkpoint)) throw GoneMeanwhile();
        return fault;
      });
    } catch (const GoneMeanwhile&) {
      continue;  // the process that removed it has saved a later one
    }
    if (!found) {
      // Each checkpoint may have been removed while later ones were saved. A second look must
      // agree.
      if (order->listing.without_record != seen && tries < kRestoreTriesMax) {
        seen = order->listing.without_record;
        continue;
      }
      log_other_names(*order, run);
    } else if (found->passed_over.empty() && order->listing.without_record.empty()) {
      const auto is_own = [](const RunCheckpoint& one) { return !one.head.save_id.empty() && is_checkpoint_name(one.name); };
      if (std::all_of(order->candidates.begin(), order->candidates.end(), is_own)) found->all = order->candidates;
    }
    return found;
  }
}

}  // namespace cairn
