#include <cairn/runtime/checkpoints/divided_load.hpp>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <map>
#include <variant>

#include <cairn/base/error.hpp>
#include <cairn/base/rank_text.hpp>
#include <cairn/state/tensor_memory.hpp>
#include <cairn/state/tensor_types.hpp>

namespace cairn {
namespace {

// Reading a smaller tensor takes less time than broadcasting it.
constexpr std::int64_t kDividedBytesMin = std::int64_t{1} << 20;
// Reads cover whole checksum blocks, so smaller pieces cost extra bytes.
constexpr std::int64_t kPieceBytesMin = std::int64_t{4} << 20;

// A part of the tensor of an entry, by index.
struct Part {
  std::size_t entry = 0;
  LocalShard shard;
  bool is_divided = false;
};

std::int64_t bytes_of(const torch::Tensor& tensor) { return static_cast<std::int64_t>(tensor.nbytes()); }

bool is_divisible(const torch::Tensor& tensor) {
  return why_not_storable(tensor).empty() && tensor.dim() > 0 && bytes_of(tensor) >= kDividedBytesMin && tensor.is_contiguous() &&
         !tensor.is_conj() && !tensor.is_neg() && !tensor.is_inference();
}

std::vector<Part> parts_of(const FlatStateDict& entries, const Metadata& metadata) {
  std::vector<Part> parts;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Value& value = entries[i].value;
    const Metadata::Entry* const stored = metadata.find(entries[i].fqn);
    const bool is_stored = stored != nullptr && std::holds_alternative<TensorStorageMetadata>(*stored) && !value.is_per_rank();
    const auto add = [&](const LocalShard& shard) { parts.push_back({i, shard, is_stored && is_divisible(shard.tensor)}); };
    if (value.is_sharded())
      for (const LocalShard& shard : value.sharded().local_shards()) add(shard);
    else if (value.is_tensor() && value.tensor().defined())
      add({value.tensor(), Extents::filled(static_cast<std::size_t>(value.tensor().dim()), 0)});
  }
  return parts;
}

// Leaves parts whole that share memory, because their rows may overlap. Tied parameters are cut
// alike.
void leave_out_shared(std::vector<Part>& parts) {
  std::vector<torch::Tensor> tensors;
  std::vector<Part*> part_of;
  for (Part& part : parts) {
    if (!why_not_storable(part.shard.tensor).empty()) continue;
    tensors.push_back(part.shard.tensor);
    part_of.push_back(&part);
  }
  const std::vector<SharedMemory> shared = find_shared_memory(tensors);
  for (bool again = true; again;) {
    again = false;
    for (const SharedMemory& pair : shared) {
      const torch::Tensor &first = tensors[pair.first], &second = tensors[pair.second];
      bool &divides_first = part_of[pair.first]->is_divided, &divides_second = part_of[pair.second]->is_divided;
      const bool are_tied = divides_first && divides_second && pair.is_same && first.sizes() == second.sizes();
      if (are_tied || (!divides_first && !divides_second)) continue;
      divides_first = divides_second = false;
      again = true;
    }
  }
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

// Throws kMismatch unless all ranks of each group have brought the same digest.
std::string check_groups(const std::vector<std::string>& brought) {
  struct Group {
    std::size_t first = 0;
    std::string digest;
    std::size_t missing = 0;
  };
  std::map<std::string, Group> groups;  // by the digest of its ranks
  for (std::size_t rank = 0; rank < brought.size(); ++rank) {
    const std::vector<std::string> texts = unpack_texts(brought[rank]);
    Group& group = groups.emplace(texts.at(0), Group{rank, texts.at(1), std::stoul(texts.at(2))}).first->second;
    --group.missing;
    if (group.digest != texts.at(1))
      throw Error(ErrorCode::kMismatch, "LoadOptions::replica_group: ranks " + std::to_string(group.first) + " and " +
                                            std::to_string(rank) +
                                            " load into different tensors, so neither can read for the other");
  }
  for (const auto& [ranks, group] : groups)
    if (group.missing > 0)
      throw Error(ErrorCode::kMismatch, "LoadOptions::replica_group: rank " + std::to_string(group.first) + " has a group with " +
                                            std::to_string(group.missing) + " ranks that have another one");
  return "";
}

}  // namespace

void DividedLoad::divide(const Metadata& metadata, bool flatten_state_dict, StateDict& working) {
  const std::vector<int>& ranks = group_.ranks();
  const auto own = static_cast<std::size_t>(group_.rank());
  if (own >= ranks.size() || ranks[own] != world_rank_)
    throw Error(ErrorCode::kInvalidArgument, "rank " + std::to_string(world_rank_) + " is not rank " + std::to_string(own) +
                                                 " of its LoadOptions::replica_group, which lists " + name_ranks(ranks));
  FlatStateDict entries = flatten_state_dict ? flatten(working) : flatten_top_level(working);
  // Ranks may have inserted the same keys in different orders.
  std::sort(entries.begin(), entries.end(), [](const FlatEntry& a, const FlatEntry& b) { return a.fqn < b.fqn; });
  std::vector<Part> parts = parts_of(entries, metadata);
  leave_out_shared(parts);
  DigestBuilder digest;
  for (auto part = parts.begin(); part != parts.end();) {
    const auto& [fqn, path, value] = entries[part->entry];
    const auto end = std::find_if(part, parts.end(), [&](const Part& other) { return other.entry != part->entry; });
    const bool is_whole = std::none_of(part, end, [](const Part& one) { return one.is_divided; });
    std::vector<LocalShard> rows;
    for (; part != end; ++part) {
      const auto& [tensor, offsets] = part->shard;
      if (!part->is_divided) {
        rows.push_back(part->shard);
        continue;
      }
      digest.add(ByteSpan(fqn)).add(ByteSpan(to_string(Box{offsets, extents_of(tensor.sizes())})));
      digest.add(static_cast<std::int64_t>(tensor.scalar_type())).add(static_cast<std::int64_t>(tensor.device().type()));
      // Pieces of what PyTorch wrote are not read faster than the whole.
      const std::int64_t at_once = metadata.commit ? rows_at_once(tensor) : tensor.size(0);
      for (LocalShard& piece : cut(part->shard, at_once, digest)) rows.push_back(std::move(piece));
    }
    if (is_whole) continue;
    const Extents size = value.is_sharded() ? value.sharded().size() : extents_of(value.tensor().sizes());
    const DType dtype = value.is_sharded() ? value.sharded().dtype() : *dtype_of(value.tensor().scalar_type());
    replaced_.emplace_back(path, *find_at(working, path));
    set_at(working, path, ShardedTensor(size, dtype, std::move(rows)));
  }
  digest_ = digest.finish();
}

std::int64_t DividedLoad::rows_at_once(const torch::Tensor& tensor) const {
  const auto ranks = static_cast<std::int64_t>(group_.ranks().size());
  const std::int64_t rows = tensor.size(0), row_bytes = bytes_of(tensor) / rows;
  return std::max((rows + ranks - 1) / ranks, (kPieceBytesMin + row_bytes - 1) / row_bytes);
}

std::vector<LocalShard> DividedLoad::cut(const LocalShard& part, std::int64_t at_once, DigestBuilder& digest) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor tensor = part.tensor.detach();
  const auto ranks = static_cast<std::int64_t>(group_.ranks().size());
  // The ranks take turns, so that all read about as much. Tied tensors have the same readers, which
  // compare the stored values.
  const auto [known, is_new] = turns_.emplace(tensor.data_ptr(), static_cast<std::int64_t>(pieces_.size()));
  std::int64_t turn = known->second;
  digest.add(turn);
  std::vector<LocalShard> own;
  for (std::int64_t first = 0; first < tensor.size(0); first += at_once) {
    Piece piece{tensor.narrow(0, first, std::min(at_once, tensor.size(0) - first)), static_cast<int>(turn++ % ranks)};
    if (piece.reader == group_.rank()) {
      own.push_back({piece.rows, part.offsets});
      own.back().offsets[0] += first;
    }
    if (is_new) pieces_.push_back(std::move(piece));
  }
  return own;
}

