#include <cairn/base/injection.hpp>

#include <algorithm>
#include <array>
#include <csignal>
#include <thread>

#include <unistd.h>

namespace cairn {
namespace {

struct ActionWord {
  const char* word;
  FaultAction action;
  const char* shown;  // for error texts
};
constexpr std::array kActions{
    ActionWord{"kill", FaultAction::kKill, "kill"},
    ActionWord{"freeze", FaultAction::kFreeze, "freeze"},
    ActionWord{"throw", FaultAction::kThrow, "throw"},
    ActionWord{"delay", FaultAction::kDelay, "delay=TIME"},
    ActionWord{"drop-link", FaultAction::kDropLink, "drop-link, drop-link=RANK"},
    ActionWord{"disk-full", FaultAction::kDiskFull, "disk-full"},
    ActionWord{"short-write", FaultAction::kShortWrite, "short-write"},
    ActionWord{"read-flip", FaultAction::kReadFlip, "read-flip"},
};

struct SiteWord {
  const char* word;
  FaultSite site;
};
constexpr std::array kSites{SiteWord{"send", FaultSite::kSend}, SiteWord{"receive", FaultSite::kReceive},
                            SiteWord{"hook", FaultSite::kHook}, SiteWord{"phase", FaultSite::kPhase},
                            SiteWord{"store", FaultSite::kStore}};

// Returns the store operations at which an action can happen; empty if there are none.
std::vector<std::string> operations_for(FaultAction action, const std::vector<std::string>& all) {
  const auto only = [&](std::initializer_list<const char*> wanted) {
    std::vector<std::string> kept;
    for (const auto& name : all)
      if (std::find(wanted.begin(), wanted.end(), name) != wanted.end()) kept.push_back(name);
    return kept;
  };
  switch (action) {
    case FaultAction::kKill:
    case FaultAction::kFreeze:
    case FaultAction::kThrow:
    case FaultAction::kDelay:
      return all;
    case FaultAction::kDropLink:
      return {};
    case FaultAction::kDiskFull:
      // Only operations that may need space.
      return only({"create_root", "create", "write_at", "sync", "close", "begin_attempt", "publish"});
    case FaultAction::kShortWrite:
      return only({"write_at"});
    case FaultAction::kReadFlip:
      return only({"read"});
  }
  return {};
}

bool is_store_fault(FaultAction action) {
  return action == FaultAction::kDiskFull || action == FaultAction::kShortWrite || action == FaultAction::kReadFlip;
}

template <class Names>
std::string listed(const Names& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

std::string action_word(FaultAction action) {
  for (const auto& known : kActions)
    if (known.action == action) return known.word;
  return "?";
}

// A parser by recursive descent. Each function takes one part of the grammar and moves `at_` behind
// it.
class Parser {
 public:
  Parser(std::string_view spec, const InjectionNames& names) : spec_(spec), names_(names) {}

  std::vector<InjectionRule> rules() {
    std::vector<InjectionRule> rules;
    while (true) {
      skip_blanks();
      if (at_ == spec_.size()) return rules;
      // Empty rules are allowed, so that scripts can join rules with ';' without care.
      if (peek() == ';') {
        ++at_;
        continue;
      }
      rules.push_back(rule());
    }
  }

 private:
  // rule = action "@" site ":" name { "," ( "rank=" N | "nth=" ( N | "all" ) ) }
  InjectionRule rule() {
    const std::size_t begin = at_;
    InjectionRule rule;
    action(rule);
    expect('@', "\"@\" and where it is to happen, as in kill@hook:write_data");
    place(rule);
    bool has_nth = false;
    while (peek() == ',') {
      ++at_;
      filter(rule, has_nth);
    }
    // The text of the rule ends before trailing blanks.
    std::size_t end = at_;
    skip_blanks();
    if (at_ < spec_.size() && peek() != ';') refuse(at_, "\",\" with rank= or nth=, or \";\" and the next rule");
    rule.text = std::string(spec_.substr(begin, end - begin));
    return rule;
  }

  void action(InjectionRule& rule) {
    const std::size_t begin = at_;
    const std::string_view word = take_word();
    const auto known = std::find_if(kActions.begin(), kActions.end(), [&](const ActionWord& it) { return word == it.word; });
    if (known == kActions.end()) {
      std::string allowed;
      for (const auto& it : kActions) allowed += (allowed.empty() ? "" : ", ") + std::string(it.shown);
      refuse(begin, "one of the actions " + allowed);
    }
    rule.action = known->action;
    if (rule.action == FaultAction::kDelay) {
      expect('=', "\"=\" and a time, as in delay=200ms");
      rule.delay = time();
    } else if (rule.action == FaultAction::kDropLink && peek() == '=') {
      ++at_;
      rule.peer = static_cast<int>(number("the rank at the other end of the link"));
    }
  }

  void place(InjectionRule& rule) {
    const std::size_t begin = at_;
    const std::string_view word = take_word();
    const auto known = std::find_if(kSites.begin(), kSites.end(), [&](const SiteWord& it) { return word == it.word; });
    const bool fits = known != kSites.end() && fits_site(rule.action, known->site);
    if (!fits) {
      std::string allowed;
      for (const auto& it : kSites)
        if (fits_site(rule.action, it.site)) allowed += (allowed.empty() ? "" : ", ") + std::string(it.word) + ":NAME";
      refuse(begin, "a place where " + action_word(rule.action) + " can happen: " + allowed);
    }
    rule.site = known->site;
    expect(':', "\":\" and a name");
    // A mistyped name would never fire and make a test pass for the wrong reason. Names are
    // therefore compared with the lists of all names.
    const std::vector<std::string> allowed = names_at(rule);
    const std::size_t name_begin = at_;
    rule.name = std::string(take_word());
    if (std::find(allowed.begin(), allowed.end(), rule.name) == allowed.end()) refuse(name_begin, "one of " + listed(allowed));
  }

  void filter(InjectionRule& rule, bool& has_nth) {
    const std::size_t begin = at_;
    const std::string_view word = take_word();
    if (word == "rank" && !rule.rank) {
      expect('=', "\"=\" and a rank");
      rule.rank = static_cast<int>(number("a rank, from 0"));
    } else if (word == "nth" && !has_nth) {
      has_nth = true;
      expect('=', "\"=\" and a number or \"all\"");
      const std::size_t value_begin = at_;
      if (take_word() == "all") {
        rule.nth = 0;
        return;
      }
      at_ = value_begin;
      rule.nth = number("\"all\", or which occurrence, from 1");
      if (rule.nth == 0) refuse(value_begin, "\"all\", or which occurrence, from 1");
    } else {
      refuse(begin, "rank=N or nth=N, each at most once");
    }
  }

  static bool fits_site(FaultAction action, FaultSite site) {
    if (site == FaultSite::kStore) return action != FaultAction::kDropLink;
    return !is_store_fault(action);
  }

  std::vector<std::string> names_at(const InjectionRule& rule) const {
    switch (rule.site) {
      case FaultSite::kSend:
      case FaultSite::kReceive:
        return names_.messages;
      case FaultSite::kHook:
        return names_.hooks;
      case FaultSite::kPhase:
        return names_.phases;
      case FaultSite::kStore:
        return operations_for(rule.action, names_.operations);
    }
    return {};
  }

  std::chrono::milliseconds time() {
    constexpr const char* kExpected = "a time from 1ms to 1h, as in 200ms, 5s or 1min";
    const std::size_t begin = at_;
    const std::uint64_t value = number(kExpected, 7);  // an hour in milliseconds
    const std::string_view unit = take_word();
    std::uint64_t factor = 0;
    if (unit == "ms") factor = 1;
    if (unit == "s") factor = 1000;
    if (unit == "min") factor = 60'000;
    // Divides, because the product could exceed an hour before it is compared.
    if (factor == 0 || value == 0 || value > 3'600'000 / factor) refuse(begin, kExpected);
    return std::chrono::milliseconds(value * factor);
  }

  // Refuses numbers of more digits, however large. Six digits fit into an int.
  std::uint64_t number(const std::string& expected, std::size_t digits_max = 6) {
    const std::size_t begin = at_;
    std::uint64_t value = 0;
    while (at_ < spec_.size() && spec_[at_] >= '0' && spec_[at_] <= '9' && at_ - begin <= digits_max)
      value = value * 10 + static_cast<std::uint64_t>(spec_[at_++] - '0');
    if (at_ == begin || at_ - begin > digits_max) refuse(begin, expected);
    return value;
  }

  // Takes letters, '_' and '-'.
  std::string_view take_word() {
    const std::size_t begin = at_;
    while (at_ < spec_.size()) {
      const char c = spec_[at_];
      if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '-')) break;
      ++at_;
    }
    return spec_.substr(begin, at_ - begin);
  }

