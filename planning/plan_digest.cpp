#include <limits>
#include <string_view>
#include <vector>

#include <cairn/base/error.hpp>
#include <cairn/planning/plan.hpp>

namespace cairn {
namespace {

// Writes a canonical encoding of a plan. It is compact, because hashing takes most of the time.
class Encoder {
 public:
  explicit Encoder(const NameTable& names) : names_(names), numbers_(names.size(), kUnseen) {}

  void add(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_.push_back(static_cast<char>(value | 0x80));
    bytes_.push_back(static_cast<char>(value));
    if (bytes_.size() >= kFlushBytes) flush();
  }
  void add(std::string_view text) {
    add(std::uint64_t{text.size()});
    bytes_ += text;
  }
  void add(const Extents& extents) {
    add(std::uint64_t{extents.size()});
    for (const std::int64_t value : extents) add(static_cast<std::uint64_t>(value));
  }
  // Numbers names by first use, so that the digest does not depend on how the name table was built.
  void add_name(NameId id) {
    if (id >= numbers_.size())
      throw Error(ErrorCode::kInvalidArgument, "cannot digest a plan: it refers to name " + std::to_string(id) + " and has only " +
                                                   std::to_string(numbers_.size()) + " names");
    std::uint64_t& number = numbers_[id];
    const bool first_use = number == kUnseen;
    if (first_use) number = next_++;
    add(number);
    if (first_use) add(std::string_view(names_[id]));
  }
  // Most paths have one step, which is the name.
  void add_path(NameId id, const Path& path) {
    const auto* only = path.size() == 1 ? std::get_if<std::string>(&path.front()) : nullptr;
    if (only && *only == names_[id]) return add(std::uint64_t{0});
    add(std::uint64_t{path.size()} + 1);
    for (const PathElement& element : path) {
      // The kind of step, because the key "1" and the index 1 are different paths.
      add(static_cast<std::uint64_t>(element.index()));
      if (const auto* key = std::get_if<std::string>(&element)) {
        add(std::string_view(*key));
      } else {
        add(static_cast<std::uint64_t>(std::get<std::int64_t>(element)));
      }
    }
  }
  Digest finish() {
    flush();
    return digest_.finish();
  }

 private:
  static constexpr std::uint64_t kUnseen = std::numeric_limits<std::uint64_t>::max();
  static constexpr std::size_t kFlushBytes = 4096;

  void flush() {
    digest_.add(ByteSpan(bytes_));
    bytes_.clear();
  }

  const NameTable& names_;
  std::vector<std::uint64_t> numbers_;
  std::uint64_t next_ = 0;
  Bytes bytes_;
  DigestBuilder digest_;
};

}  // namespace

Digest plan_digest(const SavePlan& plan, DigestOf parts) {
  Encoder digest(plan.names);
  // Names the kind of plan and the version of this encoding, so that digests of different kinds or
  // versions never match.
  digest.add(std::string_view("cairn save plan 2"));
  digest.add(std::uint64_t{plan.items.size()});
  for (const WriteItem& item : plan.items) {
    digest.add_name(item.name);
    std::uint64_t kinds = static_cast<std::uint64_t>(item.type) | (item.per_rank ? 1u << 2 : 0u) | (item.frozen ? 1u << 3 : 0u);
    // The content changes from save to save, as a step counter does. The digest leaves it out, so
    // that a rank whose plan is otherwise the same need not send it again.
    if (item.type == WriteItemType::kByteIO) {
      digest.add(kinds);
      continue;
    }
    const TensorProperties& properties = item.properties;
    // Each property has bits of its own: type 0-1, per_rank 2, frozen 3, two flags, memory format
    // 6-7, dtype 8-15.
    kinds |= static_cast<std::uint64_t>(properties.requires_grad) << 4 | static_cast<std::uint64_t>(properties.pin_memory) << 5 |
             static_cast<std::uint64_t>(properties.memory_format) << 6 | static_cast<std::uint64_t>(properties.dtype) << 8;
    digest.add(kinds);
    digest.add(item.size);
    digest.add(item.chunk.offsets);
    digest.add(item.chunk.sizes);
  }
  digest.add(std::uint64_t{plan.mappings->size()});
  for (const auto& [name, path] : *plan.mappings) {
    digest.add_name(name);
    digest.add_path(name, path);
  }
  // Empty texts take their places, so that a plan without them has one digest.
  const bool is_whole = parts == DigestOf::kWholePlan;
  digest.add(is_whole ? std::string_view(plan.planner_data) : std::string_view());
  digest.add(is_whole ? std::string_view(plan.storage_data) : std::string_view());
  return digest.finish();
}

}  // namespace cairn
