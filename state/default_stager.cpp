#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <cairn/base/cpu_share.hpp>
#include <cairn/base/digest.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/parallel.hpp>
#include <cairn/state/device_copies.hpp>
#include <cairn/state/staged_values.hpp>
#include <cairn/state/staging.hpp>
#include <cairn/state/staging_pool.hpp>
#include <cairn/state/tensor_memory.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/storage/engine/staging_memory.hpp>

namespace cairn {
namespace {

constexpr std::uint64_t kRegionAlignmentBytes = 64;  // a cache line, and more than any element

std::uint64_t aligned_up(std::uint64_t bytes) {
  return (bytes + kRegionAlignmentBytes - 1) / kRegionAlignmentBytes * kRegionAlignmentBytes;
}

// Passes on other tensors unchanged, such as sparse ones and those whose storage was freed.
// Planning refuses them with a better error.
bool can_be_staged(const torch::Tensor& tensor) {
  return why_not_storable(tensor).empty();
}

// A part of a storage that is copied without change.
struct StagedRegion {
  c10::Storage storage;
  c10::Device device = c10::kCPU;
  const char* memory = nullptr;  // the storage's memory when staging began
  StorageRange bytes;
  std::string name;  // name of a tensor in it
  bool pinned = false;
  std::uint64_t position = 0;  // in the memory block of its kind
  std::uint64_t length() const { return bytes.length(); }
};

struct Leaf {
  torch::Tensor tensor;
  std::string name;
  std::size_t region = 0;
  bool is_staged = false;  // false: it has no bytes or cannot be copied
};

// A copy out of a device's memory into memory that is not page-locked.
struct PageableCopy {
  torch::Tensor from;  // bytes
  char* to = nullptr;
  std::shared_ptr<const GivenWork> after;  // of the device
};

// Performs the copies in several threads, each through a small page-locked block of its own: a
// device writes to such blocks much faster than to other memory.
void copy_through_blocks(const std::vector<PageableCopy>& copies, unsigned threads) {
  constexpr std::int64_t kBlockBytes = 4 << 20;
  std::vector<PageableCopy> parts;
  for (const PageableCopy& copy : copies)
    for (std::int64_t at = 0; at < copy.from.numel(); at += kBlockBytes)
      parts.push_back({copy.from.narrow(0, at, std::min(kBlockBytes, copy.from.numel() - at)), copy.to + at, copy.after});
  std::atomic<std::size_t> next{0};
  std::atomic<bool> failed{false};
  threads = static_cast<unsigned>(std::min<std::size_t>(threads, parts.size()));
  for_each_in_parallel(threads, threads, [&](std::size_t) {
    const torch::NoGradGuard no_grad;
    const StagingMemory memory(static_cast<std::uint64_t>(kBlockBytes));
    memory.lock();
    try {
      for (std::size_t i = next++; i < parts.size() && !failed; i = next++) {
        const std::int64_t bytes = parts[i].from.numel();
        OwnStream stream(parts[i].from.device(), *parts[i].after);
        torch::from_blob(memory.data(), {bytes}, torch::kUInt8).copy_(parts[i].from);
        std::memcpy(parts[i].to, memory.data(), static_cast<std::size_t>(bytes));
      }
    } catch (...) {
      failed = true;
      throw;
    }
  });
}

const char* memory_of(const c10::Storage& storage) { return static_cast<const char*>(storage.unsafeGetStorageImpl()->data()); }

// The position of all data in the copy.
struct Layout {
  std::vector<Leaf> leaves;  // in the order in which `replace_tensors` visits them
  std::vector<StagedRegion> regions;
  std::uint64_t plain_bytes = 0;
  std::uint64_t pinned_bytes = 0;
  Digest digest{};  // of names, shapes, strides, dtypes and positions
};

// Returns the regions of one storage: a single region if the used bytes make up half of the whole
// range, otherwise one region for each part without gaps.
std::vector<StorageRange> regions_of(std::vector<StorageRange> used) {
  std::sort(used.begin(), used.end(), [](const StorageRange& a, const StorageRange& b) { return a.begin < b.begin; });
  std::vector<StorageRange> joined;
  std::uint64_t covered = 0;
  for (const StorageRange& interval : used) {
    if (!joined.empty() && interval.begin <= joined.back().end)
      joined.back().end = std::max(joined.back().end, interval.end);
    else
      joined.push_back(interval);
  }
  for (const StorageRange& interval : joined) covered += interval.length();
  const StorageRange whole{joined.front().begin, joined.back().end};
  if (2 * covered >= whole.length()) joined = {whole};
  // Elements of every type keep their alignment in the copy.
  for (StorageRange& interval : joined) interval.begin -= interval.begin % kRegionAlignmentBytes;
  return joined;
}

// Visits the tensors in the order of replace_tensors. The constructor of DefaultStaging relies on
// that order to find each tensor's copy.
void find_leaves(const StateDict& state, Layout& layout) {
  Value all{StateDict(state)};
  replace_tensors(all, "", [&](const std::string& name, const torch::Tensor& tensor) {
    Leaf leaf;
    leaf.name = name;
    leaf.tensor = tensor;
    if (can_be_staged(tensor)) {
      // The copy is made of bytes. Lazy conjugations and negations are flags of the tensor, which
      // bytes do not have.
      leaf.tensor = tensor.resolve_conj().resolve_neg();
      leaf.is_staged = tensor.numel() != 0;
    }
    layout.leaves.push_back(std::move(leaf));
    return tensor;
  });
}

void place_regions(Layout& layout, bool pin) {
  // First all uses of each storage: its regions depend on every tensor that lies in it.
  std::unordered_map<const c10::StorageImpl*, std::vector<StorageRange>> used;
  for (const Leaf& leaf : layout.leaves)
    if (leaf.is_staged) used[leaf.tensor.storage().unsafeGetStorageImpl()].push_back(storage_range(leaf.tensor));

  std::unordered_map<const c10::StorageImpl*, std::vector<std::pair<StorageRange, std::size_t>>> made;
  for (Leaf& leaf : layout.leaves) {
    if (!leaf.is_staged) continue;
    const c10::StorageImpl* const storage = leaf.tensor.storage().unsafeGetStorageImpl();
    auto& regions = made[storage];
    if (regions.empty()) {
      for (const StorageRange& interval : regions_of(used[storage])) {
        regions.emplace_back(interval, layout.regions.size());
        StagedRegion region;
        region.storage = leaf.tensor.storage();
        region.device = leaf.tensor.device();
        region.memory = memory_of(region.storage);
        region.bytes = interval;
        region.name = leaf.name;
        // Host memory is copied by the processor, which gains nothing from page-locked memory.
        region.pinned = pin && leaf.tensor.is_cuda();
        std::uint64_t& bytes = region.pinned ? layout.pinned_bytes : layout.plain_bytes;
        region.position = bytes;
        bytes += aligned_up(region.length());
        layout.regions.push_back(std::move(region));
      }
    }
    const StorageRange wanted = storage_range(leaf.tensor);
    for (const auto& [interval, index] : regions)
      if (interval.begin <= wanted.begin && wanted.end <= interval.end) leaf.region = index;
  }
}

Digest digest_of(const Layout& layout) {
  // Leaves out addresses: memory of the same layout can be reused for other tensors.
  DigestBuilder digest;
  for (const Leaf& leaf : layout.leaves) {
    digest.add(ByteSpan(leaf.name)).add(std::uint64_t{leaf.is_staged});
    if (!leaf.is_staged) continue;
    digest.add(static_cast<std::uint64_t>(leaf.tensor.scalar_type())).add(static_cast<std::uint64_t>(leaf.tensor.dim()));
    for (const auto size : leaf.tensor.sizes()) digest.add(size);
    for (const auto stride : leaf.tensor.strides()) digest.add(stride);
    digest.add(std::uint64_t{leaf.region});
  }
  for (const StagedRegion& region : layout.regions) digest.add(std::uint64_t{region.pinned}).add(region.length());
  return digest.finish();
}

Layout layout_of(const StateDict& state, const StagingOptions& options) {
  return with_torch("stage a state", [&] {
    Layout layout;
    find_leaves(state, layout);
    place_regions(layout, options.use_pinned_memory && uses_cuda());
    layout.digest = digest_of(layout);
    return layout;
  });
}

// Returns a region's bytes in the copy. The tensor keeps the memory alive.
torch::Tensor bytes_at(const std::shared_ptr<const StagingMemory>& memory, const StagedRegion& region) {
  return torch::from_blob(
      memory->data() + region.position, {static_cast<std::int64_t>(region.length())}, [memory](void*) {}, torch::kUInt8);
}

torch::Tensor copy_of(const Leaf& leaf, const StagedRegion& region, const torch::Tensor& bytes) {
  // In elements. A region begins at a multiple of kRegionAlignmentBytes, which is a multiple of
  // every element size.
  const auto offset = leaf.tensor.storage_offset() -
                      static_cast<std::int64_t>(region.bytes.begin) / static_cast<std::int64_t>(leaf.tensor.element_size());
  torch::Tensor copy = torch::empty({0}, torch::TensorOptions(leaf.tensor.scalar_type()));
  copy.set_(bytes.storage(), offset, leaf.tensor.sizes(), leaf.tensor.strides());
  return copy;
}

// A copy in two steps. The constructor starts the copies out of devices' memory; `finish` copies
// host memory and waits for both.
class DefaultStaging final : public Staging {
 public:
  DefaultStaging(const StateDict& state, Layout layout, const std::shared_ptr<const StagingMemory>& plain,
                 const std::shared_ptr<const StagingMemory>& pinned)
      : layout_(std::move(layout)) {
    for (const StagedRegion& region : layout_.regions) bytes_.push_back(bytes_at(region.pinned ? pinned : plain, region));
    // Before the structure is copied, so that the devices are busy meanwhile.
    if (!pinned || pinned->is_locked())
      begin_device_copies(pinned);
    else
      begin_pageable_copies();
    Value whole{StateDict(state)};
    copy_plain_values(whole);
    std::size_t next = 0;
    replace_tensors(whole, "", [&](const std::string&, const torch::Tensor& tensor) {
      const Leaf& leaf = layout_.leaves[next++];
      if (!leaf.is_staged) {
        if (!can_be_staged(tensor)) return tensor;
        return tensor.detach().to(torch::kCPU, /*non_blocking=*/false, /*copy=*/true).requires_grad_(tensor.requires_grad());
      }
      return copy_of(leaf, layout_.regions[leaf.region], bytes_[leaf.region]).requires_grad_(tensor.requires_grad());
    });
    copy_ = std::move(whole.dict());
  }

