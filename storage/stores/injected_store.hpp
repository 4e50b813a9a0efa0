// A store whose operations meet the faults that an injector has for them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <cairn/base/injection.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {

// Both non-null. The operations of `store` and of its writers are places of kind kStore, by the names of their methods.
//   throw         the operation fails with InjectedFault and does nothing
//   disk-full     the operation fails with kNoSpace and does nothing
//   short-write   the first half of the bytes is written, then the operation fails with kUnavailable
//   read-flip     one bit of what was read is wrong, and nothing says so
std::shared_ptr<Store> inject_faults(std::shared_ptr<Store> store, std::shared_ptr<Injector> injector);

const std::vector<std::string>& injectable_store_operations();

}  // namespace cairn
