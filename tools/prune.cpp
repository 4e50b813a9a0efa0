// `cairn prune`: removes checkpoints of a run that no rule keeps, as the manager does.
#include <algorithm>
#include <iostream>
#include <limits>
#include <map>
#include <set>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cairn/base/settings.hpp>
#include <cairn/storage/runs/retention.hpp>
#include <cairn/storage/runs/run_directory.hpp>
#include <cairn/tools/commands.hpp>
#include <cairn/tools/run_contents.hpp>
#include <cairn/tools/terminal.hpp>

namespace cairn::tools {
namespace {

constexpr const char* kPruneExamples = R"(Examples:
  cairn prune run --keep last=3                              shows what it would remove, then asks
  cairn prune run --keep last=3 --keep every=10000 --dry-run only shows it
  cairn prune run --keep last=1 --keep best=2:loss --yes     does not ask; keeps the two with the lowest loss
  cairn prune run --keep last=1 --keep best=2:accuracy:higher --yes  keeps the two with the highest accuracy
  cairn prune run --leftovers                                removes leftovers of saves and removals that did not finish
  cairn prune run --damaged                                  removes damaged checkpoints, after reading them again

Keeps each checkpoint that any --keep selects. If --keep is given without last=, last=1 is implied.
Always keeps the latest sound checkpoint, pinned checkpoints, those with a save in progress, and
everything that is not Cairn's or does not have a name that Cairn gives, such as step_100.
last=, every= and best= may be given once each. Metrics are those of Annotations::metrics; at least
one checkpoint must have the metric.
Removes the record of a checkpoint before its data. A crash leaves the checkpoint either whole or as
leftovers. --leftovers skips places in which a save is still open, and data files without a commit
record that no save or removal left. A checkpoint counts as damaged if a file has the wrong length,
or if a restore noted damage. Damaged checkpoints do not count towards a --keep rule. --damaged
removes them, unless they are pinned or read without errors now. It does not remove checkpoints
whose record cannot be read.
Exits with 1 if something could not be removed.)";

struct PruneOptions {
  std::string run;
  std::vector<std::string> keep;
  bool leftovers = false;
  bool damaged = false;
  bool yes = false;
  bool dry_run = false;
};

constexpr std::uint32_t kAll = std::numeric_limits<std::uint32_t>::max();

[[noreturn]] void refuse_keep(const std::string& spec,
                              const std::string& why = "write last=K, every=N, best=K:METRIC or best=K:METRIC:higher") {
  throw WrongUse(fmt::format("--keep {}: {}", printable(spec), why));
}

template <class Number>
Number number_of(const std::string& spec, const std::string& text) {
  const auto value = parse_number<Number>(text);
  if (!value || *value < 1) refuse_keep(spec);
  return *value;
}

// Parses `ranking`: K:METRIC, K:METRIC:higher or K:METRIC:lower.
void rank_by(RetentionPolicy& policy, const std::string& spec, const std::string& ranking) {
  const auto colon = ranking.find(':');
  if (colon == std::string::npos) refuse_keep(spec);
  policy.keep_best = number_of<std::uint32_t>(spec, ranking.substr(0, colon));
  policy.metric = ranking.substr(colon + 1);
  if (const auto last = policy.metric.rfind(':'); last != std::string::npos) {
    const std::string direction = policy.metric.substr(last + 1);
    if (direction != "higher" && direction != "lower")
      refuse_keep(spec,
                  fmt::format("\"{}\" is neither higher nor lower; one of them must follow a metric that has a colon in its name",
                              printable(direction)));
    policy.better = direction == "higher" ? Better::kHigher : Better::kLower;
    policy.metric.resize(last);
  }
  if (policy.metric.empty()) refuse_keep(spec);
}

// Returns the policy of all --keep options. A checkpoint stays if any of them keeps it.
RetentionPolicy policy_of(const std::vector<std::string>& keep) {
  RetentionPolicy policy;
  std::set<std::string> kinds;
  for (const std::string& spec : keep) {
    const auto middle = spec.find('=');
    const std::string kind = spec.substr(0, middle);
    const std::string rest = middle == std::string::npos ? "" : spec.substr(middle + 1);
    if (!kinds.insert(kind).second) refuse_keep(spec, kind + "= is given twice");
    if (kind == "last")
      policy.keep_last = number_of<std::uint32_t>(spec, rest);
    else if (kind == "every")
      policy.keep_every = number_of<std::int64_t>(spec, rest);
    else if (kind == "best")
      rank_by(policy, spec, rest);
    else
      refuse_keep(spec);
  }
  // Without --keep, only --damaged and --leftovers say what goes.
  if (!policy.keep_last) policy.keep_last = keep.empty() ? kAll : 1;
  check_policy(policy);
  return policy;
}

// Returns why a checkpoint stays, in words. Applies each part of the policy separately.
std::string why_kept(const Retention& retention, const RetentionPolicy& policy, const CheckpointInfo& info, bool pinned) {
  if (policy.keep_last == kAll) return pinned ? "not damaged, pinned" : "not damaged";
  std::string text;
  const auto add = [&](const std::string& reason) { text += (text.empty() ? "" : ", ") + reason; };
  const auto keeps = [&](const RetentionPolicy& part) {
    return kept_by(part, retention.infos).count(info.name) > 0 || kept_by(part, retention.sound).count(info.name) > 0;
  };
  RetentionPolicy part;
  part.keep_last = policy.keep_last;
  if (keeps(part)) add(*part.keep_last == 1 ? "the last" : fmt::format("of the last {}", *part.keep_last));
  part.keep_last = 0;
  part.keep_every = policy.keep_every;
  if (keeps(part)) add(fmt::format("every {}", part.keep_every));
  part = policy;
  part.keep_last = 0;
  part.keep_every = 0;
  if (keeps(part)) add(fmt::format("best by {}{}", printable(part.metric), part.better == Better::kHigher ? " (higher)" : ""));
  if (info.name == retention.latest_sound) add("the latest that is sound");
  if (text.empty() && info.name == retention.latest_copied) add("the last in the far tier");
  if (pinned) add("pinned");
  return text;
}

struct Pruning {
  RunDirectory run;
  RunContents contents;
  Retention retention;
  std::map<std::string, std::string> damaged;  // why, by the names of those that --damaged removes
  std::vector<RunCheckpoint> go;  // to be removed, the oldest first
  std::vector<Leftover> leftovers;
  std::uint64_t bytes = 0;

