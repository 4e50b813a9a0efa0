// Makes safetensors files of whole tensors from files of parts, or from other safetensors files.
#include <cairn/state/hugging_face_format.hpp>

#include <algorithm>
#include <set>
#include <utility>

#include <cairn/base/digest.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/random.hpp>
#include <cairn/base/save_id.hpp>
#include <cairn/planning/pieces.hpp>
#include <cairn/storage/checkpoint_bytes.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/verify_checkpoint.hpp>

namespace cairn {
namespace {

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

std::function<void()> HuggingFaceFormat::complete(const std::shared_ptr<Store>& store, const std::string& url, Metadata& metadata,
                                                  WrittenNames& written) {
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

void HuggingFaceFormat::leave_out_unsupported(Metadata& metadata) const {
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
