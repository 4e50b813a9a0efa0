// A place in two tiers, near and far (storage/tiers.hpp).
#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <map>
#include <type_traits>
#include <utility>

#include <cairn/base/error.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/base/settings.hpp>
#include <cairn/storage/format/commit_head.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/presence.hpp>
#include <cairn/storage/stores/tier_copier.hpp>
#include <cairn/storage/stores/url.hpp>

namespace cairn {
namespace {

struct Tiers {
  Mutex mutex;
  std::map<std::string, std::shared_ptr<TierCopier>> by_name CAIRN_GUARDED_BY(mutex);
};

// Never destroyed: stores may be opened while the process exits.
Tiers& tiers() {
  static Tiers* const instance = [] {
    // Threads that still copy would use what the exit of the process destroys.
    std::atexit([] {
      MutexLock lock(tiers().mutex);
      const auto all = tiers().by_name;
      lock.unlock();
      for (const auto& entry : all) entry.second->stop();
    });
    return new Tiers;
  }();
  return *instance;
}

Error cannot_define(const std::string& name, const std::string& why) {
  return Error(ErrorCode::kInvalidArgument, "cannot define the tiers \"" + name + "\": " + why);
}

void check_options(const std::string& name, const TierOptions& options) {
  if (name.empty() || name.find_first_of("/;=|: ") != std::string::npos)
    throw cannot_define(name, "a name is not empty, and has no space and none of / ; = | :");
  if (options.near_url.empty() || options.far_url.empty()) throw cannot_define(name, "both tiers need a URL");
  for (const std::string& url : {options.near_url, options.far_url})
    if (is_tiered(url)) throw cannot_define(name, url + " is a pair of tiers itself");
  if (options.keep_near == 0) throw cannot_define(name, "keep_near is 0, but the newest checkpoint stays in the near tier");
  if (options.retry_min.count() < 1 || options.retry_min > options.retry_max)
    throw cannot_define(name, "retry_min is at least 1 ms, and at most retry_max");
  if (options.takeover_after.count() < 1) throw cannot_define(name, "takeover_after must be positive");
  if (options.copy_threads == 0 || options.piece_bytes == 0)
    throw cannot_define(name, "copy_threads and piece_bytes must not be 0");
}

// Returns the pair as CAIRN_TIERS defines it.
std::optional<TierOptions> tier_in_environment(const std::string& name) {
  std::string rest = environment_value("CAIRN_TIERS");
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find(';'), rest.size());
    const std::string entry = rest.substr(0, end);
    rest.erase(0, end + 1);
    const std::size_t equals = entry.find('='), bar = entry.find('|');
    if (equals == std::string::npos || bar == std::string::npos || bar < equals)
      throw Error(ErrorCode::kInvalidArgument,
                  "CAIRN_TIERS has the entry \"" + entry + "\", which is not of the form NAME=near URL|far URL");
    if (entry.substr(0, equals) != name) continue;
    TierOptions options;
    options.near_url = entry.substr(equals + 1, bar - equals - 1);
    options.far_url = entry.substr(bar + 1);
    check_options(name, options);
    return options;
  }
  return std::nullopt;
}

std::shared_ptr<TierCopier> find_tier(const std::string& name) {
  MutexLock lock(tiers().mutex);
  std::shared_ptr<TierCopier>& tier = tiers().by_name[name];
  if (tier) return tier;
  if (const auto options = tier_in_environment(name)) return tier = std::make_shared<TierCopier>(name, *options);
  tiers().by_name.erase(name);
  std::string known;
  for (const auto& entry : tiers().by_name) known += (known.empty() ? "" : ", ") + entry.first;
  throw Error(ErrorCode::kInvalidArgument, "the tiers \"" + name + "\" are not defined (" +
                                               (known.empty() ? "none are" : "defined are " + known) +
                                               "): call register_tier, or set CAIRN_TIERS=\"" + name + "=near URL|far URL\"");
}

// Returns the pair that a URL names, and the place in it: "" or "/run/step_1".
std::pair<std::shared_ptr<TierCopier>, std::string> find_place(const std::string& url) {
  const StoreUrl parts = split_url(url);
  const std::string path = place_in(parts);
  if (parts.authority.empty())
    throw Error(ErrorCode::kInvalidArgument, "cannot open store \"" + url + "\": it names no tiers, as in tiered://name/path");
  return {find_tier(parts.authority), path.empty() ? "" : "/" + path};
}

std::string record_beside(const ObjectName& name) { return name.substr(0, name.rfind('/') + 1) + kCommitRecordName; }

bool is_unfinished(const ObjectInfo& object) { return ends_with(object.name, kUnfinishedEnd); }

