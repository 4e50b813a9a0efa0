// `cairn rm`: removes checkpoints by name, as retention does.
#include <iostream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cairn/storage/read_metadata.hpp>
#include <cairn/storage/runs/run_directory.hpp>
#include <cairn/tools/commands.hpp>
#include <cairn/tools/run_contents.hpp>
#include <cairn/tools/terminal.hpp>

namespace cairn::tools {
namespace {

constexpr const char* kRmExamples = R"(Examples:
  cairn rm run/step_100                     shows what it would remove, then asks
  cairn rm run/step_100 run/step_200 --yes  does not ask
  cairn rm run/step_300 --pinned --dry-run  only shows it

Removes nothing if a checkpoint may not be removed: one that is pinned (--pinned), that is the last
sound one of its run (--last-sound), or that PyTorch saved (--foreign).
Removes the record of a checkpoint before its data. A crash leaves the checkpoint either whole or as
leftovers, which the next save or cairn prune --leftovers removes. Of PyTorch's checkpoint, removes
the record and the files that it names; after a crash some of these stay.
Exits with 1 if something could not be removed.)";

struct RmOptions {
  std::vector<std::string> checkpoints;
  bool pinned = false;
  bool last_sound = false;
  bool foreign = false;
  bool yes = false;
  bool dry_run = false;
};

// The checkpoints of one run that are to be removed.
struct Going {
  RunDirectory run;
  RunContents contents;
  std::set<std::string> names;
};

// Throws if a checkpoint may not go with these options.
void check(const Going& going, const RmOptions& options) {
  bool has_sound = false, takes_sound = false;
  std::set<std::string> unlisted = going.names;
  for (const ListedCheckpoint& listed : going.contents.checkpoints) {
    const bool goes = going.names.count(listed.name) > 0;
    const bool is_cairns = listed.head.sequence > 0;
    // If a record may not be read, none is known to be one to resume from.
    const bool is_sound = (is_cairns || listed.may_resume) && listed.fault.empty();
    has_sound = has_sound || (is_sound && !goes);
    takes_sound = takes_sound || (is_sound && goes);
    if (!goes) continue;
    unlisted.erase(listed.name);
    const std::string place = printable(child_url(going.run.url(), listed.name));
    if (listed.pinned && !options.pinned) throw WrongUse(place + " is pinned: --pinned removes it nevertheless");
    if (is_cairns) continue;
    if (const std::string why = going.run.why_unreadable(listed.name); !why.empty())
      throw Error(ErrorCode::kPrecondition, "which files belong to it is unknown: " + why);
    if (!options.foreign) throw WrongUse(place + " was not saved by Cairn: --foreign removes it nevertheless");
  }
  if (!unlisted.empty())
    throw Error(ErrorCode::kNotFound, printable(child_url(going.run.url(), *unlisted.begin())) + " was removed meanwhile");
  if (takes_sound && !has_sound && !options.last_sound)
    throw WrongUse(fmt::format("{} would have no sound checkpoint left: --last-sound removes the last one nevertheless",
                               printable(going.run.url())));
}

std::map<std::string, Going> look(const RmOptions& options) {
  std::map<std::string, Going> runs;
  for (const std::string& checkpoint : options.checkpoints) {
    open_existing(checkpoint);  // throws if there is none
    const std::string place = open_store(checkpoint)->url(), url = parent_url(place);
    auto found = runs.find(url);
    if (found == runs.end()) found = runs.emplace(url, Going{RunDirectory(url), look_at_run(url), {}}).first;
    const std::string name = place.substr(place.rfind('/') + 1);
    if (found->second.run.is_link(name))
      throw WrongUse(printable(checkpoint) + " is a symbolic link: name the place that it leads to");
    found->second.names.insert(name);
  }
  return runs;
}

// Removes the record of a PyTorch checkpoint, then the files that it names, and the place if it is
// then empty.
void remove_foreign(Store& place) {
  const Metadata metadata = read_metadata(place);
  if (metadata.commit || !place.open_attempts().empty())
    throw Error(ErrorCode::kPrecondition, "Cairn has saved there meanwhile, or is about to");
  place.retract();
  for (const auto& [rank, record] : rank_records(place)) place.remove(record);
  for (const FileInfo& file : metadata.files) place.remove(file.name);
  place.remove_root();
}

// Returns why the checkpoint was not removed; "" if it was.
std::string remove(const RunDirectory& run, const ListedCheckpoint& listed) {
  std::string why;
  try {
    if (listed.pinned) run.unpin(listed.name);
    if (listed.by_cairn)
      why = run.remove(listed).value_or("");
    else
      remove_foreign(*run.open(listed.name));
  } catch (const Error& error) {
    why = error.what();
  }
  if (listed.pinned && !why.empty() && run.has_record(listed.name)) run.pin(listed.name);
  return why;
}

int rm(const RmOptions& options) {
  const std::map<std::string, Going> runs = look(options);
  Table table({"checkpoint", "step", "size", "state"});
  std::uint64_t bytes = 0;
  std::size_t count = 0;
  for (const auto& [url, going] : runs) {
    check(going, options);
    for (const ListedCheckpoint& listed : going.contents.checkpoints) {
      if (going.names.count(listed.name) == 0) continue;
      ++count;
      bytes += listed.bytes;
      table.add({printable(child_url(url, listed.name)), listed.head.step ? std::to_string(*listed.head.step) : "-",
                 human_bytes(listed.bytes),
                 (listed.fault.empty() ? "sound" : "damaged: " + printable(listed.fault)) + (listed.pinned ? ", pinned" : "")});
    }
  }
  table.print();
  std::cout << fmt::format("{}, {}, {}\n", counted(count, "checkpoint"), human_bytes(bytes),
                           options.dry_run ? "would go" : "to go");
  if (options.dry_run || (!options.yes && !agrees_to_remove())) return kFine;
  std::size_t failed = 0;
  for (const auto& [url, going] : runs)
    for (const ListedCheckpoint& listed : going.contents.checkpoints) {
      const std::string why = going.names.count(listed.name) > 0 ? remove(going.run, listed) : "";
      if (why.empty()) continue;
      ++failed;
      std::cerr << fmt::format("{} not removed: {}\n", printable(child_url(url, listed.name)), printable(why));
    }
  std::cout << counted(count - failed, "checkpoint") << " removed\n";
  return failed == 0 ? kFine : kFoundBad;
}

}  // namespace

void add_rm(CLI::App& app, Run& chosen) {
  const auto [command, options] = add_command(app, chosen, "rm", "Remove checkpoints by name", kRmExamples, rm);
  command->add_option("CHECKPOINT", options.checkpoints, "The directories or URLs of checkpoints")->required();
  command->add_flag("--pinned", options.pinned, "Remove pinned checkpoints, too");
  command->add_flag("--last-sound", options.last_sound, "Remove the last sound checkpoint of a run, too");
  command->add_flag("--foreign", options.foreign, "Remove checkpoints that PyTorch saved, too");
  command->add_flag("--yes", options.yes, "Remove without asking");
  command->add_flag("--dry-run", options.dry_run, "Show what would be removed, and remove nothing");
}

}  // namespace cairn::tools
