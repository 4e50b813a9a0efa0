// `cairn verify`: reads every byte of a checkpoint and lists everything that is wrong with it.
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <cairn/base/cpu_share.hpp>
#include <cairn/base/rank_text.hpp>
#include <cairn/storage/format/missing_parts.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/presence.hpp>
#include <cairn/storage/read_metadata.hpp>
#include <cairn/storage/runs/run_directory.hpp>
#include <cairn/storage/verify_checkpoint.hpp>
#include <cairn/tools/commands.hpp>
#include <cairn/tools/run_contents.hpp>
#include <cairn/tools/tensor_source.hpp>
#include <cairn/tools/terminal.hpp>

namespace cairn::tools {
namespace {

constexpr const char* kVerifyExamples = R"(Examples:
  cairn verify run/step_100              reads every byte and lists every fault
  cairn verify run                       verifies all checkpoints of the run, the latest first
  cairn verify run/step_100 run/step_200 verifies both
  cairn verify run/step_100 --json       prints JSON; a list if a run or several places are given
  cairn verify run/step_100 --threads 16 uses more threads, for a fast disk

Verdicts:
  fine                exits with 0: everything was read and checked
  faults              exits with 1: lists each fault with file, offset and key, and what cannot be checked
  cannot be checked   exits with 3: no fault was found, but this version of Cairn cannot check everything,
                      such as unknown transforms or a record of a newer format

Checksums cover every byte of Cairn's checkpoints. In PyTorch's checkpoints they cover the tensors,
but not the record. Files of torch.save have checksums, unless PyTorch was told to write none: such
files, and such checkpoints of PyTorch, exit with 3. Safetensors files have none, so only their headers
are checked.)";

struct VerifyOptions {
  std::vector<std::string> places;
  unsigned threads = cpu_share();
  bool json = false;
};

std::string place_of(const VerifyFault& fault) {
  std::string place = fmt::format("{} at offset {}", printable(fault.object), fault.offset);
  if (!fault.fqn.empty()) place += fmt::format(" ({})", printable(fault.fqn));
  return place;
}

// Everything that verify_checkpoint has found, by verdict.
struct Verdict {
  std::vector<VerifyFault> faults;
  std::vector<VerifyFault> unchecked;