bool names_record(const ObjectName& name) { return name == record_beside(name); }

// Merges two sorted lists. Takes the first list's entry for a name that both have.
template <class Entry>
std::vector<Entry> merged(const std::vector<Entry>& first, const std::vector<Entry>& second) {
  std::vector<Entry> all;
  std::set_union(first.begin(), first.end(), second.begin(), second.end(), std::back_inserter(all),
                 [](const Entry& a, const Entry& b) { return listed_name(a) < listed_name(b); });
  return all;
}

// Queues the object to be copied once it is complete.
class TieredWriter final : public ObjectWriter {
 public:
  TieredWriter(std::unique_ptr<ObjectWriter> inner, std::shared_ptr<TierCopier> copier, const std::string& place,
               const ObjectName& name)
      : inner_(std::move(inner)), copier_(std::move(copier)), place_(place), name_(name) {
    copier_->writer_opened();
  }
  ~TieredWriter() override {
    inner_.reset();
    end();
  }

  void write_at(std::uint64_t offset, ByteSpan bytes) override { inner_->write_at(offset, bytes); }
  std::size_t alignment_bytes() const override { return inner_->alignment_bytes(); }
  void finish(std::uint64_t length, bool is_durable) override {
    inner_->finish(length, is_durable);
    is_complete_ = true;
    copier_->add_object(path(), length);
    end();
  }
  void discard() noexcept override {
    inner_->discard();
    end();
    if (!is_complete_) return;
    is_complete_ = false;
    try {
      if (copier_->near(place_)->is_taken(name_)) return;                      // another object has the name now
      if (!copier_->drop_object(path())) copier_->far(place_)->remove(name_);  // otherwise it has not been copied
    } catch (const std::exception&) {
      // The next clean-up of the place removes it.
    }
  }

 private:
  std::string path() const { return place_ + "/" + name_; }
  void end() noexcept {
    if (std::exchange(is_open_, false)) copier_->writer_closed();
  }

  std::unique_ptr<ObjectWriter> inner_;
  const std::shared_ptr<TierCopier> copier_;
  const std::string place_;
  const ObjectName name_;
  bool is_open_ = true;
  bool is_complete_ = false;
};

// The commit protocol runs in the near tier alone. Reads take an object from the near tier if it is
// there, and from the far one otherwise. The near tier's record is as new as that of the far tier,
// or newer: resume_copies removes it if another node has saved later.
class TieredStore final : public Store {
 public:
  // `place` is a path below the tiers, such as "/run/step_1".
  TieredStore(std::shared_ptr<TierCopier> copier, const std::string& place)
      : copier_(std::move(copier)), place_(place), near_(copier_->near(place)), far_(copier_->far(place)) {}

  std::string url() const override { return copier_->url(place_); }
  bool is_shared() const override { return far_->is_shared(); }
  StoreTraits traits() const override { return near_->traits(); }
  void create_root() override {
    copier_->expect_saves(place_);
    copier_->is_known(place_);  // a new root would hide that the near tier was lost
    near_->create_root();
  }

  std::unique_ptr<ObjectWriter> create(const ObjectName& name, const CreateOptions& options = {}) override {
    check_object_name(name);
    const auto far_has = [&] {
      try {
        return far_->exists(name);
      } catch (const Error& error) {
        // In a save, the coordinator has looked before it opened the attempt.
        if (tells_of_the_record(error) || near_->open_attempts().empty()) throw;
        return false;
      }
    };
    if (!is_cairns_file(name) && !near_->is_taken(name) && look_far(far_has))
      throw Error(ErrorCode::kAlreadyExists, "cannot create " + child_url(url(), name) + ": an object of this name exists");
    std::unique_ptr<ObjectWriter> writer;
    try {
      writer = near_->create(name, options);
    } catch (const Error& error) {
      // The near tier may have been lost, and a checkpoint be pinned that the far one alone has.
      if (error.code() != ErrorCode::kNotFound || !far_->exists(record_beside(name))) throw;
      create_root();
      writer = near_->create(name, options);
    }
    return std::make_unique<TieredWriter>(std::move(writer), copier_, place_, name);
  }

  // Each tier links to an object of its own. What the far tier cannot link is copied there.
  std::uint64_t link(const std::string& source, const ObjectName& name, bool is_durable = true) override {
    if (!is_tiered(source)) return Store::link(source, name, is_durable);
    const auto [copier, path] = find_place(source);
    if (copier != copier_) return Store::link(source, name, is_durable);
    const std::uint64_t bytes = near_->link(child_url(copier_->near("")->url(), path.substr(1)), name, is_durable);
    copier_->add_object(place_ + "/" + name, bytes, path);
    return bytes;
  }

