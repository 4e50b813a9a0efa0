// How the ranks of a process group find out, before any backend is made, that all have come and mean the same group. Internal.
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

// Blocks until `ranks.size()` ranks have called it for the group `name`. `ranks`: of the group, as ranks of the world, for texts; `rank`:
// this one's place among them. The rank that came first logs a warning that names whom it waits for. Throws kMismatch, on all ranks,
// naming two that differ in the group's size; std::runtime_error naming those that did not come. A rank asks the store a few
// questions, beside those that only ask whether there is anything new.
void meet_in_store(c10d::Store& store, const std::string& name, int rank, const std::vector<int>& ranks,
                   std::chrono::milliseconds deadline, Duration first_notice = WaitNotices::kFirst);

}  // namespace cairn::training
