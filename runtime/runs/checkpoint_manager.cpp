#include <cairn/runtime/runs/checkpoint_manager.hpp>

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>

#include <cairn/base/log.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/base/settings.hpp>
#include <cairn/base/utf8.hpp>
#include <cairn/base/wait.hpp>
#include <cairn/runtime/checkpoints/checkpointer.hpp>
#include <cairn/runtime/checkpoints/one_call.hpp>
#include <cairn/runtime/observation/metrics.hpp>
#include <cairn/runtime/runs/save_schedule.hpp>
#include <cairn/runtime/worlds/agreement.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/runs/resume_order.hpp>
#include <cairn/storage/runs/retention.hpp>
#include <cairn/storage/runs/run_cleanup.hpp>
#include <cairn/storage/runs/run_directory.hpp>
#include <cairn/storage/tiers.hpp>
#include <cairn/storage/verify_checkpoint.hpp>

namespace cairn {
namespace {

using std::chrono::milliseconds;

// Letters of the steps that an error lists.
constexpr std::size_t kStepsTextMax = 200;
// Bounds the second read of a checkpoint that a load found damaged.
constexpr std::uint64_t kSecondReadBytesMax = std::uint64_t{16} << 30;

void check_manager_options(const CheckpointManagerOptions& options) {
  const auto require = [](bool fine, const char* what) {
    if (!fine) throw Error(ErrorCode::kInvalidArgument, std::string("CheckpointManagerOptions::") + what);
  };
  require(options.save_every_steps >= 0, "save_every_steps must not be negative; 0 is for never");
  require(options.save_every >= milliseconds(0), "save_every must not be negative; 0 is for never");
  require(options.grace_period >= milliseconds(0), "grace_period must not be negative");
  require(options.ask_every >= milliseconds(0), "ask_every must not be negative");
  require(options.ask_every_steps >= 0, "ask_every_steps must not be negative; 0 means: use ask_every");
  require(options.clock != nullptr, "clock must not be null");
  check_policy(options.retention);
  user_metadata_of(options.user_metadata, {});
}

// Returns whether the options say when to save. A manager without such options may be there only to
// read.
bool saves_by_itself(const CheckpointManagerOptions& options) {
  return options.save_every_steps > 0 || options.save_every > milliseconds(0) || !options.save_on_signal.empty();
}

// Returns why this process cannot create files in the directory `url`, or in its nearest existing
// parent; "" if it can, or if the store is not a directory.
std::string why_not_writable(const std::string& url) {
  if (url.empty() || url.front() != '/') return "";
  std::string path = url;
  while (::access(path.c_str(), F_OK) != 0 && errno == ENOENT && path != "/")
    path.resize(std::max<std::size_t>(path.rfind('/'), 1));
  if (::access(path.c_str(), W_OK | X_OK) == 0) return "";
  return std::string(system_error("create files in", path, errno).what());
}

// Returns whether `url` is a directory, or file, in which this process cannot create files.
bool is_read_only(const std::string& url) { return ::access(url.c_str(), F_OK) == 0 && !why_not_writable(url).empty(); }

void check_run_url(const std::string& url) {
  if (!is_utf8(url))
    throw Error(ErrorCode::kInvalidArgument, "cannot keep checkpoints in " + printable_utf8(url) +
                                                 ": records and messages hold its name, which is not UTF-8; use another");
}

// Returns nine tenths of the time that cairn-launch leaves between a signal and SIGKILL: the rest
// is for shutting down. Without cairn-launch, returns the maximum.
milliseconds grace_of_launcher() {
  const double seconds = parse_number<double>(environment_value("CAIRN_GRACE_SECONDS")).value_or(0);
  return seconds > 0 && seconds < 1e9 ? milliseconds(static_cast<std::int64_t>(seconds * 900)) : milliseconds::max();
}

void check_restore_options(const LoadOptions& options) {
  if (options.world || options.no_dist || !options.use_collectives || options.coordinator_rank != 0 || options.storage_reader)
    throw Error(
        ErrorCode::kInvalidArgument,
        "restore_latest goes by the manager's own world, rank 0 and Cairn's reader: leave world, no_dist, use_collectives, "
        "coordinator_rank and storage_reader of LoadOptions as they are, or choose by latest_valid() and load by a Checkpointer");
}

// Returns whether all failures have one of the codes. Considers only failures that all ranks know:
// an exception of a Stateful object is known only on its own rank.
bool have_codes(const FailureMap& failures, const std::set<ErrorCode>& codes) {
  return !failures.empty() && std::all_of(failures.begin(), failures.end(), [&](const auto& entry) {
    const Failure& failure = entry.second;
    return failure.kind == FailureKind::kRaised && codes.count(failure.code) > 0 && failure.actor != "trainer";
  });
}

// Warns about lost steps: a caller may not look at the result of `restore_latest`.
void log_passed_over(const ValidCheckpoint& chosen) {
  if (chosen.passed_over.empty()) return;
  std::string passed_over;
  std::int64_t latest = 0;
  for (const PassedOver& one : chosen.passed_over) {
    passed_over += "; " + std::string(passed_over.empty() ? "passed over: " : "") + one.name + ": " + one.why;
    latest = std::max(latest, step_of_name(one.name).value_or(0));
  }
  std::string text = "restored " + chosen.checkpoint.name;
  if (const auto step = chosen.checkpoint.step; step && latest > *step)
    text += ", " + std::to_string(latest - *step) + " steps earlier than the latest checkpoint";
  text += passed_over;
  write_log(LogLevel::kWarning, 0, text);
}

std::string text_of_faults(const std::vector<VerifyFault>& faults) {
  const VerifyFault& first = faults.front();
  return first.object + " at offset " + std::to_string(first.offset) + ": " + first.what +
         (faults.size() > 1 ? "; " + std::to_string(faults.size() - 1) + " more" : "");
}

}  // namespace

struct CheckpointManager::Implementation {
  Implementation(World of, const std::string& url, CheckpointManagerOptions with)
      : options(std::move(with)),
        world(std::move(of)),
        run(url),
        checkpointer(Checkpointer(world, options.name)),
        agreement(world, options.name + ".agreement"),
        schedule(options, world.rank(), agreement) {
    check_run_url(run.url());
    if (const auto metrics = metrics_of_environment()) metrics->name_run(run.url());
    if (world.rank() != 0) return;
    RunCleanup::GraceLeft grace;
    if (!options.save_on_signal.empty()) grace = [this] { return schedule.grace_left(); };
    cleanup = std::make_unique<RunCleanup>(run, options.retention, world.rank(), std::move(grace));
    try {
      resume_copies(run.url());
    } catch (const std::exception& error) {  // the first save tries again
      write_log(LogLevel::kWarning, 0, std::string("cannot continue to copy checkpoints: ") + error.what());
    }
  }

