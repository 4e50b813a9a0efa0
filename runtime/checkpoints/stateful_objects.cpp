#include <cairn/runtime/checkpoints/stateful_objects.hpp>

#include <functional>
#include <utility>

#include <cairn/base/error.hpp>

namespace cairn {
namespace {

using Visit = std::function<void(const Path&, const std::shared_ptr<Stateful>&)>;

void walk(const Value& value, Path& path, const Visit& visit) {
  if (value.is_stateful()) {
    visit(path, value.stateful());
  } else if (value.is_dict()) {
    for (const auto& [key, item] : value.dict()) {
      path.emplace_back(key);
      walk(item, path, visit);
      path.pop_back();
    }
  } else if (value.is_list()) {
    for (std::size_t i = 0; i < value.list().size(); ++i) {
      path.emplace_back(static_cast<std::int64_t>(i));
      walk(value.list()[i], path, visit);
      path.pop_back();
    }
  }
}

Value& value_at(Dict& root, const Path& path) {
  Value* here = nullptr;
  for (const auto& element : path) {
    if (const auto* key = std::get_if<std::string>(&element))
      here = here == nullptr ? &root.at(*key) : &here->dict().at(*key);
    else
      here = &here->list().at(static_cast<std::size_t>(std::get<std::int64_t>(element)));
  }
  check_invariant(here != nullptr, "the path of a Stateful object is not empty");
  return *here;
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

}  // namespace

StatefulObjects::StatefulObjects(const StateDict& state_dict) {
  Path path;
  for (const auto& [key, item] : state_dict) {
    path.emplace_back(key);
    walk(item, path, [this](const Path& where, const std::shared_ptr<Stateful>& object) {
      if (object == nullptr) throw Error(ErrorCode::kInvalidArgument, "the Stateful object at '" + to_string(where) + "' is null");
      // Ranks and checkpoints know objects by flattened names, which two paths may share.
      if (!places_.emplace(to_string(where), Place{where, object}).second)
        throw Error(ErrorCode::kAlreadyExists,
                    "two Stateful objects have the flattened name '" + to_string(where) + "': rename a key");
    });
    path.pop_back();
  }
}

std::vector<std::string> StatefulObjects::keys() const {
  std::vector<std::string> keys;
  keys.reserve(places_.size());
  // Sorted, as `places_` is, whatever the order of the caller's dict.
  for (const auto& place : places_) keys.push_back(place.first);
  return keys;
}

void StatefulObjects::describe(const std::vector<std::string>& key_order, StateDict& working) const {
  for (const auto& key : key_order) {
    const auto place = places_.find(key);
    // Hooks of Stateful objects may use collectives, so all ranks call them in one agreed order.
    if (place == places_.end()) continue;  // another rank's
    Value& value = value_at(working, place->second.path);
    // The marks of the object's place, such as per_rank, apply to all that it returns.
    value = with_marks_of(value, Value(place->second.object->state_dict()));
  }
}

void StatefulObjects::restore(const std::vector<std::string>& key_order, StateDict& working) const {
  for (const auto& key : key_order) {
    const auto place = places_.find(key);
    if (place == places_.end()) continue;
    place->second.object->load_state_dict(value_at(working, place->second.path).dict());
  }
}

void adopt_leaves(StateDict& target, const StateDict& loaded) {
  for (const auto& [key, value] : loaded) {
    if (Value* found = target.find(key))
      adopt(*found, value);
    else
      target.insert(key, value);
  }
}

}  // namespace cairn
