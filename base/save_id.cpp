#include <cairn/base/save_id.hpp>

#include <cstdio>

#include <cairn/base/digest.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/settings.hpp>

namespace cairn {
namespace {

// Ids name files and directories. Their fixed form lets the clean-up tell Cairn's own from others.
constexpr std::string_view kMark = "cairn-";
constexpr std::size_t kIncarnationDigits = 32;
constexpr std::size_t kCheckpointerDigits = 8;

bool is_lower_hex(std::string_view text) noexcept { return text.find_first_not_of("0123456789abcdef") == std::string_view::npos; }

// Removes `length` hexadecimal digits and a '-' from the front of `text`.
bool take_hex_part(std::string_view& text, std::size_t length) noexcept {
  // The size comes first: the text may be shorter than the part.
  if (text.size() <= length || text[length] != '-' || !is_lower_hex(text.substr(0, length))) return false;
  text.remove_prefix(length + 1);
  return true;
}

// Accepts what std::to_string writes for a std::uint64_t: no sign, no leading zero, no overflow.
bool is_canonical_counter(std::string_view text) noexcept {
  return (text.size() == 1 || text.substr(0, 1) != "0") && parse_number<std::uint64_t>(text).has_value();
}

}  // namespace

bool is_incarnation(std::string_view text) noexcept { return text.size() == kIncarnationDigits && is_lower_hex(text); }

std::uint32_t checkpointer_key(std::string_view checkpointer) noexcept { return crc32(0, ByteSpan(checkpointer)); }

std::string make_save_id(std::string_view incarnation, std::string_view checkpointer, std::uint64_t counter) {
  if (!is_incarnation(incarnation))
    throw Error(ErrorCode::kInvalidArgument,
                "cannot make a save id: the incarnation must be 32 lower-case hexadecimal digits, got \"" +
                    std::string(incarnation.substr(0, 64)) + "\"");
  // A checkpointer may have any name, also one with '/' or of any length. Its hash is safe in file
  // names.
  char name_hash[kCheckpointerDigits + 1];
  std::snprintf(name_hash, sizeof name_hash, "%08x", static_cast<unsigned>(checkpointer_key(checkpointer)));
  std::string id(kMark);
  id.append(incarnation).append("-").append(name_hash).append("-").append(std::to_string(counter));
  return id;
}

bool is_save_id(std::string_view text) noexcept {
  if (text.substr(0, kMark.size()) != kMark) return false;
  text.remove_prefix(kMark.size());
  return take_hex_part(text, kIncarnationDigits) && take_hex_part(text, kCheckpointerDigits) && is_canonical_counter(text);
}

}  // namespace cairn
