// A store that injects faults into the operations of another store.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <cairn/base/injection.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {

// Wraps `store` so that `injector` can inject faults. Neither may be null. Operations of the store
// and its writers are fault sites of kind FaultSite::kStore, named after their methods (`is_taken`
// counts as "exists"). Actions of a rule:
//   throw         the operation fails with InjectedFault and does nothing
//   disk-full     the operation fails with kNoSpace and does nothing
//   short-write   the first half of the bytes is written, then `write_at` fails with kUnavailable
//   read-flip     one bit of the bytes read is flipped, silently
std::shared_ptr<Store> inject_faults(std::shared_ptr<Store> store, std::shared_ptr<Injector> injector);

// Returns the names of the operations that an InjectionRule can name.
const std::vector<std::string>& injectable_store_operations();

}  // namespace cairn