  explicit Verdict(std::vector<VerifyFault> found) : faults(std::move(found)) {
    const auto first = std::find_if(faults.begin(), faults.end(), [](const VerifyFault& fault) { return fault.unchecked; });
    unchecked.assign(std::make_move_iterator(first), std::make_move_iterator(faults.end()));
    faults.erase(first, faults.end());
  }
  ExitCode exit_code() const { return !faults.empty() ? kFoundBad : !unchecked.empty() ? kNotChecked : kFine; }
  const char* name() const { return !faults.empty() ? "faults" : !unchecked.empty() ? "unchecked" : "fine"; }
};

// Returns the other checkpoints of the run that have a faulty file of this one, by a link.
std::vector<std::string> sharers_of(Store& store, const Verdict& verdict) {
  std::vector<std::string> names;
  try {
    const Metadata own = read_metadata(store);
    const auto same_file = [](const Metadata& metadata, const FileInfo& file) {
      return std::tuple(file.written_by.empty() ? metadata.save_id : file.written_by, file.length, file.crc32);
    };
    std::set<decltype(same_file(own, own.files[0]))> faulty;
    for (const FileInfo& file : own.files)
      if (std::any_of(verdict.faults.begin(), verdict.faults.end(), [&](const auto& fault) { return fault.object == file.name; }))
        faulty.insert(same_file(own, file));
    const RunDirectory run(parent_url(store.url()));
    for (const RunCheckpoint& other : faulty.empty() || !own.commit ? std::vector<RunCheckpoint>() : run.list().checkpoints) {
      if (other.head.save_id == own.save_id || (other.head.shares_with.empty() && own.commit->shares_with.empty())) continue;
      const auto is_faulty = [&](const Metadata& metadata) {
        return std::any_of(metadata.files.begin(), metadata.files.end(),
                           [&](const FileInfo& file) { return faulty.count(same_file(metadata, file)) > 0; });
      };
      try {
        if (is_faulty(read_metadata(*run.open(other.name)))) names.push_back(other.name);
      } catch (const Error&) {
        names.push_back(other.name + " (perhaps: its record cannot be read)");
      }
    }
  } catch (const Error&) {  // the run cannot be listed
  }
  return names;
}

Json verdict_json(const std::string& url, const Verdict& verdict, std::uint64_t bytes, const std::vector<std::string>& sharers) {
  const auto listed = [](const std::vector<VerifyFault>& found) {
    Json list = Json::array();
    for (const auto& fault : found)
      list.push_back({{"file", fault.object}, {"offset", fault.offset}, {"key", fault.fqn}, {"what", fault.what}});
    return list;
  };
  return {{"checkpoint", url},   {"fine", verdict.exit_code() == kFine}, {"verdict", verdict.name()},
          {"bytes_read", bytes}, {"faults", listed(verdict.faults)},     {"unchecked", listed(verdict.unchecked)},
          {"shared_with", sharers}};
}

// Prints one line for each reason, because a writer that compresses does so with every item.
void print_unchecked(const std::vector<VerifyFault>& unchecked) {
  std::vector<std::pair<const VerifyFault*, std::size_t>> reasons;  // the first item of each reason, and the number of items
  std::unordered_map<std::string, std::size_t> known;
  for (const VerifyFault& item : unchecked) {
    const auto [place, is_new] = known.emplace(item.what, reasons.size());
    if (is_new) reasons.emplace_back(&item, 0);
    ++reasons[place->second].second;
  }
  for (const auto& [first, count] : reasons)
    std::cout << coloured(Colour::kWarning, "not checked: ") << place_of(*first)
              << (count > 1 ? fmt::format(" and {} more", count - 1) : "") << ": " << printable(first->what) << '\n';
}

struct Place {
  std::string url;
  // The save id in the listing of the run, "" if the record is not Cairn's. Nothing if the user
  // named the checkpoint.
  std::optional<std::string> listed_id;
  std::vector<int> missing{};  // not empty: nothing is read, and these ranks have no part there
  int world_size = 0;          // of the parts, if some are missing
};

// Returns "removed" or "replaced" if this happened to the checkpoint after its run was listed, ""
// otherwise.
std::string change_since_listing(const Place& place) {
  if (!place.listed_id) return "";
  try {
    const auto store = open_store(place.url);
    const auto head = read_commit_head(*store);
    if (!head && !store->is_taken(kCommitRecordName)) return "removed";
    return (head ? head->save_id : "") == *place.listed_id ? "" : "replaced";
  } catch (const Error&) {  // a damaged record, or trouble of the store
    return "";
  }
}

// Reports a checkpoint that was removed or replaced while its run was verified, as retention does.
// Returns false if that is not so.
bool report_change(const Place& place, const VerifyOptions& options, Json& list) {
  const std::string change = change_since_listing(place);
  if (change.empty()) return false;
  if (options.json)
    list.push_back({{"checkpoint", place.url}, {"fine", nullptr}, {"verdict", change}});
  else
    std::cout << fmt::format("{}: {} meanwhile\n", printable(place.url), change) << std::flush;
  return true;
}

// Verifies a checkpoint and prints its verdict, or adds it to `list`. Returns nothing if it is
// faulty only because it was removed or replaced meanwhile.
std::optional<ExitCode> verify_one(const Place& place, const VerifyOptions& options, Json& list) {
  const auto files = tensor_files_at(place.url);
  const auto store = files.empty() ? open_existing(place.url) : nullptr;
  const std::string url = store ? store->url() : place.url;
  std::uint64_t bytes = 0;
  const Verdict verdict([&] {
    ProgressBar progress("verifying");
    const auto update = [&](std::uint64_t done, std::uint64_t all) { progress.update(done, all); };
    auto found = store ? verify_checkpoint(*store, options.threads, update) : verify_tensor_files(url, files, update);
    bytes = progress.done();
    return found;
  }());
  if (!verdict.faults.empty() && report_change(place, options, list)) return std::nullopt;
  const auto sharers = store && !verdict.faults.empty() ? sharers_of(*store, verdict) : std::vector<std::string>();
  if (options.json) {
    list.push_back(verdict_json(url, verdict, bytes, sharers));
    return verdict.exit_code();
  }
  for (const auto& fault : verdict.faults)
    std::cout << coloured(Colour::kBad, "bad: ") << place_of(fault) << ": " << printable(fault.what) << '\n';
  for (const auto& name : sharers) std::cout << coloured(Colour::kBad, "bad: ") << printable(name) << " was saved with them, too\n";
  print_unchecked(verdict.unchecked);
  std::string told;
  if (!verdict.faults.empty()) told = counted(verdict.faults.size(), "fault") + " found";
  if (!verdict.unchecked.empty())
    told += (told.empty() ? "no fault found, but " : ", and ") + counted(verdict.unchecked.size(), "item") + " cannot be checked";
  if (told.empty()) told = fmt::format("{}, {} read", coloured(Colour::kGood, "fine"), human_bytes(bytes));
  std::cout << fmt::format("{}: {}\n", printable(url), told) << std::flush;
  return verdict.exit_code();
}

// Adds the checkpoints one level below `run`, the latest first; with `parts_only`, only parts.
void add_checkpoints(const RunDirectory& run, bool parts_only, std::vector<Place>& places) {
  const auto listing = run.list();
  std::vector<ObjectName> names;
  const auto add = [&](const ObjectName& name, const std::string& save_id) {
    if (parts_only && !part_of_name(name)) return;
    places.push_back({child_url(run.url(), name), save_id});
    names.push_back(name);
  };
  for (const auto& checkpoint : listing.checkpoints) add(checkpoint.name, checkpoint.head.save_id);
  for (const auto& name : listing.others) add(name, "");
  for (const auto& [world_size, ranks] : missing_parts(names)) places.push_back({run.url(), std::nullopt, ranks, world_size});
}

bool has_parts(Store& store) {
  try {
    return !store.is_taken(kCommitRecordName) && cairn::has_parts(store.children());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kPermission) throw;
    return false;  // no permission to look into this place
  }
}

