#include <cairn/actors/links/transport.hpp>

#include <sstream>

#include <cairn/actors/links/socket.hpp>
#include <cairn/base/error.hpp>

namespace cairn {

std::string to_string(const DataAddress& address) {
  return std::to_string(address.rank) + " " + address.address + " " + (address.local_name.empty() ? "-" : address.local_name);
}

DataAddress parse_data_address(const std::string& text) {
  DataAddress parsed{-1, "", ""};
  if (text.size() <= 512) std::istringstream(text) >> parsed.rank >> parsed.address >> parsed.local_name;
  // A second encoding decides: nothing may be left over, or be written in another way.
  if (parsed.local_name == "-") parsed.local_name.clear();
  if (parsed.rank < 0 || to_string(parsed) != text || parsed.local_name.size() > 64 || split_address(parsed.address).port == 0)
    throw Error(ErrorCode::kInvalidArgument, "not a rank's data address: '" + text.substr(0, 512) + "'");
  return parsed;
}

}  // namespace cairn
