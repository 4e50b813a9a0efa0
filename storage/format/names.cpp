#include <cairn/storage/format/names.hpp>

#include <algorithm>
#include <charconv>
#include <limits>
#include <system_error>

#include <cairn/base/save_id.hpp>

namespace cairn {
namespace {

constexpr std::string_view kFileSuffix = ".distcp";
constexpr const char* kStepPrefix = "step_";
constexpr const char* kPartPrefix = "rank_";
constexpr const char* kPartMiddle = "_of_";

// Removes a number, as std::to_string writes it, from the front of `text`, and returns it. Returns
// nothing if `text` does not begin with a number that is not negative and fits.
std::optional<std::int64_t> take_step_number(std::string_view& text) {
  std::int64_t number = 0;
  const auto [next, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || text.front() == '-') return std::nullopt;
  const auto length = static_cast<std::size_t>(next - text.data());
  if (length > 1 && text.front() == '0') return std::nullopt;
  text.remove_prefix(length);
  return number;
}

// Removes `part` from the front of `text`. Returns false if `text` does not begin with it.
bool take(std::string_view& text, std::string_view part) {
  if (text.substr(0, part.size()) != part) return false;
  text.remove_prefix(part.size());
  return true;
}

// Removes a rank or an index, which has at most ten digits, and the '_' after it.
bool take_number(std::string_view& text) {
  const auto number = take_step_number(text);
  return number && *number <= 9'999'999'999 && take(text, "_");
}

}  // namespace

std::string data_file_name(int rank, int index, const std::string& save_id) {
  return kDataFilePrefix + std::to_string(rank) + "_" + std::to_string(index) + "_" + save_id + std::string(kFileSuffix);
}

std::optional<std::string> save_id_of_file(const std::string& name) {
  std::string_view rest = name;
  if (!take(rest, kDataFilePrefix) || !ends_with(rest, kFileSuffix)) return std::nullopt;
  rest.remove_suffix(kFileSuffix.size());
  if (!take_number(rest) || !take_number(rest) || !is_save_id(rest)) return std::nullopt;
  return std::string(rest);
}

std::optional<int> rank_of_record(std::string_view name) {
  if (!take(name, kDataFilePrefix)) return std::nullopt;
  const auto rank = take_step_number(name);
  return rank && *rank <= std::numeric_limits<int>::max() && name == ".metadata" ? std::optional(static_cast<int>(*rank))
                                                                                 : std::nullopt;
}

std::string checkpoint_name(std::int64_t step, std::uint64_t n) {
  const std::string name = kStepPrefix + std::to_string(step);
  return n == 1 ? name : name + "." + std::to_string(n);
}

std::optional<std::int64_t> step_of_name(const std::string& name) {
  std::string_view rest = name;
  if (!take(rest, kStepPrefix)) return std::nullopt;
  const auto step = take_step_number(rest);
  if (!step || rest.empty()) return step;
  if (!take(rest, ".")) return std::nullopt;
  const auto n = take_step_number(rest);
  return n && *n > 1 && rest.empty() ? step : std::nullopt;
}

std::string part_name(int rank, int world_size) {
  return kPartPrefix + std::to_string(rank) + kPartMiddle + std::to_string(world_size);
}

std::optional<PartName> part_of_name(std::string_view name) {
  std::string_view rest = name.substr(0, name.find('/'));
  if (!take(rest, kPartPrefix)) return std::nullopt;
  const auto rank = take_step_number(rest);
  if (!rank || !take(rest, kPartMiddle)) return std::nullopt;
  const auto world_size = take_step_number(rest);
  if (!world_size || !rest.empty() || *rank >= *world_size || *world_size > std::numeric_limits<int>::max()) return std::nullopt;
  return PartName{static_cast<int>(*rank), static_cast<int>(*world_size)};
}

std::optional<std::pair<std::string, int>> item_of_file(const std::string& name) {
  const auto mark = name.rfind('_');
  if (mark == std::string::npos || mark == 0 || name.find('/') != std::string::npos) return std::nullopt;
  std::string_view rest = std::string_view(name).substr(mark + 1);
  const auto rank = take_step_number(rest);
  if (!rank || rest != ".pt" || *rank > std::numeric_limits<int>::max()) return std::nullopt;
  return std::pair(name.substr(0, mark), static_cast<int>(*rank));
}

bool is_part(const std::string& url) { return part_of_name(std::string_view(url).substr(url.rfind('/') + 1)).has_value(); }

}  // namespace cairn
