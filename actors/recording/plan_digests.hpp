// Leaves user data out of recordings, and keeps the digests of plans consistent without it. Internal.
//
// User-defined planners and writers put bytes of their own into plans and results, and the texts of agreements hold user
// metadata. State machines pass these on and never read them. A recording holds their SHA-256 instead. So a machine computes a
// different digest for such a plan when the recording is replayed: the replay keeps both digests.
#pragma once

#include <map>

#include <cairn/base/digest.hpp>
#include <cairn/messages/control.hpp>

namespace cairn::recording {

// Whether something was left out.
bool leave_out_user_data(SavePlan& plan);
bool leave_out_user_data(LoadPlan& plan);
bool leave_out_user_data(WriteResults& results);
bool leave_out_user_data(protocol::Ending& ending);
bool leave_out_user_data(std::string& text);
// The message without it; what it shares with others is copied where something has to go.
protocol::Message without_user_data(const protocol::Message& message);

class PlanDigests {
 public:
  // Of one plan: as it was, and without its user data.
  void add(const Digest& recorded, const Digest& replayed);
  // Of a message that a machine is given: the digest of a plan that the machine itself has sent, and so computed. All others it takes as
  // they come.
  void to_replayed(protocol::Message& message) const;
  // Of a message that it sends.
  void to_recorded(protocol::Message& message) const;

 private:
  using Forms = std::map<Digest, Digest>;
  Forms to_replayed_;
  Forms to_recorded_;
};

}  // namespace cairn::recording
