// Walks over opaque values: their parts, and pickles of their own.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/base/bytes.hpp>
#include <cairn/state/pickle/pickle_value.hpp>

namespace cairn {

// Calls `visit` for everything that a value is made of. `name` is that of an attribute, an item or
// a keyword argument, and "" for arguments and elements.
using VisitPart = std::function<void(std::string_view name, const PickleValue& part)>;
void for_each_part(const PickleValue& value, const VisitPart& visit);

struct OwnPickle {
  Bytes pickle;
  std::vector<std::string> storages;  // the key in the old archive of storage "0", "1", … of the new one
};
// Returns a pickle of this value alone, opaque or not, from which Python makes the same value.
OwnPickle own_pickle(const PickleValue& value, int protocol);

}  // namespace cairn
