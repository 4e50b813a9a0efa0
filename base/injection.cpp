#include <cairn/base/injection.hpp>

#include <algorithm>
#include <array>
#include <csignal>
#include <thread>

#include <unistd.h>

#include <cairn/base/settings.hpp>

namespace cairn {
namespace {

struct ActionWord {
  std::string_view word;
  FaultAction action;
  std::string_view shown;  // for error texts
  // The store operations that are the only places for the action. None: it has other places.
  std::array<std::string_view, 7> operations{};
};
constexpr std::array kActions{
    ActionWord{"kill", FaultAction::kKill, "kill"},
    ActionWord{"freeze", FaultAction::kFreeze, "freeze"},
    ActionWord{"throw", FaultAction::kThrow, "throw"},
    ActionWord{"delay", FaultAction::kDelay, "delay=TIME"},
    ActionWord{"drop-link", FaultAction::kDropLink, "drop-link, drop-link=RANK"},
    ActionWord{"disk-full",
               FaultAction::kDiskFull,
               "disk-full",
               {"create_root", "create", "write_at", "sync", "close", "begin_attempt", "publish"}},  // they may need space
    ActionWord{"short-write", FaultAction::kShortWrite, "short-write", {"write_at"}},
    ActionWord{"read-flip", FaultAction::kReadFlip, "read-flip", {"read"}},
};

struct SiteWord {
  std::string_view word;
  FaultSite site;
  std::vector<std::string> InjectionNames::*names;
};
constexpr std::array kSites{SiteWord{"send", FaultSite::kSend, &InjectionNames::messages},
                            SiteWord{"receive", FaultSite::kReceive, &InjectionNames::messages},
                            SiteWord{"hook", FaultSite::kHook, &InjectionNames::hooks},
                            SiteWord{"phase", FaultSite::kPhase, &InjectionNames::phases},
                            SiteWord{"store", FaultSite::kStore, &InjectionNames::operations}};

template <class Words>
auto find_word(const Words& words, std::string_view word) {
  return std::find_if(words.begin(), words.end(), [&](const auto& known) { return known.word == word; });
}

void append(std::string& list, std::string_view name) { list.append(list.empty() ? "" : ", ").append(name); }

// Returns the parts of `text` between separators; at least one.
std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  std::size_t end = 0;
  for (; (end = text.find(separator)) != std::string_view::npos; text.remove_prefix(end + 1)) parts.push_back(text.substr(0, end));
  parts.push_back(text);
  return parts;
}

// Returns the texts before and behind the first separator. Without one, the second is empty.
std::pair<std::string_view, std::string_view> cut(std::string_view text, char separator) {
  const std::size_t end = std::min(text.find(separator), text.size());
  return {text.substr(0, end), text.substr(std::min(end + 1, text.size()))};
}

// Parses one rule: action "@" site ":" name { "," ( "rank=" N | "nth=" ( N | "all" ) ) }. No part
// may be empty, so a missing separator needs no check of its own.
class RuleParser {
 public:
  RuleParser(std::string_view text, const InjectionNames& names) : text_(text), names_(names) {}

  InjectionRule rule() const {
    const std::vector<std::string_view> parts = split(text_, ',');
    const auto [action, place] = cut(parts[0], '@');
    InjectionRule rule;
    rule.text = std::string(text_);
    read_place(rule, read_action(rule, action), place);
    bool has_nth = false;
    for (std::size_t i = 1; i < parts.size(); ++i) {
      const auto [word, value] = cut(parts[i], '=');
      if (word == "rank" && !rule.rank)
        rule.rank = static_cast<int>(number(value, "a rank, from 0"));
      else if (word == "nth" && !std::exchange(has_nth, true))
        rule.nth = value == "all" ? 0 : number(value, "\"all\", or which occurrence, from 1", 1);
      else
        refuse(parts[i], "rank=N or nth=N, each at most once");
    }
    return rule;
  }

