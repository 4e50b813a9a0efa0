#include <cairn/runtime/observation/progress_text.hpp>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <vector>

#include <cairn/base/enum_names.hpp>
#include <cairn/base/utf8.hpp>

namespace cairn {
namespace {

using std::chrono::milliseconds;
using Step = CallProgress::Step;

// A longer estimate shows only that hardly anything has been moved yet.
constexpr milliseconds kLeftMax = std::chrono::hours(1000);

// A checkpoint id is cut down to this before figures are left out.
constexpr std::size_t kIdColumnsMin = 5;

std::string formatted(const char* format, double value) {
  char text[32];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

struct Unit {
  double size;
  const char* name;
};
Unit unit_of(std::uint64_t bytes) {
  for (const Unit& unit : {Unit{0x1p40, "TiB"}, Unit{0x1p30, "GiB"}, Unit{0x1p20, "MiB"}, Unit{0x1p10, "KiB"}})
    if (static_cast<double>(bytes) >= unit.size) return unit;
  return {1, "bytes"};
}

std::string amount(double value) { return formatted(value < 10 ? "%.2f" : value < 100 ? "%.1f" : "%.0f", value); }
std::string in_unit(std::uint64_t bytes, const Unit& unit) {
  return unit.size > 1 ? amount(static_cast<double>(bytes) / unit.size) : std::to_string(bytes);
}
std::string bytes_text(std::uint64_t bytes) { return in_unit(bytes, unit_of(bytes)) + " " + unit_of(bytes).name; }
std::string rate_text(double bytes_per_second) { return bytes_text(static_cast<std::uint64_t>(bytes_per_second)) + "/s"; }

std::string time_text(milliseconds time) {
  const auto seconds = (time.count() + 500) / 1000;
  if (time < std::chrono::seconds(10)) return formatted("%.1f", static_cast<double>(time.count()) / 1000) + " s";
  if (seconds < 120) return std::to_string(seconds) + " s";
  if (seconds < 7200) return std::to_string((seconds + 30) / 60) + " min";
  return std::to_string((seconds + 1800) / 3600) + " h";
}

// Splits `text` into characters, with "?" for control characters and invalid bytes. Each counts as
// one column, roughly.
std::vector<std::string> characters(std::string_view text) {
  std::vector<std::string> found;
  while (!text.empty()) {
    const std::size_t bytes = utf8_character_bytes(text);
    const auto first = static_cast<unsigned char>(text[0]);
    // C0, DEL, and two-byte C1.
    const bool is_control = first < 0x20 || first == 0x7f || (first == 0xc2 && static_cast<unsigned char>(text[1]) < 0xa0);
    found.push_back(bytes == 0 || is_control ? "?" : std::string(text.substr(0, bytes)));
    text.remove_prefix(std::max<std::size_t>(bytes, 1));
  }
  return found;
}

std::string joined(const std::vector<std::string>& characters, std::size_t from = 0) {
  std::string text;
  for (std::size_t i = from; i < characters.size(); ++i) text += characters[i];
  return text;
}

// Ids come from users. Control characters in them must not reach a terminal.
std::string printable_id(const std::string& text) { return joined(characters(text)); }

// Keeps the end of the id, which says more than the beginning.
std::string shortened(const std::string& id, std::size_t columns) {
  const auto all = characters(id);
  if (all.size() <= columns) return joined(all);
  if (columns <= 1) return columns == 1 ? "…" : "";
  return "…" + joined(all, all.size() - (columns - 1));
}

const char* step_name(const ShownProgress& progress) {
  static constexpr const char* kOfSaves[] = {"waiting for all ranks", "planning", "writing", "publishing"};
  static constexpr const char* kOfLoads[] = {"waiting for all ranks", "planning", "reading", "finishing"};
  return (progress.is_save ? kOfSaves : kOfLoads)[static_cast<std::size_t>(progress.step)];
}

std::string volume_text(const protocol::Moved& moved) {
  // A state without tensors has items only.
  if (moved.bytes == 0) return std::to_string(moved.items_done) + " of " + std::to_string(moved.items) + " items";
  // Both amounts in the unit of the whole, so that they compare at a glance.
  const Unit unit = unit_of(moved.bytes);
  return in_unit(moved.bytes_done, unit) + " of " + in_unit(moved.bytes, unit) + " " + unit.name;
}

// A line too wide for the terminal leaves these out, one after the other.
enum class Without : std::uint8_t { kNothing, kRate, kVolume, kTimeLeft };

std::string figures(const ShownProgress& progress, Without without) {
  std::string text = step_name(progress);
  const bool moving = progress.step == Step::kMoving;
  if (moving && (progress.moved.items != 0 || progress.moved.bytes != 0)) {
    text += " " + std::to_string(percent_of(progress.moved)) + " %";
    if (without < Without::kVolume) text += ", " + volume_text(progress.moved);
    if (without < Without::kRate && progress.bytes_per_second > 0) text += ", " + rate_text(progress.bytes_per_second);
  }
  const std::string slowest = progress.ranks > 1 && progress.slowest_rank >= 0 ? std::to_string(progress.slowest_rank) : "";
  if (!slowest.empty() && progress.step == Step::kPlanning) text += ", waits for rank " + slowest;
  if (!slowest.empty() && moving) text += ", slowest rank " + slowest + " (" + std::to_string(progress.slowest_percent) + " %)";
  if (moving && progress.left && without < Without::kTimeLeft) text += ", " + time_text(*progress.left) + " left";
  return text;
}

Step step_of(Phase phase) {
  static constexpr Step kSteps[] = {Step::kJoining, Step::kPlanning, Step::kPlanning, Step::kMoving, Step::kMoving, Step::kMoved};
  static_assert(std::size(kSteps) == static_cast<std::size_t>(Phase::kFinish));
  return kSteps[static_cast<std::size_t>(phase) - 1];
}

}  // namespace

int percent_of(const protocol::Moved& moved) {
  const bool by_bytes = moved.bytes != 0;
  const auto all = static_cast<double>(by_bytes ? moved.bytes : moved.items);
  const auto done = static_cast<double>(by_bytes ? moved.bytes_done : moved.items_done);
  // An item that is resolved twice counts twice.
  return all == 0 ? 0 : static_cast<int>(100 * std::min(done / all, 1.0));
}

double rate_of(const protocol::Moved& moved, Duration elapsed) {
  const double seconds = std::chrono::duration<double>(elapsed).count();
  return seconds > 0 ? static_cast<double>(moved.bytes_done) / seconds : 0;
}

std::optional<milliseconds> time_left(const protocol::Moved& moved, Duration elapsed) {
  const double rate = rate_of(moved, elapsed);
  // If more was moved than planned, the plan says nothing about the rest.
  if (rate <= 0 || moved.bytes_done > moved.bytes) return std::nullopt;
  const double left = 1000 * static_cast<double>(moved.bytes - moved.bytes_done) / rate;
  if (left > static_cast<double>(kLeftMax.count())) return std::nullopt;
  return milliseconds(static_cast<milliseconds::rep>(left));
}

ShownProgress shown(const CallProgress::Seen& seen, MonotonicTime now) {
  ShownProgress progress;
  progress.step = seen.step;
  progress.moved = seen.own;
  const std::optional<Step> told = seen.job ? std::optional<Step>(step_of(seen.job->phase)) : std::nullopt;
  // Other ranks may still be moving data after this rank is done.
  if (seen.step == Step::kMoved && told && *told != Step::kMoved) progress.step = Step::kMoving;
  // The report may be of the phase before, whose slowest rank says nothing about this one.
  if (told == progress.step) {
    progress.slowest_rank = seen.job->slowest_rank;
    progress.slowest_percent = percent_of(seen.job->slowest);
  }
  // Before they move data, the ranks do not know how much all of them will move.
  progress.of_all_ranks = told && *told >= Step::kMoving;
  if (progress.of_all_ranks) progress.moved = seen.job->moved;
  if (progress.step != Step::kMoving || !seen.moving_since) return progress;
  // The figures of all ranks are as old as the report that brought them.
  const Duration elapsed = (progress.of_all_ranks ? seen.job_at : now) - *seen.moving_since;
  progress.bytes_per_second = rate_of(progress.moved, elapsed);
  // The call ends when its slowest rank ends.
  const bool by_slowest = progress.of_all_ranks && seen.job->slowest_rank >= 0;
  progress.left = time_left(by_slowest ? seen.job->slowest : progress.moved, elapsed);
  return progress;
}

SaveProgress progress_of(const CallProgress::Seen& seen, MonotonicTime now) {
  SaveProgress progress;
  progress.step = seen.step == Step::kMoving  ? SaveProgress::Step::kWriting
                  : seen.step == Step::kMoved ? SaveProgress::Step::kPublishing
                                              : SaveProgress::Step::kPlanning;
  const auto set = [](WriteProgress& of, const protocol::Moved& moved, double rate, std::optional<milliseconds> left) {
    of = {moved.items, moved.items_done, moved.bytes, moved.bytes_done, rate, left};
  };
  const auto elapsed = seen.step == Step::kMoving && seen.moving_since ? now - *seen.moving_since : Duration(0);
  set(progress, seen.own, rate_of(seen.own, elapsed), time_left(seen.own, elapsed));
  if (!seen.job) return progress;
  const ShownProgress all = shown(seen, now);
  SaveProgress::Job job;
  job.phase = seen.job->phase;
  job.ranks_done = seen.job->ranks_done;
  set(job, seen.job->moved, all.of_all_ranks ? all.bytes_per_second : 0, all.of_all_ranks ? all.left : std::nullopt);
  job.slowest_rank = seen.job->slowest_rank;
  job.slowest_bytes = seen.job->slowest.bytes;
  job.slowest_bytes_done = seen.job->slowest.bytes_done;
  progress.job = job;
  return progress;
}

std::string status_text(const ShownProgress& progress, int columns) {
  const auto width = static_cast<std::size_t>(std::max(columns - 1, 0));  // some terminals wrap after the last column
  const std::string before = progress.is_save ? "saving " : "loading ";
  for (const auto without : {Without::kNothing, Without::kRate, Without::kVolume, Without::kTimeLeft}) {
    const std::string after = ": " + figures(progress, without);
    const std::size_t taken = before.size() + after.size();
    if (taken >= width) continue;
    if (width - taken >= std::min(kIdColumnsMin, characters(progress.checkpoint_id).size()))
      return before + shortened(progress.checkpoint_id, width - taken) + after;
  }
  auto all = characters(figures(progress, Without::kTimeLeft));
  if (all.size() > width) all.resize(width);
  return joined(all);
}

std::string phase_text(const ShownProgress& progress) {
  std::string text = progress.is_save ? "saving '" : "loading '";
  text += printable_id(progress.checkpoint_id) + "': " + step_name(progress);
  if (progress.ranks > 1 && progress.step != Step::kMoved) text += " on " + std::to_string(progress.ranks) + " ranks";
  return text;
}

std::string end_text(const ShownProgress& progress, bool ok, milliseconds took) {
  const std::string id = "'" + printable_id(progress.checkpoint_id) + "'";
  if (!ok) return (progress.is_save ? "saving " : "loading ") + id + " has failed after " + time_text(took);
  std::string text = (progress.is_save ? "saved " : "loaded ") + id + " in " + time_text(took);
  if (progress.moved.bytes == 0) return text;
  text += ": " + bytes_text(progress.moved.bytes);
  if (!progress.of_all_ranks && progress.ranks > 1) text += " of this rank's";
  const double rate = rate_of({0, 0, progress.moved.bytes, progress.moved.bytes}, took);
  return rate > 0 ? text + " at " + rate_text(rate) : text;
}

const char* to_string(SaveProgress::Step step) noexcept {
  static constexpr const char* kNames[] = {"staging", "queued", "planning", "writing", "publishing", "done"};
  return name_in<SaveProgress::Step::kDone>(kNames, step, "unknown");
}

}  // namespace cairn
