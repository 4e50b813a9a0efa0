// Checks whether chunks tile a tensor.
//
// A region is cut wherever no chunk crosses the cut, one dimension at a time, until each part holds
// at most one chunk. The uncovered rest of a part is a gap with exact bounds. The usual layouts
// (splits along some dimensions, device meshes) separate completely, in O(n log n). Other chunks
// overlap, or interlock like the blades of a pinwheel. A sweep along one dimension compares each of
// those with the chunks that the sweep line crosses. The sum of their volumes shows a gap.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <cairn/base/error.hpp>
#include <cairn/base/parallel.hpp>
#include <cairn/planning/global_plan.hpp>
#include <cairn/planning/require_coverage.hpp>

namespace cairn {
namespace {

// Bounds the report: a tensor saved a thousand times has half a million overlapping pairs.
constexpr std::size_t kFaultsPerTensorMax = 1024;
// Limit on the faults listed in an error text.
constexpr std::size_t kFaultsListedMax = 20;

class CoverageCheck {
 public:
  CoverageCheck(const std::string& fqn, const Extents& size, const std::vector<Box>& chunks)
      : fqn_(fqn), size_(size), chunks_(chunks) {}

  std::vector<CoverageFault> run() {
    const Box whole = Box::whole(size_);
    const bool nothing_to_cover = whole.empty();
    order_.reserve(chunks_.size());
    for (std::size_t i = 0; i < chunks_.size(); ++i) {
      if (!fits(chunks_[i], size_)) {
        add({CoverageFault::Kind::kOutside, fqn_, chunks_[i], {}});
        // The inside part still covers its place, so that one fault is not reported as two.
        if (const std::optional<Box> inside = clip(chunks_[i], whole)) {
          clipped_.push_back({i, *inside});
          // Numbers from chunks_.size() on stand for clipped chunks; see `chunk`.
          order_.push_back(static_cast<std::uint32_t>(chunks_.size() + clipped_.size() - 1));
        }
      } else if (!chunks_[i].empty()) {
        order_.push_back(static_cast<std::uint32_t>(i));
      }
    }
    if (nothing_to_cover) return std::move(faults_);
    tasks_.push_back({whole, 0, order_.size()});
    // A list instead of recursion: the depth may reach the number of chunks.
    while (!tasks_.empty()) {
      const Task task = std::move(tasks_.back());
      tasks_.pop_back();
      check(task);
    }
    // Cuts find faults in no useful order. Sorted, the report does not depend on the order of
    // chunks.
    std::stable_sort(faults_.begin(), faults_.end(), [](const CoverageFault& a, const CoverageFault& b) {
      return std::tie(a.kind, a.first) < std::tie(b.kind, b.first);
    });
    return std::move(faults_);
  }

 private:
  // A region of the tensor, and the chunks order_[begin, end) within it.
  struct Task {
    Box region;
    std::size_t begin;
    std::size_t end;
  };

  const Box& chunk(std::uint32_t index) const {
    return index < chunks_.size() ? chunks_[index] : clipped_[index - chunks_.size()].second;
  }
  const Box& as_given(std::uint32_t index) const {
    return index < chunks_.size() ? chunks_[index] : chunks_[clipped_[index - chunks_.size()].first];
  }

  static std::optional<Box> clip(const Box& box, const Box& whole) {
    if (box.offsets.size() != whole.offsets.size() || box.sizes.size() != whole.sizes.size()) return std::nullopt;
    if (std::any_of(box.sizes.begin(), box.sizes.end(), [](std::int64_t size) { return size <= 0; })) return std::nullopt;
    return intersect(box, whole);
  }

  void add(CoverageFault fault) {
    if (faults_.size() < kFaultsPerTensorMax) faults_.push_back(std::move(fault));
  }
  void add_gap(Box gap) { add({CoverageFault::Kind::kGap, fqn_, std::move(gap), {}}); }

  void check(const Task& task) {
    if (task.begin == task.end) {
      add_gap(task.region);
      return;
    }
    if (task.end - task.begin == 1 && chunk(order_[task.begin]) == task.region) return;
    for (std::size_t dim = 0; dim < size_.size(); ++dim)
      if (cut(task, dim)) return;
    // A single chunk that no dimension can cut fills its region.
    if (task.end - task.begin > 1) untangle(task);
  }

