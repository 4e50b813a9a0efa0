// Checks that all ranks of a process group have joined, each once, and that they agree on the
// group's size. Runs before any backend is made. Internal.
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

// Blocks until `ranks.size()` ranks have called this for the group `name`. `ranks` lists the
// group's ranks as world ranks, for messages; `rank` is this rank's index in the list. The first
// rank to arrive logs warnings that name the missing ranks. Throws kMismatch on all ranks if two
// ranks differ in the group's size, or if a rank called this twice; the error names them. Throws
// std::runtime_error after `deadline`, naming the ranks that did not arrive. Apart from polling,
// each rank sends the store a constant number of requests; after a timeout, the first rank also
// asks about every other rank.
void meet_in_store(c10d::Store& store, const std::string& name, int rank, const std::vector<int>& ranks,
                   std::chrono::milliseconds deadline, Duration first_notice = WaitNotices::kFirst);

}  // namespace cairn::training
