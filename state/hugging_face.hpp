// Checkpoints in safetensors files, with the file names that Hugging Face's and PyTorch's tools
// use. Modelled on DCP's HuggingFaceStorageWriter and HuggingFaceStorageReader; docs/stores.md
// compares them.
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
#include <string>

#include <cairn/planning/dtype.hpp>
#include <cairn/state/checkpoint_writer.hpp>
#include <cairn/storage/safetensors_files.hpp>

namespace cairn {

class CheckpointBytes;

// The files that a save makes.
enum class HuggingFaceFiles : std::uint8_t {
  // Whole tensors, in model-<file>-of-<files>.safetensors, and model.safetensors.index.json, which
  // names the file of each tensor. A tensor is written in parts if it is sharded, or if it is
  // replicated and large enough to be split (GlobalPlanOptions::split_above_bytes). If at least one
  // tensor is written in parts, every rank first writes all that it saves to temporary files, named
  // as in Cairn's own format. The coordinator then copies all tensors to the final files and
  // removes the temporary files. For the copying it uses about `bytes_in_flight_max` of memory, at
  // least 3 MiB.
  kModel = 1,
  // The parts of each rank, in shard-<rank + 1>-model-<file>-of-<files>.safetensors. PyTorch's
  // reader and `consolidate_safetensors_files` read these; programs that expect whole tensors
  // cannot.
  kDistributed,
};

struct HuggingFaceWriterOptions {
  HuggingFaceFiles files = HuggingFaceFiles::kModel;
  // A file ends before the tensor that would make it exceed this size, in bytes. 0: no limit. If no
  // tensor is written in parts, each rank that has tensors to write makes at least one file of its
  // own.
  std::uint64_t file_bytes_max = 5'000'000'000;
  // Leaves out what safetensors files cannot hold: values that are not tensors, and complex
  // tensors. If false, a save of a state with such values fails, and the error lists them.
  bool skip_unsupported = false;
  // `overwrite`, `single_file_per_rank` and `retired_keep` have no effect. `zstd_level` must be 0,
  // and `transforms` empty.
  CheckpointWriterOptions writer;
};

// A save throws kAlreadyExists if the place has safetensors files or a commit record, because
// programs that find these files by name cannot tell old files from new ones. It throws
// kUnsupported for a store whose StoreTraits::create_takes_name is false, such as `s3:`, because
// two saves there could mix their files, and for `tiered:`, which copies Cairn's own format. A file
// appears under its name only when it is complete. The index appears after all files that it names.
// A save that was killed while ranks wrote parts leaves only files of parts, which the next save to
// the place removes.
class HuggingFaceStorageWriter : public CheckpointWriter {
 public:
  explicit HuggingFaceStorageWriter(const HuggingFaceWriterOptions& options = {});
};

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
// that an index names, or all files of a directory, including PyTorch's distributed files. If the
// place has neither a commit record nor an index, refuses it if a save there has begun and not
// ended, or if a set of files `model-<file>-of-<files>` is incomplete. Each rank reads only the
// parts that it needs, however the state is sharded over ranks. Safetensors files contain only
// tensors, so no other values can be loaded.
class HuggingFaceStorageReader : public CheckpointReader {
 public:
  explicit HuggingFaceStorageReader(const HuggingFaceReaderOptions& options = {});
  ~HuggingFaceStorageReader() override;
  void reset(const std::string& checkpoint_id) override;
  // Throws kNotFound if there are no safetensors files, or if a file of a set
  // `model-<file>-of-<files>` is missing. Throws kCorrupt for files that are damaged, do not fit
  // the index or one another, or may belong to a save that has not ended. Throws kMismatch, listing
  // the faults, if the parts of a tensor overlap or leave a gap. Throws kMismatch if the number of
  // scales of a quantised weight does not fit `block_size`. With `dequantize_to`, throws
  // kUnsupported if scales have a type other than kFloat32, kFloat16 and kBFloat16. Also throws
  // kUnsupported for a tensor that has scales, or the type float8_e4m3fn or float8_e5m2, and is not
  // a quantised weight as `dequantize_to` defines it.
  Metadata read_metadata() override;
  // Like `read_metadata`, but reads exactly the files in `files`, and ignores any index and commit
  // record. Each file must contain the tensors that `files` lists for it.
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
  std::unique_ptr<CheckpointBytes> stored_;     // reads the tensors in `quantized_`
};

// Reads safetensors files at `from`, of any kind that HuggingFaceStorageReader reads, and makes a
// checkpoint of HuggingFaceFiles::kModel at `to`. Both are paths or URLs, and must differ; `to`
// must be a place where HuggingFaceStorageWriter can save. Uses about
// `options.writer.bytes_in_flight_max` of memory for tensors, at least 3 MiB. First checks the
// files at `from` as `verify_checkpoint` does, if a commit record describes them; throws kCorrupt
// if some are damaged. Throws what the reader and the writer throw. After an error `to` holds no
// checkpoint.
void consolidate_safetensors_files(const std::string& from, const std::string& to, const HuggingFaceWriterOptions& options = {});

}  // namespace cairn
