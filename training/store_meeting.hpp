// Lets the ranks of a process group check, before any backend is made, that all have come and agree on the group's size.
// Internal.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include <cairn/base/wait_notices.hpp>

namespace c10d {
class Store;
}

namespace cairn::training {

// Blocks until `ranks.size()` ranks have called it for the group `name`. `ranks`: the group's ranks as ranks of the world, for
// texts. `rank`: this rank's index among them. The rank that came first logs warnings that name the missing ranks. Throws
// kMismatch on all ranks, naming two that differ in the group's size; std::runtime_error, naming the ranks that did not come.
// Each rank sends the store a constant number of requests, polling aside; the first one asks about every rank after a timeout.
void meet_in_store(c10d::Store& store, const std::string& name, int rank, const std::vector<int>& ranks,
                   std::chrono::milliseconds deadline, Duration first_notice = WaitNotices::kFirst);

}  // namespace cairn::training
