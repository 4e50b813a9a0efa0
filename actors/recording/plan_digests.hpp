// Leaves user data out of recordings, and keeps the digests of plans consistent without it.
// Internal.
//
// User-defined planners and writers put their own bytes into plans and results, and the texts of
// agreements contain user metadata. State machines pass this data on and never read it. A recording
// contains its SHA-256 instead. So when the recording is replayed, a machine computes a different
// digest for such a plan. The replay keeps both digests.
#pragma once

#include <map>

#include <cairn/base/digest.hpp>
#include <cairn/messages/control.hpp>

namespace cairn::recording {

// Replace user data by its SHA-256. Return whether anything was replaced.
bool leave_out_user_data(SavePlan& plan);
bool leave_out_user_data(LoadPlan& plan);
bool leave_out_user_data(WriteResults& results);
bool leave_out_user_data(protocol::Ending& ending);
bool leave_out_user_data(std::string& text);
// Returns the message without user data. Shared parts are copied if something in them is replaced.
protocol::Message without_user_data(const protocol::Message& message);

class PlanDigests {
 public:
  // Adds both digests of one plan: with its user data, and without.
  void add(const Digest& recorded, const Digest& replayed);
  // Replaces digests in a message that a machine receives. Only digests of plans that the machine
  // itself has sent, and so computed, are replaced.
  void to_replayed(protocol::Message& message) const;
  // Replaces digests in a message that a machine sends.
  void to_recorded(protocol::Message& message) const;

 private:
  using Forms = std::map<Digest, Digest>;
  Forms to_replayed_;
  Forms to_recorded_;
};

}  // namespace cairn::recording