 private:
  const ActionWord& read_action(InjectionRule& rule, std::string_view text) const {
    const auto [word, value] = cut(text, '=');
    const auto known = find_word(kActions, word);
    const bool has_value = word.size() < text.size();
    // An action that is shown as one word takes no value.
    if (known == kActions.end() || (has_value && known->shown == word)) {
      std::string allowed;
      for (const auto& it : kActions) append(allowed, it.shown);
      refuse(text, "one of the actions " + allowed);
    }
    rule.action = known->action;
    if (rule.action == FaultAction::kDelay)
      rule.delay = time(value);
    else if (has_value)
      rule.peer = static_cast<int>(number(value, "the rank at the other end of the link"));
    return *known;
  }

  void read_place(InjectionRule& rule, const ActionWord& action, std::string_view text) const {
    const auto [word, name] = cut(text, ':');
    const bool is_store_fault = !action.operations[0].empty();
    const auto fits = [&](const SiteWord& site) {
      return site.site == FaultSite::kStore ? action.action != FaultAction::kDropLink : !is_store_fault;
    };
    std::string allowed;
    const auto known = find_word(kSites, word);
    if (known == kSites.end() || !fits(*known)) {
      for (const auto& site : kSites)
        if (fits(site)) append(allowed, std::string(site.word) + ":NAME");
      refuse(text, "a place where " + std::string(action.word) + " can happen: " + allowed);
    }
    rule.site = known->site;
    // A mistyped name would never fire and make a test pass for the wrong reason. Names are
    // therefore compared with the lists of all names.
    for (const std::string& it : names_.*known->names) {
      if (is_store_fault && std::find(action.operations.begin(), action.operations.end(), it) == action.operations.end()) continue;
      append(allowed, it);
      if (it == name) rule.name = it;
    }
    if (rule.name.empty()) refuse(name, "one of " + allowed);
  }

  std::chrono::milliseconds time(std::string_view text) const {
    const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
    const std::string_view unit = text.substr(digits);
    const std::uint64_t factor = unit == "ms" ? 1 : unit == "s" ? 1000 : unit == "min" ? 60'000 : 0;
    // The product fits: the number has 32 bits.
    const std::uint64_t value = parse_number<std::uint32_t>(text.substr(0, digits)).value_or(0) * factor;
    if (value == 0 || value > 3'600'000) refuse(text, "a time from 1ms to 1h, as in delay=200ms, 5s or 1min");
    return std::chrono::milliseconds(value);
  }

