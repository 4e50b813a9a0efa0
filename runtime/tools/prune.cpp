// `cairn prune`: removes checkpoints of a run that nobody wants to keep, as the manager does.
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <iostream>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cairn/runtime/retention.hpp>
#include <cairn/runtime/tools/commands.hpp>
#include <cairn/runtime/tools/run_contents.hpp>
#include <cairn/runtime/tools/terminal.hpp>
#include <cairn/storage/run_directory.hpp>

namespace cairn::tools {
namespace {

constexpr const char* kPruneExamples = R"(Examples:
  cairn prune run --keep last=3                              shows what would go, and asks
  cairn prune run --keep last=3 --keep every=10000 --dry-run shows only
  cairn prune run --keep last=1 --keep best=2:loss --yes     does not ask; loss: of Annotations::metrics, the lower the better
  cairn prune run --keep best=2:accuracy:higher
  cairn prune run --leftovers                                what saves and removals that died have left

A checkpoint stays that any --keep asks for (without last=, the last one alone is asked for), and always: the latest that is sound, pinned
ones, one with a save under way, and all that is not Cairn's or has a name of your own. First goes the record, then the data: a crash leaves
a checkpoint whole, or what the next clean-up removes. Ends with 1 if something could not be removed.)";

struct PruneOptions {
  std::string run;
  std::vector<std::string> keep;
  bool leftovers = false;
  bool yes = false;
  bool dry_run = false;
};

[[noreturn]] void refuse_keep(const std::string& spec) {
  throw WrongUse(fmt::format("--keep {}: write last=K, every=N, best=K:METRIC or best=K:METRIC:higher", printable(spec)));
}

template <class Number>
Number number_of(const std::string& spec, const std::string& text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1) refuse_keep(spec);
  return value;
}

RetentionPolicy policy_of(const std::vector<std::string>& keep) {
  RetentionPolicy policy;
  policy.keep_last = 1;
  for (const std::string& spec : keep) {
    const auto middle = spec.find('=');
    const std::string kind = spec.substr(0, middle);
    std::string rest = middle == std::string::npos ? "" : spec.substr(middle + 1);
    if (kind == "last") {
      policy.keep_last = number_of<std::uint32_t>(spec, rest);
    } else if (kind == "every") {
      policy.keep_every = number_of<std::int64_t>(spec, rest);
    } else if (kind == "best") {
      const auto colon = rest.find(':');
      if (colon == std::string::npos) refuse_keep(spec);
      policy.keep_best = number_of<std::uint32_t>(spec, rest.substr(0, colon));
      policy.metric = rest.substr(colon + 1);
      for (const auto& [end, better] : {std::pair(":higher", Better::kHigher), std::pair(":lower", Better::kLower)}) {
        const std::string text = end;
        if (policy.metric.size() <= text.size() ||
            policy.metric.compare(policy.metric.size() - text.size(), text.size(), text) != 0)
          continue;
        policy.metric.resize(policy.metric.size() - text.size());
        policy.better = better;
      }
    } else {
      refuse_keep(spec);
    }
  }
  check_policy(policy);
  return policy;
}

// Why each that stays does, in words; by the parts of the policy, each alone.
std::string why_kept(const Retention& retention, const RetentionPolicy& policy, const CheckpointInfo& info, bool pinned) {
  std::string text;
  const auto add = [&](const std::string& reason) { text += (text.empty() ? "" : ", ") + reason; };
  RetentionPolicy part;
  part.keep_last = policy.keep_last;
  if (kept_by(part, retention.infos).count(info.name) > 0)
    add(*policy.keep_last == 1 ? "the last" : fmt::format("of the last {}", *policy.keep_last));
  part.keep_last = 0;
  part.keep_every = policy.keep_every;
  if (kept_by(part, retention.infos).count(info.name) > 0) add(fmt::format("every {}", policy.keep_every));
  part = policy;
  part.keep_last = 0;
  part.keep_every = 0;
  if (kept_by(part, retention.infos).count(info.name) > 0) add(fmt::format("best by {}", printable(policy.metric)));
  if (info.name == retention.latest_sound) add("the latest that is sound");
  if (pinned) add("pinned");
  return text;
}

bool agreed(const PruneOptions& options) {
  if (options.yes) return true;
  if (::isatty(STDIN_FILENO) != 1)
    throw WrongUse("nothing was removed, as there is no terminal to ask at: --yes removes without asking");
  std::cout << "Remove them? [y/N] " << std::flush;
  std::string answer;
  std::getline(std::cin, answer);
  return answer == "y" || answer == "Y" || answer == "yes";
}

