// The destinations of a load that share memory.
#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include <cairn/base/error.hpp>
#include <cairn/state/load_destinations.hpp>
#include <cairn/state/tensor_memory.hpp>
#include <cairn/state/tensor_types.hpp>

namespace cairn {
namespace {

// Host memory with the layout of a tensor.
struct Copy {
  // Zeros, so that gaps between elements compare equal.
  explicit Copy(const torch::Tensor& like)
      : memory(torch::zeros({static_cast<std::int64_t>(storage_range(like).length())}, torch::kUInt8)),
        tensor(torch::empty({0}, torch::TensorOptions(like.scalar_type()))) {
    tensor.set_(memory.storage(), 0, like.sizes(), like.strides());
    if (like.is_conj()) tensor = tensor.conj();
    if (like.is_neg()) tensor = tensor._neg_view();
  }
  torch::Tensor memory;  // bytes
  torch::Tensor tensor;
};

}  // namespace

std::string LoadDestinations::text_of(const Filled& filled) const {
  const std::string name = '"' + name_of(*filled.destination) + '"';
  return filled.destination->parts.size() == 1 ? name : name + " at " + to_string(filled.part->box);
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
      left_out.emplace(second.destination->id, second.part->box.offsets);
    } else if (shared.first == shared.second) {
      problems.unsupported.push_back(text_of(first) + ": the tensor to fill has elements that share memory");
    } else {
      problems.mismatched.push_back(text_of(first) + " and " + text_of(second) +
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
  constexpr std::int64_t kBytesAtOnce = std::int64_t{64} << 20;  // small tensors are read together
  // Copies share nothing.
  const auto shared = std::exchange(shared_, {});
  std::string different;
  for (auto next = shared.begin(); next != shared.end();) {
    const auto begin = next;
    LoadPlan plan;
    std::map<Part*, Copy> copies;
    for (std::int64_t bytes = 0; next != shared.end() && bytes < kBytesAtOnce; ++next) {
      for (const Filled& filled : {next->first, next->second}) {
        if (copies.count(filled.part) > 0) continue;
        bytes += with_torch("compare the stored value of " + text_of(filled),
                            [&] { return copies.emplace(filled.part, filled.part->tensor).first->second.memory.numel(); });
        const std::string& name = stored_name_of(*filled.destination);
        const auto& stored = std::get<TensorStorageMetadata>(*metadata_->find(name));
        append_reads(stored, ChunkIndex(stored.chunks), plan.names.intern(name_of(*filled.destination)), plan.names.intern(name),
                     filled.part->box, plan);
      }
    }
    const auto exchange = [&] {
      for (auto& [part, copy] : copies) std::swap(part->tensor, copy.tensor);
    };
    exchange();
    read(plan);
    exchange();
    for (auto pair = begin; pair != next; ++pair) {
      const torch::Tensor& first = copies.at(pair->first.part).memory;
      if (std::memcmp(first.data_ptr(), copies.at(pair->second.part).memory.data_ptr(), first.nbytes()) != 0)
        different += "\n  " + text_of(pair->first) + " and " + text_of(pair->second);
    }
  }
  if (!different.empty())
    throw Error(ErrorCode::kMismatch,
                "plan a load: tensors to fill use the same memory, but the checkpoint has different values for them; nothing was "
                "changed. Give each a tensor of its own, or load one of each pair:" +
                    different);
  shared_ = shared;
  is_compared_ = true;
}

// Tensors of the same memory may have versions of their own.
void LoadDestinations::count_change_of(const Part& part) const {
  count_change(part.tensor);
  for (const auto& [first, second] : shared_)
    if (first.part == &part) count_change(second.part->tensor);
}

}  // namespace cairn
