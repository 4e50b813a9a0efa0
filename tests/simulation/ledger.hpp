// What was promised in a world, and what came of it: the invariants. It sees every record that reaches ".metadata" and everything
// that a call told its trainer, and writes down each contradiction.
//
//   agreement    ranks that heard the outcome of one attempt heard the same, word for word: all ranks, dead ones too, where nothing
//                kept any from any, else those that heard it of the same rank; who could talk, see agreement.hpp
//   durability   a checkpoint that some call reported as saved is there, whole, until a later one replaces it, power loss or not
//   truth        what was reported as not committed never appears; what was reported as committed has appeared
//   order        saves of a job are published in the order of its calls, see order.hpp
//   wholeness    every published checkpoint can be read to its last byte, and holds what its ranks had
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <cairn/actors/protocol/events.hpp>
#include <cairn/tests/simulation/coverage.hpp>
#include <cairn/tests/simulation/rank_hooks.hpp>
#include <cairn/tests/support/simulated_file_system.hpp>

namespace cairn::simulation {

// One rank's view of one call.
struct Report {
  int job = 0;
  int rank = 0;
  std::uint64_t ordinal = 0;
  protocol::Operation operation = protocol::Operation::kSave;
  bool heard = false;        // in the words of the coordinator, or of who took its place
  int decided_by = -1;       // that rank; -1: whichever it was, since all ranks can talk
  bool undisturbed = false;  // nothing has befallen any rank of the job so far
  Duration began{0}, ended{0};
  protocol::Finished finished;
};

class Ledger {
 public:
  Ledger(testing::SimulatedFileSystem& files, Coverage& coverage) : files_(files), coverage_(coverage) {}

  // A rank has begun to save `version` under this id.
  void saving(const std::string& save_id, const Version& version);
  // The content of "<place>/.metadata" has changed.
  void published(const std::string& place);
  void reported(const std::string& place, const Report& report);
  // The disk has forgotten what it may.
  void power_lost();

  // The version that a save id stands for; nothing for a stranger's.
  std::optional<Version> version_of(const std::string& save_id) const;
  // What is published at `place` now; nothing if there is no checkpoint, or none that can be read.
  std::optional<std::string> current(const std::string& place) const;
  bool was_published(const std::string& save_id) const { return history_.count(save_id) != 0; }
  const std::set<std::string>& places() const { return places_; }

  // Reads the newest checkpoint of every place, byte for byte.
  void check_newest();
  // `place` holds the newest checkpoint, those that it retires, `foreign`, and no other file.
  void check_clean(const std::string& place, const std::set<std::string>& foreign);

  // Save ids in the order in which they were published.
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
  std::map<std::string, std::string> last_;        // by place: what was published last
  std::map<std::string, std::uint64_t> history_;   // save id -> its number among all publications
  std::map<std::string, std::uint64_t> promised_;  // by place: the latest publication that some call reported
  std::set<std::string> denied_;                   // reported as not committed
  std::map<std::string, Report> outcomes_;         // by attempt, or by call where it has none: the first that was heard
  std::uint64_t publications_ = 0;
  std::vector<Report> reports_;
  std::vector<std::string> violations_;
};

bool same_outcome(const protocol::Finished& a, const protocol::Finished& b);
// "rank 2: silent (...); not committed", for texts.
std::string to_string(const protocol::Finished& finished);

}  // namespace cairn::simulation
