#include <cairn/messages/failure_groups.hpp>

#include <algorithm>
#include <string_view>
#include <tuple>
#include <unordered_map>

namespace cairn::protocol {
namespace {

struct CauseHash {
  // The text alone separates most causes.
  std::size_t operator()(const Failure* failure) const { return std::hash<std::string_view>()(failure->what); }
};
struct SameCause {
  bool operator()(const Failure* a, const Failure* b) const {
    const auto key = [](const Failure& f) { return std::tie(f.phase, f.kind, f.code, f.type, f.what, f.actor); };
    return key(*a) == key(*b);
  }
};

// Returns the length to which texts must be cut so that all of them fit into `budget`. Short texts
// leave their unused share to longer ones.
std::size_t length_that_fits(std::vector<std::size_t> lengths, std::size_t budget) {
  std::sort(lengths.begin(), lengths.end());
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    // Shortest first: when one text exceeds its share, so do all that follow.
    const std::size_t share = budget / (lengths.size() - i);
    if (lengths[i] > share) return share;
    budget -= lengths[i];
  }
  return kFailureTextMax;
}

// Cuts a text at a character boundary.
std::string shortened(const std::string& text, std::size_t length) {
  static constexpr const char* kCut = " [...]";
  if (text.size() <= length) return text;
  // `length` is at least 32, also in a world of kRanksMax ranks: the mark fits.
  std::size_t end = length - std::string_view(kCut).size();
  // Bytes 10xxxxxx continue a character.
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end) + kCut;
}

}  // namespace

// A thousand ranks that fail for one reason would otherwise send a thousand copies of its text.
std::vector<FailureGroup> grouped(const FailureMap& failures) {
  std::vector<FailureGroup> groups;
  std::unordered_map<const Failure*, std::size_t, CauseHash, SameCause> known;
  std::vector<const Failure*> causes;
  std::vector<std::size_t> lengths;      // of the texts and types of all causes
  std::vector<std::size_t> all_lengths;  // of those of all failures
  all_lengths.reserve(2 * failures.size());
  for (const auto& [rank, failure] : failures) {
    const auto [position, added] = known.emplace(&failure, groups.size());
    if (added) {
      groups.emplace_back();
      causes.push_back(&failure);
      lengths.push_back(failure.what.size());
      lengths.push_back(failure.type.size());
    }
    groups[position->second].members.push_back({rank, failure.trace_position});
    all_lengths.insert(all_lengths.end(), {failure.what.size(), failure.type.size()});
  }
  if (groups.empty()) return groups;
  // The first limit bounds the message, in which each cause is stored once. The second one bounds
  // memory after `ungrouped`, where each rank has a copy.
  const std::size_t length = std::min(std::max(kCutTextLeast, length_that_fits(std::move(lengths), kGroupedTextMax)),
                                      length_that_fits(std::move(all_lengths), kUngroupedTextMax));
  for (std::size_t i = 0; i < groups.size(); ++i) {
    Failure& cause = groups[i].cause;
    cause.phase = causes[i]->phase;
    cause.kind = causes[i]->kind;
    cause.code = causes[i]->code;
    cause.type = shortened(causes[i]->type, length);
    cause.what = shortened(causes[i]->what, length);
    cause.actor = causes[i]->actor;
    groups[i].members.shrink_to_fit();
  }
  return groups;
}

FailureMap ungrouped(const std::vector<FailureGroup>& groups) {
  FailureMap failures;
  for (const auto& group : groups) {
    for (const auto& member : group.members) {
      Failure& failure = failures.emplace(member.rank, group.cause).first->second;
      failure.rank = member.rank;
      failure.trace_position = member.trace_position;
    }
  }
  return failures;
}

}  // namespace cairn::protocol
