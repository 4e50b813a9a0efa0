// Deadlines and bounds of the runtime. Every wait has one of these; the failure of a wait names who was waited for.
#pragma once

#include <chrono>
#include <cstddef>

namespace cairn {

struct RuntimeOptions {  // times: from 0 to a year; silence more than 0
  // From the first rank's call until all ranks have made the same call.
  std::chrono::milliseconds join_deadline{std::chrono::minutes(10)};
  // For one phase, from its start on the coordinator until every rank has answered.
  std::chrono::milliseconds phase_deadline{std::chrono::minutes(60)};
  // From a rank's last message to the coordinator until the outcome arrives, beyond the phase deadline.
  std::chrono::milliseconds outcome_grace{std::chrono::seconds(30)};
  // After the first failure of a phase: how long the other ranks may go on with it, so that their own failures are in the map too,
  // before they are told to stop.
  std::chrono::milliseconds phase_grace{std::chrono::seconds(1)};
  // How long ranks that were told to stop may take before they are listed as busy.
  std::chrono::milliseconds cancel_grace{std::chrono::seconds(30)};
  // For a connection between two ranks, from its first attempt.
  std::chrono::milliseconds connect_deadline{std::chrono::seconds(30)};
  // From the opening of a connection until both sides know each other, and that both know the job's secret.
  std::chrono::milliseconds handshake_deadline{std::chrono::seconds(5)};
  // For what was said last on a connection, until the peer has taken it and the connection is closed.
  std::chrono::milliseconds drain_deadline{std::chrono::seconds(1)};
  // A link without a sign of life for this long is down; beats are sent every quarter of it.
  std::chrono::milliseconds silence{std::chrono::seconds(5)};
  // While a save or load runs, how often a rank tells the coordinator how far it is, and hears how far all are; in worlds of more than
  // a hundred ranks 2 ms a rank, if that is longer. 0: never. It decides nothing; without it nobody can tell who is the slowest.
  std::chrono::milliseconds progress_interval{200};

  // How many ranks next to a lost coordinator are asked to end its call, before a rank tries itself.
  unsigned successors_asked = 3;

  std::size_t frame_bytes_max = 4u << 20;                // larger messages travel in sections of this size
  std::size_t message_bytes_max = std::size_t{1} << 30;  // of one message, all its sections together
  std::size_t unsent_bytes_max = 256u << 20;             // per link: beyond it the peer counts as lost
  std::size_t unread_bytes_max = 64u << 20;              // per link: received but not yet handled; beyond it the peer has to wait
  // The most accepted connections whose other side has not yet named its rank and, with a secret, proven that it knows it. Beyond
  // this, and beyond an eighth of the process's descriptor limit, the oldest is closed. At least as many as the world has ranks
  // are allowed.
  std::size_t strangers_max = 256;
  unsigned outcomes_kept = 16;              // per checkpointer
  unsigned child_restarts_max = 8;          // per supervised child, over the life of a world
  std::size_t trace_ring_bytes = 4u << 20;  // per rank; 0: nothing is recorded, and reports of failures have no events
  // Operations of stores that take so long are in traces, as are those that fail; 0: all of them.
  std::chrono::milliseconds trace_store_operations{100};
};

}  // namespace cairn
