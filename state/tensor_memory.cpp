#include <cairn/state/tensor_memory.hpp>

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>

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
// `run` bytes, repeated by loops, innermost first.
struct ByteLayout {
  explicit ByteLayout(const torch::Tensor& tensor) : run(tensor.element_size()) {
    c10::SmallVector<Loop, 6> all;
    for (std::int64_t dim = 0; dim < tensor.dim(); ++dim)
      if (tensor.size(dim) > 1)
        all.push_back({static_cast<std::uint64_t>(tensor.stride(dim)) * run, static_cast<std::uint64_t>(tensor.size(dim))});
    std::sort(all.begin(), all.end(), [](const Loop& a, const Loop& b) { return a.stride < b.stride; });
    std::uint64_t extent = run;  // from the first to the last byte of the loops so far
    for (const Loop loop : all) {
      is_interleaved = is_interleaved || loop.stride < extent;
      extent += loop.stride * (loop.count - 1);
      if (loops.empty() && loop.stride == run)
        run *= loop.count;
      else if (!loops.empty() && loop.stride == loops.back().stride * loops.back().count)
        loops.back().count *= loop.count;
      else
        loops.push_back(loop);
    }
    for (const Loop loop : loops) runs *= loop.count;
  }
  bool operator==(const ByteLayout& other) const { return run == other.run && loops == other.loops; }

  // Returns where a run begins.
  std::uint64_t offset(std::uint64_t index) const {
    std::uint64_t offset = 0;
    for (const Loop loop : loops) {
      offset += index % loop.count * loop.stride;
      index /= loop.count;
    }
    return offset;
  }

  std::uint64_t run;
  std::uint64_t runs = 1;
  c10::SmallVector<Loop, 6> loops;
  bool is_interleaved = false;  // runs do not ascend: nearly always, bytes belong to several elements
};

// A tensor and its addresses.
struct Used {
  std::uint64_t device = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::size_t tensor = 0;
};

// A tensor whose runs are passed in ascending order.
struct Passed {
  std::uint64_t next_begin() { return used->begin + layout.offset(next++); }

  const Used* used;
  ByteLayout layout;
  std::uint64_t next = 0;
  bool is_found = false;
};

// Examines tensors whose address ranges intersect, sorted by range.
void find_in(const Used* begin, const Used* end, const std::vector<torch::Tensor>& tensors, std::vector<SharedMemory>& found) {
  std::vector<Passed> all;
  for (const Used* used = begin; used != end; ++used) {
    ByteLayout layout(tensors[used->tensor]);
    const auto has_range = [&](const Passed& it) { return it.used->begin == used->begin && it.used->end == used->end; };
    const auto same =
        std::find_if(all.rbegin(), all.rend(), [&](const Passed& it) { return !has_range(it) || it.layout == layout; });
    if (same != all.rend() && has_range(*same))
      found.push_back({same->used->tensor, used->tensor, true});
    else if (layout.is_interleaved)
      found.push_back({used->tensor, used->tensor, false});
    else
      all.push_back({used, std::move(layout)});
  }
  if (all.size() < 2) return;

  using Run = std::pair<std::uint64_t, Passed*>;  // the begin
  std::priority_queue<Run, std::vector<Run>, std::greater<>> runs;
  for (Passed& passed : all) runs.emplace(passed.next_begin(), &passed);
  std::uint64_t reach = 0;  // the highest end of the runs so far
  Passed* last = nullptr;   // the tensor that reaches there
  while (!runs.empty()) {
    const auto [at, passed] = runs.top();
    runs.pop();
    if (at < reach && !(passed->is_found && last->is_found)) {
      const auto [first, second] = std::minmax(passed->used->tensor, last->used->tensor);
      found.push_back({first, second, false});
      passed->is_found = last->is_found = true;
    }
    if (at + passed->layout.run > reach) {
      reach = at + passed->layout.run;
      last = passed;
    }
    if (passed->next < passed->layout.runs) runs.emplace(passed->next_begin(), passed);
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
    if (next - first > 1 || !tensors[used[first].tensor].is_non_overlapping_and_dense())
      find_in(&used[first], &used[first] + (next - first), tensors, found);
  }
  return found;
}

}  // namespace cairn
