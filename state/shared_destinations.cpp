// The destinations of a load that share memory.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <set>

#include <cairn/base/error.hpp>
#include <cairn/state/load_destinations.hpp>
#include <cairn/state/tensor_memory.hpp>
#include <cairn/state/tensor_types.hpp>

namespace cairn {
namespace {

// Host memory with the layout of a tensor.
struct Copy {
  // `is_dense`: gaps between elements are left out.
  Copy(const torch::Tensor& like, bool is_dense) : tensor(torch::empty({0}, torch::TensorOptions(like.scalar_type()))) {
    const auto bytes = is_dense ? like.numel() * static_cast<std::int64_t>(like.element_size())
                                : static_cast<std::int64_t>(storage_range(like).length());
    // Zeros, so that gaps compare equal.
    memory = torch::zeros({bytes}, torch::kUInt8);
    if (is_dense)
      tensor.set_(memory.storage(), 0, like.sizes());
    else
      tensor.set_(memory.storage(), 0, like.sizes(), like.strides());
    if (like.is_conj()) tensor = tensor.conj();
    if (like.is_neg()) tensor = tensor._neg_view();
  }
  torch::Tensor memory;  // bytes
  torch::Tensor tensor;
};

bool are_alike(const torch::Tensor& a, const torch::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.strides() == b.strides() && a.is_conj() == b.is_conj() &&
         a.is_neg() == b.is_neg();
}

}  // namespace

std::string LoadDestinations::Filled::text() const {
  const std::string name = '"' + destination->name + '"';
  return destination->parts.size() == 1 ? name : name + " at " + to_string(part->box);
}

// Two reads into the same memory would leave a mixture, so the plan keeps only the first one.
void LoadDestinations::plan_shared(LoadPlan& plan, Problems& problems) {
  shared_.clear();
  is_compared_ = false;
  std::vector<torch::Tensor> tensors;
  tensors.reserve(filled_.size());
  for (const Filled& filled : filled_) tensors.push_back(filled.part->tensor);
  std::set<std::pair<NameId, Extents>> left_out;
  for (const SharedMemory& shared : find_shared_memory(tensors)) {
    const Filled& first = filled_[shared.first];
    const Filled& second = filled_[shared.second];
    if (shared.is_same) {
      shared_.emplace_back(first, second);
      left_out.emplace(*plan.names.find(second.destination->name), second.part->box.offsets);
    } else if (shared.first == shared.second) {
      problems.unsupported.push_back(first.text() + ": the tensor to fill has elements that share memory");
    } else {
      problems.mismatched.push_back(first.text() + " and " + second.text() +
                                    ": the checkpoint has a value for each, but the tensors to fill share some of their memory");
    }
  }
  if (left_out.empty()) return;
  const auto is_left_out = [&](const ReadItem& item) {
    return item.type == LoadItemType::kTensor && left_out.count({item.dest_name, item.dest_chunk_offset}) > 0;
  };
  plan.items.erase(std::remove_if(plan.items.begin(), plan.items.end(), is_left_out), plan.items.end());
}

// Fills copies as the load would fill the tensors, and compares their bytes.
void LoadDestinations::compare_shared(const LoadPlanner::ReadNow& read) {
  // Reads small tensors together, and a larger one alone with its partner.
  constexpr std::int64_t kBytesAtOnce = std::int64_t{64} << 20;
  LoadPlannerOptions options;
  options.allow_dtype_cast = true;  // allowed or not needed: the plan was made
  std::string different;
  for (auto next = shared_.begin(); next != shared_.end();) {
    std::vector<Copy> copies;
    std::map<const Destination*, std::vector<LocalShard>> parts;
    std::int64_t bytes = 0;
    const auto add = [&](const Filled& filled, bool is_dense) {
      with_torch("compare the stored value of " + filled.text(), [&] {
        const torch::NoGradGuard no_grad;
        copies.emplace_back(filled.part->tensor, is_dense);
      });
      bytes += copies.back().memory.numel();
      parts[filled.destination].push_back({copies.back().tensor, filled.part->box.offsets});
    };
    std::vector<std::pair<std::size_t, std::size_t>> compared;  // the copies of pairs from `begin` on
    const auto begin = next;
    bool was_dense = false;
    for (std::size_t first = 0; next != shared_.end() && bytes < kBytesAtOnce; ++next) {
      const bool is_dense = are_alike(next->first.part->tensor, next->second.part->tensor);
      // One tensor may have many partners, next to each other.
      const bool has_first = next != begin && std::prev(next)->first.part == next->first.part;
      if (has_first && is_dense != was_dense) break;
      was_dense = is_dense;
      if (!has_first) {
        first = copies.size();
        add(next->first, is_dense);
      }
      add(next->second, is_dense);
      compared.emplace_back(first, copies.size() - 1);
    }
    StateDict state;  // by the names in the checkpoint
    for (auto& [destination, shards] : parts) {
      const DType dtype = *dtype_of(shards.front().tensor.scalar_type());
      state.insert(destination->storage_name, ShardedTensor(destination->size, dtype, std::move(shards)));
    }
    DefaultLoadPlanner planner(options);
    planner.set_up_planner(state, *metadata_, 0, false);
    read(planner.create_local_plan(), planner);
    for (std::size_t i = 0; i < compared.size(); ++i) {
      const torch::Tensor& first = copies[compared[i].first].memory;
      const auto& pair = begin[static_cast<std::ptrdiff_t>(i)];
      if (std::memcmp(first.data_ptr(), copies[compared[i].second].memory.data_ptr(), first.nbytes()) != 0)
        different += "\n  " + pair.first.text() + " and " + pair.second.text();
    }
  }
  if (!different.empty())
    throw Error(ErrorCode::kMismatch,
                "plan a load: tensors to fill use the same memory, but the checkpoint has different values for them; nothing was "
                "changed. Give each a tensor of its own, or load one of each pair:" +
                    different);
  is_compared_ = true;
}

}  // namespace cairn