  std::uint32_t number(std::string_view text, const std::string& expected, std::uint32_t min = 0) const {
    const auto value = parse_number<std::uint32_t>(text);
    if (!value || *value < min || *value > 999'999) refuse(text, expected);
    return *value;
  }

  [[noreturn]] void refuse(std::string_view part, const std::string& expected) const {
    throw Error(ErrorCode::kInvalidArgument, "the injection \"" + std::string(text_.substr(0, 400)) + "\" has \"" +
                                                 std::string(part.substr(0, 40)) + "\" instead of " + expected);
  }

  const std::string_view text_;
  const InjectionNames& names_;
};

Mutex active_mutex;  // worlds and stores ask for the injector on any thread
bool allowed CAIRN_GUARDED_BY(active_mutex) = false;
std::shared_ptr<Injector>& active_slot() CAIRN_REQUIRES(active_mutex) {
  static auto* const slot = new std::shared_ptr<Injector>;  // never destroyed: stores may be opened while the process exits
  return *slot;
}

}  // namespace

std::vector<InjectionRule> parse_injection(std::string_view spec, const InjectionNames& names) {
  constexpr std::string_view kBlanks = " \t\n";
  std::vector<InjectionRule> rules;
  for (const std::string_view part : split(spec, ';')) {
    const std::size_t begin = part.find_first_not_of(kBlanks);
    // Empty rules are allowed, so that scripts can join rules with ';' without care.
    if (begin == std::string_view::npos) continue;
    rules.push_back(RuleParser(part.substr(begin, part.find_last_not_of(kBlanks) + 1 - begin), names).rule());
  }
  return rules;
}

InjectorHands system_hands() {
  InjectorHands hands;
  // Signal this thread. A stop signal sent to the process may reach another thread first, and this
  // thread would continue past the injection point.
  hands.raise = [](int signal) { ::raise(signal); };
  hands.sleep = [](std::chrono::milliseconds time) { std::this_thread::sleep_for(time); };
  // Write in one unbuffered call, because the process may end next.
  hands.announce = [](const std::string& line) {
    const std::string text = line + "\n";
    if (::write(STDERR_FILENO, text.data(), text.size()) < 0) return;
  };
  return hands;
}

Injector::Injector(std::vector<InjectionRule> rules, std::optional<int> process_rank, InjectorHands hands)
    : process_rank_(process_rank), hands_(std::move(hands)) {
  replace(std::move(rules));
}

void Injector::replace(std::vector<InjectionRule> rules) {
  MutexLock lock(mutex_);
  armed_.clear();
  begun_.clear();
  for (auto& rule : rules) armed_.push_back({std::move(rule), {}});
}

// Counts the occurrence for every rule that names the place. Returns the rules that are due.
std::vector<InjectionRule> Injector::take(FaultSite site, std::string_view name, int rank) {
  std::vector<InjectionRule> due;
  MutexLock lock(mutex_);
  for (auto& [rule, occurrences] : armed_) {
    if (rule.site != site || rule.name != name || (rule.rank && *rule.rank != rank)) continue;
    // Counts per rank, because tests run many ranks in one process.
    const std::uint64_t now = ++occurrences[rank];
    if (rule.nth == 0 || rule.nth == now) due.push_back(rule);
  }
  return due;
}

std::vector<InjectionRule> Injector::pass(FaultSite site, std::string_view name, int rank) {
  // The launcher's rank: a process may have other ranks in worlds that it makes.
  const int who = process_rank_.value_or(rank);
  std::vector<InjectionRule> left;
  // The lock is released by now: a delay on one rank must not hold up the other ranks of the
  // process.
  for (auto& rule : take(site, name, who)) {
    // Announced before the effect, because a kill leaves no other sign.
    const std::string what =
        "injected into " + (who < 0 ? std::string("this process") : "rank " + std::to_string(who)) + ": " + rule.text;
    hands_.announce("cairn: " + what);
    switch (rule.action) {
      case FaultAction::kKill:
        hands_.raise(SIGKILL);
        break;
      case FaultAction::kFreeze:
        hands_.raise(SIGSTOP);
        break;
      case FaultAction::kDelay:
        hands_.sleep(rule.delay);
        break;
      case FaultAction::kThrow:
        // Further rules for this place have been counted, but do not take effect.
        throw InjectedFault(what);
      default:
        left.push_back(std::move(rule));
    }
  }
  return left;
}

std::vector<InjectionRule> Injector::pass_hook(std::string_view hook, std::string_view phase, const std::string& checkpointer,
                                               std::uint64_t counter, int rank) {
  std::vector<InjectionRule> left;
  bool begins = false;
  if (!phase.empty()) {
    MutexLock lock(mutex_);
    auto& [last, phases] = begun_[{process_rank_.value_or(rank), checkpointer}];
    // Hooks of a new attempt: its phases have not begun yet.
    if (last != counter) phases.clear();
    last = counter;
    begins = phases.emplace(phase).second;
  }
  // The phase's point comes before the hook's, and both run without the lock.
  if (begins) left = pass(FaultSite::kPhase, phase, rank);
  for (auto& rule : pass(FaultSite::kHook, hook, rank)) left.push_back(std::move(rule));
  return left;
}

std::shared_ptr<Injector> active_injector() {
  MutexLock lock(active_mutex);
  return active_slot();
}

void set_active_injector(std::shared_ptr<Injector> injector) {
  MutexLock lock(active_mutex);
  active_slot() = std::move(injector);
  allowed = true;
}

bool injection_is_allowed() {
  MutexLock lock(active_mutex);
  return allowed;
}

}  // namespace cairn
