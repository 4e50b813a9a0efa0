// Deadlines and limits of the runtime. Every wait for other ranks has a deadline. A call that times
// out fails with a text that names the ranks or the hook that it waited for.
#pragma once

#include <chrono>
#include <cstddef>

namespace cairn {

// Durations are between 0 and one year; `heartbeat_timeout` must be above 0.
struct RuntimeOptions {
  // Time limit from the first rank's call until all ranks have made the same call.
  std::chrono::milliseconds join_deadline{std::chrono::minutes(10)};
  // Time limit for one phase, from its start on the coordinator until every rank has answered. It
  // also limits each task, hooks included, that the coordinator runs while all ranks wait.
  std::chrono::milliseconds phase_deadline{std::chrono::minutes(60)};
  // Extra time that a rank waits for the coordinator's next message, or for the outcome, beyond the
  // deadlines that the coordinator itself keeps.
  std::chrono::milliseconds outcome_grace{std::chrono::seconds(30)};
  // How long the other ranks may continue a phase after its first failure before they are told to
  // stop. The failure map also contains the failures of these ranks in that time and while they
  // stop.
  std::chrono::milliseconds phase_grace{std::chrono::seconds(1)};
  // How long ranks that were told to stop may take before they are reported as busy. After a failed
  // save, this also limits the time for finding out whether the checkpoint exists.
  std::chrono::milliseconds cancel_grace{std::chrono::seconds(30)};
  // Time limit for connecting to a rank, including retries. During World::rejoin, attempts continue
  // beyond this limit until all survivors have arrived, or assemble_deadline passes.
  std::chrono::milliseconds connect_deadline{std::chrono::seconds(30)};
  // Time limit from the opening of a connection until each side has identified the other and, if
  // the job has a secret, has proven that it knows it. After each connection without an answer, the
  // connecting side doubles the limit, up to connect_deadline.
  std::chrono::milliseconds handshake_deadline{std::chrono::seconds(5)};
  // Time limit for the peer to receive the last data of a connection before the connection is
  // closed.
  std::chrono::milliseconds drain_deadline{std::chrono::seconds(1)};
  // Heartbeat timeout: a link that receives nothing for this long is down. Until the link's
  // heartbeat connection is open, the limit is connect_deadline if that is longer. Four heartbeats
  // are sent per timeout.
  std::chrono::milliseconds heartbeat_timeout{std::chrono::seconds(5)};
  // How often a rank reports its progress to the coordinator, and receives the progress of all
  // ranks, while a save or load runs. In worlds of more than 100 ranks the interval is at least
  // 2 ms per rank. 0 turns progress reports off: calls work the same, but nobody can tell which
  // rank is the slowest.
  std::chrono::milliseconds progress_interval{200};

  // If the coordinator of a call is lost, a rank asks the next ranks in rank order, its successors,
  // to end the call. This is the maximum number of ranks that it asks. If none of them ends the
  // call, the rank ends the call itself.
  unsigned successors_asked = 3;

  std::size_t frame_bytes_max = 4u << 20;                // larger messages are sent in sections of at most this size
  std::size_t message_bytes_max = std::size_t{1} << 30;  // the maximum size of a message, all its sections together
  std::size_t unsent_bytes_max = 256u << 20;             // per link; above this the peer counts as lost
  // The maximum number of bytes received but not yet handled, per link. Above it, the runtime stops
  // reading from the peer. The total of all links has no limit.
  std::size_t unread_bytes_max = 64u << 20;
  // The maximum number of accepted connections whose other side has not yet named its rank or, if
  // the job has a secret, not yet proven that it knows it. Above this number, or above an eighth of
  // the process's descriptor limit, the oldest connection is closed. The limit is never below the
  // number of ranks in the world.
  std::size_t unauthenticated_connections_max = 256;
  unsigned outcomes_kept = 16;              // ended calls, per checkpointer, whose outcomes are kept for late ranks
  // How often an actor of this rank that dies is replaced within 10 minutes. A call that succeeds
  // sets the count to 0. Without one of its actors a rank's calls fail at once.
  unsigned child_restarts_max = 8;
  std::size_t trace_ring_bytes = 4u << 20;  // per rank; 0: no events are kept, and failure reports contain none
  // Store operations that take at least this long are recorded in traces. Failed operations are
  // always recorded. 0 records all operations.
  std::chrono::milliseconds trace_store_operations{100};
};

}  // namespace cairn