  char peek() const { return at_ < spec_.size() ? spec_[at_] : '\0'; }
  void skip_blanks() {
    while (at_ < spec_.size() && (spec_[at_] == ' ' || spec_[at_] == '\t' || spec_[at_] == '\n')) ++at_;
  }
  void expect(char wanted, const std::string& expected) {
    if (at_ >= spec_.size() || spec_[at_] != wanted) refuse(at_, expected);
    ++at_;
  }

  // Quotes the text from `position` to the end of its rule.
  [[noreturn]] void refuse(std::size_t position, const std::string& expected) const {
    const std::string_view rest = spec_.substr(position, std::min<std::size_t>(spec_.substr(position).find(';'), 40));
    throw Error(ErrorCode::kInvalidArgument,
                "the injection \"" + std::string(spec_.substr(0, 400)) + "\" is not understood at character " +
                    std::to_string(position + 1) + ": expected " + expected + ", but " +
                    (rest.empty() ? "the rule ends there" : "there stands \"" + std::string(rest) + "\""));
  }

  const std::string_view spec_;
  const InjectionNames& names_;
  std::size_t at_ = 0;
};

Mutex active_mutex;  // worlds and stores ask for the injector on any thread
bool allowed CAIRN_GUARDED_BY(active_mutex) = false;
std::shared_ptr<Injector>& active_slot() CAIRN_REQUIRES(active_mutex) {
  static auto* const slot = new std::shared_ptr<Injector>;  // never destroyed: stores may be opened while the process exits
  return *slot;
}

}  // namespace

std::vector<InjectionRule> parse_injection(std::string_view spec, const InjectionNames& names) {
  return Parser(spec, names).rules();
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
