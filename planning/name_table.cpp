#include <cairn/planning/name_table.hpp>

#include <limits>

#include <cairn/base/digest.hpp>
#include <cairn/base/error.hpp>

namespace cairn {
namespace {

std::uint32_t hash_of(std::string_view name) {
  const std::uint64_t hash = xxh3(name);
  // Folds the upper half in, so that the slot depends on all bits.
  return static_cast<std::uint32_t>(hash ^ (hash >> 32));
}

}  // namespace

std::size_t NameTable::Contents::slot_of(std::string_view name, std::uint32_t hash) const {
  // Linear probing. It ends, because at least half of the slots are free.
  const std::size_t mask = slots.size() - 1;
  std::size_t slot = hash & mask;
  while (slots[slot].id_plus_1 != 0 && !(slots[slot].hash == hash && names[slots[slot].id_plus_1 - 1] == name))
    slot = (slot + 1) & mask;
  return slot;
}

void NameTable::Contents::grow(std::size_t new_slots) {
  std::vector<Slot> old(new_slots);
  old.swap(slots);
  const std::size_t mask = slots.size() - 1;
  for (const Slot& entry : old) {
    if (entry.id_plus_1 == 0) continue;
    std::size_t slot = entry.hash & mask;
    while (slots[slot].id_plus_1 != 0) slot = (slot + 1) & mask;
    // The stored hash spares hashing the name again.
    slots[slot] = entry;
  }
}

void NameTable::reserve(std::size_t names) {
  Contents& contents = contents_.edit();
  contents.names.reserve(names);
  std::size_t slots = 16;
  while (slots < 2 * names) slots *= 2;
  if (slots > contents.slots.size()) contents.grow(slots);
}

NameId NameTable::intern(std::string_view name) {
  const std::uint32_t hash = hash_of(name);
  // Look first: `edit` would copy a table that plans share, even for a known name.
  std::size_t slot = 0;
  if (!contents_->slots.empty()) {
    slot = contents_->slot_of(name, hash);
    const Slot& known = contents_->slots[slot];
    if (known.id_plus_1 != 0) return known.id_plus_1 - 1;
  }
  Contents& contents = contents_.edit();
  if (2 * (contents.names.size() + 1) > contents.slots.size()) {
    // The table has twice as many slots as names, and slots store id + 1.
    if (contents.names.size() >= std::numeric_limits<NameId>::max() / 2)
      throw Error(ErrorCode::kUnsupported, "cannot add a name to a plan that has 2^31 already");
    contents.grow(contents.slots.empty() ? 16 : 2 * contents.slots.size());
    slot = contents.slot_of(name, hash);
  }
  contents.names.emplace_back(name);
  contents.slots[slot] = {hash, static_cast<std::uint32_t>(contents.names.size())};
  return static_cast<NameId>(contents.names.size() - 1);
}

std::optional<NameId> NameTable::find(std::string_view name, NameId likely) const {
  if (likely < size() && contents_->names[likely] == name) return likely;
  if (contents_->slots.empty()) return std::nullopt;
  const Slot& slot = contents_->slots[contents_->slot_of(name, hash_of(name))];
  if (slot.id_plus_1 == 0) return std::nullopt;
  return slot.id_plus_1 - 1;
}

}  // namespace cairn
