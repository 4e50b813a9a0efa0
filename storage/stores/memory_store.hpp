// A store in memory, "mem://<name>/<path>", for tests, for examples and for a process that saves
// only for itself.
//
// All stores with one <name> in this process share one memory, which lives until `forget_memory` or
// the end of the process. <path> is a place in that memory, so parent_url and child_url work as for
// directories. Nothing survives the process; all other guarantees of a store hold. An object that
// is being written occupies its name but cannot be read before it is synced or closed.
#pragma once

#include <memory>
#include <string>

#include <cairn/storage/store.hpp>

namespace cairn {

// Creates the store for a "mem:" URL.
std::shared_ptr<Store> open_memory_store(const std::string& url);

// Drops the memory called `name`. Stores opened later begin empty; open stores keep their content.
void forget_memory(const std::string& name);

}  // namespace cairn
