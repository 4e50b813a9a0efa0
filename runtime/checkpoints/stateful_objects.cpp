#include <cairn/runtime/checkpoints/stateful_objects.hpp>

#include <algorithm>
#include <optional>
#include <utility>

#include <torch/types.h>

#include <cairn/actors/protocol/events.hpp>
#include <cairn/base/clock.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/log.hpp>
#include <cairn/base/running_work.hpp>
#include <cairn/runtime/observation/call_failure.hpp>
#include <cairn/state/flat_leaf.hpp>
#include <cairn/state/load_destinations.hpp>
#include <cairn/state/optimizer_loading.hpp>
#include <cairn/state/rank_names.hpp>
#include <cairn/state/ready_plan.hpp>
#include <cairn/state/tensor_types.hpp>

namespace cairn {
namespace {

using Visit = std::function<void(const Path&, const std::shared_ptr<Stateful>&, bool is_per_rank)>;

void walk(const Value& value, Path& path, bool is_per_rank, const Visit& visit);

void walk(const Dict& dict, Path& path, bool is_per_rank, const Visit& visit) {
  for (const auto& [key, item] : dict) {
    if (!item.is_stateful() && !item.is_dict() && !item.is_list()) continue;  // most are leaves, and need no path
    path.emplace_back(key);
    walk(item, path, is_per_rank, visit);
    path.pop_back();
  }
}

void walk(const Value& value, Path& path, bool is_per_rank, const Visit& visit) {
  is_per_rank = is_per_rank || value.is_per_rank();  // a mark applies to everything below
  if (value.is_stateful()) {
    visit(path, value.stateful(), is_per_rank);
  } else if (value.is_dict()) {
    walk(value.dict(), path, is_per_rank, visit);
  } else if (value.is_list()) {
    for (std::size_t i = 0; i < value.list().size(); ++i) {
      path.emplace_back(static_cast<std::int64_t>(i));
      walk(value.list()[i], path, is_per_rank, visit);
      path.pop_back();
    }
  }
}

Value& value_at(Dict& root, const Path& path) {
  Value* const found = find_at(root, path);
  if (found == nullptr) throw Error(ErrorCode::kNotFound, "state dict: there is nothing at " + describe_path(path));
  return *found;
}

void adopt(Value& target, const Value& loaded) {
  // An object gets its state by `load_state_dict`, in `restore`.
  if (target.is_stateful()) return;
  if (target.is_dict() && loaded.is_dict()) {
    adopt_leaves(target.dict(), loaded.dict());
  } else if (target.is_list() && loaded.is_list() && target.list().size() == loaded.list().size()) {
    for (std::size_t i = 0; i < target.list().size(); ++i) adopt(target.list()[i], loaded.list()[i]);
  } else {
    target = loaded;
  }
}

// Runs one hook of several objects, each under the object's key.
class NamedHooks {
 public:
  NamedHooks(const char* hook, int rank) : hook_(hook), rank_(rank) {}

  template <class Run>
  void run(const std::string& key, Run run) {
    const std::string name = hook_ + " of \"" + key + '"';
    Work work = RunningWork::of_this_thread();
    work.object = key;
    const RunningWork named(work);
    const MonotonicTime began = system_clock().now();
    try {
      run();
    } catch (...) {
      write_log(LogLevel::kWarning, rank_, name + " failed: " + text_of(std::current_exception()));
      throw PlacedException{name, std::current_exception()};
    }
    const Duration took = system_clock().now() - began;
    if (took >= kSlowMin) write_log(LogLevel::kInfo, rank_, name + " took " + protocol::in_seconds(took));
    if (took < longest_) return;
    longest_ = took;
    longest_name_ = name;
  }
  std::string take_longest() { return std::move(longest_name_); }

