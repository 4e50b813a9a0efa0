// Checks the invariants of a world. The ledger sees every record that is published as ".metadata"
// and everything that a call told its trainer, and records each contradiction.
//
//   agreement    ranks that heard the outcome of one attempt heard exactly the same outcome. This
//                covers all ranks, dead ones included, if all could talk to each other; otherwise
//                only ranks that heard it from the same rank. agreement.hpp says who could talk.
//   durability   a checkpoint that a call reported as saved stays complete until a later one
//                replaces it, even across a power loss
//   truth        a save reported as not committed never appears; one reported as committed did
//   order        saves of a job are published in the order of its calls, see order.hpp
//   wholeness    every published checkpoint is fully readable and holds the values of its ranks
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <cairn/actors/protocol/events.hpp>
#include <cairn/tests/simulation/checkpoint_values.hpp>
#include <cairn/tests/simulation/coverage.hpp>
#include <cairn/tests/simulation/hooks.hpp>
#include <cairn/tests/support/simulated_file_system.hpp>

namespace cairn::simulation {

// One rank's result of one call.
struct Report {
  int job = 0;
  int rank = 0;
  std::uint64_t ordinal = 0;
  protocol::Operation operation = protocol::Operation::kSave;
  bool heard = false;        // the outcome came in a message, from the coordinator or its successor
  int decided_by = -1;       // the sender of that outcome; -1: not tracked, since all ranks can talk, or the rank heard none
  bool undisturbed = false;  // so far, no fault has hit any rank of the job
  Duration began{0}, ended{0};
  protocol::CallResult finished;
};

class Ledger {
 public:
  Ledger(testing::SimulatedFileSystem& files, Coverage& coverage) : files_(files), coverage_(coverage) {}

  // A rank has begun to save `version` under `save_id`.
  void saving(const std::string& save_id, const Version& version);
  // The content of "<place>/.metadata" has changed.
  void published(const std::string& place);
  void reported(const std::string& place, const Report& report);
  // The power was lost, and the disk has dropped unsynced data.
  void power_lost();

  // Returns the version that `save_id` stands for, or nothing if no rank of this world has used the
  // id.
  std::optional<Version> version_of(const std::string& save_id) const;
  // Returns the save id published at `place` now, or nothing if no readable checkpoint is there.
  std::optional<std::string> current(const std::string& place) const;
  bool was_published(const std::string& save_id) const { return history_.count(save_id) != 0; }
  const std::set<std::string>& places() const { return places_; }

  // Reads the newest checkpoint of every place in full and compares every byte.
  void check_newest();
  // Checks that `place` holds only the newest checkpoint, the ones that it retires, and the files
  // named in `foreign`.
  void check_clean(const std::string& place, const std::set<std::string>& foreign);

  // Returns save ids in the order of publication.
  std::vector<std::string> publications() const;

  const std::vector<Report>& reports() const { return reports_; }
  void accuse(const std::string& violation) { violations_.push_back(violation); }
  const std::vector<std::string>& violations() const { return violations_; }

 private:
  void check_whole(const std::string& place);

  testing::SimulatedFileSystem& files_;
  Coverage& coverage_;
  const std::shared_ptr<Tools> tools_ = std::make_shared<Tools>();
  std::map<std::string, Version> versions_;
  std::set<std::string> places_;
  std::map<std::string, std::string> last_;        // by place: the last save id published
  std::map<std::string, std::uint64_t> history_;   // save id -> its number among all publications
  std::map<std::string, std::uint64_t> promised_;  // by place: the latest publication that a call reported
  std::set<std::string> denied_;                   // reported as not committed
  std::map<std::string, Report> outcomes_;         // by attempt, or by call if there is no attempt: the first one heard
  std::uint64_t publications_ = 0;
  std::vector<Report> reports_;
  std::vector<std::string> violations_;
};

bool same_outcome(const protocol::CallResult& a, const protocol::CallResult& b);
// For texts, like "rank 2: silent in write (...); committed: no, save id \"...\"".
std::string to_string(const protocol::CallResult& finished);

}  // namespace cairn::simulation
