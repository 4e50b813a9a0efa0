// The command `cairn`: looks at checkpoints and at what ranks have recorded, checks, compares and converts checkpoints. What its exit codes mean
// stands in commands.hpp.
#include <csignal>
#include <iostream>

#include <CLI/CLI.hpp>

#include <cairn/runtime/library_versions.hpp>
#include <cairn/runtime/tools/commands.hpp>
#include <cairn/runtime/tools/trace.hpp>

namespace cairn::tools {
namespace {

constexpr const char* kExamples = R"(Examples:
  cairn ls run                          the checkpoints of a run
  cairn inspect run/step_100            what a checkpoint holds
  cairn verify run/step_100             reads every byte, lists every fault
  cairn diff run/step_100 run/step_200  what differs
  cairn cat run/step_100 model.weight --slice 0:4,:
  cairn convert run/step_100 model.pt --to torch
  cairn prune run --keep last=3         removes the others; shows them first, and asks
  cairn doctor run                      what would make saves slow or fail here
  source <(cairn completion bash)       completes commands and options from now on
  cairn trace run                       what went wrong in the last failed save; cairn trace --help says more

`cairn COMMAND --help` has examples of each. DIR is a path or a URL of a known scheme; Cairn's checkpoints and PyTorch's are both understood.
Exit codes: )";

constexpr const char* kTraceExamples =
    R"(What ranks record: a failed save leaves its last events in failure-<save id>/ beside the checkpoint; a job that is started with
CAIRN_TRACE=DIR, or cairn-launch --trace DIR, writes all of them to DIR. DIR may also be the run's directory: then it is the last failure there.

Examples:
  cairn trace run                               ten lines: how it ended, where it failed, who was waited for
  cairn trace explain run                       step by step, what led to the failure and to the end
  cairn trace explain run --rank 2              the same, of rank 2
  cairn trace timeline run                      a row a rank
  cairn trace critical-path run                 what the time went into
  cairn trace diff good slow                    what got slower; in one directory: --attempt 1 --with 2
  cairn trace messages run --name Written       every message and state; --since 1.5 --until 2 --failed --grep TEXT
  cairn trace export run --to html -o save.html          a page that opens at the failure, in any browser
  cairn trace export run --to perfetto -o save.json      to be opened at ui.perfetto.dev
  cairn trace check traces                      whether the state machines decide so again; of CAIRN_TRACE=full:DIR
  cairn trace list traces                       all saves and loads; choose one with --attempt NUMBER

Without --attempt it is the last save or load that failed, or that never ended; if there is none, the last one.
A directory whose name is that of a command: cairn trace ./list)";

// Errors are one line or a list, never a trace: `code` is what scripts branch on.
int report(ExitCode code, const std::string& what) {
  std::cerr << "cairn: " << what << '\n';
  return code;
}

ExitCode exit_code_of(const Error& error) {
  switch (error.code()) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kAlreadyExists:
    case ErrorCode::kPrecondition:
      return kWrongUse;
    default:
      return kFoundBad;
  }
}

// `cairn trace` and what it does with DIR.
class TraceCommands {
 public:
  explicit TraceCommands(CLI::App& app)
      : trace_(app.add_subcommand("trace", "Say what went wrong, or what took long, in a save or load")) {
    trace_->footer(kTraceExamples);
    trace_->add_option("DIR", choice_.directory, "Where the traces are");
    add_choice(trace_);
    list_ = add("list", "List the saves and loads");
    explain_ = add("explain", "Follow the causes of the failure, and of the end");
    explain_->add_option("--rank", rank_, "Of this rank");
    messages_ = add("messages", "List messages, hooks and changes of state");
    add_filters();
    timeline_ = add("timeline", "Draw what each rank did when");
    timeline_->add_option("--columns", columns_, "Characters for the time")->check(CLI::Range(10u, 1000u))->capture_default_str();
    critical_path_ = add("critical-path", "Say which chain of messages and hooks took the time");
    critical_path_->add_option("--rank", rank_, "To the end of the call on this rank, not the last one");
    diff_ = trace_->add_subcommand("diff", "Compare two saves or loads: what got slower");
    diff_->add_option("A", choice_.directory, "Where the traces of the first are")->required();
    diff_->add_option("B", after_.directory, "Of the second; the same if it is left out");
    diff_->add_option("--attempt", choice_.attempt, "Which one of A, as for other commands");
    diff_->add_option("--with", after_.attempt, "Which one of B");
    diff_->add_flag("--json", choice_.json, "Print JSON");
    check_ = add("check", "Have the state machines decide again on all that was recorded, and compare");
    export_ = add("export", "Write it in a format of other tools");
    export_
        ->add_option("--to", format_,
                     "html: a page to be opened in a browser; perfetto: JSON for ui.perfetto.dev and chrome://tracing")
        ->required()
        ->check(CLI::IsMember({"html", "perfetto"}));
    export_->add_option("-o,--output", output_, "The file; without it standard output");
  }

