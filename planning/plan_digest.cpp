#include <limits>
#include <vector>

#include <cairn/base/error.hpp>
#include <cairn/planning/plan.hpp>

namespace cairn {
namespace {

// Numbers names by first use, so that the digest does not depend on how the name table was built.
class NameEncoder {
 public:
  NameEncoder(const NameTable& names, DigestBuilder& digest) : names_(names), digest_(digest), numbers_(names.size(), kUnseen) {}

  void add(NameId id) {
    if (id >= numbers_.size())
      throw Error(ErrorCode::kInvalidArgument, "cannot digest a plan: it refers to name " + std::to_string(id) + " and has only " +
                                                   std::to_string(numbers_.size()) + " names");
    std::uint64_t& number = numbers_[id];
    const bool first_use = number == kUnseen;
    if (first_use) number = next_++;
    digest_.add(number);
    if (first_use) digest_.add(ByteSpan(names_[id]));
  }

 private:
  static constexpr std::uint64_t kUnseen = std::numeric_limits<std::uint64_t>::max();
  const NameTable& names_;
  DigestBuilder& digest_;
  std::vector<std::uint64_t> numbers_;
  std::uint64_t next_ = 0;
};

void add_values(const Extents& extents, DigestBuilder& digest) {
  digest.add(static_cast<std::uint64_t>(extents.size()));
  for (const std::int64_t value : extents) digest.add(value);
}

}  // namespace

Digest plan_digest(const SavePlan& plan, DigestOf parts) {
  DigestBuilder digest;
  // Names the kind of plan and the version of this encoding, so that digests of different kinds or
  // versions never match.
  digest.add(ByteSpan("cairn save plan 1"));
  NameEncoder names(plan.names, digest);
  digest.add(static_cast<std::uint64_t>(plan.items.size()));
  for (const WriteItem& item : plan.items) {
    names.add(item.name);
    std::uint64_t kinds = static_cast<std::uint64_t>(item.type) | (item.per_rank ? 1u << 8 : 0u) | (item.frozen ? 1u << 9 : 0u);
    // The content changes from save to save, as a step counter does. The digest leaves it out, so
    // that a rank whose plan is otherwise the same need not send it again.
    if (item.type == WriteItemType::kByteIO) {
      digest.add(kinds);
      continue;
    }
    const TensorProperties& properties = item.properties;
    // Each property has bits of its own: type 0-7, per_rank 8, frozen 9, dtype 16-23, memory format
    // 24-31, two flags.
    kinds |= static_cast<std::uint64_t>(properties.dtype) << 16 | static_cast<std::uint64_t>(properties.memory_format) << 24 |
             static_cast<std::uint64_t>(properties.requires_grad) << 32 | static_cast<std::uint64_t>(properties.pin_memory) << 33;
    digest.add(kinds);
    add_values(item.size, digest);
    add_values(item.chunk.offsets, digest);
    add_values(item.chunk.sizes, digest);
  }
  digest.add(static_cast<std::uint64_t>(plan.mappings->size()));
  for (const auto& [name, path] : *plan.mappings) {
    names.add(name);
    digest.add(static_cast<std::uint64_t>(path.size()));
    for (const PathElement& element : path) {
      // The kind of step, because the key "1" and the index 1 are different paths.
      digest.add(static_cast<std::uint64_t>(element.index()));
      if (const auto* key = std::get_if<std::string>(&element)) {
        digest.add(ByteSpan(*key));
      } else {
        digest.add(std::get<std::int64_t>(element));
      }
    }
  }
  // Empty texts take their places, so that a plan without them has one digest.
  const bool is_whole = parts == DigestOf::kWholePlan;
  digest.add(is_whole ? ByteSpan(plan.planner_data) : ByteSpan()).add(is_whole ? ByteSpan(plan.storage_data) : ByteSpan());
  return digest.finish();
}

}  // namespace cairn
