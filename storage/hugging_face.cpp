#include <cairn/storage/hugging_face.hpp>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <unordered_map>
#include <utility>

#include <cairn/base/digest.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/random.hpp>
#include <cairn/base/save_id.hpp>
#include <cairn/planning/pieces.hpp>
#include <cairn/planning/require_coverage.hpp>
#include <cairn/state/pickle/unicode.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/storage/block_scales.hpp>
#include <cairn/storage/data_format.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/format/safetensors.hpp>
#include <cairn/storage/read_part.hpp>

namespace cairn {
namespace {

constexpr const char* kScalesEnd = "_scale_inv";  // follows the name of a quantised weight
constexpr const char* kNoTensor = "it is not a tensor";
// Ten times what the largest models need. A larger index is damage, and is not read into memory.
constexpr std::uint64_t kIndexBytesMax = 100'000'000;
// Loaders of other programs ask for the first.
const std::map<std::string, std::string> kHeaderMetadata{{"format", "pt"}};

// PyTorch counts ranks and files from 1.
std::string file_name(std::size_t file, std::size_t files, std::optional<int> rank = {}) {
  char text[96];
  if (rank)
    std::snprintf(text, sizeof text, "shard-%05d-model-%05zu-of-%05zu%s", *rank + 1, file + 1, files, kSafetensorsEnd);
  else
    std::snprintf(text, sizeof text, "model-%05zu-of-%05zu%s", file + 1, files, kSafetensorsEnd);
  return text;
}

// Deals out tensors to files of at most `bytes_max`, in order; a larger tensor gets a file of its
// own. Returns indices. Several parts of one tensor go to different files, because a file has one
// tensor of a name.
std::vector<std::vector<std::uint32_t>> deal_out(const std::vector<SafetensorsTensor>& tensors, std::uint64_t bytes_max) {
  struct Filling {
    std::size_t file = 0;
    std::uint64_t bytes = 0;
  };
  std::vector<std::vector<std::uint32_t>> files;
  std::vector<Filling> filling;  // by the number of earlier parts of the same tensor
  std::unordered_map<std::string, std::size_t> parts;
  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    const std::size_t part = parts[tensors[i].name]++;
    const std::uint64_t bytes = tensors[i].bytes();
    const bool is_new = part == filling.size();
    if (is_new) filling.emplace_back();
    Filling& current = filling[part];
    if (is_new || (bytes_max > 0 && current.bytes > 0 && bytes > bytes_max - std::min(bytes_max, current.bytes))) {
      current = {files.size(), 0};
      files.emplace_back();
    }
    files[current.file].push_back(i);
    current.bytes += bytes;
  }
  return files;
}

// Writes an object from front to back, in the parts that every store accepts.
class SequentialObject {
 public:
  SequentialObject(Store& store, const ObjectName& name, std::uint64_t length, std::uint64_t buffer_bytes) : length_(length) {
    const StoreTraits traits = store.traits();
    std::uint64_t part_bytes = std::max(buffer_bytes, traits.part_bytes_min);
    if (traits.parts_max > 0) part_bytes = std::max(part_bytes, (length + traits.parts_max - 1) / traits.parts_max);
    CreateOptions options;
    options.expected_bytes = length;
    options.part_bytes = part_bytes;
    // A join that is killed must not leave a file that reads as zeros from some tensor on.
    options.appears_whole = true;
    writer_ = store.create(name, options);
    buffer_.reserve(static_cast<std::size_t>(std::min(part_bytes, length)));
    part_bytes_ = static_cast<std::size_t>(part_bytes);
  }

  void append(ByteSpan bytes) {
    crc32_ = crc32(crc32_, bytes);
    while (!bytes.empty()) {
      const std::size_t taken = std::min(bytes.size(), part_bytes_ - buffer_.size());
      buffer_.append(bytes.data(), taken);
      bytes = bytes.subspan(taken, bytes.size() - taken);
      if (buffer_.size() == part_bytes_) flush();
    }
  }

