// `cairn ls`: lists the checkpoints of a run.
#include <algorithm>
#include <chrono>
#include <iostream>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <cairn/base/clock.hpp>
#include <cairn/storage/runs/resume_order.hpp>
#include <cairn/tools/commands.hpp>
#include <cairn/tools/run_contents.hpp>
#include <cairn/tools/terminal.hpp>

namespace cairn::tools {
namespace {

constexpr const char* kLsExamples = R"(Examples:
  cairn ls run              lists checkpoints, the latest first, with size, world size and age
  cairn ls run --json       prints JSON

Checkpoints of PyTorch and torch_checkpointing are listed as such. The latter are never resumed from.
The checkpoint marked "latest", or "latest that is sound", is the one that restore_latest takes.
A checkpoint is damaged if its record cannot be read, if a file that the record names is missing or
has the wrong length, or if a restore has noted damage. ls reads no data; cairn verify does.
Leftovers are files of removals and saves that did not finish, or of a save that is still running.
The next save removes those of removals and saves that did not finish. cairn prune --leftovers
removes leftovers in places where no save is open. Neither removes data files without a commit
record that no save or removal left.
Exits with 1 if any checkpoint is damaged.)";

constexpr const char* kLatestExamples = R"TEXT(Examples:
  cairn verify "$(cairn latest run)"

This is the checkpoint that restore_latest takes. latest reads no data, so that restore_latest may
still find it damaged, and take an earlier one.
Exits with 1 if there is none, or if restore_latest would throw.)TEXT";

struct LsOptions {
  std::string run;
  bool json = false;
};

double now_seconds() { return std::chrono::duration<double>(system_clock().wall_now().time_since_epoch()).count(); }

// Returns the checkpoint that restore_latest takes, unless it finds its data damaged.
const ListedCheckpoint* latest_sound(const RunContents& contents) {
  for (const ListedCheckpoint& checkpoint : contents.checkpoints)
    if (checkpoint.may_resume && checkpoint.fault.empty()) return &checkpoint;
  return nullptr;
}

const ListedCheckpoint* latest(const RunContents& contents) {
  return !contents.checkpoints.empty() && contents.checkpoints.front().may_resume ? &contents.checkpoints.front() : nullptr;
}

template <class Value>
Json or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json();
}

void print_run_json(const std::string& url, const RunContents& contents) {
  const auto* const newest = latest(contents);
  const auto* const usable = latest_sound(contents);
  Json json{{"run", url}, {"latest", newest ? Json(newest->name) : Json()}, {"latest_sound", usable ? Json(usable->name) : Json()}};
  json["checkpoints"] = Json::array();
  for (const auto& one : contents.checkpoints) {
    const char* const other = one.by_torch_checkpointing ? "torch_checkpointing" : "pytorch";
    json["checkpoints"].push_back({{"name", one.name},
                                   {"writer", one.by_cairn ? "cairn" : other},
                                   {"step", or_null(one.head.step)},
                                   {"sequence", one.head.sequence > 0 ? Json(one.head.sequence) : Json()},
                                   {"save_id", one.head.save_id},
                                   {"world_size", or_null(one.world_size)},
                                   {"bytes", one.bytes},
                                   {"shared_bytes", one.shared_bytes},
                                   {"saved_at", or_null(one.saved_at)},
                                   {"pinned", one.pinned},
                                   {"sound", one.fault.empty()},
                                   {"fault", one.fault},
                                   {"user_metadata", one.head.user_metadata}});
  }
  json["leftovers"] = Json::array();
  for (const auto& one : contents.leftovers)
    json["leftovers"].push_back({{"name", one.name},
                                 {"bytes", one.bytes},
                                 {"open", one.is_open},
                                 {"unrecorded", one.is_unrecorded},
                                 {"by_ranks", !one.by_ranks.empty()}});
  json["failure_reports"] = contents.failure_reports;
  print_json(json);
}