 private:
  static constexpr Duration kSlowMin = std::chrono::seconds(1);
  const std::string hook_;
  const int rank_;
  Duration longest_{0};
  std::string longest_name_;
};

// Returns the rest of `path` below `above`, or nothing if it is not below it. For values marked by
// `per_rank`, finds those of `rank`.
std::optional<Path> path_below(const Path& above, const Path& path, std::optional<int> rank) {
  const std::size_t size = path.size() - (rank && !path.empty() ? 1 : 0);
  if (rank && (path.empty() || path.back() != PathElement(rank_key(*rank)))) return std::nullopt;
  if (size <= above.size() || !std::equal(above.begin(), above.end(), path.begin())) return std::nullopt;
  // An object's state is a dict. If the checkpoint has a list there, the planner finds nothing.
  if (!std::holds_alternative<std::string>(path[above.size()])) return std::nullopt;
  return Path(path.begin() + static_cast<std::ptrdiff_t>(above.size()), path.begin() + static_cast<std::ptrdiff_t>(size));
}

// Reads plain values, without the planner of the load.
struct ReadValues final : ReadyPlan {
  ReadValues(Dict& into, const Metadata& metadata, const LoadPlannerOptions& options) : values(into, metadata, options) {}
  void load_bytes(const LoadPlan& plan, const ReadItem& item, Bytes bytes) override { values.load_bytes(plan, item, bytes); }
  LoadDestinations values;
};

}  // namespace

StatefulObjects::StatefulObjects(const StateDict& state_dict) {
  Path path;
  const auto add = [this](const Path& where, const std::shared_ptr<Stateful>& object, bool is_per_rank) {
    if (object == nullptr) throw Error(ErrorCode::kInvalidArgument, "the Stateful object at '" + to_string(where) + "' is null");
    // Ranks and checkpoints know objects by flattened names, which two paths may share.
    if (!places_.emplace(to_string(where), Place{where, object, is_per_rank}).second)
      throw Error(ErrorCode::kAlreadyExists,
                  "two Stateful objects have the flattened name '" + to_string(where) + "': rename a key");
  };
  try {
    walk(state_dict, path, false, add);
  } catch (const Error&) {
    refusal_ = std::current_exception();
    places_.clear();
  }
}

std::vector<std::string> StatefulObjects::keys() const {
  std::vector<std::string> keys;
  keys.reserve(places_.size());
  // Sorted, as `places_` is, whatever the order of the caller's dict.
  for (const auto& place : places_) keys.push_back(place.first);
  return keys;
}

void StatefulObjects::describe(const std::vector<std::string>& key_order, StateDict& working, int rank) const {
  if (refusal_) std::rethrow_exception(refusal_);
  NamedHooks hooks("state_dict()", rank);
  for (const auto& key : key_order) {
    const auto place = places_.find(key);
    // Hooks of Stateful objects may use collectives, so all ranks call them in one agreed order.
    if (place == places_.end()) continue;  // another rank's
    Value& value = value_at(working, place->second.path);
    // The marks of the object's place, such as per_rank, apply to all that it returns.
    hooks.run(key, [&] { value = with_marks_of(value, Value(place->second.object->state_dict())); });
  }
  *longest_ = hooks.take_longest();
}

std::optional<NeededNames> StatefulObjects::needed_names(const StateDict& working, int rank) const {
  NeededNames needed;
  for (const auto& [key, place] : places_)
    if (std::dynamic_pointer_cast<FittedStateful>(place.object)) needed.prefixes.push_back(key);
  const auto is_fitted = [&](const std::string& name) {
    return std::any_of(needed.prefixes.begin(), needed.prefixes.end(),
                       [&](const std::string& prefix) { return is_below(name, prefix); });
  };
  try {
    needed.names.reserve(working.size());
    visit_leaves(working, [&](const FlatLeaf& leaf) {
      if (!is_fitted(leaf.name)) needed.names.intern(leaf.is_per_rank() ? rank_name(leaf.name, rank) : leaf.name);
    });
  } catch (const Error&) {
    return std::nullopt;  // the planner will say why
  }
  return needed;
}

void StatefulObjects::fit(const Metadata& metadata, StorageReader& reader, const StorageContext& context, int rank,
                          const std::vector<std::string>& keep_opaque, StateDict& working) {
  NamedHooks hooks("the check", rank);
  LoadPlannerOptions planning;
  planning.keep_opaque = keep_opaque;
  const auto fit_one = [&](Place& place, FittedStateful& object) {
    Value& value = value_at(working, place.path);
    const auto of_rank = place.is_per_rank ? std::optional<int>(rank) : std::nullopt;
    // The object's own containers show whether numbers are keys of a dict or indices of a list.
    Dict stored;
    for (const auto& [name, item] : value.dict()) stored.insert(name, item.is_list() ? Value(List{}) : Value(Dict{}));
    ReadValues reading(stored, metadata, planning);
    ListGrowth growth(metadata);
    for (const auto& [name, path] : metadata.planner_data) {
      const auto below = path_below(place.path, path, of_rank);
      const Metadata::Entry* const entry = below ? metadata.find(name) : nullptr;
      if (entry == nullptr) continue;
      growth.add(stored, name, *below);
      if (const auto* tensor = std::get_if<TensorStorageMetadata>(entry)) {
        const auto type = scalar_type_of(tensor->properties.dtype).value_or(at::kByte);  // the planner refuses other types
        const auto options = torch::TensorOptions().device(at::kMeta).dtype(type);
        set_at(stored, *below,
               with_torch("describe \"" + name + '"', [&] { return torch::empty(array_of(tensor->size), options); }));
      } else if (object.needs(*below)) {
        reading.values.add(name, name, *below, Value());
        if (find_at(stored, *below) == nullptr) set_at(stored, *below, Value());  // keys keep their order
      } else {
        set_at(stored, *below, 0);
      }
    }
    const LoadPlan plan = reading.values.create_plan();
    if (!plan.items.empty()) {
      reader.set_up_storage_reader(metadata, context);
      reader.read_data(plan, reading).get();
    }
    FittedStateful::Fitted fitted = object.fit(stored);
    value = with_marks_of(value, Value(std::move(fitted.state)));
    place.load = std::move(fitted.load);
  };
  for (auto& [key, place] : places_) {
    const auto object = std::dynamic_pointer_cast<FittedStateful>(place.object);
    if (object) hooks.run(key, [&, &place = place] { fit_one(place, *object); });
  }
}

std::string StatefulObjects::restore(const std::vector<std::string>& key_order, StateDict& working, int rank) const {
  NamedHooks hooks("load_state_dict()", rank);
  for (const auto& key : key_order) {
    const auto place = places_.find(key);
    if (place == places_.end()) continue;
    hooks.run(key, [&, &here = place->second] {
      const Dict& loaded = value_at(working, here.path).dict();
      here.load ? here.load(loaded) : here.object->load_state_dict(loaded);
    });
  }
  return hooks.take_longest();
}

void adopt_leaves(StateDict& target, const StateDict& loaded) {
  std::size_t next = 0;  // `loaded` began as a copy of `target`: the keys are in one order
  for (const auto& [key, value] : loaded) {
    const auto same = target.begin() + static_cast<std::ptrdiff_t>(std::min(next++, target.size()));
    if (Value* found = same != target.end() && same->first == key ? &same->second : target.find(key))
      adopt(*found, value);
    else
      target.insert(key, value);
  }
}

}  // namespace cairn