void DividedLoad::undo(StateDict& working) const {
  for (const auto& [path, value] : replaced_) *find_at(working, path) = value;
}

void DividedLoad::exchange() const {
  const Piece* on_device = nullptr;
  for (const Piece& piece : pieces_) {
    group_.broadcast(piece.rows, piece.reader);
    count_change(piece.rows);
    if (!piece.rows.is_cpu()) on_device = &piece;
  }
  if (on_device != nullptr) {
    // The device may still be at work, and copying an element waits for it. If its work was ended
    // early, the next call throws.
    const torch::Tensor element = on_device->rows.view(-1).narrow(0, 0, 1);
    element.cpu();
    group_.broadcast(element, on_device->reader);
  }
  group_.barrier();
}

CallResult DividedLoad::pass_on(Agreement& agreement, const std::string& checkpoint_id, std::optional<Duration> deadline) const {
  DigestBuilder ranks;
  for (const int rank : group_.ranks()) ranks.add(static_cast<std::int64_t>(rank));
  try {
    // A rank in a collective waits for all others, so none begins before all have read.
    agreement.reach("the tensors to broadcast after loading '" + checkpoint_id + "'",
                    pack_texts({to_hex(ranks.finish()), to_hex(digest_), std::to_string(group_.ranks().size())}), check_groups,
                    deadline);
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
    for (const std::string& text : unpack_texts(
             agreement.reach("what was broadcast after loading '" + checkpoint_id + "'", own ? packed(*own) : "", collect))) {
      Failure failure = failure_from(text);
      if (own && failure.rank == world_rank_) failure.exception = own->exception;
      result.failures.emplace(failure.rank, std::move(failure));
    }
    return result;
  } catch (const CheckpointException& failed) {
    return failed.result();
  }
}

}  // namespace cairn