  // Returns null if it is not listed.
  const ListedCheckpoint* listed(const RunCheckpoint& checkpoint) const {
    for (const ListedCheckpoint& one : contents.checkpoints)
      if (one.name == checkpoint.name) return &one;
    return nullptr;
  }
};

void show(Pruning& pruning, const RetentionPolicy& policy) {
  Table table({"", "checkpoint", "step", "size", "why"});
  for (std::size_t i = 0; i < pruning.retention.checkpoints.size(); ++i) {
    const RunCheckpoint& checkpoint = pruning.retention.checkpoints[i];
    const ListedCheckpoint* const listed = pruning.listed(checkpoint);
    const bool is_pinned = listed != nullptr && listed->pinned;
    const auto damaged = pruning.damaged.find(checkpoint.name);
    const bool is_damaged = damaged != pruning.damaged.end();
    const bool stays = (pruning.retention.kept.count(checkpoint.name) > 0 && !is_damaged) || is_pinned;
    if (!stays) {
      pruning.go.insert(pruning.go.begin(), checkpoint);
      if (listed != nullptr) pruning.bytes += listed->bytes;
    }
    table.add({stays ? coloured(Colour::kGood, "stays") : coloured(Colour::kWarning, "goes"), printable(checkpoint.name),
               checkpoint.head.step ? std::to_string(*checkpoint.head.step) : "-",
               listed != nullptr ? human_bytes(listed->bytes) : "-",
               stays        ? why_kept(pruning.retention, policy, pruning.retention.infos[i], is_pinned)
               : is_damaged ? "damaged: " + printable(damaged->second)
                            : ""});
  }
  for (const Leftover& leftover : pruning.leftovers) {
    pruning.bytes += leftover.bytes;
    table.add({coloured(Colour::kWarning, "goes"), printable(leftover.name), "-", human_bytes(leftover.bytes), "leftover"});
  }
  table.print();
}

// Removes checkpoints and leftovers, and reports each result. Returns whether all were removed.
bool remove_all(const Pruning& pruning) {
  std::size_t removed = 0, failed = 0;
  const auto say = [&](const std::string& name, const std::string& why) {
    ++failed;
    std::cerr << fmt::format("{} not removed: {}\n", printable(name), printable(why));
  };
  for (const RunCheckpoint& checkpoint : pruning.go) {
    try {
      if (const auto stays = pruning.run.remove(checkpoint))
        say(checkpoint.name, *stays);
      else
        ++removed;
    } catch (const Error& error) {
      say(checkpoint.name, error.what());
    }
  }
  if (!pruning.leftovers.empty()) {
    std::set<std::string> stuck;
    for (const auto& [name, why] : pruning.run.remove_remains({}, false)) {
      say(name, why);
      stuck.insert(name);
    }
    std::set<std::string> still_there;
    for (const Leftover& leftover : leftovers_of(pruning.run)) still_there.insert(leftover.name);
    std::size_t gone = 0;
    for (const Leftover& leftover : pruning.leftovers) {
      if (still_there.count(leftover.name) == 0)
        ++gone;
      else if (stuck.count(leftover.name) == 0)
        say(leftover.name, "it holds files that Cairn did not make");
    }
    std::cout << counted(gone, "leftover") << " removed\n";
  }
  std::cout << counted(removed, "checkpoint") << " removed\n";
  return failed == 0;
}

// Reads checkpoints that are known to be damaged again. Removes the note of damage from those that
// read without errors.
void find_damaged(Pruning& pruning, bool may_forget) {
  for (const RunCheckpoint& checkpoint : pruning.retention.checkpoints) {
    const ListedCheckpoint* const listed = pruning.listed(checkpoint);
    // A record that cannot be read is no finding about the files: it may be of a newer version.
    if (listed == nullptr || listed->fault.empty() || listed->pinned || !pruning.run.why_unreadable(checkpoint.name).empty())
      continue;
    std::string fault = pruning.run.fault_of(checkpoint.name);
    if (fault.empty()) fault = pruning.run.find_damage(checkpoint, {}, std::numeric_limits<std::uint64_t>::max());
    if (!fault.empty())
      pruning.damaged.emplace(checkpoint.name, fault);
    else if (may_forget)
      pruning.run.note_damage(checkpoint, "");
  }
}

int prune(const PruneOptions& options) {
  if (options.keep.empty() && !options.leftovers && !options.damaged)
    throw WrongUse("say what stays, as in --keep last=3, or what goes, with --leftovers or --damaged");
  const RetentionPolicy policy = policy_of(options.keep);
  Pruning pruning{RunDirectory(options.run), look_at_run(options.run), {}, {}, {}, {}, 0};
  if (!options.keep.empty() || options.damaged) pruning.retention = look_at_retention(pruning.run, policy);
  // A metric that no checkpoint has is probably misspelt, and the rule would keep nothing.
  if (const std::string why = why_unrankable(policy, pruning.retention.infos); !why.empty()) throw WrongUse(why);
  if (options.damaged) find_damaged(pruning, !options.dry_run);
  if (options.leftovers)
    for (const Leftover& leftover : pruning.contents.leftovers)
      if (!leftover.is_open && !leftover.is_unrecorded && leftover.by_ranks.empty()) pruning.leftovers.push_back(leftover);
  show(pruning, policy);
  const std::size_t count = pruning.go.size() + pruning.leftovers.size();
  if (count == 0) {
    std::cout << "nothing to remove\n";
    return kFine;
  }
  std::cout << fmt::format("{} of them, {}, {}\n", count, human_bytes(pruning.bytes), options.dry_run ? "would go" : "are to go");
  if (options.dry_run) return kFine;
  if (!options.yes && !agrees_to_remove()) return kFine;
  return remove_all(pruning) ? kFine : kFoundBad;
}

}  // namespace

void add_prune(CLI::App& app, Run& chosen) {
  const auto [command, options] = add_command(app, chosen, "prune", "Remove old checkpoints of a run", kPruneExamples, prune);
  command->add_option("RUN", options.run, "The directory or URL that holds the checkpoints")->required();
  command->add_option("--keep", options.keep, "Checkpoints to keep: last=K, every=N or best=K:METRIC[:higher]; may be repeated")
      ->allow_extra_args(false)
      ->type_name("RULE");
  command->add_flag("--leftovers", options.leftovers, "Remove leftovers of saves and removals that did not finish");
  command->add_flag("--damaged", options.damaged, "Remove damaged checkpoints, after reading them again");
  command->add_flag("--yes", options.yes, "Remove without asking");
  command->add_flag("--dry-run", options.dry_run, "Show what would be removed, and remove nothing");
}

}  // namespace cairn::tools
