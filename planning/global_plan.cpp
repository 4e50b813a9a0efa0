// Turns local plans into global ones in five steps: number the names of all ranks; join the items
// of each name and find the chunks that several ranks hold; choose a writer for each of those
// chunks; list the chunks in the metadata; cut every local plan down to the items that its rank
// writes.
#include <cairn/planning/global_plan.hpp>

#include <algorithm>
#include <limits>
#include <utility>

#include <cairn/base/error.hpp>
#include <cairn/planning/disagreement.hpp>
#include <cairn/planning/replicas.hpp>

namespace cairn {
namespace {

constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

// The fate of a local item: drop, keep, or keep with part `value - kFirstPart` of a split chunk.
constexpr std::uint32_t kDrop = 0;
constexpr std::uint32_t kKeep = 1;
constexpr std::uint32_t kKeepBytes = 2;
constexpr std::uint32_t kFirstPart = 3;

// The items of a large world do not fit into the CPU cache. Each item is therefore visited once,
// when all ranks' items of its name are joined. Later steps work on the notes taken then.
class GlobalPlanner {
 public:
  GlobalPlanner(std::vector<SavePlan> plans, const GlobalPlanOptions& options)
      : plans_(std::move(plans)), options_(options), load_bytes_(plans_.size(), 0) {}

  GlobalSavePlan run() {
    number_names();
    join_names();
    join_paths();
    disagreements_.throw_if_any();
    assign();
    list_parts();
    for (std::size_t rank = 0; rank < plans_.size(); ++rank) cut_plan(plans_[rank], fate_.data() + item_base_[rank]);
    metadata_.reindex(names_);
    if (differing_names_ > 1)
      difference_ += "; and " + std::to_string(differing_names_ - 1) + (differing_names_ > 2 ? " other tensors" : " other tensor");
    return {std::move(plans_), std::move(metadata_), std::move(difference_)};
  }

 private:
  // One item of one rank's local plan.
  struct ItemId {
    std::uint32_t rank;
    std::uint32_t index;
  };
  struct Held {
    const WriteItem* item;
    ItemId id;
  };
  // A chunk or bytes object that several ranks hold: [begin, end) of holder_ranks_ and
  // holder_items_.
  struct Shared {
    NameId name;
    std::uint32_t position;  // index among the tensor's chunks
    std::uint32_t begin;
    std::uint32_t end;
    std::uint64_t bytes;
    const Box* chunk;  // nullptr: a bytes object
    bool lowest_only;
    const Placed* placed = nullptr;
  };

  // --- step 1 ------------------------------------------------------------------------------------

  // Returns whether the items use all names, in the order of the table.
  static bool lists_names_in_order(const SavePlan& plan) {
    NameId next = 0;
    for (const WriteItem& item : plan.items) {
      if (item.name > next) return false;
      if (item.name == next) ++next;
    }
    return next == plan.names.size();
  }

  void number_names() {
    std::size_t items = 0;
    for (const SavePlan& plan : plans_) {
      item_base_.push_back(items);
      items += plan.items.size();
    }
    // Items are counted in 32 bits, and a fate adds kFirstPart to the number of a part. There are
    // at most as many parts as items.
    if (items >= kNone - kFirstPart)
      throw Error(ErrorCode::kUnsupported, "cannot plan a save of " + std::to_string(items) + " items");
    fate_.assign(items, kDrop);

    std::vector<std::uint32_t> name_of_item;
    name_of_item.reserve(items);
    std::vector<std::uint32_t> per_name;
    global_of_local_.resize(plans_.size());
    if (!plans_.empty() && lists_names_in_order(plans_[0])) names_ = plans_[0].names;  // a world of one needs no other table
    for (std::size_t rank = 0; rank < plans_.size(); ++rank) {
      const SavePlan& plan = plans_[rank];
      auto& global_of = global_of_local_[rank];
      if (rank > 0 && plan.names.shares_with(plans_[rank - 1].names)) {
        global_of = global_of_local_[rank - 1];
      } else {
        global_of.assign(plan.names.size(), kNone);
      }
      std::uint32_t likely = 0;  // ranks mostly list the same names in the same order
      for (const WriteItem& item : plan.items) {
        if (item.name >= global_of.size())
          throw Error(ErrorCode::kInvalidArgument, "cannot join the plan of rank " + std::to_string(rank) +
                                                       ": an item refers to name " + std::to_string(item.name) + " of " +
                                                       std::to_string(global_of.size()));
        std::uint32_t& global = global_of[item.name];
        if (global == kNone) {
          const std::string& name = plan.names[item.name];
          // Comparing with the likely name is cheaper than a look-up in the hash table.
          global = likely < names_.size() && names_[likely] == name ? likely : names_.intern(name);
          likely = global + 1;
          if (global == per_name.size()) per_name.push_back(0);
        }
        ++per_name[global];
        name_of_item.push_back(global);
      }
    }

    // A counting sort by name. Within a name, items stay in the order of ranks.
    group_base_.assign(per_name.size() + 1, 0);
    for (std::size_t name = 0; name < per_name.size(); ++name) group_base_[name + 1] = group_base_[name] + per_name[name];
    std::vector<std::size_t> next(group_base_.begin(), group_base_.end() - 1);
    grouped_.resize(items);
    for (std::size_t rank = 0; rank < plans_.size(); ++rank) {
      const std::uint32_t* name = name_of_item.data() + item_base_[rank];
      for (std::size_t i = 0; i < plans_[rank].items.size(); ++i)
        grouped_[next[name[i]]++] = {static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(i)};
    }
  }

