// `cairn verify`: reads every byte of a checkpoint and lists everything that is wrong with it.
#include <algorithm>
#include <iostream>
#include <thread>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <cairn/runtime/tools/commands.hpp>
#include <cairn/runtime/tools/terminal.hpp>
#include <cairn/storage/checkpoint_writer.hpp>

namespace cairn::tools {
namespace {

constexpr const char* kVerifyExamples = R"(Examples:
  cairn verify run/step_100              reads every byte, lists every fault; ends with 1 if there is one
  cairn verify run/step_100 --json       the same for programs
  cairn verify run/step_100 --threads 16 faster, where the disk is

Of Cairn's checkpoints every byte is under a checksum; of PyTorch's the tensors are.)";

struct VerifyOptions {
  std::string checkpoint;
  unsigned threads = std::clamp(std::thread::hardware_concurrency(), 2u, 16u);
  bool json = false;
};

std::string to_line(const VerifyFault& fault) {
  std::string line = fmt::format("{} at offset {}", printable(fault.object), fault.offset);
  if (!fault.fqn.empty()) line += fmt::format(" ({})", printable(fault.fqn));
  return line + ": " + printable(fault.what);
}

void print_json(const std::string& url, const std::vector<VerifyFault>& faults, std::uint64_t bytes) {
  using VerifyJson = nlohmann::ordered_json;
  VerifyJson json{{"checkpoint", url}, {"fine", faults.empty()}, {"bytes_read", bytes}, {"faults", VerifyJson::array()}};
  for (const auto& fault : faults)
    json["faults"].push_back({{"file", fault.object}, {"offset", fault.offset}, {"key", fault.fqn}, {"what", fault.what}});
  std::cout << json.dump(2, ' ', false, VerifyJson::error_handler_t::replace) << '\n';
}

int verify(const VerifyOptions& options) {
  const auto store = open_existing(options.checkpoint);
  std::vector<VerifyFault> faults;
  std::uint64_t bytes = 0;
  {
    ProgressBar progress("verifying");
    faults = verify_checkpoint(*store, options.threads, [&](std::uint64_t done, std::uint64_t all) { progress.update(done, all); });
    bytes = progress.done();
  }
  if (options.json) {
    print_json(store->url(), faults, bytes);
    return faults.empty() ? kFine : kFoundBad;
  }
  for (const auto& fault : faults) std::cout << coloured(Colour::kBad, "bad: ") << to_line(fault) << '\n';
  if (!faults.empty()) {
    std::cout << fmt::format("{}: {} fault{} found\n", printable(store->url()), faults.size(), faults.size() == 1 ? "" : "s");
    return kFoundBad;
  }
  std::cout << fmt::format("{}: {}, {} read\n", printable(store->url()), coloured(Colour::kGood, "fine"), human_bytes(bytes));
  return kFine;
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
