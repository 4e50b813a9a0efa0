// Checkpoints in safetensors files, as Hugging Face's and PyTorch's tools name them. Modelled on
// DCP's HuggingFaceStorageWriter and HuggingFaceStorageReader; docs/stores.md compares them.
//
//   cairn::SaveOptions options;
//   options.storage_writer = std::make_shared<cairn::HuggingFaceStorageWriter>();
//   cairn::save(model_state, "run/model_100", options);
//
// The directory also gets a commit record, so that Cairn's readers and commands treat it like any
// other checkpoint.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include <cairn/planning/dtype.hpp>
#include <cairn/storage/checkpoint_writer.hpp>

namespace cairn {

// The files that a save makes.
enum class HuggingFaceFiles : std::uint8_t {
  // Whole tensors, in model-<file>-of-<files>.safetensors, and model.safetensors.index.json, which
  // names the file of each tensor. A tensor is written in parts if it is sharded, or if it is
  // replicated and large enough to be split (GlobalPlanOptions::split_above_bytes). If there is
  // such a tensor, every rank first writes its parts to files with names of Cairn's own format. The
  // coordinator then joins all tensors, within the memory of `bytes_in_flight_max`, and removes the
  // parts.
  kModel = 1,
  // The parts of each rank, in shard-<rank + 1>-model-<file>-of-<files>.safetensors. PyTorch's
  // reader and `consolidate_safetensors_files` read these; programs that expect whole tensors
  // cannot.
  kDistributed,
};

struct HuggingFaceWriterOptions {
  HuggingFaceFiles files = HuggingFaceFiles::kModel;
  // A file ends before the tensor that would make it exceed this size, in bytes. 0: no limit. Whole
  // tensors are written by the ranks that hold them, at least one file per such rank.
  std::uint64_t file_bytes_max = 5'000'000'000;
  // Leaves out what safetensors files cannot hold: values that are not tensors, and complex
  // tensors. Otherwise such a save fails, with a list of them.
  bool skip_unsupported = false;
  // `overwrite`, `single_file_per_rank` and `retired_keep` have no effect. `zstd_level` must be 0,
  // and `transforms` empty.
  CheckpointWriterOptions writer;
};

// Throws kAlreadyExists at a place with safetensors files or a commit record, because programs that
// read these files by name cannot tell an old file from a new one. Throws kUnsupported at stores
// such as `s3:` (StoreTraits::create_takes_name is false), where two saves could mix their files. A
// file appears under its name when it is whole, and the index after all files that it names. A save
// that was killed while ranks wrote parts leaves only files of parts, which the next save to the
// place removes.
class HuggingFaceStorageWriter : public CheckpointWriter {
 public:
  explicit HuggingFaceStorageWriter(const HuggingFaceWriterOptions& options = {});
};

// The names of safetensors files, each with the tensors that an index says it contains.
using SafetensorsFiles = std::map<std::string, std::set<std::string>>;

// Returns the files that an index in `store` names. The index is `index` or, if that is "",
// model.safetensors.index.json or else the only index at the root. If there is no index, returns
// all safetensors files at the root, perhaps none. Throws kCorrupt for a damaged index, and if
// there are several indexes but none of that name. If there is neither an index nor a commit
// record, throws kCorrupt if a save to this place has begun and not ended, and kNotFound if files
// of a set `model-<file>-of-<files>` are missing.
SafetensorsFiles find_safetensors_files(Store& store, const std::string& index = "");

struct HuggingFaceReaderOptions {
  CheckpointReaderOptions reader;
  // Multiplies quantised weights by their scales and loads them as this type, which must be
  // kFloat32, kFloat16 or kBFloat16. Quantised weights are the tensors `<name>.weight` of two
  // dimensions and of type float8_e4m3fn, float8_e5m2 or int8, with one scale per block in
  // `<name>.weight_scale_inv`. Without a type, weights and scales load as they are stored.
  std::optional<DType> dequantize_to;
  std::int64_t block_size = 128;  // elements of a block in each dimension
};

// Reads a checkpoint of HuggingFaceStorageWriter, or safetensors files of any program: the files
// that an index names, or all files of a directory, including PyTorch's distributed files. Without
// a commit record and an index, refuses a place where a save has begun and not ended, and refuses
// incomplete sets of files `model-<file>-of-<files>`. Each rank reads only the parts that it needs,
// however the state is sharded over ranks. Values that are not tensors are not in such files.
class HuggingFaceStorageReader : public CheckpointReader {
 public:
  explicit HuggingFaceStorageReader(const HuggingFaceReaderOptions& options = {});
  void reset(const std::string& checkpoint_id) override;
  // Throws kNotFound if there are no safetensors files, or if one of a set is missing. Throws
  // kCorrupt for files that are damaged, do not fit the index or one another, or may belong to a
  // save that has not ended. Throws kMismatch, listing the faults, if the parts of a tensor overlap
  // or leave a gap. Throws kMismatch if the number of scales of a quantised weight does not fit
  // `block_size`. With `dequantize_to`, throws kUnsupported for scales that are not kFloat32,
  // kFloat16 or kBFloat16, and for tensors that are float8 or have scales but are no quantised
  // weights as defined above.
  Metadata read_metadata() override;
  // Like `read_metadata`, but reads exactly these files, and ignores an index or a commit record.
  // Each file must contain the tensors that `files` lists for it.
  Metadata read_metadata_of(const SafetensorsFiles& files);
  void set_up_storage_reader(const Metadata& metadata, const StorageContext& context) override;
  Future<bool> read_data(const LoadPlan& plan, LoadPlanner& planner) override;

 private:
  struct Quantized {
    TensorStorageMetadata weight, scales;  // as they are stored
  };
  Metadata with_target_types(Metadata metadata);
  void dequantize(const LoadPlan& plan, const ReadItem& item, LoadPlanner& planner);

  const HuggingFaceReaderOptions options_;
  // State of the current attempt:
  std::map<std::string, Quantized> quantized_;  // by the name of the weight
  std::unique_ptr<CheckpointReader> stored_;    // reads the tensors in `quantized_`
};

// Reads safetensors files at `from`, of any kind that HuggingFaceStorageReader reads, and makes a
// checkpoint of HuggingFaceFiles::kModel at `to`. Both are paths or URLs, and must differ; `to`
// must be a place where HuggingFaceStorageWriter can save. Uses at most `bytes_in_flight_max` of
// memory for tensors. First checks the files at `from` as `verify_checkpoint` does, if a commit
// record describes them; throws kCorrupt if some are damaged. Throws what the reader and the writer
// throw. After an error `to` holds no checkpoint.
void consolidate_safetensors_files(const std::string& from, const std::string& to, const HuggingFaceWriterOptions& options = {});

}  // namespace cairn