  // --- step 2 ------------------------------------------------------------------------------------

  void join_names() {
    metadata_.state_dict_metadata.reserve(names_.size());
    for (NameId name = 0; name < names_.size(); ++name) {
      gather(name);
      // Before any comparison: the steps below assume boxes with as many dimensions as their
      // tensor.
      for (const Held& held : held_) validate(held, name);
      drop_or_report_disagreements(name);
      if (held_.front().item->type == WriteItemType::kByteIO) {
        metadata_.state_dict_metadata.emplace_back(names_[name], BytesStorageMetadata{});
        add_once(name, 0, 0, held_.size());
      } else {
        join_tensor(name);
      }
    }
  }

  // The items of a name are in as many places in memory as there are ranks. Prefetching them makes
  // planning as fast for many ranks as for few.
  void gather(NameId name) {
    constexpr std::size_t kAhead = 16;
    const std::size_t end = group_base_[name + 1];
    held_.clear();
    for (std::size_t i = group_base_[name]; i < end; ++i) {
      if (i + kAhead < grouped_.size()) {
        const char* soon = reinterpret_cast<const char*>(&item_of(grouped_[i + kAhead]));
        for (std::size_t offset = 0; offset < sizeof(WriteItem); offset += 64) __builtin_prefetch(soon + offset);
      }
      held_.push_back({&item_of(grouped_[i]), grouped_[i]});
    }
  }

  const WriteItem& item_of(ItemId id) const { return plans_[id.rank].items[id.index]; }

  // Plans may come from user-defined planners, so their items are checked.
  void validate(const Held& held, NameId name) const {
    const WriteItem& item = *held.item;
    if (item.type == WriteItemType::kByteIO) return;
    const std::size_t dims = item.size.size();
    bool valid = item.chunk.offsets.size() == dims && item.chunk.sizes.size() == dims;
    for (std::size_t dim = 0; valid && dim < dims; ++dim)
      valid = item.size[dim] >= 0 && item.chunk.offsets[dim] >= 0 && item.chunk.sizes[dim] >= 0;
    if (!valid)
      throw Error(ErrorCode::kInvalidArgument, "cannot join the plan of rank " + std::to_string(held.id.rank) + ": '" +
                                                   names_[name] + "' has chunk offsets " + to_string(item.chunk.offsets) +
                                                   " and sizes " + to_string(item.chunk.sizes) + " in a tensor of size " +
                                                   to_string(item.size));
  }

  static bool same_kind(const WriteItem& a, const WriteItem& b) {
    if ((a.type == WriteItemType::kByteIO) != (b.type == WriteItemType::kByteIO)) return false;
    return a.type == WriteItemType::kByteIO || (a.size == b.size && a.properties.dtype == b.properties.dtype);
  }