  ~Implementation() {
    checkpointer.reset();  // waits for saves in flight
    if (::getpid() != process) {
      cleanup.release();  // NOLINT: in a forked child, the thread belongs to the parent
      return;
    }
    try {
      if (news || !in_flight.empty()) start_cleanup();
    } catch (...) {  // out of memory: the next manager cleans up
    }
    cleanup.reset();  // before the schedule, which it asks
    try {
      wait_for_copies(run.url(), [this] {
        const auto left = schedule.grace_left();
        return !left || left->count() > 0;
      });
    } catch (...) {  // out of memory: the next manager continues the copies
    }
  }

  std::string busy() const { return "checkpoint manager '" + options.name + "' is busy: it makes one call at a time"; }

  // The location and options of a save.
  struct Place {
    std::string name;
    std::string id;
    SaveOptions options;
  };
  Place agree_on_place(const std::string& what, std::int64_t step, const Annotations& annotations,
                       const std::string& why_not = "") {
    const std::string about = "the " + what + " of step " + std::to_string(step) + " in " + run.url();
    const auto decide = [&](const std::vector<std::string>& brought) {
      for (const std::string& why : brought)
        if (!why.empty()) throw Error(ErrorCode::kDeadline, why);
      check_is_run(!is_run && run.is_checkpoint());
      check_writable();
      if (step < 0)
        throw Error(ErrorCode::kInvalidArgument, "cannot save step " + std::to_string(step) + ": steps are not negative");
      const auto user_metadata = user_metadata_of(options.user_metadata, annotations);
      std::uint64_t n = 1;
      const auto is_taken = [&](const std::string& name) {
        return names_taken.count(name) > 0 || !run.why_occupied(name).empty() || is_read_only(child_url(run.url(), name));
      };
      while (is_taken(checkpoint_name(step, n))) ++n;
      std::vector<std::string> texts{checkpoint_name(step, n)};
      for (const auto& [key, value] : user_metadata) texts.insert(texts.end(), {key, value});
      return pack_texts(texts);
    };
    std::vector<std::string> texts;
    try {
      texts = unpack_texts(agreement.reach(about, why_not, decide, schedule.time_left()));
    } catch (const std::exception& error) {
      schedule.ended(step, error.what());
      throw;
    }
    Place place;
    place.name = texts.at(0);
    place.id = child_url(run.url(), place.name);
    place.options.step = step;
    for (std::size_t i = 1; i + 1 < texts.size(); i += 2) place.options.user_metadata.emplace(texts[i], texts[i + 1]);
    place.options.planning = options.planning;
    place.options.writer = options.writer;
    place.options.writer.overwrite = false;  // if another manager takes the name now, one of the two saves fails
    place.options.writer.run_url = run.url();
    if (cleanup) place.options.writer.before_attempt = cleanup->waiter();
    schedule.begun();
    place.options.deadline = schedule.time_left();
    if (world.rank() == 0) names_taken.insert(place.name);
    return place;
  }