struct Pruning {
  RunDirectory run;
  Retention retention;
  std::vector<RunCheckpoint> go;  // the oldest first
  std::vector<Leftover> leftovers;
  std::uint64_t bytes = 0;
};

void show(Pruning& pruning, const RetentionPolicy& policy, const RunContents& contents) {
  Table table({"", "checkpoint", "step", "size", "why"});
  for (std::size_t i = 0; i < pruning.retention.checkpoints.size(); ++i) {
    const RunCheckpoint& checkpoint = pruning.retention.checkpoints[i];
    const auto listed = std::find_if(contents.checkpoints.begin(), contents.checkpoints.end(),
                                     [&](const ListedCheckpoint& one) { return one.name == checkpoint.name; });
    const bool is_listed = listed != contents.checkpoints.end();
    const bool stays = pruning.retention.kept.count(checkpoint.name) > 0 || (is_listed && listed->pinned);
    if (!stays) {
      pruning.go.insert(pruning.go.begin(), checkpoint);
      if (is_listed) pruning.bytes += listed->bytes;
    }
    table.add({stays ? coloured(Colour::kGood, "stays") : coloured(Colour::kWarning, "goes"), printable(checkpoint.name),
               checkpoint.head.step ? std::to_string(*checkpoint.head.step) : "-", is_listed ? human_bytes(listed->bytes) : "-",
               stays ? why_kept(pruning.retention, policy, pruning.retention.infos[i], is_listed && listed->pinned) : ""});
  }
  for (const Leftover& leftover : pruning.leftovers) {
    pruning.bytes += leftover.bytes;
    table.add({coloured(Colour::kWarning, "goes"), printable(leftover.name), "-", human_bytes(leftover.bytes), "leftover"});
  }
  table.print(std::cout, "");
}

// Says what was removed, and what could not be; whether all was.
bool remove_all(const Pruning& pruning) {
  std::size_t removed = 0, failed = 0;
  const auto say = [&](const std::string& name, const std::string& why) {
    ++failed;
    std::cerr << fmt::format("{} stays: {}\n", printable(name), printable(why));
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
    for (const auto& [name, why] : pruning.run.remove_remains({}, false)) say(name, why);
    std::cout << "leftovers were removed\n";
  }
  std::cout << fmt::format("{} checkpoint{} removed\n", removed, removed == 1 ? "" : "s");
  return failed == 0;
}

int prune(const PruneOptions& options) {
  if (options.keep.empty() && !options.leftovers)
    throw WrongUse("say what stays, as in --keep last=3, or that leftovers go, with --leftovers");
  const RetentionPolicy policy = policy_of(options.keep);
  const RunContents contents = look_at_run(options.run);
  Pruning pruning{RunDirectory(options.run), {}, {}, {}, 0};
  if (!options.keep.empty()) pruning.retention = look_at_retention(pruning.run, policy);
  if (options.leftovers)
    for (const Leftover& leftover : contents.leftovers)
      if (!leftover.is_open) pruning.leftovers.push_back(leftover);
  show(pruning, policy, contents);
  const std::size_t count = pruning.go.size() + pruning.leftovers.size();
  if (count == 0) {
    std::cout << "nothing to remove\n";
    return kFine;
  }
  std::cout << fmt::format("{} of them, {}, {}\n", count, human_bytes(pruning.bytes), options.dry_run ? "would go" : "are to go");
  if (options.dry_run) return kFine;
  if (!agreed(options)) {
    std::cout << "nothing was removed\n";
    return kFine;
  }
  return remove_all(pruning) ? kFine : kFoundBad;
}

}  // namespace

void add_prune(CLI::App& app, Run& chosen) {
  const auto options = std::make_shared<PruneOptions>();
  auto* const command = app.add_subcommand("prune", "Remove checkpoints of a run that need not stay");
  command->footer(kPruneExamples);
  command->add_option("RUN", options->run, "The directory or URL that holds the checkpoints")->required();
  command->add_option("--keep", options->keep, "What stays: last=K, every=N, best=K:METRIC[:higher]; may be repeated")
      ->type_name("WHAT");
  command->add_flag("--leftovers", options->leftovers, "Remove what saves and removals that died have left");
  command->add_flag("--yes", options->yes, "Do not ask");
  command->add_flag("--dry-run", options->dry_run, "Show what would go, and remove nothing");
  command->callback([options, &chosen] { chosen = [options] { return prune(*options); }; });
}

}  // namespace cairn::tools