  void drop_or_report_disagreements(NameId name) {
    const WriteItem& first = *held_.front().item;
    const bool lowest_wins = options_.rank_values == RankValues::kLowestRankWins;
    bool disagree = false;
    bool shared_per_rank = false;
    for (std::size_t i = 1; i < held_.size(); ++i) {
      const WriteItem& item = *held_[i].item;
      if (!same_kind(first, item)) {
        disagree = true;
      } else if (first.type == WriteItemType::kByteIO && !lowest_wins) {
        disagree = disagree || first.content_hash != item.content_hash || first.content_bytes != item.content_bytes;
      }
      // A value that is marked per rank has the rank in its name. Two ranks with one such name
      // would overwrite each other.
      shared_per_rank = shared_per_rank || ((first.per_rank || item.per_rank) && held_[i].id.rank != held_[0].id.rank);
    }
    if (disagree && lowest_wins) {
      // Only whole values give way to the lowest rank's value. Parts of a tensor cannot.
      const auto gives_way = [&](const Held& held) {
        return !same_kind(first, *held.item) && held.item->type != WriteItemType::kShard && first.type != WriteItemType::kShard;
      };
      held_.erase(std::remove_if(held_.begin(), held_.end(), gives_way), held_.end());
      disagree = std::any_of(held_.begin(), held_.end(), [&](const Held& held) { return !same_kind(first, *held.item); });
    }
    if (!disagree && !shared_per_rank) return;
    std::vector<RankItem> items;
    for (const Held& held : held_) items.push_back({static_cast<int>(held.id.rank), held.item});
    if (shared_per_rank) {
      disagreements_.add_shared_per_rank(names_[name], items);
    } else {
      disagreements_.add_values(names_[name], items);
    }
  }

  // Finds the distinct chunks of the tensor whose items are in held_, and their holders.
  void join_tensor(NameId name) {
    const WriteItem& first = *held_.front().item;
    TensorStorageMetadata tensor;
    tensor.properties = first.properties;
    tensor.size = first.size;
    if (volume(first.size) > 0) {
      const auto is_empty = [](const Held& held) { return held.item->chunk.empty(); };
      held_.erase(std::remove_if(held_.begin(), held_.end(), is_empty), held_.end());
    } else {
      // PyTorch needs one chunk to load a tensor without elements. Any other chunk would be empty
      // too.
      const Box whole = Box::whole(first.size);
      const bool any_whole = std::any_of(held_.begin(), held_.end(), [&](const Held& held) { return held.item->chunk == whole; });
      const Box chosen = any_whole ? whole : first.chunk;
      held_.erase(std::remove_if(held_.begin(), held_.end(), [&](const Held& held) { return held.item->chunk != chosen; }),
                  held_.end());
    }
    const auto before = [](const Held& a, const Held& b) { return a.item->chunk < b.item->chunk; };
    // Stable, so that the holders of one chunk stay ordered by rank.
    if (!std::is_sorted(held_.begin(), held_.end(), before)) std::stable_sort(held_.begin(), held_.end(), before);
    for (std::size_t begin = 0; begin < held_.size();) {
      const WriteItem& item = *held_[begin].item;
      std::size_t end = begin + 1;
      while (end < held_.size() && held_[end].item->chunk == item.chunk) ++end;
      // The first chunk's number of holders is a good guess for all.
      if (begin == 0) tensor.chunks.reserve(held_.size() / end);
      add_once(name, tensor.chunks.size(), begin, end);
      tensor.chunks.push_back(item.chunk);
      begin = end;
    }
    metadata_.state_dict_metadata.emplace_back(names_[name], std::move(tensor));
  }

  // Returns whether ranks have different values of the chunk of held_[begin, end).
  bool note_difference(NameId name, std::size_t begin, std::size_t end) {
    std::uint64_t known = 0;
    bool differs = false;
    for (std::size_t i = begin; i < end; ++i) {
      const std::uint64_t hash = held_[i].item->content_hash;
      if (known == 0) known = hash;
      differs = differs || (hash != 0 && hash != known);
    }
    if (!differs || last_differing_ == name) return differs;
    last_differing_ = name;
    if (++differing_names_ > 1) return true;
    std::vector<RankItem> items;
    for (std::size_t i = begin; i < end; ++i)
      if (held_[i].item->content_hash != 0) items.push_back({static_cast<int>(held_[i].id.rank), held_[i].item});
    difference_ = describe_difference(names_[name], items);
    return true;
  }

