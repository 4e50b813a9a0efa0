// `cairn cp`: copies a checkpoint to another place or store.
#include <iostream>
#include <memory>
#include <string>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cairn/base/cpu_share.hpp>
#include <cairn/base/random.hpp>
#include <cairn/base/save_id.hpp>
#include <cairn/storage/copy_checkpoint.hpp>
#include <cairn/storage/runs/run_directory.hpp>
#include <cairn/storage/tiers.hpp>
#include <cairn/tools/commands.hpp>
#include <cairn/tools/terminal.hpp>

namespace cairn::tools {
namespace {

constexpr const char* kCpExamples = R"(Examples:
  cairn cp run/step_100 s3://bucket/run/step_100   copies a checkpoint to a bucket
  cairn cp s3://bucket/run/step_100 run/step_100   and back

TARGET is the place of the copy itself, not of its run; no checkpoint may be there. The copy appears
there once all of it was written and read back without a fault. It is a save of its own: it can be loaded,
pinned and removed like any other. Step, user metadata and its position among the checkpoints of a
run are those of SOURCE.

If the command fails, and on SIGINT, SIGTERM or SIGHUP, it removes its unfinished copy. After SIGKILL,
that copy remains, and is not a checkpoint; the same command then starts over, and removes it. So does
the next save to TARGET.

Copies checkpoints that Cairn saved in its own format. For PyTorch's use `cairn convert --to dcp`.)";

struct CpOptions {
  std::string source, target;
  unsigned threads = cpu_share();
};

// Throws WrongUse for a target that is a run, which the copy would turn into a checkpoint.
int cp(const CpOptions& options) {
  const auto from = open_existing(options.source), to = open_store(options.target);
  // A removal of the source would take the copy.
  if (to->url().rfind(from->url() + "/", 0) == 0)
    throw WrongUse(fmt::format("{} is within the checkpoint itself: name a place outside of it", printable(to->url())));
  if (const auto inside = RunDirectory(to->url()).list().checkpoints; !inside.empty() && !to->is_taken(kCommitRecordName)) {
    const std::string url = from->url();
    throw WrongUse(fmt::format("{} holds checkpoints: name the place of the copy itself, such as {}", printable(to->url()),
                               printable(child_url(to->url(), url.substr(url.rfind('/') + 1)))));
  }
  CheckpointCopy copied;
  {
    ProgressBar progress("copying");
    copied = copy_checkpoint(*from, *to, make_save_id(random_hex(*system_random(), 128), "cp", 1), options.threads,
                             [&](std::uint64_t done, std::uint64_t all) {
                               check_signal("copying " + printable(from->url()));
                               // Each byte is written and read back.
                               progress.update(done / 2, all / 2);
                             });
  }
  if (!wait_for_copies(to->url()))
    throw Error(ErrorCode::kUnavailable, to->url() + " is in the near tier only: its copy to the far tier has failed");
  std::cout << fmt::format("{}: {}, {}{}\n", printable(to->url()), counted(copied.files, "file"), human_bytes(copied.bytes),
                           copied.starts_over ? "; started over, because an earlier copy or save had not ended" : "");
  return kFine;
}

}  // namespace

void add_cp(CLI::App& app, Run& chosen) {
  const auto [command, options] =
      add_command<CpOptions>(app, chosen, "cp", "Copy a checkpoint to another place or store", kCpExamples,
                             [](const CpOptions& of) { return until_signal([&] { return cp(of); }); });
  command->add_option("SOURCE", options.source, "The directory or URL of a checkpoint")->required();
  command->add_option("TARGET", options.target, "The directory or URL of the copy")->required();
  command->add_option("--threads", options.threads, "Threads that copy; by default one per CPU, at least 2 and at most 16")
      ->check(CLI::Range(1u, 256u));
}

}  // namespace cairn::tools
