// `cairn inspect` without LibTorch: of checkpoints, with values that consist of plain ones.
#include <cairn/base/error.hpp>
#include <cairn/formats/torch_archive.hpp>
#include <cairn/formats/unpickler.hpp>
#include <cairn/tools/commands.hpp>
#include <cairn/tools/inspect.hpp>
#include <cairn/tools/python_text.hpp>

namespace cairn::tools {
InspectSource open_inspect_source(const std::string& place) {
  // A file, or the parts that ranks saved for themselves; or there is nothing, as cairn-tensors
  // will say.
  if (!open_store(place)->exists(kCommitRecordName)) become_tensor_program();
  const auto opened = std::make_shared<const OpenedCheckpoint>(open_checkpoint(place));
  InspectSource source;
  source.name = printable(opened->store->url());
  source.writer = written_by_cairn(opened->metadata) ? "Cairn" : "PyTorch";
  source.metadata = std::shared_ptr<const Metadata>(opened, &opened->metadata);
  source.value = [opened](const std::string& fqn, std::size_t length_max) -> InspectedValue {
    const auto& storage = std::get<BytesStorageMetadata>(*opened->metadata.find(fqn)).storage;
    if (!storage || !storage->transforms.empty()) become_tensor_program();
    Bytes bytes(storage->length, '\0');
    opened->store->read(opened->metadata.files.at(storage->file).name, {{storage->offset, {bytes.data(), bytes.size()}}});
    try {
      const TorchArchive archive(bytes, "a saved value");
      const Bytes pickle = archive.pickle();
      PythonText text(length_max);
      put_pickle(text, unpickle(pickle, archive.what(), {}).root());
      return {text.take(), ""};
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnsupported) throw;
    }
    become_tensor_program();
  };
  return source;
}

}  // namespace cairn::tools