  // Plans one write of the chunk or bytes object that all of held_[begin, end), ordered by rank,
  // hold.
  void add_once(NameId name, std::size_t position, std::size_t begin, std::size_t end) {
    const WriteItem& item = *held_[begin].item;
    const bool is_bytes = item.type == WriteItemType::kByteIO;
    // Counts bytes objects as 0: their sizes change between saves, and the plan must not depend on
    // anything that its digest leaves out.
    const std::uint64_t bytes = is_bytes ? 0 : item.payload_bytes();
    // One rank holds it. If that rank lists it several times, the first item is written and the
    // others keep the fate kDrop.
    if (held_[begin].id.rank == held_[end - 1].id.rank) {
      fate_of(held_[begin].id) = is_bytes ? kKeepBytes : kKeep;
      load_bytes_[held_[begin].id.rank] += bytes + kItemOverheadBytes;
      return;
    }
    Shared shared{};
    shared.name = name;
    shared.position = static_cast<std::uint32_t>(position);
    shared.begin = static_cast<std::uint32_t>(holder_ranks_.size());
    shared.bytes = bytes;
    // The pointer stays valid: plans_ is not changed before step 5.
    shared.chunk = is_bytes ? nullptr : &item.chunk;
    shared.lowest_only = (!is_bytes && note_difference(name, begin, end)) || options_.dedup == Dedup::kLowestRank ||
                         (options_.rank_values == RankValues::kLowestRankWins && item.type != WriteItemType::kShard);
    for (std::size_t i = begin; i < end; ++i) {
      if (i > begin && held_[i].id.rank == held_[i - 1].id.rank) continue;  // a rank may list a chunk twice
      holder_ranks_.push_back(held_[i].id.rank);
      holder_items_.push_back(held_[i].id.index);
    }
    shared.end = static_cast<std::uint32_t>(holder_ranks_.size());
    shared_.push_back(shared);
  }

  // Copies the paths from the plans to the metadata.
  void join_paths() {
    std::vector<Path> paths(names_.size());
    std::vector<std::uint32_t> whose(names_.size(), kNone);
    decltype(SavePlan::mappings) previous;
    for (std::size_t rank = 0; rank < plans_.size(); ++rank) {
      const auto& global_of = global_of_local_[rank];
      // The metadata holds the paths from here on. Global plans do not repeat them.
      const auto mappings = std::exchange(plans_[rank].mappings, {});
      // Ranks with equal plans share one list, which need not be compared with itself.
      if (rank > 0 && mappings.shares_with(previous) && global_of == global_of_local_[rank - 1]) continue;
      previous = mappings;
      for (const auto& [local, path] : *mappings) {
        if (local >= global_of.size())
          throw Error(ErrorCode::kInvalidArgument, "cannot join the plan of rank " + std::to_string(rank) +
                                                       ": a path refers to name " + std::to_string(local) + " of " +
                                                       std::to_string(global_of.size()));
        const std::uint32_t name = global_of[local];
        if (name == kNone) continue;  // a name without items
        if (whose[name] == kNone) {
          paths[name] = path;
          whose[name] = static_cast<std::uint32_t>(rank);
          continue;
        }
        if (options_.rank_values == RankValues::kMustAgree && paths[name] != path)
          disagreements_.add_paths(names_[name], static_cast<int>(whose[name]), paths[name], static_cast<int>(rank), path);
      }
    }
    metadata_.planner_data.reserve(names_.size());
    for (NameId name = 0; name < names_.size(); ++name)
      if (whose[name] != kNone) metadata_.planner_data.emplace_back(names_[name], std::move(paths[name]));
  }

  // --- step 3 ------------------------------------------------------------------------------------

  std::uint32_t& fate_of(ItemId id) { return fate_[item_base_[id.rank] + id.index]; }

  void assign() {
    std::vector<Replica> replicas;
    replicas.reserve(shared_.size());
    for (std::size_t i = 0; i < shared_.size(); ++i) {
      const Shared& shared = shared_[i];
      replicas.push_back({static_cast<std::uint32_t>(i), shared.bytes, shared.chunk, holder_ranks_.data() + shared.begin,
                          shared.end - shared.begin, shared.lowest_only});
    }
    // load_bytes_ holds the bytes that only one rank can write. Shared chunks fill up the ranks
    // with fewer.
    assignment_ = assign_replicas(std::move(replicas), load_bytes_, options_.split_above_bytes);
    for (const Placed& placed : assignment_.placed) {
      Shared& shared = shared_[placed.id];
      // The pointer stays valid: assignment_.placed does not grow any more.
      shared.placed = &placed;
      for (std::uint32_t p = placed.begin; p < placed.end; ++p) {
        const std::uint32_t holder = shared.begin + assignment_.placements[p].holder;
        fate_of({holder_ranks_[holder], holder_items_[holder]}) = placed.split ? kFirstPart + p : shared.chunk ? kKeep : kKeepBytes;
      }
    }
  }