  StateDict finish() override {
    // Before the copy, because a resize may have freed the memory to read. Again after it, because
    // a resize may have happened meanwhile.
    for (const StagedRegion& region : layout_.regions) check_unchanged(region);
    copy_host_memory();
    with_torch("copy tensors out of devices' memory", [&] {
      // Few threads beside the trainer's operations.
      if (!pageable_.empty())
        copy_through_blocks(std::exchange(pageable_, {}), std::this_thread::get_id() == begun_on_ ? cpu_share() : 2);
      copies_.wait();
    });
    for (const StagedRegion& region : layout_.regions) check_unchanged(region);
    // Releases the caller's tensors as early as possible.
    layout_ = {};
    bytes_.clear();
    return std::move(copy_);
  }

 private:
  void begin_pageable_copies() {
    std::map<c10::DeviceIndex, std::shared_ptr<const GivenWork>> given;
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      const StagedRegion& region = layout_.regions[i];
      if (!region.pinned && !region.device.is_cpu()) copies_.add(source_of(region), bytes_[i]);
      if (!region.pinned) continue;
      std::shared_ptr<const GivenWork>& after = given[region.device.index()];
      if (!after) after = std::make_shared<const GivenWork>(region.device);
      pageable_.push_back({source_of(region), static_cast<char*>(bytes_[i].data_ptr()), after});
    }
  }