// Returns the checkpoints of a run, the latest first, and then those of which each rank saved its
// part for itself. Any other place is returned as it is.
std::vector<Place> checkpoints_at(const std::string& place) {
  const std::vector<Place> alone{{place, std::nullopt}};
  std::error_code error;
  if (const auto path = local_path(place); path && !std::filesystem::is_directory(*path, error)) return alone;
  const auto store = open_store(place);
  if (store->exists(kCommitRecordName)) return alone;
  const RunDirectory run(place);
  std::vector<Place> checkpoints;
  add_checkpoints(run, false, checkpoints);
  for (const ObjectName& name : store->children()) {
    if (holds_items(run, name)) checkpoints.push_back({child_url(run.url(), name), std::nullopt});
    if (has_parts(*run.open(name))) add_checkpoints(RunDirectory(child_url(run.url(), name)), true, checkpoints);
  }
  return checkpoints.empty() ? alone : checkpoints;
}

int verify(const VerifyOptions& options) {
  std::vector<Place> places;
  for (const auto& named : options.places) {
    const auto found = checkpoints_at(named);
    places.insert(places.end(), found.begin(), found.end());
  }
  Json list = Json::array();
  if (places.size() == 1 && !places.front().listed_id) {
    const ExitCode code = *verify_one(places.front(), options, list);
    if (options.json) print_json(list.front());
    return code;
  }
  // If a place cannot be read, report it and go on with the others.
  int worst = kFine;
  std::size_t fine = 0;
  std::size_t changed = 0;
  for (const auto& place : places) {
    std::optional<ExitCode> code;
    try {
      if (!place.missing.empty())
        throw Error(ErrorCode::kNotFound,
                    fmt::format("no part of {} is there, of {} ranks that save one each: the save of a part has not ended or has "
                                "failed, or the part was removed",
                                name_ranks(place.missing), place.world_size));
      code = verify_one(place, options, list);
    } catch (const Error& error) {
      if (!report_change(place, options, list)) {
        code = kFoundBad;
        if (options.json)
          list.push_back({{"checkpoint", place.url}, {"fine", false}, {"verdict", "unreadable"}, {"error", error.what()}});
        else
          std::cout << coloured(Colour::kBad, "bad: ") << printable(place.url) << ": " << printable(error.what()) << '\n';
      }
    }
    changed += !code;
    fine += code == kFine;
    if (code == kFoundBad || (code && worst == kFine)) worst = *code;
  }
  if (options.json)
    print_json(list);
  else
    std::cout << fmt::format("{} of {} checkpoints are fine", fine, places.size() - changed)
              << (changed > 0 ? fmt::format("; {} removed or replaced meanwhile", changed) : "") << '\n';
  return worst;
}

}  // namespace

void add_verify(CLI::App& app, Run& chosen) {
  const auto [command, options] =
      add_command(app, chosen, "verify", "Read every byte of checkpoints and list all faults", kVerifyExamples, verify);
  command->add_option("DIR", options.places, "Checkpoints, runs or files; a run means all of its checkpoints")->required();
  command
      ->add_option("--threads", options.threads, "Threads that read and check; by default one per CPU, at least 2 and at most 16")
      ->check(CLI::Range(1u, 256u));
  command->add_flag("--json", options.json, "Print JSON");
}

}  // namespace cairn::tools