  FileInfo finish(const ObjectName& name, bool sync) {
    if (!buffer_.empty()) flush();
    check_invariant(written_ == length_, "a safetensors file must have the length that its header says");
    if (sync)
      writer_->sync(length_);
    else
      writer_->close(length_);
    FileInfo info;
    info.name = name;
    info.length = length_;
    info.crc32 = crc32_;
    info.trailer_length = 0;
    return info;
  }

 private:
  void flush() {
    writer_->write_at(written_, buffer_);
    written_ += buffer_.size();
    buffer_.clear();
  }

  const std::uint64_t length_;
  std::unique_ptr<ObjectWriter> writer_;
  std::size_t part_bytes_ = 0;
  Bytes buffer_;
  std::uint64_t written_ = 0;
  std::uint32_t crc32_ = 0;
};

// The coordinator's word to a rank: "whole <its first file> <files of all ranks>", "parts" for
// parts that are joined, or "sharded".
struct Arrangement {
  explicit Arrangement(const std::string& text) { std::istringstream(text) >> kind >> first >> files; }
  bool is_whole() const { return kind == "whole"; }

  std::string kind;
  std::size_t first = 0;
  std::size_t files = 0;
};

class HuggingFaceFormat final : public DataFormat {
 public:
  // `source`: the URL of other safetensors files that `complete` consolidates.
  explicit HuggingFaceFormat(const HuggingFaceWriterOptions& options, std::string source = "")
      : options_(options), source_(std::move(source)) {}

  bool takes_changed_plans() const override { return false; }
  bool names_are_unique() const override { return false; }
  // A file that a frozen rank has not finished may get its name later.
  bool needs_no_record(const ObjectName& name) const override {
    return name.find('/') == ObjectName::npos && name.find(kSafetensorsEnd) != ObjectName::npos;
  }

  void require_room(Store& store) override {
    if (!store.traits().create_takes_name)
      throw Error(ErrorCode::kUnsupported, "cannot save safetensors files to " + store.url() +
                                               ": their names are fixed, and this store lets two saves write files of one name " +
                                               "at once, so they could mix their files. Save to a directory");
    if (store.is_taken(kCommitRecordName)) throw occupied(store, kCommitRecordName);
    for (const ObjectInfo& object : store.list())
      if (needs_no_record(object.name)) throw occupied(store, object.name);
  }

  SavePlan prepare(SavePlan plan) const override {
    std::string refused;
    std::set<NameId> left_out;
    std::vector<WriteItem> kept;
    for (WriteItem& item : plan.items) {
      const std::string& name = plan.names[item.name];
      const std::string objection =
          item.type == WriteItemType::kByteIO ? kNoTensor : safetensors_objection(name, item.properties.dtype);
      if (objection.empty())
        kept.push_back(std::move(item));
      else if (left_out.insert(item.name).second)
        refused += line(name, objection);
    }
    plan.items = std::move(kept);
    if (left_out.empty()) return plan;
    require_leave(refused);
    auto& mappings = plan.mappings.edit();
    mappings.erase(
        std::remove_if(mappings.begin(), mappings.end(), [&](const auto& path) { return left_out.count(path.first) > 0; }),
        mappings.end());
    return plan;
  }

  std::vector<std::string> arrange(const std::vector<SavePlan>& plans) override {
    joins_parts_ = options_.files == HuggingFaceFiles::kModel && !std::all_of(plans.begin(), plans.end(), has_whole_tensors);
    if (options_.files == HuggingFaceFiles::kDistributed) return std::vector<std::string>(plans.size(), "sharded");
    if (joins_parts_) return std::vector<std::string>(plans.size(), "parts");
    std::vector<std::size_t> counts;
    std::size_t all = 0;
    for (const SavePlan& plan : plans)
      all += counts.emplace_back(deal_out(tensors_of(plan, false), options_.file_bytes_max).size());
    std::vector<std::string> arrangements;
    std::size_t first = 0;
    for (const std::size_t count : counts) {
      arrangements.push_back("whole " + std::to_string(first) + " " + std::to_string(all));
      first += count;
    }
    return arrangements;
  }

