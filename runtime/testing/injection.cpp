#include <cairn/runtime/testing/injection.hpp>

#include <algorithm>
#include <utility>

#include <cairn/actors/protocol/events.hpp>
#include <cairn/base/failure.hpp>
#include <cairn/base/settings.hpp>
#include <cairn/messages/control.hpp>
#include <cairn/runtime/testing/injection_names.hpp>
#include <cairn/storage/stores/store_decorator.hpp>

namespace cairn {
namespace {

constexpr const char* kVariable = "CAIRN_INJECT";

// Returns nothing for a malformed RANK: that is reported where a world is made from it.
std::optional<int> rank_of_process() {
  const auto rank = parse_number<int>(environment_value("RANK"));
  return rank && *rank >= 0 && *rank <= 1 << 20 ? rank : std::nullopt;
}

template <std::size_t... kIndex>
std::vector<std::string> message_names(std::index_sequence<kIndex...>) {
  return {protocol::name_of(protocol::Message(std::in_place_index<kIndex>))...};
}

void add_once(std::vector<std::string>& names, const char* name) {
  if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
}

}  // namespace

InjectionNames injection_names() {
  InjectionNames names;
  // From the state machines' own types, so that new messages and hooks are known here at once.
  names.messages = message_names(std::make_index_sequence<std::variant_size_v<protocol::Message>>());
  for (const auto operation : {protocol::Operation::kSave, protocol::Operation::kLoad})
    for (auto hook = protocol::Hook::kReset; hook < protocol::Hook::kRelease;
         hook = static_cast<protocol::Hook>(static_cast<int>(hook) + 1))
      add_once(names.hooks, protocol::name_of(hook, operation));
  add_once(names.hooks, protocol::name_of(protocol::Hook::kDecide, protocol::Operation::kAgree));
  for (const auto phase : {Phase::kJoin, Phase::kLocalPlan, Phase::kGlobalPlan, Phase::kWrite, Phase::kRead, Phase::kFinish})
    add_once(names.phases, to_string(phase));
  names.operations = injectable_store_operations();
  return names;
}

void allow_injection() {
  set_active_injector(active_injector());  // allows injection, even if the value turns out malformed
  const std::string spec = environment_value(kVariable);
  // Without a value, turns off what an earlier call has turned on.
  if (spec.empty()) return set_active_injector(nullptr);
  try {
    set_active_injector(std::make_shared<Injector>(parse_injection(spec, injection_names()), rank_of_process()));
  } catch (const Error& error) {
    throw Error(error.code(), std::string("environment variable ") + kVariable + ": " + error.what());
  }
}

}  // namespace cairn
