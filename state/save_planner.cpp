// The default save planner: binds the leaves of a state dict to items.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <unordered_set>

#include <cairn/base/cpu_share.hpp>
#include <cairn/base/digest.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/parallel.hpp>
#include <cairn/base/settings.hpp>
#include <cairn/planning/require_coverage.hpp>
#include <cairn/state/device_copies.hpp>
#include <cairn/state/flat_leaf.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/state/rank_names.hpp>
#include <cairn/state/tensor_items.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/storage/engine/staging_memory.hpp>

namespace cairn {
namespace {

// Serialised leaves are kept from planning to writing, up to this many bytes in total. The others
// are serialised again for writing.
constexpr std::uint64_t kKeptBytesMax = std::uint64_t{256} << 20;

// Returns a number, bool, None or short string as Python writes it; "" for other values.
std::string short_text_of(const Value& value) {
  if (value.is_none()) return "None";
  if (!value.is_ivalue()) return "";
  const c10::IValue& plain = value.ivalue();
  if (plain.isBool()) return plain.toBool() ? "True" : "False";
  if (plain.isInt()) return std::to_string(plain.toInt());
  if (plain.isString()) return "'" + plain.toStringRef() + "'";
  if (!plain.isDouble() || !std::isfinite(plain.toDouble())) return "";
  const std::string text = number_text(plain.toDouble());
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

// 63 bits are enough to notice values that differ by accident.
std::uint64_t content_hash(ByteSpan bytes) { return xxh3(bytes) | std::uint64_t{1} << 63; }

std::uint64_t content_hash(const Value& value, const Bytes& bytes) {
  if (const std::uint64_t text = hash_of_short_text(short_text_of(value))) return text;
  return content_hash(bytes);
}

// Hashes each tensor for its item. Several threads share the work.
void hash_tensors(const std::vector<std::pair<WriteItem*, TensorBytes>>& tensors) {
  // A multiple of every element's size. Constant, because all ranks must hash the same pieces.
  constexpr std::uint64_t kPieceBytes = std::uint64_t{4} << 20;
  struct Piece {
    const TensorBytes* tensor;
    std::uint64_t first;
  };
  std::vector<Piece> pieces;
  std::uint64_t bytes = 0;
  for (const auto& [item, tensor] : tensors) {
    bytes += tensor.size_bytes();
    for (std::uint64_t first = 0; first < tensor.size_bytes(); first += kPieceBytes) pieces.push_back({&tensor, first});
  }
  std::vector<std::uint64_t> hashes(pieces.size());
  const CurrentStreams streams = CurrentStreams::capture();
  std::atomic<std::size_t> next{0};
  const auto threads = static_cast<unsigned>(std::min<std::uint64_t>(cpu_share(), 1 + bytes / kPieceBytes));
  for_each_in_parallel(threads, threads, [&](std::size_t) {
    const CurrentStreams::Scope scope(streams);
    std::optional<StagingMemory> block;  // for elements that must be copied first
    for (std::size_t i = next++; i < pieces.size(); i = next++) {
      const auto& [tensor, first] = pieces[i];
      const std::uint64_t length = std::min(kPieceBytes, tensor->size_bytes() - first);
      const char* elements = tensor->direct();
      if (elements) {
        elements += first;
      } else {
        if (!block) block.emplace(kPieceBytes);
        if (!tensor->is_on_host()) block->lock();
        tensor->read(first, {block->data(), length});
        elements = block->data();
      }
      hashes[i] = xxh3({elements, length});
    }
  });
  const char* at = reinterpret_cast<const char*>(hashes.data());
  for (const auto& [item, tensor] : tensors) {
    const std::size_t length = (tensor.size_bytes() + kPieceBytes - 1) / kPieceBytes * sizeof(std::uint64_t);
    item->content_hash = content_hash({at, length});
    at += length;
  }
}

TensorProperties properties_of(const torch::Tensor& tensor, bool uses_cuda) {
  TensorProperties properties;
  properties.dtype = *dtype_of(tensor.scalar_type());
  properties.requires_grad = tensor.requires_grad();
  // In some versions of LibTorch, `is_pinned` throws in a build without CUDA or for a device
  // tensor. A process that has not used CUDA has no page-locked memory.
  properties.pin_memory = uses_cuda && tensor.is_cpu() && tensor.is_pinned();
  return properties;
}

TensorStorageMetadata describe_sharded(const ShardedTensor& sharded) {
  TensorStorageMetadata described;
  described.properties.dtype = sharded.dtype();
  described.size = sharded.size();
  if (auto chunks = sharded.all_chunks()) {
    described.chunks = std::move(*chunks);
  } else {
    for (const LocalShard& shard : sharded.local_shards()) {
      Box box{shard.offsets, extents_of(shard.tensor.sizes())};
      // Without a spec or mesh, this rank knows only its own parts.
      if (!box.empty()) described.chunks.push_back(std::move(box));
    }
  }
  if (!sharded.local_shards().empty()) described.properties.requires_grad = sharded.local_shards().front().tensor.requires_grad();
  return described;
}

TensorStorageMetadata metadata_of_tensor(const std::string& fqn, const torch::Tensor& tensor) {
  const std::string reason = why_not_storable(tensor);
  if (!reason.empty())
    throw Error(ErrorCode::kUnsupported, "describe \"" + fqn + "\": it " + reason + "; only dense tensors can be saved");
  TensorStorageMetadata described;
  described.properties = properties_of(tensor, false);
  described.size = extents_of(tensor.sizes());
  described.chunks = {Box::whole(described.size)};
  return described;
}

}  // namespace

struct DefaultSavePlanner::Implementation {
  explicit Implementation(SavePlannerOptions planner_options) : options(planner_options) {}

