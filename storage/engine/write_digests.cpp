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
  const auto& items = request_.plan->items;
  to_digest_.resize(items.size());
  for (std::uint32_t i = 0; i < items.size(); ++i) {
    if (!request_.reuse->is_digested(items[i])) continue;
    const std::uint64_t bytes = items[i].payload_bytes();
    Item& item = to_digest_[i];
    item.item = i;
    for (std::uint64_t begin = 0; begin < bytes; begin += ring_.block_bytes(), ++item.units_left)
      parts_to_digest_.push_back({i, begin, std::min<std::uint64_t>(ring_.block_bytes(), bytes - begin), {}});
  }
  const MutexLock lock(mutex_);
  digests_left_ = parts_to_digest_.size();
  if (digests_left_ == 0) join_digests();
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
  const MutexLock lock(mutex_);
  if (--digests_left_ == 0) join_digests();  // now the files can be opened
}

std::shared_ptr<const ElementRun> WriteJob::held(std::uint32_t item) {
  return to_digest_.empty() ? nullptr : std::move(to_digest_[item].data);
}

void WriteJob::join_digests() {
  std::vector<Digest128> digests(request_.plan->items.size()), parts;
  for (auto part = parts_to_digest_.begin(); part != parts_to_digest_.end();) {
    const std::uint32_t item = part->item;
    parts.clear();
    for (; part != parts_to_digest_.end() && part->item == item; ++part) parts.push_back(part->digest);
    digests[item] = xxh3_128({reinterpret_cast<const char*>(parts.data()), parts.size() * sizeof(Digest128)});
  }
  request_.reuse->digested(std::move(digests));
}

}  // namespace cairn
