// How ranks find each other through a store that all of them reach.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include <cairn/actors/links/secret.hpp>
#include <cairn/base/wait_notices.hpp>

namespace c10d {
class Store;
}

namespace cairn {

// A rank's place in the job, as torchrun and cairn-launch tell it.
struct Place {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  std::string master_host;
  int master_port = 0;
  bool agent_hosts = false;  // the launcher's agent serves the store, no rank does
  int restarts = 0;          // of the job, which that store outlives
};

// Reads RANK, WORLD_SIZE, LOCAL_RANK (default: RANK), MASTER_ADDR, MASTER_PORT, and torchrun's TORCHELASTIC_USE_AGENT_STORE and
// TORCHELASTIC_RESTART_COUNT. Throws kInvalidArgument naming the one that is missing or malformed.
Place place_in_environment();

// The store at MASTER_ADDR:MASTER_PORT. Rank 0 hosts it, unless the agent or the trainer does already; of an agent's, each life of the job
// sees its own keys only. Throws kDeadline if rank 0 does not offer it in time, or who listens there says nothing; kUnavailable. One rank
// (rank 1, as rank 0 is the one that is waited for; of an agent's, rank 0) logs a warning while the wait goes on.
c10::intrusive_ptr<c10d::Store> open_store(const Place& place, std::chrono::milliseconds deadline,
                                           Duration first_notice = WaitNotices::kFirst);

struct Assembly {
  std::string incarnation;
  std::vector<std::string> addresses;  // by rank
};

// Blocks until every rank of the world has published its address. Rank 0 draws the incarnation, collects, and tells all the same
// result; an error of its own reaches the others in the same words, for which rank 0 stays a little longer, as it may host the
// store. While it waits, rank 0 logs a warning that names whom it waits for. All ranks together ask the store O(n) questions, beside
// those that only ask whether there is anything new. Throws kDeadline naming missing ranks, or a store that does not answer, kMismatch, kUnavailable; kPermission naming ranks whose secret is not that of rank 0.
//
// What a rank publishes and what rank 0 tells all is signed with the secret, where there is one: who can write to the store can keep
// a world from assembling, but neither join it nor send ranks elsewhere. The secret itself stays out of the store.
//
// Keys are "cairn/<generation>/…". A rank's generation is the number of times that it has come to this store, counted in the store
// itself: several worlds, one after the other or side by side, do not meet as long as all ranks make them in the same order.
Assembly assemble(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size, const std::string& address,
                  std::chrono::milliseconds deadline, const Secret& secret = Secret(),
                  Duration first_notice = WaitNotices::kFirst);

}  // namespace cairn