  struct Leaf {
    Value value;
    std::optional<Bytes> bytes;  // the serialised leaf, while kept
  };
  NameId id_of(const Leaf& leaf) const { return static_cast<NameId>(&leaf - leaves.data()); }
  const std::string& name_of(const Leaf& leaf) const { return names[id_of(leaf)]; }

  // Names the leaf in the error: a pickling error alone does not say where the value is.
  Bytes serialize(const Leaf& leaf) const {
    try {
      return serialize_leaf(leaf.value);
    } catch (const Error& error) {
      throw Error(error.code(), "serialize \"" + name_of(leaf) + "\": " + error.what());
    }
  }

  // Returns why the leaf cannot be saved, or an empty string if it can or if only an attempt can
  // tell.
  static std::string why_not(const Value& value) {
    if (value.is_tensor()) return why_not_storable(value.tensor());
    if (!value.is_sharded()) return "";
    for (const LocalShard& shard : value.sharded().local_shards()) {
      std::string reason = why_not_storable(shard.tensor);
      if (!reason.empty()) return reason;
    }
    return "";
  }

  void add_sharded(const ShardedTensor& sharded, const WriteItem& common, bool uses_cuda, SavePlan& plan) const {
    const bool has_elements = volume(sharded.size()) != 0;
    for (const LocalShard& shard : sharded.local_shards()) {
      WriteItem item = common;
      item.type = WriteItemType::kShard;
      item.properties = properties_of(shard.tensor, uses_cuda);
      item.size = sharded.size();
      // A tensor without elements is one chunk, the same on all ranks. In other tensors, empty
      // parts get no item.
      item.chunk = has_elements ? Box{shard.offsets, extents_of(shard.tensor.sizes())} : Box::whole(sharded.size());
      if (has_elements && item.chunk.empty()) continue;
      plan.items.push_back(std::move(item));
      if (!has_elements) return;
    }
  }

  // Takes the values of a state that has the names and paths of the last one. Returns false for any
  // other state. An empty one keeps them for the next.
  bool take_values(const StateDict& state_dict) {
    if (state_dict.empty()) return true;
    bool is_same = true;
    leaves.reserve(paths->size());
    visit_leaves(state_dict, [&](const FlatLeaf& leaf) {
      const std::size_t at = leaves.size();
      is_same = is_same && at < paths->size() && leaf.is_at((*paths)[at].second);
      if (!is_same) return;
      const Path& path = (*paths)[at].second;
      const bool is_per_rank = leaf.is_per_rank();
      is_same =
          path.size() == leaf.steps.size() + (is_per_rank ? 1 : 0) && (!is_per_rank || path.back() == PathElement(rank_key(rank)));
      if (is_same) leaves.push_back({leaf.marked(), std::nullopt});
    });
    if (is_same && leaves.size() == paths->size()) return true;
    leaves.clear();
    return false;
  }

