// `cairn verify`: reads every byte of a checkpoint and lists everything that is wrong with it.
#include <algorithm>
#include <iostream>
#include <iterator>
#include <thread>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <cairn/runtime/tools/commands.hpp>
#include <cairn/runtime/tools/terminal.hpp>
#include <cairn/storage/checkpoint_writer.hpp>

namespace cairn::tools {
namespace {

constexpr const char* kVerifyExamples = R"(Examples:
  cairn verify run/step_100              reads every byte, lists every fault
  cairn verify run/step_100 --json       the same for programs
  cairn verify run/step_100 --threads 16 faster, where the disk is

Three verdicts:
  fine                ends with 0: everything was read and checked
  faults              ends with 1: each is listed with file, offset and key; what cannot be checked is listed as well
  cannot be checked   ends with 3: no fault, but something that this version of Cairn cannot check, such as compressed items or a record
                      of a newer format; it may be sound or not

Of Cairn's checkpoints every byte is under a checksum; of PyTorch's the tensors are. PyTorch's record is under none.)";

struct VerifyOptions {
  std::string checkpoint;
  unsigned threads = std::clamp(std::thread::hardware_concurrency(), 2u, 16u);
  bool json = false;
};

using VerifyJson = nlohmann::ordered_json;

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

std::string counted(std::size_t count, const char* one, const char* many) {
  return fmt::format("{} {}", count, count == 1 ? one : many);
}

void print_json(const std::string& url, const Verdict& verdict, std::uint64_t bytes) {
  const auto listed = [](const std::vector<VerifyFault>& found) {
    VerifyJson list = VerifyJson::array();
    for (const auto& fault : found)
      list.push_back({{"file", fault.object}, {"offset", fault.offset}, {"key", fault.fqn}, {"what", fault.what}});
    return list;
  };
  const VerifyJson json{{"checkpoint", url},
                        {"fine", verdict.exit_code() == kFine},
                        {"verdict", verdict.name()},
                        {"bytes_read", bytes},
                        {"faults", listed(verdict.faults)},
                        {"unchecked", listed(verdict.unchecked)}};
  std::cout << json.dump(2, ' ', false, VerifyJson::error_handler_t::replace) << '\n';
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

int verify(const VerifyOptions& options) {
  const auto store = open_existing(options.checkpoint);
  std::uint64_t bytes = 0;
  const Verdict verdict([&] {
    ProgressBar progress("verifying");
    auto found =
        verify_checkpoint(*store, options.threads, [&](std::uint64_t done, std::uint64_t all) { progress.update(done, all); });
    bytes = progress.done();
    return found;
  }());
  if (options.json) {
    print_json(store->url(), verdict, bytes);
    return verdict.exit_code();
  }
  for (const auto& fault : verdict.faults)
    std::cout << coloured(Colour::kBad, "bad: ") << place_of(fault) << ": " << printable(fault.what) << '\n';
  print_unchecked(verdict.unchecked);
  std::string told;
  if (!verdict.faults.empty()) told = counted(verdict.faults.size(), "fault", "faults") + " found";
  if (!verdict.unchecked.empty())
    told += (told.empty() ? "no fault found, but " : ", and ") + counted(verdict.unchecked.size(), "item", "items") +
            " cannot be checked";
  if (told.empty()) told = fmt::format("{}, {} read", coloured(Colour::kGood, "fine"), human_bytes(bytes));
  std::cout << fmt::format("{}: {}\n", printable(store->url()), told);
  return verdict.exit_code();
}

}  // namespace

void add_verify(CLI::App& app, Run& chosen) {
  const auto options = std::make_shared<VerifyOptions>();
  auto* const command = app.add_subcommand("verify", "Read every byte of a checkpoint and list all faults");
  command->footer(kVerifyExamples);
  command->add_option("DIR", options->checkpoint, "The checkpoint")->required();
  command->add_option("--threads", options->threads, "Threads that read and check; those of the machine if it is left out")
      ->check(CLI::Range(1u, 256u));
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([options, &chosen] { chosen = [options] { return verify(*options); }; });
}

}  // namespace cairn::tools
