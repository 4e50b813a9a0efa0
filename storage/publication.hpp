// The one procedure by which a checkpoint comes to exist, and by which leftovers go. What it does to the bytes: FORMAT.md.
//
//  1  the coordinator opens the attempt, exclusively, before any plan is answered           Store::begin_attempt
//  2  each rank writes its files under names that hold the save id, and syncs them           ObjectWriter::sync
//  3  all results are in, and the chunks of each tensor tile it exactly                       check_coverage
//  4  the commit record is written aside and synced                                        Store::publish, 4 to 6
//  5  it is renamed to ".metadata"
//  6  the directory is synced
//  7  the outcome is told to all ranks
//  8  leftovers of dead attempts, and files of the replaced generation, go no earlier than the next publication
//
// A crash at any point leaves the old or the new checkpoint, whole.
//
// Why clean-up cannot take away a file that somebody needs, also when two jobs save to one place or a process that was thought dead
// wakes up. A data file names its save. For every save S found in a file name, one of these holds:
//
//   S is named by `current` or `replaced`, or `current` retires it     its files stay
//   S is open: another's save that runs, or was left behind            it is fenced first; either that fails its publication for
//                                                                      ever, or it has published already, and then it is what
//                                                                      ".metadata", read after the fence, names: its files stay
//   S is not open                                                      its attempt was opened before its first file was written
//                                                                      (1 before 2), so it has ended: published, and then by now
//                                                                      replaced unless ".metadata" names it; or fenced
//
// That holds because the steps are taken in this order: list the files, then the open attempts, fence those, then read ".metadata".
// A save that begins later has no file in the list. So of two jobs that save to one place at once, the one that publishes first
// ends the other's save, which fails with kFenced; neither loses a file of a checkpoint that exists.
//
// Retired generations. Who began to load a generation before it was replaced is still reading its files. So a record names the
// generations whose files stay (CommitInfo::retired): the one that it replaces, those that this one had retired before it, newest
// first, as many as the writer is told to keep. What drops off the list goes in the clean-up after that publication.
//
// Where the replaced record is damaged or of a newer version, which files are its own is not known: clean-up is left to the next
// save, which knows what this one made.
//
// A fenced attempt is cleared, that is forgotten, together with its files. Its id could then be begun once more, by a coordinator
// that was silent since before its first step; but nobody answers it any more, so it never has all results (3), and what it leaves
// is fenced and cleared by the next save. A coordinator that was silent after its first step finds no open attempt and gets
// kFenced.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/base/error.hpp>
#include <cairn/base/save_id.hpp>
#include <cairn/planning/metadata.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {

// The name of file `index` of `rank`: "__<rank>_<index>_<save id>.distcp".
std::string data_file_name(int rank, int index, const std::string& save_id);
// The save id within such a name; nothing for names that Cairn did not make (see is_save_id).
std::optional<std::string> save_id_of_file(const std::string& name);

// The whole commit record of the checkpoint at `store`, checked, whoever wrote it; nothing if there is none. A record that is
// replaced while it is read is read again. kCorrupt, kUnsupported as decode_commit_record; the store's errors.
std::optional<Metadata> published_metadata(Store& store);

// What ".metadata" names before a save takes its place.
struct Replaced {
  std::optional<Metadata> generation;  // save id, files and commit; nothing if there is none or it cannot be read
  bool is_known = true;                // false: there is a record that cannot be read
};
// A record that is damaged or of a newer version is replaced like any other, so it is no error here. The store's errors.
Replaced generation_to_replace(Store& store);

// Whether an error says what is wrong with one checkpoint. Others are trouble of the store, and may be gone when it is asked again:
// nobody may conclude from them that another checkpoint is the latest.
bool tells_of_the_record(const Error& error) noexcept;

// Chooses the commit sequence of the next checkpoint in a run. Costs a few small reads per checkpoint, whatever their size. Saves
// to different places of a run that publish at the same moment may get the same number: then neither is the later one.
class CommitSequence {
 public:
  explicit CommitSequence(std::optional<std::chrono::milliseconds> patience) : patience_(patience) {}
  // Returns 1 + the largest commit sequence among the checkpoints at `run` and one level below it; 1 if there is none. Ignores
  // damaged checkpoints, and those below a run that may not be listed, since then nobody can ask which is its latest. Throws
  // the store's errors with the run itself, and with places that have a name of Cairn's (step_<step>). A run may be any
  // directory, so other places may have nothing to do with it: one that fails, or does not answer within `patience`, is logged
  // and ignored from then on. Without `patience`, reads on this thread. `own`: the URL of a place that the caller examines
  // itself. `rank`: for the log.
  std::uint64_t next(const std::shared_ptr<Store>& run, const std::string& own = "", int rank = 0);

 private:
  void pass_over(const Store& run, const ObjectName& place, const std::string& why, int rank);
  std::uint64_t largest_of_others(const std::shared_ptr<Store>& run, const std::vector<ObjectName>& places, int rank);

  const std::optional<std::chrono::milliseconds> patience_;
  std::set<std::string> passed_over_;  // URLs
};
// The least that a record may have which takes the place of `replaced`, whatever its run: 1 + that one's.
std::uint64_t commit_sequence_after(const std::optional<Metadata>& replaced);

// The save ids to put into the record that replaces `replaced`: CommitInfo::retired, at most `keep` of them.
std::vector<std::string> retired_generations(const std::optional<Metadata>& replaced, std::size_t keep);

// Step 8, after a successful publication of `current`, which replaced `replaced`: fences and clears every other attempt of this
// checkpoint, and removes data files of Cairn's that none of these name: the two, the generations that `current` retires, and the
// published record with those that it retires. Removes nothing that Cairn did not make, and nothing if `store` leads elsewhere.
// Returns the names removed. A file that the store refuses to remove stays for the next time and is no error, since the
// checkpoint exists already. Throws the store's errors while it lists what is there.
std::vector<ObjectName> remove_leftovers(Store& store, const Metadata& current, const std::optional<Metadata>& replaced);

// Whether the checkpoint of `save_id` is the published one, decided for ever: fences it first. False also if it was published and
// then replaced by another save. Errors mean that it is not known: the store's, or kCorrupt.
bool settle_attempt(Store& store, const std::string& save_id);

}  // namespace cairn