  // Copies small adjacent regions together.
  void begin_device_copies(const std::shared_ptr<const StagingMemory>& pinned) {
    const auto& regions = layout_.regions;
    const auto is_small = [&](std::size_t i) { return regions[i].pinned && regions[i].length() <= kJoinedRegionMaxBytes; };
    for (std::size_t i = 0; i < regions.size();) {
      const std::size_t first = i++;
      if (regions[first].device.is_cpu()) continue;
      while (i < regions.size() && is_small(first) && is_small(i) && regions[i].device == regions[first].device &&
             regions[i].position == regions[i - 1].position + aligned_up(regions[i - 1].length()) &&
             regions[i].position + regions[i].length() - regions[first].position <= kJoinedMaxBytes)
        ++i;
      if (i - first == 1) {
        copies_.add(source_of(regions[first]), bytes_[first]);
        continue;
      }
      std::vector<torch::Tensor> parts;
      std::vector<std::int64_t> gaps;
      for (std::size_t part = first; part < i; ++part) {
        parts.push_back(source_of(regions[part]));
        const std::uint64_t end = regions[part].position + regions[part].length();
        gaps.push_back(part + 1 == i ? 0 : static_cast<std::int64_t>(regions[part + 1].position - end));
      }
      torch::Tensor joined = torch::from_blob(
          pinned->data() + regions[first].position,
          {static_cast<std::int64_t>(regions[i - 1].position + regions[i - 1].length() - regions[first].position)},
          [pinned](void*) {}, torch::kUInt8);
      copies_.add_joined(parts, gaps, joined);
    }
  }