  std::vector<FileLayout> layouts(const SavePlan& plan, const std::string& arrangement) const override {
    const std::vector<SafetensorsTensor> tensors = tensors_of(plan, !Arrangement(arrangement).is_whole());
    std::vector<FileLayout> layouts;
    for (const auto& items : deal_out(tensors, options_.file_bytes_max)) layouts.push_back(lay_out(tensors, items));
    return layouts;
  }

  ObjectName name(int rank, std::size_t file, std::size_t files, const std::string& arrangement,
                  const std::string& save_id) const override {
    const Arrangement arranged(arrangement);
    if (arranged.is_whole()) return file_name(arranged.first + file, arranged.files);
    // Parts that are joined have the names of Cairn's own format, by which later saves remove those
    // that a killed save left.
    return arranged.kind == "parts" ? data_file_name(rank, static_cast<int>(file), save_id) : file_name(file, files, rank);
  }

  std::function<void()> complete(const std::shared_ptr<Store>& store, const std::string& url, Metadata& metadata,
                                 WrittenNames& written) override {
    std::function<void()> clean_up;
    if (!source_.empty()) {
      require_undamaged(*open_store(source_), options_.writer.threads);
      HuggingFaceStorageReader source;
      source.reset(source_);
      Metadata read = source.read_metadata();
      leave_out_unsupported(read);
      join(*store, source_, read, written);
      metadata.state_dict_metadata = std::move(read.state_dict_metadata);
      metadata.planner_data = std::move(read.planner_data);
      metadata.files = std::move(read.files);
      metadata.reindex();
    } else if (joins_parts_) {
      clean_up = [store, parts = metadata.files] {
        for (const FileInfo& file : parts) store->remove(file.name);
      };
      join(*store, url, metadata, written);
    }
    if (options_.files == HuggingFaceFiles::kModel) write_index(*store, metadata, written);
    return clean_up;
  }

 private:
  // Loads do not check safetensors files, and the new files get checksums of their own: damage
  // would never be found again.
  static void require_undamaged(Store& store, unsigned threads) {
    if (!store.is_taken(kCommitRecordName)) return;  // nothing to compare with
    for (const VerifyFault& fault : verify_checkpoint(store, threads))
      if (!fault.unchecked)
        throw Error(ErrorCode::kCorrupt, "cannot consolidate " + store.url() + ": " + fault.object + ": " + fault.what);
  }

  static std::string line(const std::string& name, const std::string& objection) {
    return "\n  \"" + printable(name) + "\": " + objection;
  }

  // Throws unless the options leave out the entries that `lines` lists.
  void require_leave(const std::string& lines) const {
    if (!options_.skip_unsupported)
      throw Error(ErrorCode::kUnsupported, "safetensors files cannot hold these entries of the state; leave them out of it, or " +
                                               std::string("set skip_unsupported:") + lines);
  }

  // Does for a consolidation what `prepare` does for a save. Its source may be any checkpoint.
  void leave_out_unsupported(Metadata& metadata) const {
    std::string refused;
    std::set<std::string> left_out;
    for (const auto& [name, entry] : metadata.state_dict_metadata) {
      const auto* tensor = std::get_if<TensorStorageMetadata>(&entry);
      const std::string objection = tensor ? safetensors_objection(name, tensor->properties.dtype) : kNoTensor;
      if (objection.empty()) continue;
      refused += line(name, objection);
      left_out.insert(name);
    }
    if (left_out.empty()) return;
    require_leave(refused);
    const auto remove_from = [&](auto& named) {
      named.erase(std::remove_if(named.begin(), named.end(), [&](const auto& entry) { return left_out.count(entry.first) > 0; }),
                  named.end());
    };
    remove_from(metadata.state_dict_metadata);
    remove_from(metadata.planner_data);
    metadata.reindex();
  }

  static Error occupied(Store& store, const ObjectName& name) {
    return Error(ErrorCode::kAlreadyExists, "cannot save safetensors files to " + store.url() + ": " + name +
                                                " is there already, of another save or of one that died. Save to another " +
                                                "place, or remove what is there");
  }

