// Saves safetensors files.
#include <cairn/state/hugging_face_format.hpp>

#include <algorithm>
#include <set>
#include <sstream>
#include <unordered_map>
#include <utility>

#include <cairn/base/error.hpp>
#include <cairn/formats/unicode.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/tiers.hpp>

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
  mappings.erase(std::remove_if(mappings.begin(), mappings.end(), [&](const auto& path) { return left_out.count(path.first) > 0; }),
                 mappings.end());
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

std::string HuggingFaceFormat::line(const std::string& name, const std::string& objection) {
  return "\n  \"" + printable(name) + "\": " + objection;
}

void HuggingFaceFormat::require_leave(const std::string& lines) const {
  if (!options_.skip_unsupported)
    throw Error(ErrorCode::kUnsupported, "safetensors files cannot hold these entries of the state; leave them out of it, or " +
                                             std::string("set skip_unsupported:") + lines);
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

}  // namespace cairn
