// `cairn inspect` without LibTorch: of checkpoints, with values that consist of plain ones.
#include <vector>

#include <cairn/base/error.hpp>
#include <cairn/state/pickle/torch_archive.hpp>
#include <cairn/state/pickle/unpickler.hpp>
#include <cairn/tools/commands.hpp>
#include <cairn/tools/inspect.hpp>
#include <cairn/tools/python_text.hpp>

namespace cairn::tools {
namespace {

// As value_text.cpp does. Throws kUnsupported for a value that only cairn-tensors can show.
void put(PythonText& out, const PickleValue& value) {
  if (out.is_full()) return;
  const auto put_elements = [&](const char* begin, const char* end) {
    std::vector<PickleValue> elements;
    for (std::size_t i = 0; i < value.size(); ++i) elements.push_back(value[i]);
    out.put_each(elements, begin, end, [&](const PickleValue& element) { put(out, element); });
  };
  switch (value.kind()) {
    case PickleKind::kNone:
      return out.put_none();
    case PickleKind::kBool:
      return out.put_bool(value.as_bool());
    case PickleKind::kInt:
      return out.put_int(value.as_int());
    case PickleKind::kFloat:
      return out.put_real(value.as_float());
    case PickleKind::kText:
      return out.put_text(std::string(value.as_text()));
    case PickleKind::kList:
      return put_elements("[", "]");
    case PickleKind::kTuple:
      return put_elements("(", PythonText::end_of_tuple(value.size()));
    default:
      unsupported(value, "not a plain value");
  }
}

}  // namespace

InspectSource open_inspect_source(const std::string& place) {
  // A file, or the parts that ranks saved for themselves; or there is nothing, as cairn-tensors
  // will say.
  if (!open_store(place)->exists(kCommitRecordName)) become_tensor_program();
  const auto opened = std::make_shared<const OpenedCheckpoint>(open_checkpoint(place));
  InspectSource source;
  source.name = printable(opened->store->url());
  source.writer = written_by_cairn(opened->metadata) ? "Cairn" : "PyTorch";
  source.metadata = std::shared_ptr<const Metadata>(opened, &opened->metadata);
  source.value_text = [opened](const std::string& fqn, std::size_t length_max) {
    const auto& storage = std::get<BytesStorageMetadata>(*opened->metadata.find(fqn)).storage;
    if (!storage || !storage->transforms.empty()) become_tensor_program();
    Bytes bytes(storage->length, '\0');
    opened->store->read(opened->metadata.files.at(storage->file).name, {{storage->offset, {bytes.data(), bytes.size()}}});
    try {
      const TorchArchive archive(bytes, "a saved value");
      const Bytes pickle = archive.pickle();
      PythonText text(length_max);
      put(text, unpickle(pickle, archive.what(), {}).root());
      return text.take();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnsupported) throw;
    }
    become_tensor_program();
  };
  return source;
}

}  // namespace cairn::tools