  static bool has_whole_tensors(const SavePlan& plan) {
    return std::all_of(plan.items.begin(), plan.items.end(),
                       [](const WriteItem& item) { return item.chunk == Box::whole(item.size); });
  }

  static std::vector<SafetensorsTensor> tensors_of(const SavePlan& plan, bool as_parts) {
    std::vector<SafetensorsTensor> tensors;
    tensors.reserve(plan.items.size());
    for (const WriteItem& item : plan.items) {
      SafetensorsTensor tensor{plan.names[item.name], item.properties.dtype, item.chunk.sizes, {}, {}};
      if (as_parts) {
        tensor.offsets = item.chunk.offsets;
        tensor.size = item.size;
      }
      tensors.push_back(std::move(tensor));
    }
    return tensors;
  }

  // `items`: indices into `tensors`, which has one entry per item of the plan.
  static FileLayout lay_out(const std::vector<SafetensorsTensor>& tensors, const std::vector<std::uint32_t>& items) {
    std::vector<SafetensorsTensor> chosen;
    std::unordered_map<std::string, std::uint32_t> item_of;
    for (const std::uint32_t item : items) {
      chosen.push_back(tensors[item]);
      item_of.emplace(tensors[item].name, item);
    }
    SafetensorsLayout laid_out = lay_out_safetensors(std::move(chosen), kHeaderMetadata);
    FileLayout layout;
    layout.head = std::move(laid_out.head);
    layout.tensors_end = layout.head.size();
    for (const SafetensorsTensor& tensor : laid_out.tensors) {
      PlacedTensor placed;
      placed.item = item_of.at(tensor.name);
      placed.offset = layout.tensors_end;
      placed.layout.payload_bytes = tensor.bytes();
      layout.tensors_end = placed.end();
      layout.tensors.push_back(placed);
    }
    return layout;
  }

  // Writes whole tensors from the parts at `url` that `metadata` locates, and makes it locate the
  // whole tensors.
  void join(Store& store, const std::string& url, Metadata& metadata, WrittenNames& written) const {
    std::vector<SafetensorsTensor> tensors;
    std::vector<TensorStorageMetadata*> entries;
    for (auto& [name, entry] : metadata.state_dict_metadata) {
      auto& tensor = std::get<TensorStorageMetadata>(entry);
      tensors.push_back({name, tensor.properties.dtype, tensor.size, {}, {}});
      entries.push_back(&tensor);
    }
    CheckpointReaderOptions reader_options;
    reader_options.threads = options_.writer.threads;
    // A third each for the staging memory of the reader, the piece that it fills and the block that
    // is written.
    const std::uint64_t third = std::max<std::uint64_t>(options_.writer.bytes_in_flight_max / 3, std::uint64_t{1} << 20);
    reader_options.bytes_in_flight_max = third;
    CheckpointReader reader(reader_options);
    reader.reset(url);
    StorageContext context;
    context.checkpoint_id = url;
    reader.set_up_storage_reader(metadata, context);

    const auto dealt = deal_out(tensors, options_.file_bytes_max);
    std::vector<FileInfo> files;
    std::vector<StorageInfo> places(tensors.size());
    for (std::size_t i = 0; i < dealt.size(); ++i) {
      const FileLayout layout = lay_out(tensors, dealt[i]);
      const ObjectName name = file_name(i, dealt.size());
      SequentialObject file(store, name, layout.tensors_end, third);
      file.append(layout.head);
      for (const PlacedTensor& placed : layout.tensors) {
        copy(reader, tensors[placed.item], *entries[placed.item], third, file);
        StorageInfo& place = places[placed.item];
        place.file = static_cast<std::uint32_t>(i);
        place.offset = place.payload_offset = placed.offset;
        place.length = placed.layout.payload_bytes;
      }
      files.push_back(file.finish(name, options_.writer.sync_files));
      written.add({name});
    }
    metadata.files = std::move(files);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      entries[i]->chunks = {Box::whole(entries[i]->size)};
      entries[i]->storage = {places[i]};
    }
  }

