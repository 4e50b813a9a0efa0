// Digests the tensors of WriteJob before its files are opened, so that files whose tensors have not
// changed need not be written.
#include <algorithm>

#include <cairn/storage/engine/reusable_files.hpp>
#include <cairn/storage/engine/write_job.hpp>

namespace cairn {

// The digest of an item is that of the digests of its parts, so that several threads can digest one
// item. A part has as many bytes as a staging block; a writer keeps its blocks from save to save.
void WriteJob::plan_digests() {
  if (!request_.reuse) return;
  const std::vector<WriteItem>& items = request_.plan->items;
  for (std::uint32_t i = 0; i < items.size(); ++i) {
    if (!request_.reuse->is_digested(items[i])) continue;
    const std::uint64_t bytes = items[i].payload_bytes();
    Item& item = to_digest_.emplace_back();
    item.item = i;
    item.first_unit = parts_to_digest_.size();
    item.units_left = static_cast<std::size_t>((bytes + ring_.block_bytes() - 1) / ring_.block_bytes());
    for (std::uint64_t begin = 0; begin < bytes; begin += ring_.block_bytes())
      parts_to_digest_.push_back({to_digest_.size() - 1, begin, std::min<std::uint64_t>(ring_.block_bytes(), bytes - begin), {}});
  }
  {
    const MutexLock lock(mutex_);
    digests_left_ = parts_to_digest_.size();
  }
  if (parts_to_digest_.empty()) join_digests();
}

std::optional<WriteJob::Task> WriteJob::next_to_digest() {
  if (next_to_digest_ == parts_to_digest_.size()) return std::nullopt;
  StagingBlock memory = ring_.try_acquire();
  if (!memory) return std::nullopt;
  auto block = std::make_unique<Block>();
  block->index = next_to_digest_++;
  block->memory = std::move(memory);
  blocks_.push_back(std::move(block));
  return Task{Task::Kind::kDigest, nullptr, blocks_.back().get()};
}

void WriteJob::digest(Block& block) {
  PartToDigest& part = parts_to_digest_[block.index];
  Item& item = to_digest_[part.item];
  const auto data = resolve(item);
  const char* bytes = data->direct();
  if (bytes != nullptr) {
    bytes += part.begin;
  } else {
    if (!data->is_on_host()) block.memory.lock();
    data->read(part.begin, block.memory.bytes(0, part.length));
    bytes = block.memory.data();
  }
  part.digest = xxh3_128({bytes, part.length});
  // The caller of such a save waits until everything is copied, and lends each tensor once.
  if (!request_.copy_first) copied(item);
  drop(block, false);
  {
    MutexLock lock(mutex_);
    if (digests_left_ > 1) {
      --digests_left_;
      return;
    }
  }
  join_digests();
  MutexLock lock(mutex_);
  digests_left_ = 0;  // now the files can be opened
}

std::shared_ptr<const ElementRun> WriteJob::held(std::uint32_t item) {
  const auto found =
      std::partition_point(to_digest_.begin(), to_digest_.end(), [item](const Item& other) { return other.item < item; });
  return found != to_digest_.end() && found->item == item ? std::move(found->data) : nullptr;
}

void WriteJob::join_digests() {
  std::vector<Digest128> digests(request_.plan->items.size());
  std::vector<Digest128> parts;
  for (const Item& item : to_digest_) {
    parts.clear();
    for (std::size_t i = item.first_unit; i < parts_to_digest_.size() && &to_digest_[parts_to_digest_[i].item] == &item; ++i)
      parts.push_back(parts_to_digest_[i].digest);
    digests[item.item] = xxh3_128({reinterpret_cast<const char*>(parts.data()), parts.size() * sizeof(Digest128)});
  }
  request_.reuse->digested(std::move(digests));
}

}  // namespace cairn
