// `cairn doctor`: finds what would make saves slow or fail here.
#include <algorithm>
#include <iostream>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <cairn/tools/commands.hpp>
#include <cairn/tools/doctor_checks.hpp>
#include <cairn/tools/terminal.hpp>

namespace cairn::tools {
namespace {

constexpr const char* kDoctorExamples = R"(Examples:
  cairn doctor run           this machine, and the disk that run is on
  cairn doctor               the machine alone
  cairn doctor run --json    for programs

In DIR it writes a file of at most --test-size, reads it back, and removes it. Run it where ranks run, as the user whom they run as, with the
limits that they have. Ends with 1 if there is a problem: something that would make saves fail. What would make them slow is a warning.)";

struct DoctorOptions {
  std::string directory;
  std::uint64_t test_bytes = 256u << 20;
  bool json = false;
};

std::string coloured_health(Health health) {
  const std::string text = fmt::format("{:<8}", to_string(health));
  return coloured(health == Health::kOk ? Colour::kGood : health == Health::kWarning ? Colour::kWarning : Colour::kBad, text);
}

int doctor(const DoctorOptions& options) {
  std::vector<Finding> findings;
  const auto add = [&](std::vector<Finding> more) { findings.insert(findings.end(), more.begin(), more.end()); };
  add(check_versions());
  add(check_limits());
  add(check_network());
  add(check_clock());
  if (!options.directory.empty()) {
    const auto path = local_path(options.directory);
    if (!path) throw WrongUse(fmt::format("{} is no directory of this machine", printable(options.directory)));
    add(check_place(*path, options.test_bytes));
  }
  const auto worst = std::max_element(findings.begin(), findings.end(), [](const Finding& a, const Finding& b) {
                       return a.health < b.health;
                     })->health;
  if (options.json) {
    using DoctorJson = nlohmann::ordered_json;
    DoctorJson json{{"health", to_string(worst)}, {"checks", DoctorJson::array()}};
    for (const Finding& one : findings)
      json["checks"].push_back(
          {{"name", one.name}, {"health", to_string(one.health)}, {"found", one.found}, {"effect", one.effect}});
    std::cout << json.dump(2, ' ', false, DoctorJson::error_handler_t::replace) << '\n';
  } else {
    for (const Finding& one : findings) {
      std::cout << fmt::format("{} {:<18} {}\n", coloured_health(one.health), one.name, printable(one.found));
      if (!one.effect.empty()) std::cout << fmt::format("{:28}{}\n", "", one.effect);
    }
    if (options.directory.empty()) std::cout << "Name a directory to look at its disk as well.\n";
  }
  return worst == Health::kProblem ? kFoundBad : kFine;
}

}  // namespace

void add_doctor(CLI::App& app, Run& chosen) {
  const auto options = std::make_shared<DoctorOptions>();
  auto* const command = app.add_subcommand("doctor", "Say what would make saves slow or fail on this machine");
  command->footer(kDoctorExamples);
  command->add_option("DIR", options->directory, "Where checkpoints are to be written");
  command->add_option("--test-size", options->test_bytes, "Of the file that measures the disk, at most")
      ->transform(CLI::AsSizeValue(false))
      ->type_name("SIZE")
      ->default_str("256MiB");
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([options, &chosen] { chosen = [options] { return doctor(*options); }; });
}

}  // namespace cairn::tools
