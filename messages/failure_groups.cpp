#include <cairn/messages/failure_groups.hpp>

#include <algorithm>
#include <string_view>

namespace cairn {
namespace {

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

std::vector<FailureGroup> grouped(const FailureMap& failures) {
  const std::vector<CauseInMap> causes = group_by_cause(failures);
  if (causes.empty()) return {};
  std::vector<std::size_t> lengths;      // of the texts and types of all causes
  std::vector<std::size_t> all_lengths;  // of those of all failures
  for (const auto& [cause, members] : causes)
    for (const std::size_t length : {cause->what.size(), cause->type.size()}) {
      lengths.push_back(length);
      all_lengths.insert(all_lengths.end(), members.size(), length);
    }
  // The first limit bounds the message, in which each cause is stored once. The second one bounds
  // memory after `ungrouped`, where each rank has a copy.
  const std::size_t length = std::min(std::max(kCutTextLeast, length_that_fits(std::move(lengths), kGroupedTextMax)),
                                      length_that_fits(std::move(all_lengths), kUngroupedTextMax));
  std::vector<FailureGroup> groups;
  groups.reserve(causes.size());
  for (const auto& [cause, members] : causes) {
    // A copy of the whole cause would copy the whole text.
    Failure& copy = groups.emplace_back(FailureGroup{{}, members}).cause;
    if (failures.size() > kProcessesNamedMax)
      for (auto& member : groups.back().members) member.process.clear();
    copy.phase = cause->phase;
    copy.kind = cause->kind;
    copy.code = cause->code;
    copy.type = shortened(cause->type, length);
    copy.what = shortened(cause->what, length);
    copy.actor = cause->actor;
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
      failure.process = member.process;
    }
  }
  return failures;
}

}  // namespace cairn