  void read(const ObjectName& name, const std::vector<ReadRange>& ranges) override {
    try {
      return near_->read(name, ranges);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kInvalidArgument) throw;
      if (error.code() != ErrorCode::kNotFound && !far_->exists(name)) throw;
    }
    far_->read(name, ranges);
  }

  std::uint64_t size_bytes(const ObjectName& name) override {
    try {
      return near_->size_bytes(name);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kNotFound) throw;
    }
    return far_->size_bytes(name);
  }

  bool exists(const ObjectName& name) override {
    if (near_->exists(name)) return true;
    if (is_cairns_file(name)) return far_->exists(name);  // the near tier may have dropped it
    return look_far([&] { return far_->exists(name); });
  }

  std::optional<ObjectEnd> read_end(const ObjectName& name, std::size_t bytes_max) override {
    if (near_->exists(name)) return Store::read_end(name, bytes_max);
    if (is_cairns_file(name)) return far_->read_end(name, bytes_max);  // the near tier may have dropped it
    return look_far([&] { return far_->read_end(name, bytes_max); });
  }

  bool is_taken(const ObjectName& name) override {
    return near_->is_taken(name) || look_far([&] { return far_->is_taken(name); });
  }

  std::vector<ObjectInfo> list(const ObjectName& prefix = "") override {
    const std::vector<ObjectInfo> near_objects = near_->list(prefix);
    std::vector<ObjectInfo> far_objects = look_far([&] { return far_->list(prefix); });
    far_objects.erase(std::remove_if(far_objects.begin(), far_objects.end(), is_unfinished), far_objects.end());
    return merged(near_objects, far_objects);
  }

  std::vector<ObjectName> children() override {
    return merged(near_->children(), look_far([&] { return far_->children(); }));
  }

  RunView look() override {
    RunView found = look_far([&] { return far_->look(); });
    const std::vector<ObjectName> near_places = near_->children();
    found.places = merged(near_places, found.places);
    // The far tier shows all of a place only if the near tier does not have the place. Its attempts
    // are those of copies.
    for (auto seen = found.seen.begin(); seen != found.seen.end();) {
      seen->second.open_attempts.clear();
      seen->second.fenced_attempts.clear();
      const bool is_all = !seen->first.empty() && !has_name(near_places, seen->first) &&
                          std::none_of(seen->second.objects.begin(), seen->second.objects.end(), is_unfinished);
      seen = is_all ? std::next(seen) : found.seen.erase(seen);
    }
    return found;
  }

  // The far tier's record names data files that the near tier's does not. They are removed after
  // the next publication there (TierCopier::sweep), unless the far tier has no record.
  void remove(const ObjectName& name) override {
    check_object_name(name);
    if (names_record(name))
      return TieredStore(copier_, name == kCommitRecordName ? place_ : parent_of(place_ + "/" + name)).retract();
    copier_->drop_object(place_ + "/" + name);
    if (!is_cairns_file(name)) {
      remove_far(name);  // first: near objects are copied again, far ones are not
      return near_->remove(name);
    }
    near_->remove(name);
    const ObjectName record = record_beside(name);
    if (!near_->exists(record) && !far_->exists(record)) remove_far(name);
  }

  void begin_attempt(const std::string& save_id, Overwrite overwrite = Overwrite::kAllowed) override {
    check_overwrite(*this, save_id, overwrite);
    copier_->begin_attempt(*near_, save_id);
    copier_->begin_saves(parent_of(place_));
  }

  void publish(const std::string& save_id, ByteSpan record, Overwrite overwrite) override {
    if (overwrite == Overwrite::kRefused && exists(kCommitRecordName) && !near_->exists(kCommitRecordName))
      throw Error(ErrorCode::kAlreadyExists, "cannot publish save " + save_id + ": " + child_url(url(), kCommitRecordName) +
                                                 " is there already. Nothing was changed");
    try {
      near_->publish(save_id, record, overwrite);
    } catch (const Error& error) {
      if (!tells_of_the_record(error)) copier_->add_checkpoint(place_, save_id, false);  // it may have been published
      throw;
    }
    copier_->add_checkpoint(place_, save_id, false);
  }

  void fence(const std::string& save_id) override { near_->fence(save_id); }
  std::vector<std::string> open_attempts() override { return near_->open_attempts(); }
  std::vector<std::string> fenced_attempts() override { return near_->fenced_attempts(); }
  void clear_attempt(const std::string& save_id) override { near_->clear_attempt(save_id); }

  // tier_copier.hpp says why a copy that is in progress cannot bring the checkpoint back.
  // `remove_root` removes the far tier's data, and the mark last. The far tier has a mark of its
  // own, a fence. A mark that a removal of the far tier alone has left says nothing about the near
  // one.
  void retract(const ObjectName& mark = "", const std::string& text = "") override {
    try {
      create_mark(*near_, mark, text);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kNotFound) throw;  // otherwise the near tier does not have the place
    }
    if (copier_->is_failing())
      throw Error(ErrorCode::kUnavailable,
                  "cannot remove " + url() + ": the far tier is not available (" + copier_->progress().last_error + ")");
    const auto dropped = copier_->drop_checkpoint(place_);
    std::string id = dropped.value_or("");
    try {
      if (const auto head = id.empty() ? read_commit_head(*this) : std::nullopt) id = head->save_id;
    } catch (const Error& error) {
      if (!tells_of_the_record(error)) throw;
    }
    try {
      if (!id.empty()) far_->fence(id);  // the mark of the removal
      retract_far();
      near_->retract();
    } catch (...) {
      // If the near record is still there, the far one must be there again.
      if (!id.empty()) copier_->add_checkpoint(place_, id, !dropped);
      throw;
    }
    retract_far();
  }

  bool leads_elsewhere() override {
    return near_->leads_elsewhere() || look_far([&] { return far_->leads_elsewhere(); });
  }

  void remove_root() override {
    near_->remove_root();
    if (copier_->is_failing()) return;  // a later process clears it
    if (!near_->exists(kCommitRecordName) && !far_->exists(kCommitRecordName)) copier_->clear_far(place_);
  }

  std::shared_ptr<Store> fallback() override { return far_; }

 private:
  // Looks into the far tier. Returns an empty result instead if this process saves to the run, and
  // the near tier is known to tell as much. A process that only reads may have another near tier
  // than the one that saves.
  template <class Act>
  std::invoke_result_t<Act> look_far(Act act) const {
    return copier_->saves_to(place_) && copier_->is_known(place_) ? std::invoke_result_t<Act>() : act();
  }

  void retract_far() {
    for (const std::string& id : far_->open_attempts()) far_->fence(id);
    far_->retract();
  }

  void remove_far(const ObjectName& name) {
    far_->remove(name);
    if (far_->traits().create_takes_name) far_->remove(name + kUnfinishedEnd);
  }

  const std::shared_ptr<TierCopier> copier_;
  const std::string place_;
  const std::shared_ptr<Store> near_;
  const std::shared_ptr<Store> far_;
};

}  // namespace

