#include <cairn/state/tensor_memory.hpp>

#include <algorithm>
#include <numeric>
#include <tuple>

#include <c10/util/SmallVector.h>

namespace cairn {
namespace {

// `data()` of a const storage does not copy memory that is shared until it is written.
std::uintptr_t address_of(const torch::Tensor& tensor) {
  const c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  return reinterpret_cast<std::uintptr_t>(storage->data());
}

struct Loop {
  std::uint64_t stride = 0;  // bytes
  std::uint64_t count = 0;
  bool operator==(const Loop& other) const { return stride == other.stride && count == other.count; }
};

// The bytes of a tensor, whatever the order of its dimensions and the type of its elements: runs of
// `run` bytes, repeated by loops, outermost first.
struct ByteLayout {
  explicit ByteLayout(const torch::Tensor& tensor) : run(tensor.element_size()) {
    for (std::int64_t dim = 0; dim < tensor.dim(); ++dim)
      if (tensor.size(dim) > 1)
        loops.push_back({static_cast<std::uint64_t>(tensor.stride(dim)) * run, static_cast<std::uint64_t>(tensor.size(dim))});
    std::sort(loops.begin(), loops.end(), [](const Loop& a, const Loop& b) { return a.stride < b.stride; });
    std::uint64_t extent = run;  // from the first to the last byte of the loops so far
    std::size_t kept = 0;
    for (const Loop loop : loops) {
      may_overlap = may_overlap || loop.stride < extent;
      extent += loop.stride * (loop.count - 1);
      if (kept == 0 && loop.stride == run)
        run *= loop.count;
      else if (kept > 0 && loop.stride == loops[kept - 1].stride * loops[kept - 1].count)
        loops[kept - 1].count *= loop.count;
      else
        loops[kept++] = loop;
    }
    loops.resize(kept);
    std::reverse(loops.begin(), loops.end());
  }
  bool operator==(const ByteLayout& other) const { return run == other.run && loops == other.loops; }

  std::uint64_t run;
  c10::SmallVector<Loop, 6> loops;
  bool may_overlap = false;  // whether bytes may belong to several elements
};

// A tensor and its addresses.
struct Used {
  std::uint64_t device = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::size_t tensor = 0;
};

// One bit for each unit of a range of addresses.
class Marks {
 public:
  Marks(std::uint64_t begin, std::uint64_t end, std::uint64_t unit)
      : begin_(begin), unit_(unit), words_(static_cast<std::size_t>((end - begin) / unit / 64 + 1)) {}

  // Marks the bytes of a tensor. Stops and returns false at the first that is marked already.
  bool add(const ByteLayout& layout, std::uint64_t at, std::size_t level = 0) {
    if (level == layout.loops.size()) return add_run((at - begin_) / unit_, layout.run / unit_);
    for (std::uint64_t i = 0; i < layout.loops[level].count; ++i, at += layout.loops[level].stride)
      if (!add(layout, at, level + 1)) return false;
    return true;
  }

 private:
  bool add_run(std::uint64_t first, std::uint64_t count) {
    while (count > 0) {
      const std::uint64_t bits = std::min(count, 64 - first % 64);
      const std::uint64_t mask = ~std::uint64_t{0} >> (64 - bits) << first % 64;
      std::uint64_t& word = words_[static_cast<std::size_t>(first / 64)];
      if ((word & mask) != 0) return false;
      word |= mask;
      first += bits;
      count -= bits;
    }
    return true;
  }

