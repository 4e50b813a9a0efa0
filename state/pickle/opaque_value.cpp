#include <cairn/state/pickle/opaque_value.hpp>

#include <unordered_map>

#include <cairn/base/error.hpp>
#include <cairn/state/pickle/pickler.hpp>

namespace cairn {
namespace {

void visit_all(const PickleValue& container, const VisitPart& visit) {
  for (std::size_t i = 0; i < container.size(); ++i) {
    if (container.shape() != PickleKind::kDict) {
      visit("", container[i]);
      continue;
    }
    const auto key = container.key(i);
    const std::string number = key.is(PickleKind::kInt) ? std::to_string(key.as_int()) : "";
    visit(key.is(PickleKind::kText) ? key.as_text() : number, container.mapped(i));
  }
}

// Writes each shared value once, as CPython does.
class Repickler {
 public:
  explicit Repickler(int protocol) : out_(protocol) {}

  void add(const PickleValue& value) {
    if (!recalls(value)) add_new(value);
  }

  OwnPickle finish() && { return {std::move(out_).finish(), std::move(storages_)}; }

 private:
  void add_new(const PickleValue& value) {
    const bool is_opaque = value.is(PickleKind::kOpaque);
    switch (value.shape()) {
      case PickleKind::kNone:
        if (!is_opaque) return out_.none();
        // Tuples, sets and the arguments of calls exist only after their parts.
        if (!recalls(value.container())) unsupported(value, "a value that contains itself other than by an attribute, list or dict");
        return;
      case PickleKind::kBool:
        return out_.boolean(value.as_bool());
      case PickleKind::kInt:
        if (!is_opaque) return out_.integer(value.as_int());
        out_.opcode(value.opcode());
        return remember(value);
      case PickleKind::kFloat:
        return out_.real(value.as_float());
      case PickleKind::kText:
        out_.text(value.as_text());
        return remember(value);
      case PickleKind::kBytes:
        is_opaque ? out_.opcode(value.opcode()) : out_.bytes(value.as_bytes());
        return remember(value);
      case PickleKind::kGlobal:
        return out_.global(value.global().module, value.global().name);
      case PickleKind::kList:
        if (!is_opaque) out_.empty_list(), remember(value);
        return is_opaque ? add_set(value) : add_all(value);
      case PickleKind::kDict:
        out_.empty_dict();
        remember(value);
        return add_all(value);
      case PickleKind::kTuple:
        out_.mark();
        for (std::size_t i = 0; i < value.size(); ++i) add(value[i]);
        out_.tuple_from_mark();
        return remember(value);
      case PickleKind::kObject:
        return add_object(value);
      default:
        add_persistent(value.persistent_id());
        out_.persistent_id();
        return remember(value);
    }
  }

  void remember(const PickleValue& value) { slots_.emplace(value.id(), out_.remember()); }
  bool recalls(const PickleValue& value) {
    const auto known = slots_.find(value.id());
    if (known != slots_.end()) out_.recall(known->second);
    return known != slots_.end();
  }

  // Puts the elements or pairs into the list, dict or object below.
  void add_all(const PickleValue& container) {
    const bool is_dict = container.shape() == PickleKind::kDict;
    if (container.size() == 0) return;
    out_.mark();
    for (std::size_t i = 0; i < container.size(); ++i) {
      if (is_dict) add(container.key(i));
      add(is_dict ? container.mapped(i) : container[i]);
    }
    is_dict ? out_.set_items() : out_.appends();
  }

  // Older protocols have no opcode for a set.
  void add_set(const PickleValue& set) {
    out_.global("builtins", set.opaque_name().substr(sizeof("builtins")));
    out_.empty_list();
    add_all(set);
    out_.tuple(1);
    out_.reduce();
    remember(set);
  }

  void add_object(const PickleValue& object) {
    add(object.callee());
    add(object.arguments());
    if (const auto keywords = object.keywords()) {
      add(*keywords);
      out_.new_object_with_keywords();
    } else {
      object.is_made_by_new() ? out_.new_object() : out_.reduce();
    }
    // From here on, as CPython orders it: the parts may refer to the object.
    remember(object);
    if (const auto elements = object.elements()) add_all(*elements);
    add_all(object.items());
    if (const auto state = object.state()) add(*state), out_.build();
  }

  // Numbers the storages anew.
  void add_persistent(const PickleValue& id) {
    const bool is_storage = id.is(PickleKind::kTuple) && id.size() > 2 && id[2].is(PickleKind::kText);
    if (!is_storage) return add(id);
    const auto [known, is_new] = numbers_.emplace(id[2].as_text(), storages_.size());
    if (is_new) storages_.push_back(known->first);
    out_.mark();
    for (std::size_t i = 0; i < id.size(); ++i) i == 2 ? out_.text(std::to_string(known->second)) : add(id[i]);
    out_.tuple_from_mark();
  }

  Pickler out_;
  std::unordered_map<std::uint32_t, Pickler::Slot> slots_;  // by the identity of a value that is written
  std::unordered_map<std::string, std::size_t> numbers_;
  std::vector<std::string> storages_;
};

}  // namespace

void for_each_part(const PickleValue& value, const VisitPart& visit) {
  const auto shape = value.shape();
  if (shape == PickleKind::kList || shape == PickleKind::kTuple || shape == PickleKind::kDict) return visit_all(value, visit);
  if (shape == PickleKind::kPersistentId) return visit("", value.persistent_id());
  if (shape != PickleKind::kObject) return;
  if (value.callee().shape() != PickleKind::kGlobal) visit("", value.callee());
  visit_all(value.arguments(), visit);
  for (const auto& parts : {value.keywords(), value.elements(), std::optional<PickleValue>(value.items())})
    if (parts) visit_all(*parts, visit);
  const auto state = value.state();
  if (!state) return;
  // `__dict__`, or None, and the values of `__slots__`.
  const bool has_slots = state->is(PickleKind::kTuple) && state->size() == 2 && (*state)[1].is(PickleKind::kDict);
  if (has_slots && (*state)[0].is(PickleKind::kDict)) visit_all((*state)[0], visit);
  const auto fields = has_slots ? (*state)[1] : *state;
  fields.is(PickleKind::kDict) ? visit_all(fields, visit) : visit("state", fields);
}

OwnPickle own_pickle(const PickleValue& value, int protocol) {
  Repickler repickler(protocol < 4 ? 2 : 4);
  repickler.add(value);
  return std::move(repickler).finish();
}

}  // namespace cairn
