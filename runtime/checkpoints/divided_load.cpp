#include <cairn/runtime/checkpoints/divided_load.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <set>
#include <variant>

#include <cairn/base/error.hpp>
#include <cairn/base/failure.hpp>
#include <cairn/base/rank_text.hpp>
#include <cairn/runtime/observation/call_failure.hpp>
#include <cairn/state/tensor_memory.hpp>
#include <cairn/state/tensor_types.hpp>

namespace cairn {
namespace {

// To read a smaller tensor takes less time than to pass it on.
constexpr std::int64_t kDividedBytesMin = std::int64_t{1} << 20;
// Reading whole checksum blocks makes smaller pieces dear.
constexpr std::int64_t kPieceBytesMin = std::int64_t{4} << 20;

std::int64_t bytes_of(const torch::Tensor& tensor) { return static_cast<std::int64_t>(tensor.nbytes()); }

// Returns nothing for a value that is no tensor.
std::vector<LocalShard> parts_of(const Value& value) {
  if (value.is_sharded()) return value.sharded().local_shards();
  if (!value.is_tensor() || !value.tensor().defined()) return {};
  return {{value.tensor(), Extents::filled(static_cast<std::size_t>(value.tensor().dim()), 0)}};
}

bool is_divisible(const torch::Tensor& tensor) {
  return why_not_storable(tensor).empty() && tensor.dim() > 0 && bytes_of(tensor) >= kDividedBytesMin && tensor.is_contiguous() &&
         !tensor.is_conj() && !tensor.is_neg() && !tensor.is_inference();
}

// Returns the tensors that share memory with others. Their rows would share some of it, too.
std::set<const torch::TensorImpl*> sharing(const std::vector<torch::Tensor>& tensors) {
  std::set<const torch::TensorImpl*> found;
  for (const SharedMemory& shared : find_shared_memory(tensors)) {
    const torch::Tensor &first = tensors[shared.first], &second = tensors[shared.second];
    // Tied parameters have the same rows.
    if (shared.is_same && first.sizes() == second.sizes() && first.strides() == second.strides()) continue;
    found.insert({first.unsafeGetTensorImpl(), second.unsafeGetTensorImpl()});
  }
  return found;
}

std::string packed(const Failure& failure) {
  constexpr std::size_t kTextMax = 1000;  // each rank may fail, and all get all texts
  return pack_texts({std::to_string(failure.rank), std::to_string(static_cast<int>(failure.code)), failure.type.substr(0, kTextMax),
                     failure.what.substr(0, kTextMax)});
}

Failure failure_from(const std::string& text) {
  const std::vector<std::string> texts = unpack_texts(text);
  Failure failure;
  failure.rank = std::stoi(texts.at(0));
  failure.phase = Phase::kRead;
  failure.code = static_cast<ErrorCode>(std::stoi(texts.at(1)));
  failure.type = texts.at(2);
  failure.what = texts.at(3);
  failure.actor = "trainer";
  return failure;
}

}  // namespace

void DividedLoad::divide(const Metadata& metadata, bool flatten_state_dict, StateDict& working) {
  const auto own = std::find(group_.ranks().begin(), group_.ranks().end(), world_rank_);
  if (own == group_.ranks().end())
    throw Error(ErrorCode::kInvalidArgument, "LoadOptions::replica_group of rank " + std::to_string(world_rank_) +
                                                 " has other ranks only: " + name_ranks(group_.ranks()));
  rank_ = static_cast<int>(own - group_.ranks().begin());
  FlatStateDict entries = flatten_state_dict ? flatten(working) : flatten_top_level(working);
  // Ranks may have inserted the same keys in different orders.
  std::sort(entries.begin(), entries.end(), [](const FlatEntry& a, const FlatEntry& b) { return a.fqn < b.fqn; });
  std::vector<torch::Tensor> tensors;
  for (const FlatEntry& entry : entries)
    for (const LocalShard& part : parts_of(entry.value))
      if (why_not_storable(part.tensor).empty()) tensors.push_back(part.tensor);
  const auto left_out = sharing(tensors);
  DigestBuilder digest;
  for (FlatEntry& entry : entries) {
    const Metadata::Entry* const stored = metadata.find(entry.fqn);
    if (stored == nullptr || !std::holds_alternative<TensorStorageMetadata>(*stored) || entry.value.is_per_rank()) continue;
    const std::vector<LocalShard> parts = parts_of(entry.value);
    std::vector<LocalShard> rows;
    const std::size_t before = pieces_.size();
    for (const LocalShard& part : parts) {
      if (!is_divisible(part.tensor) || left_out.count(part.tensor.unsafeGetTensorImpl()) > 0) {
        rows.push_back(part);
        continue;
      }
      for (LocalShard& piece : cut(part)) rows.push_back(std::move(piece));
      digest.add(ByteSpan(entry.fqn)).add(ByteSpan(to_string(Box{part.offsets, extents_of(part.tensor.sizes())})));
      digest.add(static_cast<std::int64_t>(part.tensor.scalar_type()));
      digest.add(static_cast<std::int64_t>(part.tensor.device().type()));
    }
    if (pieces_.size() == before) continue;
    const Extents size = entry.value.is_sharded() ? entry.value.sharded().size() : extents_of(entry.value.tensor().sizes());
    const DType dtype = *dtype_of(parts.front().tensor.scalar_type());
    set_at(working, entry.path, ShardedTensor(size, dtype, std::move(rows)));
    replaced_.emplace_back(std::move(entry.path), std::move(entry.value));
  }
  digest_ = digest.finish();
}

std::vector<LocalShard> DividedLoad::cut(const LocalShard& part) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor tensor = part.tensor.detach();
  const auto ranks = static_cast<std::int64_t>(group_.ranks().size());
  const std::int64_t all = tensor.size(0), row_bytes = bytes_of(tensor) / all;
  const std::int64_t at_once = std::max((all + ranks - 1) / ranks, (kPieceBytesMin + row_bytes - 1) / row_bytes);
  std::vector<LocalShard> own;
  for (std::int64_t first = 0; first < all; first += at_once) {
    // In turn, so that all ranks read about as much.
    const int reader = static_cast<int>(static_cast<std::int64_t>(pieces_.size()) % ranks);
    pieces_.push_back({tensor.narrow(0, first, std::min(at_once, all - first)), reader});
    if (reader != rank_) continue;
    own.push_back({pieces_.back().rows, part.offsets});
    own.back().offsets[0] += first;
  }
  return own;
}

