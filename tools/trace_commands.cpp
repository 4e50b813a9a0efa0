// The command line of `cairn trace`.
#include <memory>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include <cairn/tools/trace.hpp>

namespace cairn::tools {
namespace {

constexpr const char* kOrigin =
    R"(Reads the events that ranks record. A failed save leaves its last events in failure-<save id>/ beside
the checkpoint. A job started with CAIRN_TRACE=DIR or cairn-launch --trace DIR writes all events to DIR.
If DIR is the directory of a run, reads the last failure there.

Examples:
  cairn trace run                               a summary: how it ended, where it failed, which ranks waited
)";
constexpr const char* kChoice = R"(
Without --attempt, shows the last save or load that failed or never ended; if there is none, the last one.
export writes all of them. If a directory has the name of a command, write cairn trace ./list.)";

struct TraceOptions {
  TraceChoice choice;
  TraceMessagesOptions filters;
  std::optional<int> rank;
  unsigned columns = 0;  // 0: as the terminal has
  bool all = false;
  std::string format;
  std::string output;
};
using SharedOptions = std::shared_ptr<TraceOptions>;

void add_job(CLI::App& command, TraceChoice& choice) {
  command.add_option("--job", choice.job, "The job: the beginning of its incarnation");
  command.add_flag("--json", choice.json, "Print JSON");
}

void add_choice(CLI::App& command, TraceChoice& choice) {
  command.add_option("--attempt", choice.attempt,
                     "The save or load: its number (2, save:2, load:2), save id, a part of the checkpoint's id, or 'last'");
  command.add_option("--after", choice.after,
                     "Only saves and loads that began after this time: 2030-12-31T23:59:59 (UTC), or seconds since 1970");
  add_job(command, choice);
}

void add_filters(CLI::App& command, TraceMessagesOptions& filters) {
  command.add_option("--rank", filters.rank, "Only lines of this rank");
  command.add_option("--actor", filters.actor, "Only lines of this actor")
      ->check(CLI::IsMember({"runtime", "supervisor", "planner", "storage", "store", "coordinator"}));
  command.add_option("--name,--type", filters.name, "Only lines whose message type, hook or state contains this text");
  command.add_option("--kind", filters.kind, "Only lines of this kind")
      ->check(CLI::IsMember({"sent", "handled", "is", "began", "ended", "did", "called"}));
  command.add_option("--phase", filters.phase, "Only hooks and failures of this phase")
      ->check(CLI::IsMember({"join", "local_plan", "global_plan", "write", "read", "finish"}));
  command.add_option("--grep", filters.text, "Only lines that contain this text");
  command.add_option("--since", filters.since, "Only lines from this time on: seconds from the first call, or a time of day (UTC)");
  command.add_option("--until", filters.until, "Only lines up to this time");
  command.add_flag("--failed", filters.failed, "Only failures and ignored messages");
  command.add_option("--limit", filters.limit, "Print at most this many lines");
}

int summary(const TraceOptions& options) {
  if (options.choice.directory.empty())
    throw WrongUse("trace: name a directory with traces; cairn trace --help says where they come from");
  return trace_summary(options.choice);
}

}  // namespace

void add_trace(CLI::App& app, Run& chosen) {
  const auto options = std::make_shared<TraceOptions>();
  auto* const trace = app.add_subcommand("trace", "Show what went wrong, or what took long, in a save or load");
  trace->add_option("DIR", options->choice.directory, "The directory with the traces");
  add_choice(*trace, options->choice);
  trace->callback([options, trace, &chosen] {
    if (trace->get_subcommands().empty()) chosen = [options] { return summary(*options); };
  });

  std::string all_examples = kOrigin;
  const auto add = [&](const char* name, const char* what, const std::string& examples, int (*run)(const TraceOptions&)) {
    auto* const command = trace->add_subcommand(name, what);
    command->footer("Examples:\n" + examples);
    all_examples += examples;
    command->callback([options, run, &chosen] { chosen = [options, run] { return run(*options); }; });
    command->add_option("DIR", options->choice.directory, "The directory with the traces")->required();
    add_choice(*command, options->choice);
    return command;
  };
  add("explain", "Show the chain of causes of a failure and of the end, and the stacks of what hung",
      "  cairn trace explain run                       shows step by step what led to the failure and the end\n"
      "  cairn trace explain run --rank 2              shows it for rank 2\n",
      [](const TraceOptions& of) { return trace_explain(of.choice, of.rank); })
      ->add_option("--rank", options->rank, "Explain only the failure and the end of the call on this rank");
  add("timeline", "Draw what each rank did over time", "  cairn trace timeline run                      draws one row per rank\n",
      [](const TraceOptions& of) { return trace_timeline(of.choice, of.columns); })
      ->add_option("--columns", options->columns, "Width of the time axis in characters; by default, as many as fit")
      ->check(CLI::Range(10u, 1000u));
  add("critical-path", "Show the chain of messages and hooks that took the time",
      "  cairn trace critical-path run                 shows where the time went\n",
      [](const TraceOptions& of) { return trace_critical_path(of.choice, of.rank); })
      ->add_option("--rank", options->rank, "End at this rank's return from the call, not at the last rank's");
  add_filters(*add("messages", "List messages, hooks and changes of state",
                   "  cairn trace messages run --name Written       every message and state; --since 1.5 --until 2 --failed "
                   "--grep TEXT\n",
                   [](const TraceOptions& of) { return trace_messages(of.choice, of.filters); }),
              options->filters);
  auto* const exported = add("export", "Write traces in the format of another tool",
                             "  cairn trace export run --to html -o job.html           a web page that opens at the failure\n"
                             "  cairn trace export run --to perfetto -o job.json       a file for ui.perfetto.dev\n",
                             [](const TraceOptions& of) { return trace_export(of.choice, of.format, of.output); });
  exported
      ->add_option("--to", options->format, "html: a page for any browser; perfetto: JSON for ui.perfetto.dev and chrome://tracing")
      ->required()
      ->check(CLI::IsMember({"html", "perfetto"}));
  exported->add_option("-o,--output", options->output, "The file to write; standard output by default");
  add("list", "List the saves and loads",
      "  cairn trace list traces                       lists all of them; choose one with --attempt save:2\n",
      [](const TraceOptions& of) { return trace_list(of.choice, of.all); })
      ->add_flag("--all", options->all, "Also list the agreements that Cairn makes itself");
  trace->footer(all_examples + kChoice);
}

}  // namespace cairn::tools
