// Saves safetensors files. Also makes files of whole tensors from files of parts, or from other
// safetensors files.
#include <cairn/state/hugging_face_format.hpp>

#include <algorithm>
#include <optional>
#include <set>
#include <sstream>
#include <tuple>
#include <unordered_map>

#include <cairn/base/digest.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/random.hpp>
#include <cairn/base/save_id.hpp>
#include <cairn/formats/unicode.hpp>
#include <cairn/planning/pieces.hpp>
#include <cairn/storage/checkpoint_bytes.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/tiers.hpp>
#include <cairn/storage/verify_checkpoint.hpp>

namespace cairn {
namespace {

// Loaders of other programs ask for the first.
const std::map<std::string, std::string> kHeaderMetadata{{"format", "pt"}};

// The coordinator's word to a rank: "whole <its first file> <files of all ranks>", "parts" for
// parts that are joined, or "sharded".
struct Arrangement {
  explicit Arrangement(const std::string& text) { std::istringstream(text) >> kind >> first >> files; }
  bool is_whole() const { return kind == "whole"; }

  std::string kind;
  std::size_t first = 0;
  std::size_t files = 0;
};

Error occupied(Store& store, const ObjectName& name) {
  return Error(ErrorCode::kAlreadyExists, "cannot save safetensors files to " + store.url() + ": " + name +
                                              " is there already, of another save or of one that died. Save to another " +
                                              "place, or remove what is there");
}

bool has_whole_tensors(const SavePlan& plan) {
  return std::all_of(plan.items.begin(), plan.items.end(),
                     [](const WriteItem& item) { return item.chunk == Box::whole(item.size); });
}

std::vector<SafetensorsTensor> tensors_of(const SavePlan& plan, bool as_parts) {
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
    return {name, length_, crc32_, 0};
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

// Loads do not check safetensors files, and the new files get checksums of their own: damage
// would never be found again.
void require_undamaged(Store& store, unsigned threads) {
  if (!store.is_taken(kCommitRecordName)) return;  // nothing to compare with
  for (const VerifyFault& fault : verify_checkpoint(store, threads))
    if (!fault.unchecked)
      throw Error(ErrorCode::kCorrupt, "cannot consolidate " + store.url() + ": " + fault.object + ": " + fault.what);
}

void copy(CheckpointBytes& reader, const SafetensorsTensor& tensor, const TensorStorageMetadata& stored, std::uint64_t memory,
          SequentialObject& to) {
  const auto elements_max = static_cast<std::int64_t>(memory / element_size(tensor.dtype));
  for_each_piece(tensor.shape, elements_max,
                 [&](const Box& box, std::int64_t) { to.append(reader.elements(tensor.name, stored, box)); });
}

// Removes the entries that safetensors files cannot hold, and returns their keys. `described` gives
// an entry's key and name, and its type if it is a tensor. Throws kUnsupported, naming all of them,
// unless they may be left out.
template <class Key, class Entries, class Described>
std::set<Key> leave_out_unsupported(Entries& entries, bool may_leave, const Described& described) {
  std::set<Key> left_out;
  std::string refused;
  const auto is_unsupported = [&](const auto& entry) {
    const auto [key, name, dtype] = described(entry);
    const std::string objection = dtype ? safetensors_objection(name, *dtype) : "it is not a tensor";
    if (!objection.empty() && left_out.insert(key).second) refused += "\n  \"" + printable(name) + "\": " + objection;
    return !objection.empty();
  };
  entries.erase(std::remove_if(entries.begin(), entries.end(), is_unsupported), entries.end());
  if (!left_out.empty() && !may_leave)
    throw Error(ErrorCode::kUnsupported, "safetensors files cannot hold these entries of the state; leave them out of it, or " +
                                             std::string("set skip_unsupported:") + refused);
  return left_out;
}

template <class Named, class Key>
void remove_named(std::vector<Named>& list, const std::set<Key>& keys) {
  list.erase(std::remove_if(list.begin(), list.end(), [&](const Named& one) { return keys.count(one.first) > 0; }), list.end());
}

// A save without data of its own: its files are made from others when it is completed.
class Consolidation final : public CheckpointWriter {
 public:
  Consolidation(const HuggingFaceWriterOptions& options, const std::string& from)
      : CheckpointWriter(HuggingFaceFormat::writer_options(options), std::make_unique<HuggingFaceFormat>(as_model(options), from)) {
  }

 private:
  static HuggingFaceWriterOptions as_model(HuggingFaceWriterOptions options) {
    options.files = HuggingFaceFiles::kModel;
    return options;
  }
};

}  // namespace

std::vector<std::vector<std::uint32_t>> HuggingFaceFormat::deal_out(const std::vector<SafetensorsTensor>& tensors,
                                                                    std::uint64_t bytes_max) {
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

CheckpointWriterOptions HuggingFaceFormat::writer_options(const HuggingFaceWriterOptions& options) {
  if (options.writer.zstd_level != 0)
    throw Error(ErrorCode::kInvalidArgument, "zstd_level is " + std::to_string(options.writer.zstd_level) +
                                                 ", but safetensors files hold no compressed tensors");
  if (!options.writer.transforms.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "the transform \"" + options.writer.transforms.front() + "\" is given, but safetensors files hold plain tensors");
  CheckpointWriterOptions changed = options.writer;
  changed.overwrite = false;
  changed.reuse = Reuse::kOff;
  return changed;
}

void HuggingFaceFormat::require_room(Store& store) {
  if (is_tiered(store.url()))
    throw Error(ErrorCode::kUnsupported, "cannot save safetensors files to " + store.url() +
                                             ": tiers keep and copy files of Cairn's own format only. Save to a directory");
  if (!store.traits().create_takes_name)
    throw Error(ErrorCode::kUnsupported, "cannot save safetensors files to " + store.url() +
                                             ": their names are fixed, and this store lets two saves write files of one name " +
                                             "at once, so they could mix their files. Save to a directory");
  if (store.is_taken(kCommitRecordName)) throw occupied(store, kCommitRecordName);
  for (const ObjectInfo& object : store.list())
    if (needs_no_record(object.name)) throw occupied(store, object.name);
}

SavePlan HuggingFaceFormat::prepare(SavePlan plan, const Store&) const {
  const auto left_out = leave_out_unsupported<NameId>(plan.items, options_.skip_unsupported, [&](const WriteItem& item) {
    const auto dtype = item.type == WriteItemType::kByteIO ? std::nullopt : std::optional(item.properties.dtype);
    return std::tuple<NameId, const std::string&, std::optional<DType>>(item.name, plan.names[item.name], dtype);
  });
  if (!left_out.empty()) remove_named(plan.mappings.edit(), left_out);
  return plan;
}

std::vector<std::string> HuggingFaceFormat::arrange(const std::vector<SavePlan>& plans) {
  joins_parts_ = options_.files == HuggingFaceFiles::kModel && !std::all_of(plans.begin(), plans.end(), has_whole_tensors);
  if (options_.files == HuggingFaceFiles::kDistributed) return std::vector<std::string>(plans.size(), "sharded");
  if (joins_parts_) return std::vector<std::string>(plans.size(), "parts");
  std::vector<std::size_t> counts;
  std::size_t all = 0;
  for (const SavePlan& plan : plans) all += counts.emplace_back(deal_out(tensors_of(plan, false), options_.file_bytes_max).size());
  std::vector<std::string> arrangements;
  std::size_t first = 0;
  for (const std::size_t count : counts) {
    arrangements.push_back("whole " + std::to_string(first) + " " + std::to_string(all));
    first += count;
  }
  return arrangements;
}

std::vector<FileLayout> HuggingFaceFormat::layouts(const SavePlan& plan, const std::string& arrangement) const {
  const std::vector<SafetensorsTensor> tensors = tensors_of(plan, !Arrangement(arrangement).is_whole());
  std::vector<FileLayout> layouts;
  for (const auto& items : deal_out(tensors, options_.file_bytes_max)) layouts.push_back(lay_out(tensors, items));
  return layouts;
}

ObjectName HuggingFaceFormat::name(int rank, std::size_t file, std::size_t files, const std::string& arrangement,
                                   const std::string& save_id) const {
  const Arrangement arranged(arrangement);
  if (arranged.is_whole()) return safetensors_file_name(arranged.first + file, arranged.files);
  // Parts that are joined have the names of Cairn's own format, by which later saves remove those
  // that a killed save left.
  return arranged.kind == "parts" ? data_file_name(rank, static_cast<int>(file), save_id)
                                  : safetensors_file_name(file, files, rank);
}

FileLayout HuggingFaceFormat::lay_out(const std::vector<SafetensorsTensor>& tensors, const std::vector<std::uint32_t>& items) {
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

HuggingFaceStorageWriter::HuggingFaceStorageWriter(const HuggingFaceWriterOptions& options)
    : CheckpointWriter(HuggingFaceFormat::writer_options(options), std::make_unique<HuggingFaceFormat>(options)) {}

// --- consolidation ---

std::function<void()> HuggingFaceFormat::complete(const std::shared_ptr<Store>& store, const std::string& url, Metadata& metadata,
                                                  WrittenNames& written) {
  std::function<void()> clean_up;
  if (!source_.empty()) {
    require_undamaged(*open_store(source_), options_.writer.threads);
    HuggingFaceStorageReader source;
    source.reset(source_);
    Metadata read = source.read_metadata();
    // The source may be any checkpoint.
    const auto left_out = leave_out_unsupported<std::string>(read.state_dict_metadata, options_.skip_unsupported, [](auto& named) {
      const auto* tensor = std::get_if<TensorStorageMetadata>(&named.second);
      const auto dtype = tensor ? std::optional(tensor->properties.dtype) : std::nullopt;
      return std::tuple<std::string, const std::string&, std::optional<DType>>(named.first, named.first, dtype);
    });
    remove_named(read.planner_data, left_out);
    read.reindex();
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

void HuggingFaceFormat::join(Store& store, const std::string& url, Metadata& metadata, WrittenNames& written) const {
  std::vector<SafetensorsTensor> tensors;
  std::vector<TensorStorageMetadata*> entries;
  for (auto& [name, entry] : metadata.state_dict_metadata) {
    auto& tensor = std::get<TensorStorageMetadata>(entry);
    tensors.push_back({name, tensor.properties.dtype, tensor.size, {}, {}});
    entries.push_back(&tensor);
  }
  // A third each for the staging memory of the reader, the piece that it fills and the block that
  // is written.
  const std::uint64_t third = std::max<std::uint64_t>(options_.writer.bytes_in_flight_max / 3, std::uint64_t{1} << 20);
  CheckpointBytes reader(open_store(url), std::make_shared<const Metadata>(metadata), true, {options_.writer.threads, third});

  const auto dealt = deal_out(tensors, options_.file_bytes_max);
  std::vector<FileInfo> files;
  std::vector<StorageInfo> places(tensors.size());
  for (std::size_t i = 0; i < dealt.size(); ++i) {
    const FileLayout layout = lay_out(tensors, dealt[i]);
    const ObjectName name = safetensors_file_name(i, dealt.size());
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

void HuggingFaceFormat::write_index(Store& store, const Metadata& metadata, WrittenNames& written) const {
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