  // Cuts the region along `dim` wherever no chunk crosses. Returns false if no cut is possible.
  bool cut(const Task& task, std::size_t dim) {
    const auto offset = [&](std::uint32_t index) { return chunk(index).offsets[dim]; };
    const auto first = order_.begin() + static_cast<std::ptrdiff_t>(task.begin);
    const auto last = order_.begin() + static_cast<std::ptrdiff_t>(task.end);
    const auto before = [&](std::uint32_t a, std::uint32_t b) { return offset(a) < offset(b); };
    // Chunks of the usual layouts arrive sorted, which is cheap to check.
    if (!std::is_sorted(first, last, before)) std::stable_sort(first, last, before);

    const std::int64_t region_begin = task.region.offsets[dim];
    const std::int64_t region_end = region_begin + task.region.sizes[dim];
    const auto part = [&](std::int64_t begin, std::int64_t end) {
      Box box = task.region;
      box.offsets[dim] = begin;
      box.sizes[dim] = end - begin;
      return box;
    };
    std::int64_t done = region_begin;  // everything before it has been handled
    bool any_cut = false;
    for (std::size_t begin = task.begin; begin < task.end;) {
      const std::int64_t start = offset(order_[begin]);
      std::int64_t reach = start + chunk(order_[begin]).sizes[dim];
      std::size_t end = begin + 1;
      // Collects the chunks that are connected along `dim`: each one begins before the others end.
      for (; end < task.end && offset(order_[end]) < reach; ++end)
        reach = std::max(reach, offset(order_[end]) + chunk(order_[end]).sizes[dim]);
      // The first group spans the whole region: this dimension allows no cut.
      if (start == region_begin && reach == region_end) return false;
      any_cut = true;
      if (start > done) add_gap(part(done, start));
      // A single chunk that fills its part is correct and needs no further task.
      if (end - begin > 1 || !fills(chunk(order_[begin]), task.region, dim)) tasks_.push_back({part(start, reach), begin, end});
      done = reach;
      begin = end;
    }
    if (done < region_end) add_gap(part(done, region_end));
    return any_cut;
  }

  // Returns whether the chunk has the region's bounds in all dimensions but `except`.
  static bool fills(const Box& box, const Box& region, std::size_t except) {
    for (std::size_t dim = 0; dim < region.sizes.size(); ++dim)
      if (dim != except && (box.offsets[dim] != region.offsets[dim] || box.sizes[dim] != region.sizes[dim])) return false;
    return true;
  }

  // Checks several chunks that no straight cut separates. The sum of volumes shows whether
  // something is missing, but not where in the region. Overlaps can hide a gap from the sum; they
  // are reported anyway.
  void untangle(const Task& task) {
    find_overlaps(task);
    std::int64_t missing = volume(task.region.sizes);
    for (std::size_t i = task.begin; i < task.end && missing > 0; ++i) missing -= volume(chunk(order_[i]).sizes);
    if (missing > 0) add_gap(task.region);
  }

  // Sweeps along the dimension with the most distinct starts. `open` holds the chunks that the
  // sweep line crosses.
  void find_overlaps(const Task& task) {
    std::vector<std::uint32_t> order(order_.begin() + static_cast<std::ptrdiff_t>(task.begin),
                                     order_.begin() + static_cast<std::ptrdiff_t>(task.end));
    if (size_.empty()) {  // 0-dim: all chunks are the single element
      for (std::size_t i = 1; i < order.size(); ++i)
        add({CoverageFault::Kind::kOverlap, fqn_, as_given(order[0]), as_given(order[i])});
      return;
    }
    std::size_t sweep_dim = 0;
    std::size_t most = 0;
    for (std::size_t dim = 0; dim < size_.size(); ++dim) {
      std::vector<std::int64_t> starts;
      starts.reserve(order.size());
      for (const std::uint32_t index : order) starts.push_back(chunk(index).offsets[dim]);
      std::sort(starts.begin(), starts.end());
      const auto distinct = static_cast<std::size_t>(std::unique(starts.begin(), starts.end()) - starts.begin());
      if (distinct > most) {
        most = distinct;
        sweep_dim = dim;
      }
    }
    std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
      const std::int64_t start_a = chunk(a).offsets[sweep_dim];
      const std::int64_t start_b = chunk(b).offsets[sweep_dim];
      return start_a != start_b ? start_a < start_b : a < b;
    });
    std::vector<std::uint32_t> open;
    for (const std::uint32_t index : order) {
      const Box& box = chunk(index);
      const std::int64_t start = box.offsets[sweep_dim];
      std::size_t kept = 0;
      for (const std::uint32_t other : open) {
        const Box& other_box = chunk(other);
        if (other_box.offsets[sweep_dim] + other_box.sizes[sweep_dim] <= start) continue;
        open[kept++] = other;
        if (overlaps(box, other_box)) {
          // Each pair is met once; the order within it does not depend on the sweep.
          const auto [low, high] = std::minmax(index, other);
          add({CoverageFault::Kind::kOverlap, fqn_, as_given(low), as_given(high)});
          if (faults_.size() >= kFaultsPerTensorMax) return;
        }
      }
      open.resize(kept);
      open.push_back(index);
    }
  }