  SavePlan create_local_plan() {
    SavePlan plan;
    if (leaves.empty()) return plan;
    plan.names = names;
    if (options.flatten_state_dict) plan.mappings = paths;
    std::string unsupported;
    std::uint64_t kept = 0;
    const bool uses_cuda = !cuda_devices_in_use().empty();
    for (Leaf& leaf : leaves) {
      const Value& value = leaf.value;
      std::string reason = why_not(value);
      WriteItem item;
      if (reason.empty() && !value.is_tensor() && !value.is_sharded()) {
        try {
          Bytes bytes = serialize(leaf);
          item.content_hash = content_hash(value, bytes);
          item.content_bytes = bytes.size();
          leaf.bytes.reset();
          if (kept + bytes.size() <= kKeptBytesMax) {
            kept += bytes.size();
            leaf.bytes = std::move(bytes);
          }
        } catch (const Error& error) {
          // Values that cannot be stored are collected, so that one error names all of them.
          if (error.code() != ErrorCode::kUnsupported) throw;
          reason = std::string("cannot be stored (") + error.what() + ')';
        }
      }
      if (!reason.empty()) {
        unsupported += "\n  " + describe_path((*paths)[id_of(leaf)].second) + ' ' + reason;
        continue;
      }
      item.name = id_of(leaf);
      item.per_rank = value.is_per_rank();
      item.frozen = value.is_frozen() && (value.is_tensor() || value.is_sharded());
      if (value.is_sharded()) {
        add_sharded(value.sharded(), item, uses_cuda, plan);
      } else {
        if (value.is_tensor()) {
          item.type = WriteItemType::kTensor;
          item.properties = properties_of(value.tensor(), uses_cuda);
          item.size = extents_of(value.tensor().sizes());
          item.chunk = Box::whole(item.size);
        }
        plan.items.push_back(std::move(item));
      }
    }
    if (!unsupported.empty()) {
      throw Error(
          ErrorCode::kUnsupported,
          "plan a save on rank " + std::to_string(rank) +
              ": only dense tensors and plain values can be saved; convert these (to_dense(), dequantize()) or leave them out:" +
              unsupported);
    }
    if (options.hash_tensors) add_tensor_hashes(plan);
    return plan;
  }

  void add_tensor_hashes(SavePlan& plan) const {
    std::vector<std::pair<WriteItem*, TensorBytes>> tensors;
    for (WriteItem& item : plan.items) {
      if (item.type == WriteItemType::kByteIO || item.per_rank) continue;
      const Leaf& leaf = leaves[item.name];
      if (leaf.value.is_tensor() || leaf.value.sharded().may_have_replicas(options.world_size))
        tensors.emplace_back(&item, TensorBytes(resolve_tensor(leaf, item)));
    }
    hash_tensors(tensors);
  }

  // Returns a view: writers read the trainer's memory, and nothing is copied here.
  torch::Tensor resolve_tensor(const Leaf& leaf, const WriteItem& item) const {
    const Value& value = leaf.value;
    torch::Tensor part;
    if (value.is_tensor()) {
      part = part_of(value.tensor(), item.chunk.offsets, item.chunk.sizes);
    } else {
      for (const LocalShard& shard : value.sharded().local_shards()) {
        const Box box{shard.offsets, extents_of(shard.tensor.sizes())};
        // The global plan may have split the chunk, so that the item is only a part of this shard.
        if (!contains(box, item.chunk)) continue;
        Extents offsets = item.chunk.offsets;
        for (std::size_t dim = 0; dim < offsets.size(); ++dim) offsets[dim] -= box.offsets[dim];
        part = part_of(shard.tensor, offsets, item.chunk.sizes);
        break;
      }
      if (!part.defined() && volume(item.chunk.sizes) == 0 && !value.sharded().local_shards().empty()) {
        part = torch::empty(array_of(item.chunk.sizes), value.sharded().local_shards().front().tensor.options());
      }
      if (!part.defined()) {
        throw Error(ErrorCode::kNotFound, "write \"" + name_of(leaf) + "\": rank " + std::to_string(rank) + " holds no part with " +
                                              to_string(item.chunk) + "; the plan must keep to what its local plan offered");
      }
    }
    // Writers see memory only, so resolve LibTorch's lazy conj and neg bits.
    return part.is_conj() || part.is_neg() ? part.resolve_conj().resolve_neg() : part;
  }

