// Lets ranks find each other through a store that all of them can reach. One start calls several of
// these functions with one Deadline, and so takes no longer than that.
#pragma once

#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include <cairn/actors/links/secret.hpp>
#include <cairn/base/wait.hpp>
#include <cairn/base/wait_notices.hpp>
#include <cairn/runtime/launch/launchers.hpp>

namespace c10d {
class Store;
}

namespace cairn {

// Blocks until this rank has the secret that rank 0 has drawn and put into the store. Rank 0
// returns at once. Each call uses a new secret; all ranks must call it the same number of times.
// Throws kDeadline. During the wait, rank 1 logs warnings. Every rank also logs them in its second
// and later calls: a second process with the same rank would look like a second call.
Secret share_secret(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size, Deadline deadline,
                    Duration first_notice = WaitNotices::kFirst);

struct Assembly {
  std::string incarnation;
  std::vector<std::string> addresses;  // by rank
};

// Blocks until every rank of the world has published its address. Rank 0 draws the incarnation,
// collects the addresses, and tells all ranks the same result. If rank 0 fails, the others throw
// the same error. Because rank 0 may host the store, it then waits for the others to read the
// result, but for no more than two seconds. While it waits for ranks to arrive, rank 0 logs
// warnings that name them. Apart from polling, all ranks together send the store O(n) requests.
// Throws kDeadline, naming the missing ranks or a store that does not answer; kPermission, naming
// the ranks whose secret is not that of rank 0; kMismatch if ranks differ in the size of the world;
// kInvalidArgument if ranks on several machines listen at loopback. Throws what the store throws.
//
// If there is a secret, the messages of all ranks in the store are signed with it. Anyone who can
// write to the store can then keep a world from assembling, but cannot join it or send ranks
// elsewhere. This function never stores the secret itself.
//
// Keys are "cairn/<generation>/…". A rank's generation is the number of times that it has called
// this function with this store, counted in the store itself. So several worlds, one after another
// or at the same time, do not collide if all ranks create them in the same order.
Assembly assemble(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size, const std::string& address,
                  Deadline deadline, const Secret& secret = Secret(), Duration first_notice = WaitNotices::kFirst);

}  // namespace cairn