  bool is_meant() const { return trace_->parsed(); }
  int run() const {
    if (*list_) return trace_list(choice_);
    if (*explain_) return trace_explain(choice_, rank_);
    if (*messages_) return trace_messages(choice_, filters_);
    if (*timeline_) return trace_timeline(choice_, columns_);
    if (*critical_path_) return trace_critical_path(choice_, rank_);
    if (*diff_) return compare();
    if (*check_) return trace_check(choice_);
    if (*export_) return trace_export(choice_, format_, output_);
    if (choice_.directory.empty())
      throw WrongUse("trace: name a directory with traces; cairn trace --help says where they come from");
    return trace_summary(choice_);
  }

 private:
  int compare() const {
    TraceChoice after = after_;
    if (after.directory.empty()) {
      if (choice_.attempt == after.attempt)
        throw WrongUse("trace diff: name two directories, or two attempts with --attempt and --with");
      after.directory = choice_.directory;
    }
    return trace_diff(choice_, after);
  }
  CLI::App* add(const char* name, const char* what) {
    auto* const command = trace_->add_subcommand(name, what);
    command->add_option("DIR", choice_.directory, "Where the traces are")->required();
    add_choice(command);
    return command;
  }
  void add_choice(CLI::App* command) {
    command->add_option("--attempt", choice_.attempt,
                        "Which save or load: its number, save id, a part of the checkpoint's id, or 'last'");
    command->add_option("--job", choice_.job, "Of which job: the beginning of its incarnation");
    command->add_option("--after", choice_.after, "Only those that have begun after this time, in seconds since 1970");
    command->add_flag("--json", choice_.json, "Print JSON");
  }
  void add_filters() {
    messages_->add_option("--rank", filters_.rank, "Of this rank");
    messages_->add_option("--actor", filters_.actor, "Of this actor")
        ->check(CLI::IsMember({"runtime", "supervisor", "planner", "storage", "store", "coordinator"}));
    messages_->add_option("--name,--type", filters_.name, "Whose message type, hook or state has this in its name");
    messages_->add_option("--kind", filters_.kind, "Of this kind")
        ->check(CLI::IsMember({"sent", "handled", "is", "decided", "began", "ended", "did", "called"}));
    messages_->add_option("--phase", filters_.phase, "Hooks and failures of this phase")
        ->check(CLI::IsMember({"join", "local_plan", "global_plan", "write", "read", "finish"}));
    messages_->add_option("--grep", filters_.text, "Whose line has this text");
    messages_->add_option("--since", filters_.since, "Not before: seconds from the first call, or a time of day (UTC)");
    messages_->add_option("--until", filters_.until, "Not after");
    messages_->add_flag("--failed", filters_.failed, "What failed or was ignored");
    messages_->add_option("--limit", filters_.limit, "So many lines at most");
  }

  TraceChoice choice_;
  TraceChoice after_;  // of diff
  TraceMessagesOptions filters_;
  std::optional<int> rank_;
  unsigned columns_ = 100;
  std::string format_;
  std::string output_;
  CLI::App* const trace_;
  CLI::App* list_ = nullptr;
  CLI::App* explain_ = nullptr;
  CLI::App* messages_ = nullptr;
  CLI::App* timeline_ = nullptr;
  CLI::App* critical_path_ = nullptr;
  CLI::App* diff_ = nullptr;
  CLI::App* check_ = nullptr;
  CLI::App* export_ = nullptr;
};

// "cairn 0.1.0", then a line for each library.
std::string versions() {
  std::string text;
  for (const LibraryVersion& library : library_versions())
    text += (text.empty() ? "cairn" : "\n" + library.name) + " " + library.version;
  return text;
}

std::string exit_codes() {
  std::string text;
  for (const ExitStatus& status : kExitStatuses)
    text += (text.empty() ? "" : "; ") + std::to_string(status.code) + " " + status.meaning;
  return text + ".";
}

int run(int argc, char** argv) {
  CLI::App app{"Looks at distributed checkpoints and at what ranks have recorded, checks and converts checkpoints.", "cairn"};
  app.set_version_flag("--version", versions(), "Print the versions of cairn and of what it is built from, and exit");
  app.footer(kExamples + exit_codes());
  app.require_subcommand(1);

  Run chosen;
  add_ls(app, chosen);
  add_inspect(app, chosen);
  add_verify(app, chosen);
  add_cat(app, chosen);
  add_diff(app, chosen);
  add_convert(app, chosen);
  add_prune(app, chosen);
  add_doctor(app, chosen);
  const TraceCommands trace_commands(app);
  add_documentation(app, chosen);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kFine : kWrongUse;
  }
  if (trace_commands.is_meant()) return trace_commands.run();
  return chosen();
}

}  // namespace
}  // namespace cairn::tools

int main(int argc, char** argv) {
  using namespace cairn::tools;
  // A file that grows beyond `ulimit -f` is then an error like any other, and what was written of it is removed.
  std::signal(SIGXFSZ, SIG_IGN);
  // Who has read enough of the output (`cairn inspect DIR | head`) ends it silently, also where a parent had this ignored.
  std::signal(SIGPIPE, SIG_DFL);
  int code = kFoundBad;
  try {
    code = run(argc, argv);
  } catch (const cairn::Error& error) {
    code = report(exit_code_of(error), error.what());
  } catch (const std::exception& error) {
    code = report(kFoundBad, error.what());
  }
  std::cout.flush();
  // A full disk or a closed pipe must not look like success.
  if (!std::cout) code = report(kFoundBad, "cannot write to standard output");
  return code;
}
