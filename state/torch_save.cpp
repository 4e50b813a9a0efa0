#include <cairn/state/torch_save.hpp>

#include <utility>

#include <torch/torch.h>

#include <cairn/base/error.hpp>
#include <cairn/formats/unicode.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/storage/saved_files.hpp>

namespace cairn {
namespace {

// Returns a view of the elements, or a copy if they are not aligned, as programs other than
// torch.save leave them.
torch::Tensor view_of(const SavedElements& elements, DType dtype, Bytes& copy) {
  const auto type = torch::TensorOptions().dtype(*carrier_type_of(dtype));
  if (reinterpret_cast<std::uintptr_t>(elements.first) % elements.element_bytes == 0)
    return torch::from_blob(elements.first, array_of(elements.sizes), array_of(elements.strides), type);
  copy = elements.dense();
  return torch::from_blob(copy.data(), array_of(elements.sizes), type);
}

// Throws kUnsupported if LibTorch lacks the type and `to` has another type than `from`.
void copy_elements(const std::string& name, DType stored, const torch::Tensor& from, const torch::Tensor& to) {
  if (!scalar_type_of(stored) && to.scalar_type() != from.scalar_type())
    throw Error(ErrorCode::kUnsupported, "\"" + printable(name) + "\" is stored as " + to_string(stored) +
                                             ", which the LibTorch in use lacks; load it into a tensor of " +
                                             c10::toString(from.scalar_type()) + " to read the bytes of its elements");
  with_torch("read " + name, [&] { to.copy_(from); });
}

}  // namespace

SavedFilesReader::SavedFilesReader(Open open) : open_(std::move(open)) {}
SavedFilesReader::~SavedFilesReader() = default;

void SavedFilesReader::reset(const std::string& checkpoint_id) {
  path_ = checkpoint_id;
  files_.reset();
}

Metadata SavedFilesReader::read_metadata() {
  files_ = open_(path_);
  return files_->metadata();
}

SavedFiles& SavedFilesReader::opened() const {
  if (!files_) throw Error(ErrorCode::kPrecondition, "the reader was not set up: call read_metadata first");
  return *files_;
}

void SavedFilesReader::set_up_storage_reader(const Metadata&, const StorageContext& context) { opened().set_context(context); }

Future<bool> SavedFilesReader::read_data(const LoadPlan& plan, LoadPlanner& planner) {
  SavedFiles& files = opened();
  for (const ReadItem& item : plan.items) {
    const std::string& name = plan.names[item.storage_name];
    if (item.type == LoadItemType::kByteIO) {
      planner.load_bytes(plan, item, files.bytes(name));
      continue;
    }
    const auto& stored = std::get<TensorStorageMetadata>(*files.metadata().find(name));
    if (item.storage_chunk >= stored.chunks.size())
      throw Error(ErrorCode::kMismatch, "\"" + printable(name) + "\" has no part at " + to_string(item.storage_chunk_offset));
    const SavedElements from = files.elements(name, item.storage_chunk).part({item.storage_offsets, item.lengths});
    const torch::Tensor to = planner.resolve_tensor(plan, item);
    Bytes copy;
    copy_elements(name, stored.properties.dtype, view_of(from, stored.properties.dtype, copy), to);
    planner.commit_tensor(plan, item, to);
  }
  return ready_future(true);
}

TorchSaveReader::TorchSaveReader(const std::string& key)
    : SavedFilesReader([key](const std::string& path) { return open_torch_save(path, key); }) {}

}  // namespace cairn