  static void copy(CheckpointReader& reader, const SafetensorsTensor& tensor, const TensorStorageMetadata& stored,
                   std::uint64_t memory, SequentialObject& to) {
    const auto elements_max = static_cast<std::int64_t>(memory / element_size(tensor.dtype));
    for_each_piece(tensor.shape, elements_max, [&](const Box& box, std::int64_t) {
      const torch::Tensor piece = read_part(reader, tensor.name, stored, box);
      to.append({piece.data_ptr(), piece.nbytes()});
    });
  }

  void write_index(Store& store, const Metadata& metadata, WrittenNames& written) const {
    SafetensorsIndex index;
    std::uint64_t bytes = 0;
    for (const auto& [name, entry] : metadata.state_dict_metadata) {
      const StorageInfo& place = std::get<TensorStorageMetadata>(entry).storage.at(0);
      index[metadata.files.at(place.file).name].insert(name);
      bytes += place.length;
    }
    const std::string text = write_safetensors_index(index, bytes);
    CreateOptions options;
    options.appears_whole = true;
    const auto writer = store.create(kSafetensorsIndexName, options);
    writer->write_at(0, text);
    writer->sync(text.size());
    written.add({kSafetensorsIndexName});
  }

  const HuggingFaceWriterOptions options_;
  const std::string source_;
  bool joins_parts_ = false;  // of the current save; set on the coordinator
};

CheckpointWriterOptions writer_options(const HuggingFaceWriterOptions& options) {
  if (options.writer.zstd_level != 0)
    throw Error(ErrorCode::kInvalidArgument, "zstd_level is " + std::to_string(options.writer.zstd_level) +
                                                 ", but safetensors files hold no compressed tensors");
  if (!options.writer.transforms.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "the transform \"" + options.writer.transforms.front() + "\" is given, but safetensors files hold plain tensors");
  CheckpointWriterOptions changed = options.writer;
  changed.overwrite = false;
  return changed;
}

// A save without data of its own: its files are made from others when it is completed.
class Consolidation final : public CheckpointWriter {
 public:
  Consolidation(const HuggingFaceWriterOptions& options, const std::string& from)
      : CheckpointWriter(writer_options(options), std::make_unique<HuggingFaceFormat>(as_model(options), from)) {}

 private:
  static HuggingFaceWriterOptions as_model(HuggingFaceWriterOptions options) {
    options.files = HuggingFaceFiles::kModel;
    return options;
  }
};

// Whether weights can be loaded as this type, and scales stored in it.
bool is_float(DType dtype) { return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16; }

SafetensorsFiles index_at(Store& store, const ObjectName& name) {
  const std::uint64_t bytes = store.size_bytes(name);
  if (bytes > kIndexBytesMax) throw Error(ErrorCode::kCorrupt, child_url(store.url(), name) + " is too large for an index");
  std::string text(static_cast<std::size_t>(bytes), '\0');
  store.read(name, {{0, {text.data(), text.size()}}});
  return read_safetensors_index(text, child_url(store.url(), name));
}

// Throws if a file of a set model-<file>-of-<files> is missing. Of distributed files each must be
// there for some rank: PyTorch makes none for a rank that has no tensor of it.
void require_whole_sets(Store& store, const SafetensorsFiles& files) {
  static const std::regex pattern("(shard-[0-9]{5,9}-)?model-([0-9]{5,9})-of-([0-9]{5,9})" + std::string(kSafetensorsEnd));
  std::map<std::pair<bool, std::size_t>, std::set<std::size_t>> sets;  // by whether they are distributed, and the number of files
  for (const auto& [name, promised] : files)
    if (std::smatch found; std::regex_match(name, found, pattern))
      sets[{found[1].matched, std::stoul(found[3])}].insert(std::stoul(found[2]));
  for (const auto& [set, found] : sets)
    for (std::size_t file = 1; file <= set.second; ++file)
      if (found.count(file) == 0)
        throw Error(ErrorCode::kNotFound, store.url() + " lacks " + (set.first ? "shard-*-" : "") +
                                              file_name(file - 1, set.second) +
                                              ", one of a set of files. Complete the set, or remove the other files of it");
}

