#include <cairn/storage/checkpoint_bytes.hpp>

#include <utility>

#include <cairn/planning/resharding.hpp>
#include <cairn/storage/engine/strided_bytes.hpp>

namespace cairn {
namespace {

// The elements of one box in row-major order, or the bytes of one value. Reads of different parts
// of the box write to it from several threads at once.
class MemoryDestination final : public ItemDestination {
 public:
  MemoryDestination(Extents sizes, std::size_t element_bytes)
      : bytes(static_cast<std::size_t>(volume(sizes)) * element_bytes, '\0'),
        sizes_(std::move(sizes)),
        element_bytes_(element_bytes) {}
  MemoryDestination() = default;

  std::shared_ptr<void> enter_thread() const override { return nullptr; }
  std::shared_ptr<const ElementRun> elements_for(const ReadItem& item, DType) override {
    const Box part{item.dest_offsets, item.lengths};
    return std::make_shared<const StridedBytes>(part_of_dense(bytes.data(), sizes_, part, element_bytes_));
  }
  void commit(const ReadItem&, const ElementRun&) override {}
  void take_bytes(const ReadItem&, Bytes read) override { bytes = std::move(read); }

  Bytes bytes;

 private:
  Extents sizes_;
  std::size_t element_bytes_ = 1;
};

}  // namespace

CheckpointBytes::CheckpointBytes(std::shared_ptr<Store> store, std::shared_ptr<const Metadata> metadata, bool verify,
                                 const ReadEngineOptions& options, int rank)
    : store_(std::move(store)),
      metadata_(std::move(metadata)),
      verify_(verify),
      rank_(rank),
      opened_(std::make_shared<OpenedFiles>(options.bytes_in_flight_max)),
      engine_(options) {}

// The plan has one read for each chunk that overlaps the box.
Bytes CheckpointBytes::elements(const std::string& fqn, const TensorStorageMetadata& stored, const Box& box) {
  const auto destination = std::make_shared<MemoryDestination>(box.sizes, element_size(stored.properties.dtype));
  LoadPlan plan;
  const NameId id = plan.names.intern(fqn);
  append_reads(stored, ChunkIndex(stored.chunks), id, id, box, plan);
  read(plan, destination);
  return std::move(destination->bytes);
}

Bytes CheckpointBytes::value(const std::string& fqn) {
  const auto destination = std::make_shared<MemoryDestination>();
  LoadPlan plan;
  ReadItem item;
  item.type = LoadItemType::kByteIO;
  item.dest_name = item.storage_name = plan.names.intern(fqn);
  plan.items.push_back(std::move(item));
  read(plan, destination);
  return std::move(destination->bytes);
}

void CheckpointBytes::read(const LoadPlan& plan, const std::shared_ptr<ItemDestination>& destination) {
  ReadRequest request;
  request.store = store_;
  request.metadata = metadata_;
  request.plan = &plan;
  request.destination = destination;
  request.opened = opened_;
  request.keep_blocks = true;  // for the next read
  request.rank = rank_;
  request.verify = verify_;
  engine_.read(std::move(request)).get();
}

}  // namespace cairn
