#include <cairn/planning/plan.hpp>

#include <limits>
#include <utility>

#include <cairn/base/error.hpp>

namespace cairn {
namespace {

std::uint32_t hash_of(std::string_view name) {
  const std::size_t hash = std::hash<std::string_view>{}(name);
  return static_cast<std::uint32_t>(hash ^ (static_cast<std::uint64_t>(hash) >> 32));
}

}  // namespace

std::size_t NameTable::slot_of(std::string_view name, std::uint32_t hash) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = hash & mask;
  while (slots_[slot].id_plus_1 != 0 && !(slots_[slot].hash == hash && names_[slots_[slot].id_plus_1 - 1] == name))
    slot = (slot + 1) & mask;
  return slot;
}

void NameTable::grow(std::size_t slots) {
  std::vector<Slot> old(slots);
  old.swap(slots_);
  const std::size_t mask = slots - 1;
  for (const Slot& entry : old) {
    if (entry.id_plus_1 == 0) continue;
    std::size_t slot = entry.hash & mask;
    while (slots_[slot].id_plus_1 != 0) slot = (slot + 1) & mask;
    slots_[slot] = entry;
  }
}

void NameTable::reserve(std::size_t names) {
  names_.reserve(names);
  std::size_t slots = 16;
  while (slots < 2 * names) slots *= 2;
  if (slots > slots_.size()) grow(slots);
}

NameId NameTable::intern(std::string_view name) {
  if (2 * (names_.size() + 1) > slots_.size()) {
    if (names_.size() >= std::numeric_limits<NameId>::max() / 2)
      throw Error(ErrorCode::kUnsupported, "cannot add a name to a plan that has 2^31 already");
    grow(slots_.empty() ? 16 : 2 * slots_.size());
  }
  const std::uint32_t hash = hash_of(name);
  const std::size_t slot = slot_of(name, hash);
  if (slots_[slot].id_plus_1 != 0) return slots_[slot].id_plus_1 - 1;
  names_.emplace_back(name);
  slots_[slot] = {hash, static_cast<std::uint32_t>(names_.size())};
  return static_cast<NameId>(names_.size() - 1);
}

std::optional<NameId> NameTable::find(std::string_view name) const {
  if (slots_.empty()) return std::nullopt;
  const Slot& slot = slots_[slot_of(name, hash_of(name))];
  if (slot.id_plus_1 == 0) return std::nullopt;
  return slot.id_plus_1 - 1;
}

void NameTable::rename(NameId id, std::string name) {
  if (id >= names_.size())
    throw Error(ErrorCode::kInvalidArgument, "cannot rename name " + std::to_string(id) + " of a plan to '" + name +
                                                 "': it has only " + std::to_string(names_.size()) + " names");
  if (names_[id] == name) return;
  if (find(name))
    throw Error(ErrorCode::kAlreadyExists, "cannot rename '" + names_[id] + "' to '" + name + "': the plan has that name already");
  // Backward-shift deletion: frees the old slot and moves up entries that probed past it.
  const std::size_t mask = slots_.size() - 1;
  std::size_t hole = slot_of(names_[id], hash_of(names_[id]));
  for (std::size_t next = (hole + 1) & mask; slots_[next].id_plus_1 != 0; next = (next + 1) & mask) {
    const std::size_t home = slots_[next].hash & mask;
    if (((next - home) & mask) >= ((next - hole) & mask)) {
      slots_[hole] = slots_[next];
      hole = next;
    }
  }
  slots_[hole] = {};
  const std::uint32_t hash = hash_of(name);
  slots_[slot_of(name, hash)] = {hash, id + 1};
  names_[id] = std::move(name);
}

std::uint64_t WriteItem::payload_bytes() const {
  if (type == WriteItemType::kByteIO) return content_bytes;
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(static_cast<std::uint64_t>(volume(chunk.sizes)), element_size(properties.dtype), &bytes))
    throw Error(ErrorCode::kInvalidArgument, "cannot count the bytes of a " + std::string(to_string(properties.dtype)) +
                                                 " chunk of size " + to_string(chunk.sizes) + ": more than 64 bits can count");
  return bytes;
}

}  // namespace cairn