// Adds a tensor, or a part of one, to the metadata.
void add(const StoredSafetensor& tensor, std::uint32_t file, const std::string& what, Metadata& metadata,
         std::unordered_map<std::string, std::size_t>& entries) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::kCorrupt, "\"" + printable(tensor.name) + "\" " + why + ". One of its files is " + what);
  };
  const Extents offsets = tensor.offsets ? *tensor.offsets : Extents::filled(tensor.shape.size(), 0);
  const auto [found, is_new] = entries.emplace(tensor.name, metadata.state_dict_metadata.size());
  if (is_new) {
    TensorStorageMetadata made;
    made.properties.dtype = tensor.dtype;
    if (tensor.dtype == DType::kUnknown) made.unknown_dtype = tensor.type;
    made.size = tensor.size ? *tensor.size : Extents::filled(tensor.shape.size(), 0);
    metadata.state_dict_metadata.emplace_back(tensor.name, std::move(made));
  }
  auto& stored = std::get<TensorStorageMetadata>(metadata.state_dict_metadata[found->second].second);
  if (!is_new && !tensor.offsets) refuse("is in two files, and the header does not say that it is a part: name one of the files");
  if (stored.properties.dtype != tensor.dtype || stored.size.size() != tensor.shape.size())
    refuse("has parts of different types or numbers of dimensions");
  if (tensor.size && *tensor.size != stored.size) refuse("has parts that name different sizes of the whole tensor");
  // PyTorch does not say how large the whole tensor is: its parts reach its ends.
  if (!tensor.size)
    for (std::size_t dim = 0; dim < offsets.size(); ++dim)
      stored.size[dim] = std::max(stored.size[dim], offsets[dim] + tensor.shape[dim]);
  stored.chunks.push_back({offsets, tensor.shape});
  StorageInfo place;
  place.file = file;
  place.offset = place.payload_offset = tensor.offset;
  place.length = tensor.bytes();
  stored.storage.push_back(place);
}

}  // namespace

HuggingFaceStorageWriter::HuggingFaceStorageWriter(const HuggingFaceWriterOptions& options)
    : CheckpointWriter(writer_options(options), std::make_unique<HuggingFaceFormat>(options)) {}

SafetensorsFiles find_safetensors_files(Store& store, const std::string& index) {
  if (!index.empty()) return index_at(store, index);
  // Without listing, because a directory of models may have much below it.
  if (store.exists(kSafetensorsIndexName)) return index_at(store, kSafetensorsIndexName);
  SafetensorsFiles files;
  std::vector<ObjectName> indexes;
  for (const ObjectInfo& object : store.list()) {
    if (object.name.find('/') != std::string::npos) continue;
    if (ends_with(object.name, kSafetensorsIndexEnd)) indexes.push_back(object.name);
    if (ends_with(object.name, kSafetensorsEnd)) files[object.name];
  }
  if (indexes.size() > 1)
    throw Error(ErrorCode::kCorrupt,
                store.url() + " holds several indexes of safetensors files: " + indexes[0] + " and " + indexes[1]);
  if (!indexes.empty()) return index_at(store, indexes[0]);
  if (files.empty()) return files;
  // In this order: a save that is published has its record before its attempt is gone.
  const bool has_attempt = !store.open_attempts().empty() || !store.fenced_attempts().empty();
  if (store.is_taken(kCommitRecordName)) return files;  // of a save that has ended, perhaps since the listing
  if (has_attempt)
    throw Error(ErrorCode::kCorrupt, store.url() + " holds safetensors files, but neither " + kCommitRecordName +
                                         " nor an index: a save to this place is under way, or died. Wait for it, or remove " +
                                         "what it left");
  require_whole_sets(store, files);
  return files;
}

