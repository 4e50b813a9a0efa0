// Loads state dicts from files of PyTorch's `torch.save`.
//
//   cairn::LoadOptions options;
//   options.storage_reader = std::make_shared<cairn::TorchSaveReader>();
//   cairn::load(state, "model.pt", options);
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <cairn/state/storage.hpp>

namespace cairn {

class SavedFiles;

// The base of readers of other programs' files. Use one of the classes below, or
// TorchCheckpointingReader.
class SavedFilesReader : public StorageReader {
 public:
  ~SavedFilesReader() override;
  void reset(const std::string& checkpoint_id) override;
  Metadata read_metadata() override;
  void set_up_storage_reader(const Metadata& metadata, const StorageContext& context) override;
  // Checks each torch storage in a file against its checksum, if it has one, before it is first
  // read. Throws kCorrupt on a mismatch, and kUnsupported for an element type that Cairn does not
  // know. If Cairn knows the element type but LibTorch lacks it, the tensor can be loaded only into
  // a tensor of integers of the same width.
  Future<bool> read_data(const LoadPlan& plan, LoadPlanner& planner) override;

 protected:
  using Open = std::function<std::unique_ptr<SavedFiles>(const std::string& path)>;
  explicit SavedFilesReader(Open open);

 private:
  SavedFiles& opened() const;

  const Open open_;
  std::string path_;
  std::unique_ptr<SavedFiles> files_;
};

// Reads the file at a path or a `file:` URL. The file must hold a dict of tensors, plain values,
// lists and further dicts, with keys of text or integers; nothing in it is executed. Integer keys
// become text. A DTensor of which the file has a part is joined with the parts in other files of
// the directory, if these have names that differ from this one in one number and complete it. A
// value of any other class, and a DTensor that is incomplete, is opaque (see Opaque). Tensors in an
// opaque value have names below the name of that value, made of attributes, keys and indices. If
// the file holds an object instead of a dict, the name of its class is the key. Each rank reads
// only what it needs, however the state is sharded over ranks. The file is mapped: if it is
// truncated during a load, the process dies of SIGBUS.
class TorchSaveReader : public SavedFilesReader {
 public:
  // `read_metadata` throws kNotFound if the file does not exist, and kCorrupt if it is damaged or
  // not an archive of torch.save. It throws kUnsupported if the file holds neither a dict nor an
  // object, and for a URL with another scheme. With a `key`, the file may hold any value, which is
  // read as a dict with this one key, and parts of DTensors are not joined.
  explicit TorchSaveReader(const std::string& key = "");
};

}  // namespace cairn