  const std::uint64_t begin_;
  const std::uint64_t unit_;
  std::vector<std::uint64_t> words_;
};

// Examines tensors whose address ranges intersect, sorted by range.
void find_in(const Used* begin, const Used* end, const std::vector<torch::Tensor>& tensors, std::vector<SharedMemory>& found) {
  struct Distinct {
    const Used* used;
    ByteLayout layout;
  };
  std::vector<Distinct> all;
  std::uint64_t unit = 0;
  std::uint64_t reach = 0;
  for (const Used* used = begin; used != end; ++used) {
    const ByteLayout layout(tensors[used->tensor]);
    const auto has_other_range = [&](const Distinct& it) { return it.used->begin != used->begin || it.used->end != used->end; };
    const auto last = std::find_if(all.rbegin(), all.rend(), has_other_range);
    const auto same = std::find_if(all.rbegin(), last, [&](const Distinct& it) { return it.layout == layout; });
    if (same != last) {
      found.push_back({same->used->tensor, used->tensor, true});
      continue;
    }
    unit = std::gcd(unit, std::gcd(used->begin - begin->begin, layout.run));
    for (const Loop& loop : layout.loops) unit = std::gcd(unit, loop.stride);
    reach = std::max(reach, used->end);
    all.push_back({used, layout});
  }
  if (all.size() == 1 && !all[0].layout.may_overlap) return;

  Marks marks(begin->begin, reach, unit);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Distinct& it = all[i];
    if (marks.add(it.layout, it.used->begin)) continue;
    // Finds the other one, which may be the tensor itself.
    const auto meets = [&](std::size_t other) {
      Marks both(begin->begin, reach, unit);
      if (other != i && all[other].used->end <= it.used->begin) return false;
      if (other != i) both.add(all[other].layout, all[other].used->begin);
      return !both.add(it.layout, it.used->begin);
    };
    std::size_t other = i;
    if (!it.layout.may_overlap || !meets(i))
      for (other = 0; other < i && !meets(other);) ++other;
    found.push_back(
        {std::min(all[other].used->tensor, it.used->tensor), std::max(all[other].used->tensor, it.used->tensor), false});
  }
}

}  // namespace

StorageRange storage_range(const torch::Tensor& tensor) {
  const auto element = static_cast<std::uint64_t>(tensor.element_size());
  const std::uint64_t begin = static_cast<std::uint64_t>(tensor.storage_offset()) * element;
  if (tensor.numel() == 0) return {begin, begin};
  std::uint64_t last = 0;
  // LibTorch's strides are never negative.
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim)
    last += static_cast<std::uint64_t>((tensor.size(dim) - 1) * tensor.stride(dim));
  return {begin, begin + (last + 1) * element};
}

std::string why_without_memory(const torch::Tensor& tensor) {
  if (tensor.numel() == 0) return "";
  const std::uint64_t needed = storage_range(tensor).end;
  const std::uint64_t held = address_of(tensor) == 0 ? 0 : tensor.storage().nbytes();
  if (held >= needed) return "";
  return "has a storage of " + std::to_string(held) + " bytes, but its elements need " + std::to_string(needed) +
         ": the storage was freed or shrunk";
}

void count_change(const torch::Tensor& tensor) {
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

std::vector<SharedMemory> find_shared_memory(const std::vector<torch::Tensor>& tensors) {
  std::vector<Used> used;
  used.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].numel() == 0) continue;
    const StorageRange range = storage_range(tensors[i]);
    const c10::Device device = tensors[i].device();
    const std::uint64_t index = device.has_index() ? static_cast<std::uint64_t>(device.index()) : 0;  // the CPU has none
    const std::uint64_t address = address_of(tensors[i]);
    used.push_back({static_cast<std::uint64_t>(device.type()) << 32 | index, address + range.begin, address + range.end, i});
  }
  std::sort(used.begin(), used.end(), [](const Used& a, const Used& b) {
    return std::tie(a.device, a.begin, a.end, a.tensor) < std::tie(b.device, b.begin, b.end, b.tensor);
  });
  std::vector<SharedMemory> found;
  for (std::size_t first = 0, next = 0; first < used.size(); first = next) {
    std::uint64_t reach = used[first].end;
    for (next = first + 1; next < used.size() && used[next].device == used[first].device && used[next].begin < reach; ++next)
      reach = std::max(reach, used[next].end);
    if (next - first > 1 || !tensors[used[first].tensor].unsafeGetTensorImpl()->is_non_overlapping_and_dense())
      find_in(&used[first], &used[first] + (next - first), tensors, found);
  }
  return found;
}

}  // namespace cairn