  SavePlannerOptions options;
  int rank = 0;
  std::vector<Leaf> leaves;
  NameTable names;                     // of the leaves, in their order
  decltype(SavePlan::mappings) paths;  // likewise
};

DefaultSavePlanner::DefaultSavePlanner(SavePlannerOptions options) : implementation_(std::make_unique<Implementation>(options)) {}
DefaultSavePlanner::~DefaultSavePlanner() = default;

void DefaultSavePlanner::set_up_planner(const StateDict& state_dict, int rank, bool /*is_coordinator*/) {
  Implementation& self = *implementation_;
  self.rank = rank;
  self.leaves.clear();
  // A repeated save has the names of the one before, and shares its tables.
  if (self.options.flatten_state_dict && self.take_values(state_dict)) return;
  FlatStateDict entries = self.options.flatten_state_dict ? flatten(state_dict) : flatten_top_level(state_dict);
  for (FlatEntry& entry : entries) {
    if (!entry.value.is_per_rank()) continue;
    // The rank becomes part of the name, so that values of different ranks are different entries.
    entry.fqn = rank_name(entry.fqn, rank);
    if (self.options.flatten_state_dict) entry.path.push_back(rank_key(rank));
  }
  NameTable names;
  names.reserve(entries.size());
  for (const FlatEntry& entry : entries) {
    const std::size_t count = names.size();
    if (names.intern(entry.fqn) == count) continue;
    throw Error(ErrorCode::kAlreadyExists,
                "state dict: the name \"" + entry.fqn +
                    "\" is needed for a value marked by per_rank, but another value has it; rename that one");
  }
  std::vector<std::pair<NameId, Path>> paths;
  paths.reserve(entries.size());
  self.leaves.reserve(entries.size());
  for (FlatEntry& entry : entries) {
    paths.emplace_back(static_cast<NameId>(paths.size()), std::move(entry.path));
    self.leaves.push_back({std::move(entry.value), std::nullopt});
  }
  self.names = std::move(names);
  self.paths = std::move(paths);
}

SavePlan DefaultSavePlanner::create_local_plan() { return implementation_->create_local_plan(); }

GlobalSavePlan DefaultSavePlanner::create_global_plan(std::vector<SavePlan> all_plans) {
  GlobalSavePlan global = create_global_save_plan(std::move(all_plans), implementation_->options.global);
  // Check before any rank writes.
  require_coverage(global.metadata, "cannot plan the save");
  return global;
}

SavePlan DefaultSavePlanner::finish_plan(SavePlan new_plan) {
  // Do not keep leaves that other ranks write.
  std::unordered_set<std::string> written;
  for (const WriteItem& item : *new_plan.items) {
    if (item.type == WriteItemType::kByteIO) written.insert(new_plan.names[item.name]);
  }
  for (Implementation::Leaf& leaf : implementation_->leaves) {
    if (leaf.bytes && written.count(implementation_->name_of(leaf)) == 0) leaf.bytes.reset();
  }
  return new_plan;
}

ResolvedData DefaultSavePlanner::resolve_data(const SavePlan& plan, const WriteItem& item) {
  return transform_object(plan, item, lookup_object(plan, item));
}

ResolvedData DefaultSavePlanner::transform_object(const SavePlan& /*plan*/, const WriteItem& /*item*/, ResolvedData object) {
  return object;
}

ResolvedData DefaultSavePlanner::lookup_object(const SavePlan& plan, const WriteItem& item) {
  const std::string& name = plan.names[item.name];
  const auto found = implementation_->names.find(name, item.name);
  if (!found || *found >= implementation_->leaves.size()) {
    throw Error(ErrorCode::kNotFound,
                "write \"" + name + "\": rank " + std::to_string(implementation_->rank) + " holds no value of that name");
  }
  const Implementation::Leaf& leaf = implementation_->leaves[*found];
  const bool holds_tensor = leaf.value.is_tensor() || leaf.value.is_sharded();
  if (holds_tensor != (item.type != WriteItemType::kByteIO)) {
    throw Error(ErrorCode::kMismatch, "write \"" + name + "\": the plan has it as " +
                                          (holds_tensor ? "bytes, but it is " : "a tensor, but it is ") + leaf.value.type_name());
  }
  if (!holds_tensor) return leaf.bytes ? *leaf.bytes : implementation_->serialize(leaf);
  return with_torch([&] { return "write \"" + name + '"'; }, [&] { return implementation_->resolve_tensor(leaf, item); });
}

// Implements DCP's create_default_metadata: the metadata of a save, without saving. This is one
// rank's view. A save would join the plans of all ranks instead.
Metadata create_default_metadata(const StateDict& state_dict) {
  Metadata metadata;
  for (FlatEntry& entry : flatten(state_dict)) {
    if (entry.value.is_per_rank()) {
      // As the save planner names the value of rank 0.
      entry.fqn = rank_name(entry.fqn, 0);
      entry.path.push_back(rank_key(0));
    }
    Metadata::Entry described = BytesStorageMetadata{};
    if (entry.value.is_sharded()) described = describe_sharded(entry.value.sharded());
    if (entry.value.is_tensor()) described = metadata_of_tensor(entry.fqn, entry.value.tensor());
    metadata.state_dict_metadata.emplace_back(entry.fqn, std::move(described));
    metadata.planner_data.emplace_back(std::move(entry.fqn), std::move(entry.path));
  }
  metadata.reindex();
  return metadata;
}

}  // namespace cairn