  // --- step 4 ------------------------------------------------------------------------------------

  // The metadata lists chunks as they are written: replaces each split chunk by its parts.
  void list_parts() {
    for (std::size_t begin = 0; begin < shared_.size();) {
      std::size_t end = begin;
      bool any_split = false;
      for (; end < shared_.size() && shared_[end].name == shared_[begin].name; ++end)
        any_split = any_split || shared_[end].placed->split;
      if (any_split) {
        auto& chunks = std::get<TensorStorageMetadata>(metadata_.state_dict_metadata[shared_[begin].name].second).chunks;
        std::vector<Box> parts;
        std::size_t done = 0;
        for (std::size_t i = begin; i < end; ++i) {
          const Placed& placed = *shared_[i].placed;
          if (!placed.split) continue;
          // Shared chunks are ordered by position, so the chunks between two split ones are copied
          // once.
          parts.insert(parts.end(), chunks.begin() + static_cast<std::ptrdiff_t>(done), chunks.begin() + shared_[i].position);
          for (std::uint32_t p = placed.begin; p < placed.end; ++p) parts.push_back(assignment_.placements[p].part);
          done = shared_[i].position + 1;
        }
        parts.insert(parts.end(), chunks.begin() + static_cast<std::ptrdiff_t>(done), chunks.end());
        chunks = std::move(parts);
      }
      begin = end;
    }
  }

  // --- step 5 ------------------------------------------------------------------------------------

  void cut_plan(SavePlan& plan, const std::uint32_t* fate) {
    // Bytes objects go to the end of a file: their lengths are known only after they are
    // serialised, and the offsets of tensors must not depend on them.
    std::vector<WriteItem> bytes_objects;
    std::size_t kept = 0;
    for (std::size_t i = 0; i < plan.items.size(); ++i) {
      if (fate[i] == kDrop) continue;
      if (fate[i] == kKeepBytes) {
        bytes_objects.push_back(std::move(plan.items[i]));
        continue;
      }
      plan.items[i].content_hash = 0;  // has served its purpose
      if (fate[i] >= kFirstPart) plan.items[i].chunk = std::move(assignment_.placements[fate[i] - kFirstPart].part);
      if (kept != i) plan.items[kept] = std::move(plan.items[i]);
      ++kept;
    }
    const bool all = kept + bytes_objects.size() == plan.items.size();
    plan.items.resize(kept);
    plan.items.insert(plan.items.end(), std::make_move_iterator(bytes_objects.begin()),
                      std::make_move_iterator(bytes_objects.end()));
    // All items stay, so the plan may go on sharing its table of names.
    if (all) return;
    NameTable names;
    names.reserve(plan.items.size());
    for (WriteItem& item : plan.items) item.name = names.intern(plan.names[item.name]);
    plan.names = std::move(names);
  }

  std::vector<SavePlan> plans_;
  const GlobalPlanOptions& options_;
  NameTable names_;                                          // of all ranks, in the order of first use
  std::vector<std::vector<std::uint32_t>> global_of_local_;  // by rank, then by its local name id
  std::vector<std::size_t> item_base_;                       // by rank: start of its items in fate_
  std::vector<std::uint32_t> fate_;
  std::vector<ItemId> grouped_;          // all items, by name, then rank, then order in the plan
  std::vector<std::size_t> group_base_;  // by name
  std::vector<Held> held_;               // scratch: items of the current name
  std::vector<Shared> shared_;           // by name, then by box
  std::vector<std::uint32_t> holder_ranks_;
  std::vector<std::uint32_t> holder_items_;
  Disagreements disagreements_;
  std::string difference_;  // GlobalSavePlan::differing_replicas
  std::size_t differing_names_ = 0;
  NameId last_differing_ = kNone;
  std::vector<std::uint64_t> load_bytes_;  // by rank
  Assignment assignment_;
  Metadata metadata_;
};

}  // namespace

GlobalSavePlan create_global_save_plan(std::vector<SavePlan> local_plans, const GlobalPlanOptions& options) {
  return GlobalPlanner(std::move(local_plans), options).run();
}

}  // namespace cairn