  // Starts a clean-up before a save that may lack space: the manager's first save, one after a
  // failed save, or one after asynchronous saves have ended. The save waits for it in
  // `before_attempt`, which an asynchronous save calls off the trainer's thread. Removes nothing in
  // the grace period of a signal. Rank 0 coordinates: the other ranks write nothing before it has
  // set up its writer, which waits for this clean-up.
  void make_room() {
    if (!cleanup) return;
    expect_saves(run.url());
    schedule.forget_past_grace();
    if (news || failed || !started_cleanup || cleanup->has_failed()) start_cleanup();
  }

  // Called on this rank when a synchronous save has ended.
  void ended(const Place& place, const std::string* failure) {
    names_taken.erase(place.name);
    failed = failed || failure;
    schedule.ended(*place.options.step, failure ? *failure : "");
  }

  // Waits for asynchronous saves. If they do not end within `deadline`, which is that of a save for
  // a signal, cancels them, and the new save then fails on all ranks.
  struct Earlier {
    std::string why_not_ended;  // "" if they have ended
    std::exception_ptr unread;  // a failure that nobody has read; the caller throws it after doing its own work
  };
  Earlier wait_for_earlier(std::optional<milliseconds> deadline) {
    Earlier earlier;
    // A failure is thrown later: the new save is made all the same.
    if (wait_for_flights(deadline, earlier.unread)) {
      names_taken.clear();
      return earlier;
    }
    const std::string over = "the grace period after signal " + std::to_string(schedule.signal()) + " is over";
    // A grace period has time for one save only, that of the signal.
    for (const auto& flight : in_flight) flight.second.cancel(over);
    earlier.why_not_ended = over + ", and earlier asynchronous saves have not ended";
    return earlier;
  }

  // Returns whether all asynchronous saves have ended. Sets `unread` if one has failed.
  bool wait_for_flights(std::optional<milliseconds> deadline, std::exception_ptr& unread) {
    bool have_ended = true;
    try {
      have_ended = checkpointer->wait_for_saves(deadline);
    } catch (const CheckpointException&) {
      unread = std::current_exception();
    }
    look_after_flights();
    return have_ended;
  }

  void look_after_flights() {
    const auto landed =
        std::stable_partition(in_flight.begin(), in_flight.end(), [](const auto& flight) { return !flight.second.done(); });
    for (auto flight = landed; flight != in_flight.end(); ++flight) names_taken.erase(flight->first);
    news = news || landed != in_flight.end();
    in_flight.erase(landed, in_flight.end());
  }

  // Starts to remove the remains of dead saves, and the checkpoints that retention no longer keeps.
  // `saved`: the checkpoint that was just saved, if nothing has failed. In the grace period of a
  // signal, leaves that to a later call.
  void start_cleanup(const Place* saved = nullptr) {
    if (!cleanup) return;
    // In a grace period all time is for the save. `news` makes a later call clean up.
    if (schedule.grace_left()) {
      news = true;
      return;
    }
    std::optional<RunCheckpoint> known;
    if (saved != nullptr && !news && !failed)
      known = RunCheckpoint{saved->name, {{0, saved->options.step, 0, "", "", saved->options.user_metadata, {}}, ""}};
    cleanup->start(names_taken, damaged_ids, std::move(known));
    started_cleanup = true;
    news = failed = false;
  }

