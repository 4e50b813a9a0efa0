// Names with ids, instead of a text in each place that means them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/base/copy_on_write.hpp>

namespace cairn {

using NameId = std::uint32_t;

// Returns whether `name` is `prefix` or below it. "layer.1" is not above "layer.10".
inline bool is_below(std::string_view name, std::string_view prefix) noexcept {
  return name.substr(0, prefix.size()) == prefix && (name.size() == prefix.size() || name[prefix.size()] == '.');
}

// Flattened names (FQNs), of a plan for example. Ids count from 0 in the order of first use. Copies
// share memory until one of them is changed.
class NameTable {
 public:
  // Returns the id of `name`. Adds the name if it is new.
  NameId intern(std::string_view name);
  // Returns the id of `name`, if it is there. Is fastest if `likely` is the id.
  std::optional<NameId> find(std::string_view name, NameId likely = 0) const;
  const std::string& operator[](NameId id) const { return contents_->names[id]; }  // `id` must be below size()
  std::size_t size() const { return contents_->names.size(); }
  const std::vector<std::string>& all() const { return contents_->names; }
  void reserve(std::size_t names);
  bool shares_with(const NameTable& other) const noexcept { return contents_.shares_with(other.contents_); }

 private:
  // An open-addressing hash table of ids. A plan has thousands of names, and a coordinator has a
  // plan per rank: a heap node per name would cost more than the rest of planning.
  struct Slot {
    std::uint32_t hash = 0;
    std::uint32_t id_plus_1 = 0;  // 0: free
  };
  struct Contents {
    std::size_t slot_of(std::string_view name, std::uint32_t hash) const;  // returns the slot of `name`, or the free slot for it
    void grow(std::size_t new_slots);

    std::vector<std::string> names;
    std::vector<Slot> slots;  // the number of slots is a power of two; at most half of the slots are used
  };

  CopyOnWrite<Contents> contents_;
};

}  // namespace cairn