  // On the caller's thread, copies with LibTorch's threads. On a save's own thread, copies without
  // them, because the trainer's operations need them.
  void copy_host_memory() {
    std::vector<std::size_t> regions;
    std::vector<std::uint64_t> ends;  // end of each region if all were concatenated
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      if (!layout_.regions[i].device.is_cpu()) continue;
      regions.push_back(i);
      ends.push_back((ends.empty() ? 0 : ends.back()) + layout_.regions[i].length());
    }
    // Pieces are cut from the regions as if they were concatenated, so that threads get equal work
    // whatever the sizes of tensors.
    const auto copy = [&](std::int64_t begin, std::int64_t end) {
      auto next =
          static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), static_cast<std::uint64_t>(begin)) - ends.begin());
      for (auto at = static_cast<std::uint64_t>(begin); at < static_cast<std::uint64_t>(end); ++next) {
        const StagedRegion& region = layout_.regions[regions[next]];
        const std::uint64_t first = at - (ends[next] - region.length());
        const std::uint64_t length = std::min<std::uint64_t>(region.length() - first, static_cast<std::uint64_t>(end) - at);
        std::memcpy(static_cast<char*>(bytes_[regions[next]].data_ptr()) + first, region.memory + region.bytes.begin + first,
                    length);
        at += length;
      }
    };
    if (ends.empty()) return;
    const auto total = static_cast<std::int64_t>(ends.back());
    if (std::this_thread::get_id() == begun_on_)
      at::parallel_for(0, total, kGrainBytes, copy);
    else
      copy(0, total);
  }

  static torch::Tensor source_of(const StagedRegion& region) {
    torch::Tensor source = torch::empty({0}, torch::TensorOptions(torch::kUInt8).device(region.device));
    source.set_(region.storage, static_cast<std::int64_t>(region.bytes.begin), {static_cast<std::int64_t>(region.length())}, {1});
    return source;
  }

  static void check_unchanged(const StagedRegion& region) {
    if (memory_of(region.storage) == region.memory && region.storage.nbytes() >= region.bytes.end) return;
    throw Error(ErrorCode::kPrecondition,
                "\"" + region.name + "\" was resized while it was being staged: call wait_staged() before changing the state");
  }

  static constexpr std::uint64_t kJoinedRegionMaxBytes = 4 << 20;  // a larger region is copied just as fast on its own
  static constexpr std::uint64_t kJoinedMaxBytes = 64 << 20;       // device memory for a joined copy, held until it is done
  static constexpr std::int64_t kGrainBytes = 4 << 20;             // smaller pieces are not worth another thread

  const std::thread::id begun_on_ = std::this_thread::get_id();
  Layout layout_;
  std::vector<torch::Tensor> bytes_;  // by region
  StateDict copy_;
  std::vector<PageableCopy> pageable_;  // performed by `finish`
  DeviceCopies copies_;  // last, so destroyed first
};