HuggingFaceStorageReader::HuggingFaceStorageReader(const HuggingFaceReaderOptions& options)
    : CheckpointReader(options.reader), options_(options) {
  if (options_.dequantize_to && (!is_float(*options_.dequantize_to) || options_.block_size < 1))
    throw Error(ErrorCode::kInvalidArgument, "dequantize_to is " + std::string(to_string(*options_.dequantize_to)) +
                                                 " with a block_size of " + std::to_string(options_.block_size) +
                                                 ": use float32, float16 or bfloat16, and blocks of 1 or more");
}

void HuggingFaceStorageReader::reset(const std::string& checkpoint_id) {
  CheckpointReader::reset(checkpoint_id);
  quantized_.clear();
  stored_.reset();
}

Metadata HuggingFaceStorageReader::read_metadata() {
  Store& store = opened();
  if (store.is_taken(kCommitRecordName)) return with_target_types(CheckpointReader::read_metadata());
  const SafetensorsFiles files = find_safetensors_files(store);
  // A save that was under way at the listing may have ended since: `files` may lack some of it.
  if (store.is_taken(kCommitRecordName)) return with_target_types(CheckpointReader::read_metadata());
  if (files.empty())
    throw Error(ErrorCode::kNotFound, "there are no safetensors files at " + store.url() + ": neither " + kCommitRecordName +
                                          " nor any name that ends in " + kSafetensorsEnd + ". Check the path");
  return read_metadata_of(files);
}

Metadata HuggingFaceStorageReader::read_metadata_of(const SafetensorsFiles& files) {
  Store& store = opened();
  Metadata metadata;
  std::unordered_map<std::string, std::size_t> entries;
  for (const auto& [name, promised] : files) {
    const std::string what = child_url(store.url(), name);
    const std::uint64_t length = store.size_bytes(name);
    const auto read = [&store, &file = name](std::uint64_t offset, MutableByteSpan to) { store.read(file, {{offset, to}}); };
    std::set<std::string> missing = promised;
    for (const StoredSafetensor& tensor : read_safetensors(length, read, what)) {
      missing.erase(tensor.name);
      add(tensor, static_cast<std::uint32_t>(metadata.files.size()), what, metadata, entries);
    }
    if (!missing.empty())
      throw Error(ErrorCode::kCorrupt, what + " lacks \"" + printable(*missing.begin()) + "\", which the index says is there");
    FileInfo info;
    info.name = name;
    info.length = length;
    metadata.files.push_back(std::move(info));
  }
  require_coverage(metadata, "cannot read the safetensors files at " + store.url());
  return with_target_types(std::move(metadata));
}

// Remembers quantised weights as they are stored, and gives them the type as which they are loaded.
Metadata HuggingFaceStorageReader::with_target_types(Metadata metadata) {
  quantized_.clear();
  if (!options_.dequantize_to) return metadata;
  for (auto& [name, entry] : metadata.state_dict_metadata) {
    auto* const weight = std::get_if<TensorStorageMetadata>(&entry);
    if (!weight || !ends_with(name, ".weight") || weight->size.size() != 2 || !is_quantized_type(weight->properties.dtype))
      continue;
    const auto* const scales = std::get_if<TensorStorageMetadata>(metadata.find(name + kScalesEnd));
    if (!scales) continue;
    const Extents expected = scales_of(Box::whole(weight->size), options_.block_size).sizes;
    if (scales->size != expected)
      throw Error(ErrorCode::kMismatch, "\"" + printable(name) + kScalesEnd + "\" has the size " + to_string(scales->size) +
                                            ", but blocks of " + std::to_string(options_.block_size) + " need " +
                                            to_string(expected) + ": set block_size");
    if (!is_float(scales->properties.dtype))
      throw Error(ErrorCode::kUnsupported,
                  "\"" + printable(name) + kScalesEnd + "\" is stored as " + to_string(scales->properties.dtype) +
                      ": scales must be float32, float16 or bfloat16. Load the weights as they are stored");
    quantized_[name] = {*weight, *scales};
    weight->properties.dtype = *options_.dequantize_to;
  }
  // Such a tensor would be loaded without its scales, beside others that were multiplied by theirs.
  std::string unscaled;
  for (const auto& [name, entry] : metadata.state_dict_metadata) {
    const auto* const tensor = std::get_if<TensorStorageMetadata>(&entry);
    if (!tensor || quantized_.count(name) != 0) continue;
    const bool has_scales = metadata.find(name + kScalesEnd) != nullptr;
    if (has_scales || tensor->properties.dtype == DType::kFloat8E4M3Fn || tensor->properties.dtype == DType::kFloat8E5M2)
      unscaled += (unscaled.empty() ? "\"" : ", \"") + printable(name) + "\"";
  }
  if (!unscaled.empty())
    throw Error(ErrorCode::kUnsupported, "cannot multiply " + unscaled + " by scales: a weight needs two dimensions, a name that " +
                                             "ends with .weight, and scales of blocks in the tensor of that name with " +
                                             kScalesEnd + ". Load without dequantize_to");
  return metadata;
}

