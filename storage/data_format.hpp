// The format of a checkpoint's data files: which files a rank writes, and how the rank's items lie
// in them. CheckpointWriter uses it. Internal.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <cairn/base/mutex.hpp>
#include <cairn/planning/metadata.hpp>
#include <cairn/planning/plan.hpp>
#include <cairn/storage/format/file_layout.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {

// The names of the files that a rank has made in one attempt. Thread-safe, because a save may be
// discarded while a writing thread adds names.
class WrittenNames {
 public:
  void add(const std::vector<ObjectName>& names) {
    MutexLock lock(mutex_);
    names_.insert(names_.end(), names.begin(), names.end());
  }
  std::vector<ObjectName> all() const {
    MutexLock lock(mutex_);
    return names_;
  }

 private:
  mutable Mutex mutex_;
  std::vector<ObjectName> names_ CAIRN_GUARDED_BY(mutex_);
};

class DataFormat {
 public:
  virtual ~DataFormat() = default;

  // Called on the coordinator, before the attempt is opened. Throws if the files cannot be created
  // at this place.
  virtual void require_room(Store& /*store*/) {}
  // Called on every rank with its local plan. If items cannot be stored, leaves them out or throws.
  virtual SavePlan prepare(SavePlan plan, const Store& store) const = 0;
  // Called on the coordinator. Returns one text per rank with what the rank needs to lay out and
  // name its files beside its plan. `layouts` and `name` get this text as `arrangement`.
  virtual std::vector<std::string> arrange(const std::vector<SavePlan>& plans) = 0;
  // Returns the layouts of a rank's files. The rank and the coordinator get the same result from
  // the same arguments.
  virtual std::vector<FileLayout> layouts(const SavePlan& plan, const std::string& arrangement) const = 0;
  // Returns the name of file number `file` of a rank that writes `files` files.
  virtual ObjectName name(int rank, std::size_t file, std::size_t files, const std::string& arrangement,
                          const std::string& save_id) const = 0;
  // Called on the coordinator when all files are written, before `metadata` is published.
  // `metadata` locates all items in the files. May change `metadata`. May also create objects,
  // whose names it adds to `written` once they exist. Returns an action to run after the
  // publication; may be empty.
  virtual std::function<void()> complete(const std::shared_ptr<Store>& /*store*/, const std::string& /*url*/,
                                         Metadata& /*metadata*/, WrittenNames& /*written*/) {
    return {};
  }

  // Whether only one save ever uses the names of these files.
  virtual bool names_are_unique() const { return true; }
  // Whether readers take an object of this name for a part of a checkpoint, even without a record.
  virtual bool needs_no_record(const ObjectName& /*name*/) const { return false; }
};

}  // namespace cairn