void DividedLoad::undo(StateDict& working) const {
  for (const auto& [path, value] : replaced_) set_at(working, path, value);
}

void DividedLoad::exchange() const {
  for (const Piece& piece : pieces_) {
    group_.broadcast(piece.rows, piece.reader);
    count_change(piece.rows);
  }
  // Devices may still be at work. To copy an element waits for them, and the barrier throws if they
  // failed.
  for (const Piece& piece : pieces_)
    if (!piece.rows.is_cpu()) piece.rows.view(-1).narrow(0, 0, 1).cpu();
  group_.barrier();
}

void DividedLoad::pass_on(Agreement& agreement, const std::string& checkpoint_id, std::optional<Duration> deadline) const {
  const std::string about = "passing on what was read of '" + checkpoint_id + "'";
  // A rank in a collective waits for all others, so none begins before all have read.
  const auto check = [](const std::vector<std::string>& brought) {
    std::map<std::string, std::pair<std::size_t, std::string>> groups;  // the first rank, and its digest
    for (std::size_t rank = 0; rank < brought.size(); ++rank) {
      const std::vector<std::string> texts = unpack_texts(brought[rank]);
      const auto& first = groups.emplace(texts.at(0), std::pair(rank, texts.at(1))).first->second;
      if (first.second != texts.at(1))
        throw Error(ErrorCode::kMismatch, "LoadOptions::replica_group: ranks " + std::to_string(first.first) + " and " +
                                              std::to_string(rank) +
                                              " load into different tensors, so neither can read for the other");
    }
    return std::string();
  };
  agreement.reach(about, pack_texts({name_ranks(group_.ranks()), to_hex(digest_)}), check, deadline);
  std::optional<Failure> own;
  try {
    exchange();
  } catch (...) {
    own = capture_failure(world_rank_, Phase::kRead, "trainer", std::current_exception());
  }
  const auto collect = [](std::vector<std::string> brought) {
    brought.erase(std::remove(brought.begin(), brought.end(), std::string()), brought.end());
    return pack_texts(brought);
  };
  CallResult result;
  for (const std::string& text : unpack_texts(agreement.reach(about, own ? packed(*own) : "", collect, deadline))) {
    Failure failure = failure_from(text);
    if (own && failure.rank == world_rank_) failure.exception = own->exception;
    result.failures.emplace(failure.rank, std::move(failure));
  }
  if (!result.ok()) throw CheckpointException(loading(checkpoint_id), std::move(result));
}

}  // namespace cairn