std::shared_ptr<Store> open_tiered_store(const std::string& url) {
  const auto [copier, place] = find_place(url);
  return std::make_shared<TieredStore>(copier, place);
}

void forget_tier(const std::string& name) {
  MutexLock lock(tiers().mutex);
  const auto tier = tiers().by_name.extract(name);
  lock.unlock();
  if (tier) tier.mapped()->stop();
}

// --- storage/tiers.hpp ---

void register_tier(const std::string& name, const TierOptions& options) {
  check_options(name, options);
  MutexLock lock(tiers().mutex);
  if (!tiers().by_name.emplace(name, std::make_shared<TierCopier>(name, options)).second)
    throw Error(ErrorCode::kAlreadyExists, "cannot define the tiers \"" + name + "\": they are defined already");
}

bool is_tiered(const std::string& url) { return split_url(url).scheme == "tiered"; }

// Calls `act` with the pair and the place in it; returns `otherwise` for another URL.
template <class Act, class Result>
static Result in_tiers(const std::string& url, Result otherwise, const Act& act) {
  if (!is_tiered(url)) return otherwise;
  const auto [copier, place] = find_place(url);
  return act(*copier, place);
}

std::vector<LostCheckpoint> resume_copies(const std::string& run_url) {
  return in_tiers(run_url, std::vector<LostCheckpoint>(), [](TierCopier& tier, const auto& run) { return tier.resume(run); });
}

void expect_saves(const std::string& run_url) {
  in_tiers(run_url, 0, [](TierCopier& tier, const auto& run) { return tier.expect_saves(run), 0; });
}

bool wait_for_copies(const std::string& url, std::optional<std::chrono::milliseconds> deadline) {
  return in_tiers(url, true, [&](TierCopier& tier, const auto& place) { return tier.wait(place, deadline, nullptr); });
}

bool wait_for_copies(const std::string& url, const std::function<bool()>& goes_on) {
  return in_tiers(url, true, [&](TierCopier& tier, const auto& place) { return tier.wait(place, std::nullopt, goes_on); });
}

bool is_copied(const std::string& url, const std::string& save_id) {
  return in_tiers(url, true, [&](TierCopier& tier, const auto& place) { return tier.is_copied(place, save_id); });
}

TierProgress tier_progress(const std::string& name) { return find_tier(name)->progress(); }

}  // namespace cairn