// Copies no tensors. The writer copies them through its own bounded memory.
class StreamingStaging final : public Staging {
 public:
  explicit StreamingStaging(StateDict state) : state_(std::move(state)) {}
  StateDict finish() override { return std::move(state_); }

 private:
  StateDict state_;
};

}  // namespace

struct DefaultStager::Implementation {
  struct Memory {
    std::shared_ptr<const StagingMemory> plain;
    std::shared_ptr<const StagingMemory> pinned;
  };

  // A changed layout frees the kept memory first, so that old and new are not held at the same
  // time.
  Memory take(const Layout& layout, Locking locking) {
    if (options.cache_staged_state_dict && known && *known != layout.digest && pool->release()) tell("staging memory is made anew");
    known = layout.digest;
    Memory memory;
    if (layout.plain_bytes != 0) memory.plain = pool->take(layout.plain_bytes, Locking::kNever);
    if (layout.pinned_bytes != 0) memory.pinned = pool->take(layout.pinned_bytes, locking);
    if (memory.pinned && !memory.pinned->is_locked() && locking == Locking::kNow)
      tell("staging memory is not page-locked, as there is none to be had");
    return memory;
  }
  void tell(std::string_view what) const {
    if (note) note(what);
  }

  const StagingOptions options;
  const std::function<void(std::string_view)> note;
  const std::shared_ptr<StagingPool> pool;
  std::optional<Digest> known;  // of the last state
};

DefaultStager::DefaultStager(StagingOptions options, std::function<void(std::string_view)> note)
    : implementation_(new Implementation{
          options, std::move(note), std::make_shared<StagingPool>(options.bytes_max, options.cache_staged_state_dict), {}}) {}

// Memory that saves in flight give back later is freed at once.
DefaultStager::~DefaultStager() {
  if (implementation_) implementation_->pool->release();
}

std::unique_ptr<Staging> DefaultStager::begin(const StateDict& state) {
  // Copies are no operations of the model: autograd must not record them.
  const torch::NoGradGuard no_grad;
  Layout layout = layout_of(state, implementation_->options);
  const auto memory = implementation_->take(layout, Locking::kLater);
  return with_torch("stage a state", [&]() -> std::unique_ptr<Staging> {
    return std::make_unique<DefaultStaging>(state, std::move(layout), memory.plain, memory.pinned);
  });
}

// Does nothing without `cache_staged_state_dict`, because then no memory is kept.
void DefaultStager::prepare(const StateDict& state) {
  const torch::NoGradGuard no_grad;
  if (!implementation_->options.cache_staged_state_dict) return;
  const auto memory = implementation_->take(layout_of(state, implementation_->options), Locking::kNow);
  // Touch the pages now, so that the first save need not wait for them.
  if (memory.plain) std::memset(memory.plain->data(), 0, memory.plain->bytes());
}

void DefaultStager::release() { implementation_->pool->release(); }

std::uint64_t DefaultStager::bytes_held() const { return implementation_->pool->bytes_held(); }

std::unique_ptr<Staging> StreamingStager::begin(const StateDict& state) {
  Value whole{StateDict(state)};
  // Plain values are small, and the trainer may change them before the writer reads them.
  copy_plain_values(whole);
  return std::make_unique<StreamingStaging>(std::move(whole.dict()));
}

}  // namespace cairn