void HuggingFaceStorageReader::set_up_storage_reader(const Metadata& metadata, const StorageContext& context) {
  CheckpointReader::set_up_storage_reader(metadata, context);
  if (quantized_.empty()) return;
  Metadata stored = metadata;
  for (const auto& [name, tensors] : quantized_)
    if (auto* const entry = stored.find(name)) *entry = tensors.weight;
  stored_ = std::make_unique<CheckpointReader>(options_.reader);
  stored_->reset(context.checkpoint_id);
  stored_->set_up_storage_reader(stored, context);
}

Future<bool> HuggingFaceStorageReader::read_data(const LoadPlan& plan, LoadPlanner& planner) {
  if (quantized_.empty()) return CheckpointReader::read_data(plan, planner);
  LoadPlan others = plan;
  const auto is_quantized = [&](const ReadItem& item) { return quantized_.count(plan.names[item.storage_name]) > 0; };
  others.items.erase(std::remove_if(others.items.begin(), others.items.end(), is_quantized), others.items.end());
  CheckpointReader::read_data(others, planner).get();
  for (const ReadItem& item : plan.items)
    if (is_quantized(item)) dequantize(plan, item, planner);
  return ready_future(true);
}

void HuggingFaceStorageReader::dequantize(const LoadPlan& plan, const ReadItem& item, LoadPlanner& planner) {
  const std::string& name = plan.names[item.storage_name];
  const auto& [weight, scales] = quantized_.at(name);
  const torch::Tensor to = planner.resolve_tensor(plan, item);
  // An element takes 7 to 9 bytes, in its stored type, in float32 and in the target type.
  const auto elements_max = static_cast<std::int64_t>(options_.reader.bytes_in_flight_max / 9);
  for_each_piece(item.lengths, elements_max, [&](const Box& piece, std::int64_t) {
    Box box = piece;
    for (std::size_t dim = 0; dim < box.offsets.size(); ++dim)
      box.offsets[dim] += item.storage_chunk_offset[dim] + item.storage_offsets[dim];
    const torch::Tensor elements = read_part(*stored_, name, weight, box);
    const torch::Tensor factors = read_part(*stored_, name + kScalesEnd, scales, scales_of(box, options_.block_size));
    with_torch("dequantise " + name, [&] {
      part_of(to, piece.offsets, piece.sizes)
          .copy_(dequantize_blocks(elements, weight.properties.dtype, factors, box, options_.block_size,
                                   *scalar_type_of(*options_.dequantize_to)));
    });
  });
  planner.commit_tensor(plan, item, to);
}

void consolidate_safetensors_files(const std::string& from, const std::string& to, const HuggingFaceWriterOptions& options) {
  Consolidation writer(options, from);
  StorageContext context;
  context.checkpoint_id = to;
  context.save_id = make_save_id(random_hex(*system_random(), 128), "consolidate", 1);
  writer.reset(to);
  writer.set_up_storage_writer(context);
  try {
    writer.prepare_global_plan({SavePlan()});
    writer.finish({}, {WriteResults()});
  } catch (...) {
    writer.discard(true);
    throw;
  }
}

}  // namespace cairn
