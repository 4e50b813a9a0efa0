// The data files of a rank's last save. The next save gives a file a second name, instead of
// writing the same bytes again, if none of its tensors has changed. Internal.
//
// A file that several checkpoints share has one copy on the disk. Therefore everything is written
// anew from time to time: `generations_max` bounds the checkpoints that share a file. All ranks do
// so in the same save, so that two such saves share nothing.
//
// The rank keeps all this in memory. The first save of a process writes everything.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <cairn/base/digest.hpp>
#include <cairn/planning/metadata.hpp>
#include <cairn/planning/plan.hpp>
#include <cairn/storage/format/file_layout.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {

// Calls of one save come in the order of the methods. `digested`, `take_over` and `keep` are called
// on threads of the engine, of which `take_over` on several at once.
class ReusableFiles {
 public:
  // `finds_unmarked`: as Reuse::kDigest. Throws kInvalidArgument if `generations_max` is 0.
  ReusableFiles(bool finds_unmarked, std::uint32_t generations_max);

  // Begins the save `save_id` of `rank` to the place that `open_store` opens as `place`, and whose
  // store has the URL `url`.
  void begin(const std::string& place, const std::string& url, const std::string& save_id, int rank);
  // Marks the tensors of `plan` that did not change between the last two saves. Marks the same ones
  // again until all is written anew. Returns whether this rank must write everything anew.
  bool mark(SavePlan& plan);
  // The places of the checkpoints that share files with the last one, which is among them.
  const std::vector<std::string>& places() const { return known_.places; }
  // Writes everything anew in this save.
  void forget();
  bool is_digested(const WriteItem& item) const;
  // Takes a digest of the elements of each item of the plan, or none.
  void digested(std::vector<Digest128> digests) { digests_ = std::move(digests); }
  // Links the file to one with the same tensors at the same offsets. Returns nothing if there is
  // none, or if the store refuses; then nothing is at its name.
  std::optional<FileResult> take_over(Store& store, const SavePlan& plan, const WriteFile& file, bool is_durable);
  // Remembers the files for the next save.
  void keep(const SavePlan& plan, const std::vector<WriteFile>& files, const std::vector<FileResult>& results);
  // The save has failed: its files are gone. Otherwise the next save takes it as the last one.
  void fail() { next_ = {}; }

 private:
  struct Donor {
    std::string url;
    FileResult file;  // `written_by` names the save in any case
  };
  struct Value {
    Digest128 digest{};  // of all items of a name
    bool is_steady = false;
  };
  struct Known {
    std::map<Digest128, Donor> donors;              // by a digest of what is in them
    std::unordered_map<std::string, Value> values;  // by name
    std::vector<std::string> places;                // since everything was written anew
  };

  std::optional<Digest128> content_of(const SavePlan& plan, const FileLayout& layout) const;

  const bool finds_unmarked_;
  const std::uint32_t generations_max_;
  Known known_;  // of the last save that succeeded
  Known next_;   // of this save
  std::unordered_set<std::string> marked_;
  std::string place_, url_, save_id_;
  int rank_ = 0;
  std::vector<Digest128> digests_;  // by item of the plan
  std::atomic<bool> has_logged_{false};
};

}  // namespace cairn
