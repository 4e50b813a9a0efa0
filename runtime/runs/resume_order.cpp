#include <cairn/runtime/runs/resume_order.hpp>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

#include <cairn/base/error.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/presence.hpp>

namespace cairn {
namespace {

std::optional<std::int64_t> recorded_step(const RunCheckpoint& checkpoint) {
  return checkpoint.head.step ? checkpoint.head.step : step_of_name(checkpoint.name);
}

// Returns why a place has a record for each rank, instead of one for all; "" if it has none.
std::string why_by_ranks(Store& place) {
  constexpr std::string_view kSuffix = ".metadata";
  try {
    const std::vector<ObjectName> places = place.children();
    if (std::any_of(places.begin(), places.end(), [](const ObjectName& child) { return part_of_name(child).has_value(); }))
      return std::string("each rank has saved its part for itself (use_collectives off): ") + kMergeAdvice;
    for (const ObjectInfo& object : place.list("__"))
      if (object.name.size() > kSuffix.size() && ends_with(object.name, kSuffix))
        return "PyTorch wrote one record for each rank (use_collectives=False), which Cairn does not read: load it with PyTorch "
               "and save it with collectives";
  } catch (const Error& error) {
    // Trouble of the store says nothing about the place.
    if (!tells_of_the_record(error)) throw;
  }
  return "";
}

}  // namespace

ResumeOrder resume_order(const RunDirectory& run) {
  RunDirectory::Listing listing = run.list();
  if (listing.refusal) std::rethrow_exception(listing.refusal);
  ResumeOrder order;
  std::vector<RunCheckpoint> by_pytorch;
  for (const ObjectName& name : listing.others) {
    const auto step = step_of_name(name);
    if (!step)
      order.other_names.push_back(name);
    else if (const std::string why = run.why_unreadable(name); !why.empty())
      order.passed_over.push_back({name, why});
    else
      by_pytorch.push_back({name, {"", 0, step, {}}});
  }
  std::sort(by_pytorch.begin(), by_pytorch.end(), [](const RunCheckpoint& a, const RunCheckpoint& b) {
    return std::tie(*a.head.step, a.name) > std::tie(*b.head.step, b.name);
  });

  const std::vector<RunCheckpoint>& by_cairn = listing.checkpoints;
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
    const std::string reason =
        latest_step ? "Cairn has also saved step " + std::to_string(largest_step) : latest + " has no step";
    order.passed_over.push_back(
        {checkpoint->name, "PyTorch saved it, and whether before or after " + latest + " is unknown: " + reason});
  }
  // PyTorch's that are surely later come first. Those of unknown order come last.
  order.candidates.assign(by_pytorch.begin(), first_earlier);
  order.candidates.insert(order.candidates.end(), by_cairn.begin(), by_cairn.end());
  order.candidates.insert(order.candidates.end(), first_earlier, by_pytorch.end());

  order.without_record = std::move(listing.without_record);
  order.lost_latest = std::move(listing.lost_latest);
  order.is_checkpoint = listing.is_checkpoint;
  const auto first_step = order.candidates.empty() ? std::nullopt : recorded_step(order.candidates.front());
  for (const ObjectName& name : order.without_record) {
    const auto step = step_of_name(name);
    // Earlier places would not be resumed from in any case.
    if (!step || (first_step && *step <= *first_step)) continue;
    if (std::string why = why_by_ranks(*run.open(name)); !why.empty()) order.passed_over.push_back({name, std::move(why)});
  }
  return order;
}

}  // namespace cairn