  void check_is_run(bool is_checkpoint) const {
    require_run(run, is_checkpoint);
    is_run = true;
  }

  void check_writable() const {
    if (!saves_by_itself(options)) return;
    // Found when training begins, not hours later by the first save.
    if (const std::string why = why_not_writable(run.url()); !why.empty())
      throw Error(ErrorCode::kPermission, "cannot save checkpoints: " + why + "; the run is " + run.url());
  }

  // Returns the checkpoint to restore and those that were skipped, packed; "" if the run has no
  // checkpoint.
  std::string choose(const std::vector<PassedOver>& damaged) {
    check_writable();
    const auto chosen = choose_checkpoint(run, options.data_without_record, damaged);
    is_run = true;
    if (!chosen) return "";
    if (cleanup && !started_cleanup && !chosen->all.empty()) started_cleanup = cleanup->take(chosen->all);
    std::vector<std::string> texts{checkpoint_text(chosen->checkpoint)};
    for (const PassedOver& one : chosen->passed_over) texts.insert(texts.end(), {one.name, one.why});
    return pack_texts(texts);
  }

  // Reads a checkpoint that a load found damaged again, and notes the damage in the run. Without
  // the note, only this manager knows about the damage.
  void note_damage(const CheckpointInfo& info, const FailureMap& failures) const {
    if (world.rank() != 0 || info.save_id.empty()) return;
    std::set<int> ranks;
    for (const auto& entry : failures) ranks.insert(entry.first);
    const RunCheckpoint checkpoint{info.name, {{info.sequence, info.step, 0, "", "", {}, {}}, info.save_id}};
    try {
      if (const std::string finding = run.find_damage(checkpoint, ranks, kSecondReadBytesMax); !finding.empty())
        run.note_damage(checkpoint, finding);
    } catch (const std::exception&) {  // such as a run that may not be written to
    }
  }

  const CheckpointManagerOptions options;
  const World world;
  const RunDirectory run;
  const pid_t process = ::getpid();
  Mutex running;  // held by the one call that runs
  std::optional<Checkpointer> checkpointer;
  Agreement agreement;
  SaveSchedule schedule;
  std::optional<std::int64_t> safe_step;  // the step saved last, in the foreground, or restored last

