// The procedure that publishes a checkpoint and removes leftovers. FORMAT.md specifies the bytes.
//
//  1  the coordinator opens the attempt, exclusively, before it
//     answers any plan                                               Store::begin_attempt
//  2  each rank outside the coordinator's process checks that it
//     sees the attempt: machines might not share the directory       Store::has_attempt
//     then each rank writes and syncs its files; their names
//     contain the save id                                            ObjectWriter::sync
//  3  all results have arrived, and the chunks of each tensor tile
//     it exactly                                                     check_coverage
//  4  the commit record is written aside and synced                  Store::publish, 4 to 6
//  5  it is renamed to ".metadata"
//  6  the directory is synced
//  7  all ranks are told the outcome
//  8  leftovers of dead attempts are removed; the files of the
//     checkpoint just replaced stay until a later publication        remove_leftovers
//
// A crash at any point leaves either the old or the new checkpoint, complete.
//
// Clean-up never removes a file that is still needed, even if two jobs save to one place or a
// process that was thought dead wakes up. A data file's name contains a save id. For every save id
// S found in a file name, the first of these that holds decides:
//
//   S is the id of the new record (`current`) or of the one that it replaced (`replaced`), or
//   `current` retires S and keeps it (below): the files of S are kept.
//
//   S is open: another save is running or was left behind. Clean-up fences it. Either the fence
//   comes first and S can never be published, or S was published first. In that case ".metadata",
//   read after the fence, names S, and its files are kept.
//
//   S is fenced, or the mark of a removal names S, or `current` retires S and does not keep it: the
//   files of S are removed.
//
//   Nothing is known about S, as after a copy that left out the record: the files of S are kept.
//
// So files are removed only because of something that was read, never because something was not
// found.
//
// This relies on the order of steps: list the files, list the open attempts, fence them, then read
// ".metadata". A save that begins later has no file in the list. If two jobs save to one place at
// once, the first one to publish ends the other's save, which fails with kFenced. Neither loses a
// file of a checkpoint that exists.
//
// Retired generations: a generation is one of the checkpoints that were published at this place one
// after another. A load that began before its generation was replaced may still be reading that
// generation's files. A record therefore lists the generations whose files may still exist
// (CommitInfo::retired): the one that it replaces, then those retired before, newest first. The
// first of them, up to the number that the writer is configured to keep, are kept. The clean-up
// after that publication removes the files of the others. If the clean-up is interrupted, the next
// record lists these generations again. A generation of PyTorch's is listed by the names of its
// data files, because these contain no save id.
//
// If the replaced record is damaged or of a newer version, its files are unknown, and are kept. The
// clean-up after that publication is left to the next save.
//
// A fenced attempt is cleared (forgotten) after its files are gone. A coordinator that stalled
// before step 1 could then begin the same id again. This is harmless: no rank answers that
// coordinator any more, so it never gets all results (step 3), and the next save fences and clears
// what it leaves. A coordinator that stalled after step 1 finds no open attempt and gets kFenced.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <cairn/base/error.hpp>
#include <cairn/base/save_id.hpp>
#include <cairn/planning/metadata.hpp>
#include <cairn/storage/presence.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {

// Reads and checks the commit record at `store`, whether Cairn or PyTorch wrote it. Returns nothing
// if there is none. If the record is replaced while it is read, reads it again. Reads the store's
// second copy of a damaged record, if there is one. `needed` is decode_commit_record's; with it,
// may read and check only Cairn's section of a large record. Throws kCorrupt and kUnsupported as
// that does, and the store's errors.
std::optional<Metadata> published_metadata(Store& store, const ObjectName& name = kCommitRecordName,
                                           const NeededNames* needed = nullptr);

// The checkpoint that ".metadata" names before a save replaces it.
struct Replaced {
  std::optional<Metadata> generation;  // save id, files and commit; absent if there is no readable record
  bool is_known = true;                // false: there is a record, but it cannot be read
};
// Reads the checkpoint that the next publication will replace. A damaged record, or one of a newer
// version, can be replaced like any other and is not an error. Throws the store's errors.
Replaced generation_to_replace(Store& store);

// Chooses the commit sequence of the next checkpoint in a run. Costs a few small reads per
// checkpoint, whatever the checkpoint's size. Saves to different places of a run that publish at
// the same moment may get the same number; then neither counts as the later one.
class CommitSequence {
 public:
  explicit CommitSequence(std::optional<std::chrono::milliseconds> patience) : patience_(patience) {}
  // Returns 1 + the largest commit sequence among the checkpoints at `run` and one level below it;
  // 1 if there is none. If a record is there but cannot be read, or if this process may not list
  // `run` or read a record, unknown sequences may be in use. The result is then at least the time
  // in milliseconds since 1970, which no run reaches by counting.
  //
  // Throws the store's errors for the run itself and for places with Cairn's names (step_<step>). A
  // run can be any directory, so other places may be unrelated to it. If such a place fails, or
  // does not answer within `patience`, it is logged and ignored from then on. Without `patience`,
  // these places are read on the calling thread, without a time limit. `own` is the URL of a place
  // to skip, because the caller examines it. `rank` is used in the log.
  std::uint64_t next(const std::shared_ptr<Store>& run, const std::string& own = "", int rank = 0);

 private:
  void pass_over(const Store& run, const ObjectName& place, const std::string& why, int rank);
  std::uint64_t largest_of_others(const std::shared_ptr<Store>& run, const std::vector<ObjectName>& places, int rank);

  const std::optional<std::chrono::milliseconds> patience_;
  std::set<std::string> passed_over_;  // URLs
};
// Returns the smallest commit sequence allowed for a record that replaces `replaced`, in any run:
// its sequence + 1, or 1 if there is none. If the replaced record cannot be read, the time as
// above.
std::uint64_t commit_sequence_after(const Replaced& replaced);

// Returns CommitInfo::retired for the record that replaces `replaced`, newest first: `keep`
// generations, and older ones if `store` still has files of them.
std::vector<std::string> retired_generations(Store& store, const std::optional<Metadata>& replaced, std::size_t keep);

// Performs step 8, after `current` was published in place of `replaced`, and keeps `keep` retired
// generations. Fences Cairn's other attempts at this place. Removes the data files of fenced
// attempts and of older generations that `current` retires, except those that the published record
// names or retires. Then clears the attempts. Does nothing if the
// store's root is a link (`leads_elsewhere`). Returns the names removed. If the store refuses to
// remove a file, leaves it for the next clean-up, because the checkpoint already exists. Throws the
// store's errors if listing or reading the record fails.
std::vector<ObjectName> remove_leftovers(Store& store, const Metadata& current, const std::optional<Metadata>& replaced,
                                         std::size_t keep = 1);

// Fences `save_id`, then returns whether its checkpoint is the published one. The answer is final.
// The fence of a published checkpoint is cleared: it would say that its files are dead.
// Also returns false if the checkpoint was published and then replaced by another save. If this
// throws (the store's errors, or kCorrupt), the answer is unknown.
bool settle_attempt(Store& store, const std::string& save_id);

// Removes the files of a save that failed, and the place if it is empty then, unless the save was
// published. Leaves to a later save or clean-up what the store refuses.
void discard_save(Store& store, const std::string& save_id) noexcept;
// Removes what copies, conversions and saves that were killed have left at a place. Returns whether
// there was anything. Ends a save that runs there, as a publication would.
bool remove_unfinished(Store& store);

}  // namespace cairn
