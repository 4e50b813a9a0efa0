#include <cairn/base/failure.hpp>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <new>
#include <string_view>
#include <tuple>
#include <typeinfo>
#include <unordered_map>
#include <utility>

#include <cxxabi.h>

#include <cairn/base/enum_names.hpp>
#include <cairn/base/process_name.hpp>
#include <cairn/base/rank_text.hpp>
#include <cairn/base/utf8.hpp>

namespace cairn {

const char* to_string(Phase phase) noexcept {
  static constexpr const char* kNames[] = {"join", "local_plan", "global_plan", "write", "read", "finish"};
  return name_in<Phase::kFinish>(kNames, phase, "unknown");
}

const char* to_string(FailureKind kind) noexcept {
  static constexpr const char* kNames[] = {"raised", "lost", "silent", "cancelled", "busy", "internal"};
  return name_in<FailureKind::kInternal>(kNames, kind, "unknown");
}

const char* to_string(Committed committed) noexcept {
  static constexpr const char* kNames[] = {"no", "yes", "unknown"};
  return name_in<Committed::kUnknown>(kNames, committed, "unknown");
}

bool operator==(const Failure& a, const Failure& b) {
  // Leaves out the exception, which exists on one rank only.
  return std::tie(a.rank, a.phase, a.kind, a.code, a.type, a.what, a.actor, a.trace_position) ==
         std::tie(b.rank, b.phase, b.kind, b.code, b.type, b.what, b.actor, b.trace_position);
}

namespace {

// Exceptions nested deeper than this are left out of the text.
constexpr int kNestedMax = 8;

// Returns the text as valid UTF-8 of bounded size, never cut within a character. Failures are sent
// in messages and written as JSON.
std::string clean_text(std::string_view text, std::size_t max_bytes) {
  static constexpr std::string_view kCut = " [...]";
  std::string result;
  result.reserve(std::min(text.size(), max_bytes));
  // All callers pass a limit far above the size of the mark.
  const std::size_t room = max_bytes - kCut.size();
  std::size_t cut = 0;  // the place to cut if the text turns out too long
  while (!text.empty()) {
    const std::size_t length = utf8_character_bytes(text);
    const std::size_t used = std::max<std::size_t>(length, 1);
    if (result.size() + used > max_bytes) {
      result.resize(cut);
      result += kCut;
      break;
    }
    if (length > 0) {
      result.append(text.substr(0, length));
    } else {
      // One mark per invalid byte, because there is no telling where the next character was to
      // begin.
      result.push_back('?');
    }
    if (result.size() <= room) cut = result.size();
    text.remove_prefix(used);
  }
  return result;
}

std::string demangled(const std::type_info* type) {
  // The runtime knows no type for exceptions that another language threw.
  if (!type) return "foreign exception";
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(abi::__cxa_demangle(type->name(), nullptr, nullptr, &status), &std::free);
  // Names of templates can have kilobytes.
  return clean_text(status == 0 && name ? name.get() : type->name(), 512);
}

std::string text_of(const std::exception& exception) {
  // User code may override what() and return null.
  const char* text = exception.what();
  return clean_text(text ? text : "(what() returned nothing)", kFailureTextMax);
}

struct Cause {
  ErrorCode code = ErrorCode::kUnavailable;
  std::string type;
  std::string what;
  std::exception_ptr nested;
};

// Replaces a PlacedException by the exception that it holds.
Cause cause_of(std::exception_ptr& exception) {
  Cause cause;
  // The current exception is known only inside of a handler, so each handler calls this.
  const auto name_type = [&] { cause.type = demangled(abi::__cxa_current_exception_type()); };
  try {
    std::rethrow_exception(exception);
  } catch (const PlacedException& placed) {
    const std::string place = placed.place + ": ";
    exception = std::exception_ptr(placed.exception);
    cause = cause_of(exception);
    cause.what.insert(0, place);
  } catch (const std::bad_alloc&) {  // its own text is its type's name
    name_type();
    cause.what = "out of memory";
  } catch (const std::exception& error) {
    name_type();
    if (const auto* known = dynamic_cast<const Error*>(&error)) cause.code = known->code();
    cause.what = text_of(error);
    if (const auto* outer = dynamic_cast<const std::nested_exception*>(&error)) cause.nested = outer->nested_ptr();
    // Some programs throw plain texts.
  } catch (const std::string& text) {
    name_type();
    cause.what = clean_text(text, kFailureTextMax);
  } catch (const char* text) {
    name_type();
    cause.what = clean_text(text ? text : "(null)", kFailureTextMax);
  } catch (...) {
    name_type();
    cause.what = "an exception that is not a std::exception and has no text";
  }
  return cause;
}

}  // namespace

Failure capture_failure(int rank, Phase phase, const char* actor, std::exception_ptr exception) noexcept {
  Failure failure;
  failure.rank = rank;
  failure.phase = phase;
  failure.exception = exception ? std::move(exception) : std::current_exception();
  try {
    failure.actor = actor ? actor : "";
    failure.process = process_name();
    if (!failure.exception) {
      // A caller without an exception is a fault of Cairn, not of user code.
      failure.kind = FailureKind::kInternal;
      failure.what = "a failure was reported without an exception";
      return failure;
    }
    Cause cause = cause_of(failure.exception);
    failure.code = cause.code;
    failure.kind = cause.code == ErrorCode::kInternal ? FailureKind::kInternal : FailureKind::kRaised;
    failure.type = std::move(cause.type);
    std::string text = std::move(cause.what);
    // std::throw_with_nested makes such chains. The outermost exception often says only which step
    // failed.
    for (int depth = 0; cause.nested && depth < kNestedMax; ++depth) {
      std::exception_ptr nested = std::move(cause.nested);
      cause = cause_of(nested);
      text += "; caused by " + cause.type + ": " + cause.what;
    }
    failure.what = clean_text(text, kFailureTextMax);
  } catch (...) {
    // Out of memory, or a what() that threw: set only what needs no allocation.
    failure.code = ErrorCode::kUnavailable;
    failure.kind = FailureKind::kRaised;
    failure.type.clear();
    failure.what = "text lost";
  }
  return failure;
}

namespace {

// Bound the text of an exception to about 35 KB, however many ranks fail.
constexpr std::size_t kCausesShownMax = 16;
constexpr std::size_t kCauseTextMax = 2048;
constexpr std::size_t kHeadlineTextMax = 300;

std::string_view first_line(std::string_view text) { return text.substr(0, text.find('\n')); }

std::string name_cause(const Failure& failure) {
  std::string text = std::string(to_string(failure.kind)) + " in " + to_string(failure.phase);
  if (!failure.actor.empty()) text += " (" + failure.actor + ")";
  if (!failure.type.empty()) text += ": " + failure.type;
  // kUnavailable says nothing, because it also stands for exceptions without a code.
  if (failure.code != ErrorCode::kUnavailable) text += " [" + std::string(to_string(failure.code)) + "]";
  return text + ": ";
}

std::string indent(const std::string& text) {
  std::string result;
  for (const char c : text) {
    result.push_back(c);
    if (c == '\n') result += "    ";
  }
  return result;
}

// Orders failures for people. Lost and silent ranks often follow from an exception on some rank,
// rarely the reverse.
int importance(FailureKind kind) {
  static constexpr int kOrder[] = {0, 2, 3, 5, 4, 1};  // in the order of declaration
  static_assert(std::size(kOrder) == static_cast<std::size_t>(FailureKind::kInternal));
  const std::size_t index = static_cast<std::size_t>(kind) - 1;
  return index < std::size(kOrder) ? kOrder[index] : 6;
}

}  // namespace

std::vector<CauseInMap> group_by_cause(const FailureMap& failures) {
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
  std::vector<CauseInMap> groups;
  // Points into `failures`, which is not changed.
  std::unordered_map<const Failure*, std::size_t, CauseHash, SameCause> known;
  for (const auto& [rank, failure] : failures) {
    const auto [position, added] = known.emplace(&failure, groups.size());
    if (added) groups.push_back({&failure, {}});
    groups[position->second].members.push_back({rank, failure.trace_position, failure.process});
  }
  return groups;
}

std::string describe(const FailureMap& failures) {
  if (failures.empty()) return "no rank reported a failure";

  std::vector<CauseInMap> groups = group_by_cause(failures);
  std::stable_sort(groups.begin(), groups.end(), [](const CauseInMap& a, const CauseInMap& b) {
    // Phases are numbered in the order of time: an earlier failure is more likely the cause. The
    // sort is stable, so that lower ranks come first among equals.
    const auto order = [](const CauseInMap& g) { return std::make_pair(importance(g.cause->kind), g.cause->phase); };
    return order(a) < order(b);
  });
  const auto ranks_from = [&](std::size_t first, std::size_t count) {
    std::vector<int> ranks;
    for (std::size_t i = first; i < first + count; ++i)
      for (const auto& member : groups[i].members) ranks.push_back(member.rank);
    std::sort(ranks.begin(), ranks.end());  // as name_ranks expects
    return name_ranks(ranks);
  };

  const auto process_in = [](const CauseInMap& group) {
    const std::string& process = group.members.front().process;
    return group.members.size() > 1 || process.empty() ? "" : " (" + process + ")";
  };
  const Failure& first = *groups.front().cause;
  std::string text = ranks_from(0, 1) + " " + name_cause(first);
  // With one cause, a list would only repeat the headline.
  if (groups.size() == 1) return text + indent(clean_text(first.what, kCauseTextMax)) + process_in(groups.front());
  text += clean_text(first_line(first.what), kHeadlineTextMax) + process_in(groups.front());
  text += "\n" + std::to_string(failures.size()) + " ranks failed:";
  for (std::size_t i = 0; i < groups.size() && i < kCausesShownMax; ++i) {
    const Failure& cause = *groups[i].cause;
    text +=
        "\n  " + ranks_from(i, 1) + " " + name_cause(cause) + indent(clean_text(cause.what, kCauseTextMax)) + process_in(groups[i]);
  }
  if (groups.size() > kCausesShownMax) {
    const std::size_t further = groups.size() - kCausesShownMax;
    text += "\n  " + ranks_from(kCausesShownMax, further) + ": " + std::to_string(further) + " further causes";
  }
  return text;
}

namespace {

std::string exception_text(const std::string& operation, const CallResult& result) {
  std::string text = operation + " failed";
  if (!result.save_id.empty()) text += " (save id " + result.save_id + ")";
  if (result.committed == Committed::kYes) text += ", yet its checkpoint exists";
  if (result.committed == Committed::kUnknown) text += "; whether its checkpoint exists is unknown, read the store";
  return text + ": " + describe(result.failures);
}

}  // namespace

CheckpointException::CheckpointException(const std::string& operation, CallResult result)
    : Error(ErrorCode::kCheckpoint, exception_text(operation, result)), result_(std::move(result)) {}

void CheckpointException::rethrow_original(int rank) const {
  const auto found = failures().find(rank);
  // Messages carry no exceptions, so that the map holds only those of this process.
  if (found != failures().end() && found->second.exception) std::rethrow_exception(found->second.exception);
}

}  // namespace cairn
