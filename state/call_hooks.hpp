// Makes the hooks of a call of the caller's planner and of a writer or reader. Internal.
#pragma once

#include <functional>
#include <memory>

#include <cairn/actors/call_hooks.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/state/storage.hpp>

namespace cairn {

// The arguments must stay valid until the call is done. `state_dict` is read only after the call's
// `begin` has returned.
// `rules`: how the planner and the writer plan, if these are Cairn's: by the same rules, the same
// local plans make the same global ones. "" for others, whose hooks are called in every save.
std::shared_ptr<SaveHooks> make_save_hooks(const StateDict& state_dict, SavePlanner& planner, StorageWriter& writer,
                                           std::string rules = "");

// `fit` adapts the state dict to what the checkpoint has. Called on every rank, just before
// `set_up_planner`, and timed as a part of it. May be empty. May throw.
// `keeps_local_plans`: whether planner and reader are Cairn's and share no reads. Then no global
// plan differs from the local one.
using FitState = std::function<void(const Metadata& metadata, const StorageContext& context)>;
std::shared_ptr<LoadHooks> make_load_hooks(StateDict& state_dict, LoadPlanner& planner, StorageReader& reader, FitState fit = {},
                                           bool keeps_local_plans = false);

}  // namespace cairn