std::string state_of(const ListedCheckpoint& one, const RunContents& contents) {
  std::string text = coloured(Colour::kGood, "sound");
  if (!one.fault.empty()) {
    std::string fault = one.fault;  // without the path of the checkpoint, which the first column names
    if (const auto name = fault.find('/' + one.name + '/'); name != std::string::npos) {
      const auto path = fault.find_last_of(" '\"", name) + 1;
      fault.erase(path, name + one.name.size() + 2 - path);
    }
    text = coloured(Colour::kBad, "DAMAGED: " + printable(fault));
  }
  if (&one == latest(contents)) text += coloured(Colour::kBold, ", latest");
  if (&one == latest_sound(contents) && &one != latest(contents)) text += coloured(Colour::kBold, ", latest that is sound");
  if (one.pinned) text += ", pinned";
  if (one.shared_bytes > 0) text += ", " + human_bytes(one.shared_bytes) + " shared with earlier ones";
  if (one.fault.empty() && !one.by_cairn) text += one.by_torch_checkpointing ? ", torch_checkpointing's" : ", PyTorch's";
  return text;
}

void print_run(const RunContents& contents) {
  const double now = now_seconds();
  std::uint64_t bytes = 0;
  Table table({"checkpoint", "step", "size", "ranks", "age", "state"});
  for (const auto& one : contents.checkpoints) {
    bytes += one.bytes;
    table.add({printable(one.name), one.head.step ? std::to_string(*one.head.step) : "-",
               one.bytes > 0 || one.fault.empty() ? human_bytes(one.bytes) : "-",
               one.world_size ? std::to_string(*one.world_size) : "-", one.saved_at ? human_seconds(now - *one.saved_at) : "-",
               state_of(one, contents)});
  }
  if (contents.checkpoints.empty())
    std::cout << "no checkpoints\n";
  else
    table.print();
  for (const auto& one : contents.leftovers)
    std::cout << fmt::format("leftover: {}, {}: {}\n", printable(one.name), human_bytes(one.bytes),
                             !one.by_ranks.empty() ? one.by_ranks
                             : one.is_unrecorded   ? "its data files have no commit record (.metadata), and are kept"
                             : one.is_open         ? "a save has begun there, and runs or has died"
                                                   : "of a save or a removal that did not end");
  if (!contents.failure_reports.empty())
    std::cout << counted(contents.failure_reports.size(), "report") << " of failed saves: `cairn trace` tells what went wrong\n";
  if (contents.checkpoints.size() > 1)
    std::cout << fmt::format("{} checkpoints, {}\n", contents.checkpoints.size(), human_bytes(bytes));
}

int ls(const LsOptions& options) {
  const RunContents contents = look_at_run(options.run);
  if (options.json)
    print_run_json(open_store(options.run)->url(), contents);
  else
    print_run(contents);
  const bool all_sound = std::all_of(contents.checkpoints.begin(), contents.checkpoints.end(),
                                     [](const ListedCheckpoint& one) { return one.fault.empty(); });
  return all_sound ? kFine : kFoundBad;
}

int print_latest(const std::string& url) {
  places_of_run(url);  // throws if there is no run
  const RunDirectory run(url);
  const auto chosen = choose_checkpoint(run, DataWithoutRecord::kRefuse, {});
  if (!chosen) throw Error(ErrorCode::kNotFound, fmt::format("{} has no checkpoint", printable(run.url())));
  std::cout << child_url(run.url(), chosen->checkpoint.name) << '\n';
  return kFine;
}

}  // namespace

void add_ls(CLI::App& app, Run& chosen) {
  const auto [command, options] =
      add_command(app, chosen, "ls", "List the checkpoints of a run, the latest first, and leftovers", kLsExamples, ls);
  command->add_option("RUN", options.run, "The directory or URL that holds the checkpoints")->required();
  command->add_flag("--json", options.json, "Print JSON");
}

void add_latest(CLI::App& app, Run& chosen) {
  const char* const what = "Print the place of the checkpoint from which a run resumes";
  const auto [command, run] = add_command(app, chosen, "latest", what, kLatestExamples, print_latest);
  command->add_option("RUN", run, "The directory or URL that holds the checkpoints")->required();
}

}  // namespace cairn::tools