  // On rank 0.
  std::set<ObjectName> names_taken;  // by saves that may be in flight
  std::vector<std::pair<ObjectName, AsyncSaveResponse>> in_flight;
  bool news = false;             // an asynchronous save has ended since the last clean-up began
  bool started_cleanup = false;  // since this manager was made
  bool failed = false;           // a synchronous save has failed since then
  // Save ids of checkpoints that a load found damaged, although their records and files look sound.
  std::set<std::string> damaged_ids;
  mutable bool is_run = false;  // not itself a checkpoint
  std::unique_ptr<RunCleanup> cleanup;
};

// --- saving ---

std::string CheckpointManager::save(std::int64_t step, const StateDict& state, const Annotations& annotations) {
  auto& self = *implementation_;
  const OneCall one(self.running, self.busy());
  const auto earlier = self.wait_for_earlier(self.schedule.time_left());
  self.make_room();
  const auto place = self.agree_on_place("save", step, annotations, earlier.why_not_ended);
  try {
    self.checkpointer->save(state, place.id, place.options);
  } catch (const std::exception& failed) {
    const std::string failure = failed.what();
    self.ended(place, &failure);
    throw;
  }
  self.ended(place, nullptr);
  self.safe_step = step;
  // Only after a success: a failed save costs no old checkpoint.
  self.start_cleanup(&place);
  if (earlier.unread) std::rethrow_exception(earlier.unread);
  return place.id;
}

AsyncSaveResponse CheckpointManager::async_save(std::int64_t step, const StateDict& state, const Annotations& annotations,
                                                const AsyncSaveOptions& async_options) {
  auto& self = *implementation_;
  const OneCall one(self.running, self.busy());
  Implementation::Earlier earlier;
  if (async_options.while_in_flight == WhileInFlight::kWait)
    earlier = self.wait_for_earlier(self.schedule.time_left());  // here, so that the clean-up starts after them
  else
    self.look_after_flights();
  self.make_room();
  const auto place = self.agree_on_place("asynchronous save", step, annotations, earlier.why_not_ended);
  self.schedule.ended();
  // An exception here may be the failure of an earlier save. The new save may then be in flight, so
  // it keeps its name.
  AsyncSaveResponse response = self.checkpointer->async_save(state, place.id, place.options, async_options);
  // The state is safe only when the save has ended.
  self.safe_step.reset();
  if (self.world.rank() == 0) self.in_flight.emplace_back(place.name, response);
  if (earlier.unread) std::rethrow_exception(earlier.unread);
  return response;
}

bool CheckpointManager::wait_for_saves(std::optional<std::chrono::milliseconds> deadline) {
  auto& self = *implementation_;
  const OneCall one(self.running, self.busy());
  std::exception_ptr unread;
  const bool ended = self.wait_for_flights(deadline, unread);
  if (self.news) self.start_cleanup();
  if (self.cleanup) self.cleanup->wait(deadline);
  if (unread) std::rethrow_exception(unread);
  return ended;
}

bool CheckpointManager::should_save(std::int64_t step) {
  auto& self = *implementation_;
  const OneCall one(self.running, self.busy());
  const bool due = self.schedule.is_due(step, self.run.url());
  if (self.safe_step != step) return due;
  self.schedule.ended();
  return false;
}

int CheckpointManager::signal() const { return implementation_->schedule.signal(); }

// --- retention ---

std::vector<RetentionFault> CheckpointManager::retention_faults() const {
  return implementation_->cleanup ? implementation_->cleanup->faults() : std::vector<RetentionFault>{};
}

void CheckpointManager::pin(const std::string& name) const { implementation_->run.pin(name); }
void CheckpointManager::unpin(const std::string& name) const { implementation_->run.unpin(name); }
bool CheckpointManager::is_pinned(const std::string& name) const { return implementation_->run.is_pinned(name); }

// --- reading the run, and resuming ---

std::optional<ValidCheckpoint> CheckpointManager::restore_latest(StateDict& state, const LoadOptions& options) {
  check_restore_options(options);
  auto& self = *implementation_;
  const OneCall one(self.running, self.busy());
  const std::exception_ptr unread = self.wait_for_earlier(std::nullopt).unread;
  if (self.cleanup) self.cleanup->wait();  // so that nothing is removed during the load
  std::vector<PassedOver> damaged;  // the same on all ranks
  for (int tries = 1;; ++tries) {
    const std::string answer = self.agreement.reach("which checkpoint of " + self.run.url() + " to restore", "",
                                                    [&](const std::vector<std::string>&) { return self.choose(damaged); });
    const std::vector<std::string> texts = unpack_texts(answer);
    std::optional<ValidCheckpoint> chosen;
    if (!texts.empty()) {
      chosen.emplace().checkpoint = info_of(self.run, checkpoint_in(texts.front()));
      for (std::size_t at = 1; at + 1 < texts.size(); at += 2) chosen->passed_over.push_back({texts[at], texts[at + 1]});
      try {
        chosen->report = self.checkpointer->load(state, chosen->checkpoint.checkpoint_id, options);
      } catch (const CheckpointException& failed) {
        // All ranks have the same failures, so all pass this checkpoint over or none does.
        if (!have_codes(failed.failures(), {ErrorCode::kCorrupt, ErrorCode::kNotFound, ErrorCode::kChanged})) throw;
        const CheckpointInfo& info = chosen->checkpoint;
        const auto is_gone = [&](const std::vector<std::string>&) {
          return self.run.is_gone({info.name, {{}, info.save_id}}) ? "yes" : "no";
        };
        const bool is_over = tries >= kRestoreTriesMax;
        if (!is_over && self.agreement.reach("whether " + info.checkpoint_id + " is gone", "", is_gone) == "yes") continue;
        if (!have_codes(failed.failures(), {ErrorCode::kCorrupt})) throw;
        damaged.push_back({info.name, failed.what()});
        self.damaged_ids.insert(info.save_id);
        self.note_damage(info, failed.failures());
        continue;
      }
      self.safe_step = chosen->checkpoint.step;
      if (self.world.rank() == 0) log_passed_over(*chosen);
    }
    if (unread) std::rethrow_exception(unread);
    return chosen;
  }
}

ValidCheckpoint CheckpointManager::restore(std::int64_t step, StateDict& state, const LoadOptions& options) {
  check_restore_options(options);
  auto& self = *implementation_;
  const OneCall one(self.running, self.busy());
  const std::exception_ptr unread = self.wait_for_earlier(std::nullopt).unread;
  if (self.cleanup) self.cleanup->wait();  // so that nothing is removed during the load
  const auto choose = [&](const std::vector<std::string>&) {
    const ResumeOrder order = resume_order(self.run, self.run.list());
    self.check_is_run(order.listing.is_checkpoint);
    std::set<std::int64_t> steps;
    for (const RunCheckpoint& checkpoint : order.candidates) {
      if (checkpoint.head.step == step) return checkpoint_text(checkpoint);
      if (checkpoint.head.step) steps.insert(*checkpoint.head.step);
    }
    std::string names;
    for (auto other = steps.rbegin(); other != steps.rend() && names.size() < kStepsTextMax; ++other)
      names += (names.empty() ? "" : ", ") + std::to_string(*other);
    throw Error(ErrorCode::kNotFound, "no checkpoint of " + self.run.url() + " has step " + std::to_string(step) +
                                          (names.empty() ? ": it has none" : "; the last of its steps are " + names));
  };
  const std::string about = "which checkpoint of step " + std::to_string(step) + " of " + self.run.url() + " to restore";
  ValidCheckpoint chosen;
  chosen.checkpoint = info_of(self.run, checkpoint_in(self.agreement.reach(about, "", choose)));
  chosen.report = self.checkpointer->load(state, chosen.checkpoint.checkpoint_id, options);
  self.safe_step = step;
  if (unread) std::rethrow_exception(unread);
  return chosen;
}

std::vector<CheckpointInfo> CheckpointManager::checkpoints() const {
  std::vector<CheckpointInfo> infos;
  for (const RunCheckpoint& checkpoint : implementation_->run.list().checkpoints)
    infos.push_back(info_of(implementation_->run, checkpoint));
  return infos;
}

std::optional<CheckpointInfo> CheckpointManager::latest() const {
  const auto all = checkpoints();
  if (all.empty()) return std::nullopt;
  return all.front();
}

std::optional<CheckpointInfo> CheckpointManager::best() const {
  RetentionPolicy policy = implementation_->options.retention;
  if (policy.metric.empty())
    throw Error(ErrorCode::kPrecondition, "the best checkpoint is asked for, but RetentionPolicy::metric names no metric");
  policy.keep_last = 0;
  policy.keep_every = 0;
  policy.keep_best = 1;
  const std::vector<CheckpointInfo> all = checkpoints();
  const std::set<std::string> kept = kept_by(policy, all);
  const auto found = std::find_if(all.begin(), all.end(), [&](const CheckpointInfo& one) { return kept.count(one.name) > 0; });
  return found == all.end() ? std::nullopt : std::optional(*found);
}

std::optional<ValidCheckpoint> CheckpointManager::latest_valid() const {
  const RunDirectory& run = implementation_->run;
  const auto order = resume_order(run, DataWithoutRecord::kUseNewestWhole);
  const auto found = first_sound(*order, run.url(), [&](const RunCheckpoint& checkpoint) -> std::string {
    try {
      const auto faults = verify_checkpoint(*run.open(checkpoint.name));
      return faults.empty() ? "" : text_of_faults(faults);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kNotFound) throw;
      return error.what();  // removed meanwhile
    }
  });
  if (!found) return std::nullopt;
  return ValidCheckpoint{info_of(run, found->checkpoint), found->passed_over, {}};
}

// --- construction ---

CheckpointManager::CheckpointManager(World world, const std::string& run, CheckpointManagerOptions options) {
  check_manager_options(options);
  // A longer period would end by the launcher's SIGKILL.
  options.grace_period = bounded_wait(std::min(options.grace_period, grace_of_launcher()));
  implementation_ = std::make_unique<Implementation>(std::move(world), run, std::move(options));
}

CheckpointManager::~CheckpointManager() = default;

const World& CheckpointManager::world() const { return implementation_->world; }

}  // namespace cairn
