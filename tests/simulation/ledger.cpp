#include <cairn/tests/support/torch.hpp>
// torch first
#include <algorithm>

#include <cairn/base/error.hpp>
#include <cairn/state/checkpoint_writer.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/publication.hpp>
#include <cairn/storage/stores/file_store.hpp>
#include <cairn/storage/verify_checkpoint.hpp>
#include <cairn/tests/simulation/ledger.hpp>

namespace cairn::simulation {

bool same_outcome(const protocol::CallResult& a, const protocol::CallResult& b) {
  return a.failures == b.failures && a.committed == b.committed && a.save_id == b.save_id && a.answer == b.answer;
}

std::string to_string(const protocol::CallResult& finished) {
  std::string text;
  for (const auto& [rank, failure] : finished.failures)
    text += "rank " + std::to_string(rank) + ": " + cairn::to_string(failure.kind) + " in " + cairn::to_string(failure.phase) +
            " (" + failure.what + "); ";
  return text + "committed: " + cairn::to_string(finished.committed) + ", save id \"" + finished.save_id + "\"";
}

void Ledger::saving(const std::string& save_id, const Version& version) {
  const auto [known, added] = versions_.emplace(save_id, version);
  if (!added && known->second.content != version.content) accuse("two calls have one save id: " + save_id);
}

std::optional<Version> Ledger::version_of(const std::string& save_id) const {
  const auto found = versions_.find(save_id);
  if (found == versions_.end()) return std::nullopt;
  return found->second;
}

std::optional<std::string> Ledger::current(const std::string& place) const {
  try {
    FileStore store(place, files_);
    const auto metadata = published_metadata(store);
    if (metadata) return metadata->save_id;
  } catch (const Error&) {
  }
  return std::nullopt;
}

std::vector<std::string> Ledger::publications() const {
  std::map<std::uint64_t, std::string> by_number;
  for (const auto& [save_id, number] : history_) by_number.emplace(number, save_id);
  std::vector<std::string> ids;
  for (const auto& [number, save_id] : by_number) ids.push_back(save_id);
  return ids;
}

void Ledger::published(const std::string& place) {
  places_.insert(place);
  const auto save_id = current(place);
  if (!save_id) return accuse("what was published at " + place + " cannot be read");
  if (last_[place] == *save_id) return;
  last_[place] = *save_id;
  history_[*save_id] = ++publications_;
  if (denied_.count(*save_id) != 0) accuse(*save_id + " was published after a call had reported it as not committed");
  check_whole(place);
}

void Ledger::check_whole(const std::string& place) {
  FileStore store(place, files_);
  std::string save_id;
  try {
    for (const auto& fault : verify_checkpoint(store, 1))
      return accuse("the checkpoint at " + place + " is damaged: " + fault.object + ": " + fault.what);
    const auto metadata = published_metadata(store);
    if (!metadata) return accuse("there is no checkpoint any more at " + place);
    save_id = metadata->save_id;
    const auto version = version_of(save_id);
    if (!version) return accuse("the checkpoint at " + place + " is of nobody: " + save_id);
    // Loads as a world of one rank, without its own disk client.
    StateDict state = empty_state(version->layout, 0, 1);
    StorageReader& reader = *tools_->reader;
    LoadPlanner& planner = *tools_->load_planner;
    StorageContext context;
    context.checkpoint_id = "sim://" + place;
    reader.reset(context.checkpoint_id);
    const Metadata found = reader.read_metadata();
    planner.set_up_planner(state, found, 0, true);
    reader.set_up_storage_reader(found, context);
    const LoadPlan plan = planner.finish_plan(planner.create_local_plan());
    reader.read_data(plan, planner).get();
    if (!holds(state, *version, 0, 1))
      accuse("the checkpoint at " + place + ", " + save_id + ", holds other values than were saved");
  } catch (const std::exception& error) {
    accuse("the checkpoint at " + place + " cannot be loaded: " + error.what());
  }
}

void Ledger::reported(const std::string& place, const Report& report) {
  reports_.push_back(report);
  const auto& finished = report.finished;
  const std::string who = "job " + std::to_string(report.job) + ", rank " + std::to_string(report.rank) + ", call " +
                          std::to_string(report.ordinal) + ": ";
  const bool save = report.operation == protocol::Operation::kSave;
  const bool succeeded = finished.failures.empty();
  // A call that failed before its attempt began has no save id. Ranks that a fault has hit may
  // number their calls differently, so such a call is compared only if the job is undisturbed.
  if (report.heard && (!finished.save_id.empty() || report.undisturbed)) {
    const std::string call = "job " + std::to_string(report.job) + ", call " + std::to_string(report.ordinal);
    const std::string name = finished.save_id.empty() ? call : finished.save_id;
    const auto [first, added] = outcomes_.emplace(name + " by " + std::to_string(report.decided_by), report);
    if (!added && !same_outcome(first->second.finished, finished))
      accuse(who + "heard \"" + to_string(finished) + "\" where rank " + std::to_string(first->second.rank) + " heard \"" +
             to_string(first->second.finished) + "\"");
  }
  if (!save) return;
  if (succeeded && finished.committed != Committed::kYes) accuse(who + "a save that succeeded is not committed");
  coverage_.hit(std::string(succeeded ? "save succeeded" : "save failed") + ", committed " + cairn::to_string(finished.committed));
  if (finished.committed == Committed::kYes) {
    const auto published = history_.find(finished.save_id);
    if (published == history_.end()) return accuse(who + "reported as committed, but never published: " + finished.save_id);
    auto& promised = promised_[place];
    promised = std::max(promised, published->second);
  }
  if (finished.committed == Committed::kNo && !finished.save_id.empty()) {
    denied_.insert(finished.save_id);
    if (was_published(finished.save_id)) accuse(who + "reported as not committed, but published: " + finished.save_id);
  }
}

void Ledger::power_lost() {
  for (const std::string& place : places_) {
    const auto save_id = current(place);
    const std::uint64_t number = save_id && was_published(*save_id) ? history_.at(*save_id) : 0;
    const auto promised = promised_.find(place);
    if (promised != promised_.end() && number < promised->second)
      accuse("after the power loss " + place +
             (save_id ? " holds " + *save_id + ", older than what"
                      : std::string(" holds nothing that can be read, but a checkpoint")) +
             " was reported as saved");
    if (save_id && number == 0) accuse("after the power loss " + place + " holds " + *save_id + ", which was never published");
    FileStore store(place, files_);
    if (!save_id && store.exists(kCommitRecordName)) accuse("after the power loss the record at " + place + " cannot be read");
    last_[place] = save_id.value_or("");
    if (save_id) check_whole(place);
  }
}

void Ledger::check_newest() {
  for (const std::string& place : places_) {
    const auto save_id = current(place);
    if (save_id.value_or("") != last_[place]) accuse("the newest checkpoint at " + place + ", " + last_[place] + ", is gone");
    if (save_id) check_whole(place);
  }
}

void Ledger::check_clean(const std::string& place, const std::set<std::string>& foreign) {
  FileStore store(place, files_);
  const auto newest = published_metadata(store);
  if (!newest) return accuse("no checkpoint at " + place + " after two saves");
  for (const auto& id : store.open_attempts()) accuse("attempt " + id + " is left open at " + place);
  for (const auto& id : store.fenced_attempts()) accuse("the fence of " + id + " is left at " + place);
  std::set<std::string> allowed = foreign;
  allowed.insert(kCommitRecordName);
  for (const auto& file : newest->files) allowed.insert(file.name);
  const auto& retired = newest->commit->retired;
  for (const auto& object : store.list()) {
    if (allowed.count(object.name) != 0) continue;
    const auto id = save_id_of_file(object.name);
    if (!id || std::find(retired.begin(), retired.end(), *id) == retired.end())
      accuse(place + "/" + object.name + " was left behind");
  }
  for (const auto& name : foreign)
    if (!store.exists(name)) accuse(place + "/" + name + ", which Cairn did not make, was removed");
}

}  // namespace cairn::simulation
