// A place in two tiers, near and far (storage/tiers.hpp).
#pragma once

#include <memory>
#include <string>

#include <cairn/storage/store.hpp>

namespace cairn {

std::shared_ptr<Store> open_tiered_store(const std::string& url);

// Stops the copies of this process as its death would, and forgets the pair. For tests.
void forget_tier(const std::string& name);

}  // namespace cairn
