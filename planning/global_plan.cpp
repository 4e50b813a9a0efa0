// Turns local plans into global ones in five steps: number the names of all ranks; join the items
// of each name and find the chunks that several ranks hold; choose a writer for each of those
// chunks; list the chunks in the metadata; cut every local plan down to the items that its rank
// writes.
#include <cairn/planning/global_plan.hpp>

#include <algorithm>
#include <limits>
#include <utility>

#include <cairn/base/cpu_share.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/parallel.hpp>
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
  GlobalPlanner(std::vector<SavePlan> plans, const GlobalPlanOptions& options) : plans_(std::move(plans)), options_(options) {}

  GlobalSavePlan run(unsigned threads) {
    number_names();
    if (threads == 0) threads = threads_for_items(fate_.size());
    join_names(threads);
    join_paths();
    joined_.disagreements.throw_if_any();
    assign();
    list_parts();
    for_each_in_parallel(threads, plans_.size(),
                         [&](std::size_t rank) { cut_plan(plans_[rank], fate_.data() + item_base_[rank]); });
    metadata_.reindex(names_);
    const std::size_t differing = joined_.differing_names;
    if (differing > 1)
      joined_.difference += "; and " + std::to_string(differing - 1) + (differing > 2 ? " other tensors" : " other tensor");
    return {std::move(plans_), std::move(metadata_), std::move(joined_.difference)};
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
  // A chunk or bytes object that several ranks hold: [begin, end) of holder_ranks and holder_items.
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
  // The results of step 2 for some names.
  struct Joined {
    explicit Joined(std::size_t ranks) : load_bytes(ranks, 0) {}

    std::vector<Held> held;      // scratch: items of the current name
    std::vector<Shared> shared;  // by name, then by box
    std::vector<std::uint32_t> holder_ranks;
    std::vector<std::uint32_t> holder_items;
    std::vector<std::uint64_t> load_bytes;  // by rank: the bytes that no other rank can write
    Disagreements disagreements;
    std::string difference;  // GlobalSavePlan::differing_replicas
    std::size_t differing_names = 0;
    NameId last_differing = kNone;
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

  // Joins ranges of names, with about as many items each, at the same time. Each item has one name,
  // so that no two threads change the fate of one item, or one entry of the metadata. The result
  // does not depend on the number of ranges.
  void join_names(unsigned threads) {
    metadata_.state_dict_metadata.resize(names_.size());
    std::vector<Joined> ranges(threads, Joined(plans_.size()));
    for_each_in_parallel(threads, threads, [&](std::size_t range) {
      const auto first_of = [&](std::size_t at) {
        const auto base = std::lower_bound(group_base_.begin(), group_base_.end() - 1, at * grouped_.size() / threads);
        return static_cast<NameId>(base - group_base_.begin());
      };
      for (NameId name = first_of(range); name < first_of(range + 1); ++name) join_name(name, ranges[range]);
    });
    for (Joined& range : ranges) append(std::move(range));
  }

  void append(Joined range) {
    const auto holders = static_cast<std::uint32_t>(joined_.holder_ranks.size());
    for (Shared& shared : range.shared) {
      shared.begin += holders;
      shared.end += holders;
    }
    const auto add = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
    add(joined_.shared, range.shared);
    add(joined_.holder_ranks, range.holder_ranks);
    add(joined_.holder_items, range.holder_items);
    for (std::size_t rank = 0; rank < plans_.size(); ++rank) joined_.load_bytes[rank] += range.load_bytes[rank];
    joined_.disagreements.append(range.disagreements);
    if (joined_.differing_names == 0) joined_.difference = std::move(range.difference);
    joined_.differing_names += range.differing_names;
  }

  void join_name(NameId name, Joined& joined) {
    gather(name, joined.held);
    // Before any comparison: the steps below assume boxes with as many dimensions as their
    // tensor.
    for (const Held& held : joined.held) validate(held, name);
    drop_or_report_disagreements(name, joined);
    if (joined.held.front().item->type == WriteItemType::kByteIO) {
      metadata_.state_dict_metadata[name] = {names_[name], BytesStorageMetadata{}};
      add_once(name, 0, 0, joined.held.size(), joined);
    } else {
      join_tensor(name, joined);
    }
  }

  // The items of a name are in as many places in memory as there are ranks. Prefetching them makes
  // planning as fast for many ranks as for few.
  void gather(NameId name, std::vector<Held>& held) const {
    constexpr std::size_t kAhead = 16;
    const std::size_t end = group_base_[name + 1];
    held.clear();
    for (std::size_t i = group_base_[name]; i < end; ++i) {
      if (i + kAhead < grouped_.size()) {
        const char* soon = reinterpret_cast<const char*>(&item_of(grouped_[i + kAhead]));
        for (std::size_t offset = 0; offset < sizeof(WriteItem); offset += 64) __builtin_prefetch(soon + offset);
      }
      held.push_back({&item_of(grouped_[i]), grouped_[i]});
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

  void drop_or_report_disagreements(NameId name, Joined& joined) const {
    std::vector<Held>& held = joined.held;
    const WriteItem& first = *held.front().item;
    const bool lowest_wins = options_.rank_values == RankValues::kLowestRankWins;
    bool disagree = false;
    bool shared_per_rank = false;
    for (std::size_t i = 1; i < held.size(); ++i) {
      const WriteItem& item = *held[i].item;
      if (!same_kind(first, item)) {
        disagree = true;
      } else if (first.type == WriteItemType::kByteIO && !lowest_wins) {
        disagree = disagree || first.content_hash != item.content_hash || first.content_bytes != item.content_bytes;
      }
      // A value that is marked per rank has the rank in its name. Two ranks with one such name
      // would overwrite each other.
      shared_per_rank = shared_per_rank || ((first.per_rank || item.per_rank) && held[i].id.rank != held[0].id.rank);
    }
    if (disagree && lowest_wins) {
      // Only whole values give way to the lowest rank's value. Parts of a tensor cannot.
      const auto gives_way = [&](const Held& one) {
        return !same_kind(first, *one.item) && one.item->type != WriteItemType::kShard && first.type != WriteItemType::kShard;
      };
      held.erase(std::remove_if(held.begin(), held.end(), gives_way), held.end());
      disagree = std::any_of(held.begin(), held.end(), [&](const Held& one) { return !same_kind(first, *one.item); });
    }
    if (!disagree && !shared_per_rank) return;
    std::vector<RankItem> items;
    for (const Held& one : held) items.push_back({static_cast<int>(one.id.rank), one.item});
    if (shared_per_rank) {
      joined.disagreements.add_shared_per_rank(names_[name], items);
    } else {
      joined.disagreements.add_values(names_[name], items);
    }
  }

  // Finds the distinct chunks of the tensor whose items are in held, and their holders.
  void join_tensor(NameId name, Joined& joined) {
    std::vector<Held>& held = joined.held;
    const WriteItem& first = *held.front().item;
    TensorStorageMetadata tensor;
    tensor.properties = first.properties;
    tensor.size = first.size;
    if (volume(first.size) > 0) {
      const auto is_empty = [](const Held& one) { return one.item->chunk.empty(); };
      held.erase(std::remove_if(held.begin(), held.end(), is_empty), held.end());
    } else {
      // PyTorch needs one chunk to load a tensor without elements. Any other chunk would be empty
      // too.
      const Box whole = Box::whole(first.size);
      const bool any_whole = std::any_of(held.begin(), held.end(), [&](const Held& one) { return one.item->chunk == whole; });
      const Box chosen = any_whole ? whole : first.chunk;
      held.erase(std::remove_if(held.begin(), held.end(), [&](const Held& one) { return one.item->chunk != chosen; }), held.end());
    }
    const auto before = [](const Held& a, const Held& b) { return a.item->chunk < b.item->chunk; };
    // Stable, so that the holders of one chunk stay ordered by rank.
    if (!std::is_sorted(held.begin(), held.end(), before)) std::stable_sort(held.begin(), held.end(), before);
    for (std::size_t begin = 0; begin < held.size();) {
      const WriteItem& item = *held[begin].item;
      std::size_t end = begin + 1;
      while (end < held.size() && held[end].item->chunk == item.chunk) ++end;
      // The first chunk's number of holders is a good guess for all.
      if (begin == 0) tensor.chunks.reserve(held.size() / end);
      add_once(name, tensor.chunks.size(), begin, end, joined);
      tensor.chunks.push_back(item.chunk);
      begin = end;
    }
    metadata_.state_dict_metadata[name] = {names_[name], std::move(tensor)};
  }

  // Returns whether ranks have different values of the chunk of held[begin, end).
  bool note_difference(NameId name, std::size_t begin, std::size_t end, Joined& joined) const {
    const std::vector<Held>& held = joined.held;
    std::uint64_t known = 0;
    bool differs = false;
    for (std::size_t i = begin; i < end; ++i) {
      const std::uint64_t hash = held[i].item->content_hash;
      if (known == 0) known = hash;
      differs = differs || (hash != 0 && hash != known);
    }
    if (!differs || joined.last_differing == name) return differs;
    joined.last_differing = name;
    if (++joined.differing_names > 1) return true;
    std::vector<RankItem> items;
    for (std::size_t i = begin; i < end; ++i)
      if (held[i].item->content_hash != 0) items.push_back({static_cast<int>(held[i].id.rank), held[i].item});
    joined.difference = describe_difference(names_[name], items);
    return true;
  }

  // Plans one write of the chunk or bytes object that all of held[begin, end), ordered by rank,
  // hold.
  void add_once(NameId name, std::size_t position, std::size_t begin, std::size_t end, Joined& joined) {
    const std::vector<Held>& held = joined.held;
    const WriteItem& item = *held[begin].item;
    const bool is_bytes = item.type == WriteItemType::kByteIO;
    // Counts bytes objects as 0: their sizes change between saves, and the plan must not depend on
    // anything that its digest leaves out.
    const std::uint64_t bytes = is_bytes ? 0 : item.payload_bytes();
    // One rank holds it. If that rank lists it several times, the first item is written and the
    // others keep the fate kDrop.
    if (held[begin].id.rank == held[end - 1].id.rank) {
      fate_of(held[begin].id) = is_bytes ? kKeepBytes : kKeep;
      joined.load_bytes[held[begin].id.rank] += bytes + kItemOverheadBytes;
      return;
    }
    Shared shared{};
    shared.name = name;
    shared.position = static_cast<std::uint32_t>(position);
    shared.begin = static_cast<std::uint32_t>(joined.holder_ranks.size());
    shared.bytes = bytes;
    // The pointer stays valid: plans_ is not changed before step 5.
    shared.chunk = is_bytes ? nullptr : &item.chunk;
    shared.lowest_only = (!is_bytes && note_difference(name, begin, end, joined)) || options_.dedup == Dedup::kLowestRank ||
                         (options_.rank_values == RankValues::kLowestRankWins && item.type != WriteItemType::kShard);
    for (std::size_t i = begin; i < end; ++i) {
      if (i > begin && held[i].id.rank == held[i - 1].id.rank) continue;  // a rank may list a chunk twice
      joined.holder_ranks.push_back(held[i].id.rank);
      joined.holder_items.push_back(held[i].id.index);
    }
    shared.end = static_cast<std::uint32_t>(joined.holder_ranks.size());
    joined.shared.push_back(shared);
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
          joined_.disagreements.add_paths(names_[name], static_cast<int>(whose[name]), paths[name], static_cast<int>(rank), path);
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
    replicas.reserve(joined_.shared.size());
    for (std::size_t i = 0; i < joined_.shared.size(); ++i) {
      const Shared& shared = joined_.shared[i];
      replicas.push_back({static_cast<std::uint32_t>(i), shared.bytes, shared.chunk, joined_.holder_ranks.data() + shared.begin,
                          shared.end - shared.begin, shared.lowest_only});
    }
    // Shared chunks fill up the ranks with fewer bytes.
    assignment_ = assign_replicas(std::move(replicas), joined_.load_bytes, options_.split_above_bytes);
    for (const Placed& placed : assignment_.placed) {
      Shared& shared = joined_.shared[placed.id];
      // The pointer stays valid: assignment_.placed does not grow any more.
      shared.placed = &placed;
      for (std::uint32_t p = placed.begin; p < placed.end; ++p) {
        const std::uint32_t holder = shared.begin + assignment_.placements[p].holder;
        fate_of({joined_.holder_ranks[holder], joined_.holder_items[holder]}) = placed.split   ? kFirstPart + p
                                                                                : shared.chunk ? kKeep
                                                                                               : kKeepBytes;
      }
    }
  }

  // --- step 4 ------------------------------------------------------------------------------------

  // The metadata lists chunks as they are written: replaces each split chunk by its parts.
  void list_parts() {
    for (std::size_t begin = 0; begin < joined_.shared.size();) {
      std::size_t end = begin;
      bool any_split = false;
      for (; end < joined_.shared.size() && joined_.shared[end].name == joined_.shared[begin].name; ++end)
        any_split = any_split || joined_.shared[end].placed->split;
      if (any_split) {
        auto& chunks = std::get<TensorStorageMetadata>(metadata_.state_dict_metadata[joined_.shared[begin].name].second).chunks;
        std::vector<Box> parts;
        std::size_t done = 0;
        for (std::size_t i = begin; i < end; ++i) {
          const Placed& placed = *joined_.shared[i].placed;
          if (!placed.split) continue;
          // Shared chunks are ordered by position, so the chunks between two split ones are copied
          // once.
          parts.insert(parts.end(), chunks.begin() + static_cast<std::ptrdiff_t>(done),
                       chunks.begin() + joined_.shared[i].position);
          for (std::uint32_t p = placed.begin; p < placed.end; ++p) parts.push_back(assignment_.placements[p].part);
          done = joined_.shared[i].position + 1;
        }
        parts.insert(parts.end(), chunks.begin() + static_cast<std::ptrdiff_t>(done), chunks.end());
        chunks = std::move(parts);
      }
      begin = end;
    }
  }

  // --- step 5 ------------------------------------------------------------------------------------

  // Leaves a plan that is written as it is to share its items with the local one.
  void cut_plan(SavePlan& plan, const std::uint32_t* fate) {
    const CopyOnWriteVector<WriteItem> local = plan.items;
    const std::uint32_t* const end = fate + local.size();
    const std::uint32_t* const tensors_end = end - std::count(fate, end, kKeepBytes);
    if (std::count(fate, tensors_end, kKeep) == tensors_end - fate) return;  // the rest can only be its bytes objects
    // Bytes objects go to the end of a file: their lengths are known only after they are
    // serialised, and the offsets of tensors must not depend on them.
    std::vector<WriteItem> items, bytes_objects;
    items.reserve(local.size() - static_cast<std::size_t>(std::count(fate, end, kDrop)));
    for (std::size_t i = 0; i < local.size(); ++i) {
      if (fate[i] == kDrop) continue;
      if (fate[i] == kKeepBytes) {
        bytes_objects.push_back(local[i]);
        continue;
      }
      items.push_back(local[i]);
      if (fate[i] >= kFirstPart) items.back().chunk = std::move(assignment_.placements[fate[i] - kFirstPart].part);
    }
    items.insert(items.end(), bytes_objects.begin(), bytes_objects.end());
    plan.items = std::move(items);
  }

  std::vector<SavePlan> plans_;
  const GlobalPlanOptions& options_;
  NameTable names_;                                          // of all ranks, in the order of first use
  std::vector<std::vector<std::uint32_t>> global_of_local_;  // by rank, then by its local name id
  std::vector<std::size_t> item_base_;                       // by rank: start of its items in fate_
  std::vector<std::uint32_t> fate_;
  std::vector<ItemId> grouped_;          // all items, by name, then rank, then order in the plan
  std::vector<std::size_t> group_base_;  // by name
  Joined joined_{plans_.size()};         // of all names
  Assignment assignment_;
  Metadata metadata_;
};

}  // namespace

unsigned threads_for_items(std::size_t items) {
  constexpr std::size_t kItemsMin = 1 << 15;  // take longer to plan than threads to start
  return items < kItemsMin ? 1 : cpu_share();
}

std::vector<std::shared_ptr<const PlanPart>> parts_of_plans(const std::vector<std::shared_ptr<const SavePlan>>& local,
                                                            const std::vector<std::shared_ptr<const SavePlan>>& global) {
  std::size_t items = 0;
  for (const auto& plan : global) items += plan->items.size();
  std::vector<std::shared_ptr<const PlanPart>> parts(global.size());
  for_each_in_parallel(threads_for_items(items), global.size(), [&](std::size_t rank) {
    if (auto part = part_of_plan(*local[rank], *global[rank])) parts[rank] = std::make_shared<const PlanPart>(*std::move(part));
  });
  return parts;
}

GlobalSavePlan create_global_save_plan(std::vector<SavePlan> local_plans, const GlobalPlanOptions& options, unsigned threads) {
  return GlobalPlanner(std::move(local_plans), options).run(threads);
}

}  // namespace cairn