  const std::string& fqn_;
  const Extents& size_;
  const std::vector<Box>& chunks_;
  std::vector<std::pair<std::size_t, Box>> clipped_;  // chunks that reach outside: index, inside part
  std::vector<std::uint32_t> order_;                  // chunk indices; from chunks_.size() on, indices into clipped_
  std::vector<Task> tasks_;
  std::vector<CoverageFault> faults_;
};

}  // namespace

std::string to_string(const CoverageFault& fault) {
  switch (fault.kind) {
    case CoverageFault::Kind::kGap:
      return "'" + fault.fqn + "' lacks data in " + to_string(fault.first);
    case CoverageFault::Kind::kOverlap:
      return "'" + fault.fqn + "' has overlapping chunks " + to_string(fault.first) + " and " + to_string(fault.second);
    case CoverageFault::Kind::kOutside:
      return "'" + fault.fqn + "' has a chunk outside the tensor: " + to_string(fault.first);
  }
  return "'" + fault.fqn + "' has an unknown fault";
}

std::vector<CoverageFault> check_coverage(const std::string& fqn, const Extents& size, const std::vector<Box>& chunks) {
  // Fast path for the common case: one chunk that is the whole tensor.
  if (chunks.size() == 1 && chunks[0].sizes == size && chunks[0].offsets.size() == size.size() &&
      std::all_of(chunks[0].offsets.begin(), chunks[0].offsets.end(), [](std::int64_t offset) { return offset == 0; }) &&
      std::all_of(size.begin(), size.end(), [](std::int64_t extent) { return extent >= 0; }))
    return {};
  volume(size);  // throws if the size is impossible
  return CoverageCheck(fqn, size, chunks).run();
}

std::vector<CoverageFault> check_coverage(const Metadata& metadata) {
  constexpr std::size_t kEntries = 256;  // of a task
  const auto& entries = metadata.state_dict_metadata;
  std::size_t chunks = 0;
  for (const auto& [fqn, entry] : entries)
    if (const auto* tensor = std::get_if<TensorStorageMetadata>(&entry)) chunks += tensor->chunks.size();
  std::vector<std::vector<CoverageFault>> found((entries.size() + kEntries - 1) / kEntries);
  for_each_in_parallel(threads_for_items(chunks), found.size(), [&](std::size_t task) {
    for (std::size_t i = task * kEntries; i < std::min((task + 1) * kEntries, entries.size()); ++i)
      if (const auto* tensor = std::get_if<TensorStorageMetadata>(&entries[i].second))
        for (CoverageFault& fault : check_coverage(entries[i].first, tensor->size, tensor->chunks))
          found[task].push_back(std::move(fault));
  });
  std::vector<CoverageFault> faults;
  for (auto& some : found) faults.insert(faults.end(), std::make_move_iterator(some.begin()), std::make_move_iterator(some.end()));
  return faults;
}

void require_coverage(const Metadata& metadata, const std::string& what) {
  const std::vector<CoverageFault> faults = check_coverage(metadata);
  if (faults.empty()) return;
  std::string text;
  for (std::size_t i = 0; i < std::min(faults.size(), kFaultsListedMax); ++i) text += (i ? "; " : "") + to_string(faults[i]);
  if (faults.size() > kFaultsListedMax) text += "; and " + std::to_string(faults.size() - kFaultsListedMax) + " more";
  throw Error(ErrorCode::kMismatch, what + ": chunks do not cover their tensors exactly: " + text);
}

}  // namespace cairn
