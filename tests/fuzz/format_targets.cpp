// The formats of checkpoints: pickles, archives, trailers, commit records.
#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <unordered_set>
#include <utility>

#include <cairn/messages/trailer.pb.h>
#include <cairn/base/digest.hpp>
#include <cairn/formats/item_archive.hpp>
#include <cairn/formats/saved_value.hpp>
#include <cairn/formats/tensor_pickle.hpp>
#include <cairn/formats/torch_archive.hpp>
#include <cairn/formats/torch_metadata.hpp>
#include <cairn/formats/unpickler.hpp>
#include <cairn/formats/zip_format.hpp>
#include <cairn/formats/zip_reader.hpp>
#include <cairn/storage/format/metadata_codec.hpp>
#include <cairn/state/checkpoint_writer.hpp>
#include <cairn/state/leaf_bytes.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/storage/format/commit_footer.hpp>
#include <cairn/storage/format/commit_head.hpp>
#include <cairn/storage/format/commit_record.hpp>
#include <cairn/storage/format/streamed_item.hpp>
#include <cairn/storage/format/trailer.hpp>
#include <cairn/storage/format/zstd_item.hpp>
#include <cairn/storage/stores/memory_store.hpp>
#include <cairn/storage/verify_checkpoint.hpp>
#include <cairn/tests/fuzz/samples.hpp>
#include <cairn/tests/fuzz/targets.hpp>
#include <cairn/tests/storage/store_tools.hpp>

namespace cairn::testing {
namespace {

std::string file_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string golden(const std::string& path) { return file_bytes(std::string(CAIRN_TEST_DATA) + "/pytorch-2.11/" + path); }

// Returns up to `most` items of a checkpoint written by PyTorch.
std::vector<Bytes> golden_items(const std::string& folder, std::size_t most) {
  std::vector<Bytes> items;
  const Metadata metadata = decode_commit_record(golden(folder + "/.metadata"));
  const auto add = [&](const StorageInfo& info) {
    if (items.size() < most)
      items.push_back(golden(folder + "/" + metadata.files.at(info.file).name).substr(info.offset, info.length));
  };
  for (const auto& [fqn, entry] : metadata.state_dict_metadata) {
    const auto* tensor = std::get_if<TensorStorageMetadata>(&entry);
    if (tensor != nullptr && !tensor->storage.empty()) add(tensor->storage.front());
    if (tensor == nullptr && std::get<BytesStorageMetadata>(entry).storage) add(*std::get<BytesStorageMetadata>(entry).storage);
  }
  return items;
}

// --- pickles -------------------------------------------------------------------------------------

// Reads every property of every value in a tree.
class Walk {
 public:
  void visit(const PickleValue& value) {
    if (!seen_.insert(value.id()).second) return;
    value.where();
    goes_through([&] { describe_tensor(value); });
    goes_through([&] { extents_of(value); });
    switch (value.kind()) {
      case PickleKind::kList:
      case PickleKind::kTuple:
        for (std::size_t i = 0; i < value.size(); ++i) visit(value[i]);
        break;
      case PickleKind::kDict:
        for (std::size_t i = 0; i < value.size(); ++i) visit(value.key(i)), visit(value.mapped(i));
        break;
      case PickleKind::kObject:
        visit(value.callee());
        visit(value.arguments());
        visit(value.items());
        if (const auto state = value.state()) visit(*state);
        break;
      case PickleKind::kPersistentId:
        visit(value.persistent_id());
        break;
      default:
        break;
    }
  }

 private:
  std::unordered_set<std::uint32_t> seen_;
};

bool run_unpickler(ByteSpan input) {
  return goes_through([&] {
    const PickleTree tree = unpickle(input, "a pickle", tensor_globals());
    if (tree.consumed_bytes() > input.size()) throw FuzzFault("more was read than there is");
    Walk().visit(tree.root());
  });
}

// Returns the pickle of {"odd": own.A(…), "set": {1}} in old and in new opcodes.
std::vector<Bytes> opaque_pickles() {
  using namespace std::string_literals;
  return {
      "\x80\x02}(X\x03\0\0\0oddcown\nA\n)\x81q\x05}X\x01\0\0\0mh\x05sbX\x03\0\0\0setc__builtin__\nset\n]K\x01"
      "a\x85Ru."s,
      "\x80\x04}(X\x03\0\0\0odd\x8c\x03own\x8c\x01"
      "A\x93)}X\x01\0\0\0kK\x01s\x92X\x03\0\0\0set\x8f(K\x01\x90u."s,
      "(K\x01iown\nA\n."s, "\x82\x05)R."s};
}

std::vector<Bytes> pickles() {
  std::vector<Bytes> seeds{tensor_pickle(DType::kFloat32, {2, 3}), tensor_pickle(DType::kFloat8E5M2, {}),
                           Bytes("\x80\x02}q\x00.", 6), "(dp0\nS'a'\np1\nI1\nsV\\u00e9\nF1.5\ns."};
  for (const Bytes& item : golden_items("nested", 6)) seeds.push_back(TorchArchive(item, "a seed").pickle());
  return seeds;
}

bool run_torch_metadata(ByteSpan input) {
  return goes_through([&] { decode_commit_record(input, "a record"); });
}

std::vector<Bytes> torch_metadata() {
  return {golden("single/.metadata"), golden("nested/.metadata"), pickle_torch_metadata(sample_metadata(), "an id")};
}

// --- archives ------------------------------------------------------------------------------------

bool run_zip(ByteSpan input) {
  return goes_through([&] {
    const ZipReader zip(input, "an archive");
    for (const ZipReader::Entry& entry : zip.entries())
      goes_through([&] {
        if (zip.read(entry).size() != entry.size_bytes) throw FuzzFault("an entry is not as long as it says");
      });
  });
}

bool run_tensor_archive(ByteSpan input) {
  return goes_through([&] {
    const TorchArchive archive(input, "an archive");
    const ArchivedTensor tensor = read_archived_tensor(archive);
    archive.read_storage(tensor.description.storage_key);
  });
}

bool run_leaf(ByteSpan input) {
  const bool is_leaf = goes_through([&] {
    const Value value = read_leaf(input);
    serialize_leaf(value);
  });
  // As a file of torch.save, without LibTorch.
  const bool is_file = goes_through([&] {
    const TorchArchive archive(input, "a file");
    for (const SavedEntry& entry : saved_entries(archive))
      if (!entry.value.tensor) goes_through([&] { pickle_leaf(entry.value, BlobsAs::kBytes); });
  });
  return is_leaf || is_file;
}

// A pickle within an archive. The archive's checksums are recomputed, so that the input gets past
// them to the unpickler.
bool run_leaf_pickle(ByteSpan input) { return run_leaf(write_torch_archive(input, {Bytes(64, '\1'), Bytes(7, '\2')})); }

Bytes stored_item() {
  const Extents sizes{5, 3};
  const Bytes elements(60, '\5');
  return item_prefix(DType::kFloat32, sizes, 0) + elements + item_suffix(DType::kFloat32, sizes, 0, crc32(0, elements));
}

std::vector<Bytes> archives() {
  std::vector<Bytes> seeds = golden_items("nested", 8);
  seeds.push_back(stored_item());
  seeds.push_back(write_torch_archive(tensor_pickle(DType::kInt64, {2}), {Bytes(16, '\3')}));
  return seeds;
}

std::vector<Bytes> leaves() {
  std::vector<Bytes> seeds = archives();
  seeds.push_back(serialize_leaf(Value(Blob{"some bytes"})));
  seeds.push_back(serialize_leaf(Value(c10::IValue(c10::ivalue::Tuple::create(
      std::vector<c10::IValue>{c10::IValue(1), c10::IValue(2.5), c10::IValue(std::string("text")), c10::IValue()})))));
  return seeds;
}

std::vector<Bytes> leaf_pickles() {
  std::vector<Bytes> seeds;
  for (const Bytes& leaf : leaves()) seeds.push_back(TorchArchive(leaf, "a seed").pickle());
  for (const Bytes& pickle : opaque_pickles()) seeds.push_back(pickle);
  return seeds;
}

// --- compressed items -------------------------------------------------------------------------

constexpr std::uint64_t kPlainBytesMax = 1u << 20;

bool run_zstd_item(ByteSpan input) {
  const auto read_at = [&](std::uint64_t offset, MutableByteSpan to) {
    if (to.size() > input.size() || offset > input.size() - to.size()) throw FuzzFault("more was read than there is");
    std::memcpy(to.data(), input.data() + offset, to.size());
  };
  Bytes by_frames;
  const bool accepted = goes_through([&] {
    const PlainItem item = zstd_item(input.size(), read_at, kPlainBytesMax, "an item");
    by_frames.resize(static_cast<std::size_t>(item.size_bytes));
    // Backwards, in parts.
    for (std::size_t end = by_frames.size(); end > 0;) {
      const std::size_t begin = end - std::min<std::size_t>(end, 3000);
      item.read_at(begin, {by_frames.data() + begin, end - begin});
      end = begin;
    }
  });
  if (!accepted) return false;
  Bytes streamed(by_frames.size() + 1, '\0');
  // PyTorch knows no seek tables.
  const bool streams = goes_through([&] {
    const ByteSource stream = zstd_stream(stream_of(input.size(), read_at), "an item");
    streamed.resize(stream({streamed.data(), streamed.size()}));
  });
  if (streams && streamed != by_frames) throw FuzzFault("by its seek table, an item is another than as a stream");
  return true;
}

// Returns an item's frames and its seek table.
std::pair<Bytes, Bytes> compressed_item() {
  const Bytes plain = stored_item() + Bytes(9000, 'x');
  ZstdCompressor compressor(1);
  std::vector<ZstdFrame> frames;
  Bytes stored;
  for (std::size_t at = 0; at < plain.size(); at += 4096) {
    const ByteSpan part = ByteSpan(plain).subspan(at, std::min<std::size_t>(4096, plain.size() - at));
    Bytes frame(ZstdCompressor::frame_bytes_max(part.size()), '\0');
    frame.resize(compressor.compress(part, {frame.data(), frame.size()}));
    frames.push_back({static_cast<std::uint32_t>(frame.size()), static_cast<std::uint32_t>(part.size())});
    stored += frame;
  }
  return {stored, encode_seek_table(frames)};
}

// The input is the seek table. The frames are sound.
bool run_seek_table(ByteSpan input) {
  static const Bytes frames = compressed_item().first;
  return run_zstd_item(frames + Bytes(input.view()));
}

std::vector<Bytes> zstd_items() { return {compressed_item().first + compressed_item().second, compressed_item().first}; }
std::vector<Bytes> seek_tables() { return {compressed_item().second}; }

// --- trailers ------------------------------------------------------------------------------------

bool run_trailer(ByteSpan input) {
  return goes_through([&] { decode_trailer(input, input.size() + sample_trailer().content_bytes, "a file"); });
}

// The input is the trailer's body. The footer and the file's length are made to match.
bool run_trailer_body(ByteSpan input) {
  Bytes bytes(input.view());
  bytes += "CairnTrl";
  zip::put_u32(bytes, kTrailerVersion);
  zip::put_u32(bytes, crc32(0, input));
  zip::put_u64(bytes, input.size());
  zip::put_u32(bytes, crc32(0, ByteSpan(bytes).subspan(input.size(), 24)));
  v1::Trailer said;
  if (!said.ParseFromArray(input.data(), static_cast<int>(input.size()))) said.Clear();
  const std::uint64_t file_bytes = said.content_bytes() + bytes.size();
  const auto decode = [&](ByteSpan trailer) { return decode_trailer(trailer, said.content_bytes() + trailer.size(), "a file"); };
  if (file_bytes < bytes.size()) return false;  // the sum overflowed: no file is that long
  return makes_round_trip(bytes, encode_trailer, decode);
}

std::vector<Bytes> trailers() { return {encode_trailer(sample_trailer())}; }
std::vector<Bytes> trailer_bodies() {
  const Bytes whole = encode_trailer(sample_trailer());
  return {whole.substr(0, whole.size() - kTrailerFooterBytes)};
}

// --- commit records ------------------------------------------------------------------------------

bool run_metadata_section(ByteSpan input) {
  return makes_round_trip(input, encode_metadata, [](ByteSpan section) { return decode_metadata(section); });
}

// Version 1 is read only.
bool run_section_of_version_1(ByteSpan input) {
  return goes_through([&] { encode_metadata(decode_metadata(input, 1)); });
}

void read_head_of(const Bytes& record) {
  static const std::shared_ptr<Store> store = [] {
    auto opened = open_store("mem://fuzz");
    opened->create_root();
    return opened;
  }();
  replace_object(*store, kCommitRecordName, record);
  goes_through([&] { read_commit_head(*store); });
}

bool takes_record(const Bytes& record) {
  read_head_of(record);
  return goes_through([&] { decode_commit_record(record, "a record"); });
}

// No change of a record keeps its checksum, so each input is also tried with a right one.
bool run_commit_record(ByteSpan input) {
  Bytes record(input.view());
  const bool is_taken = takes_record(record);
  if (!parse_commit_footer(record)) return is_taken;
  record.resize(record.size() - kCommitFooterBytes + kCommitCrcAt);
  zip::put_u32(record, crc32(0, record));
  return takes_record(record) || is_taken;
}

Bytes encode_first_entry(const Metadata& metadata) {
  Metadata first;
  first.files = metadata.files;
  first.state_dict_metadata.push_back(metadata.state_dict_metadata.at(0));
  return encode_metadata(first);
}

// A load must decode of a section what the section has.
void decode_first_entry(const Bytes& record, const Metadata& all) {
  if (all.state_dict_metadata.empty()) return;
  NeededNames needed;
  needed.names.intern(all.state_dict_metadata.front().first);
  const auto part = decode_commit_section({record.size(), record}, "a record", needed);
  if (!part || encode_first_entry(*part) != encode_first_entry(all)) throw FuzzFault("the section alone says something else");
}

// The input lies between pickle and footer. Its checksum and the footer are made to match.
bool run_commit_section(ByteSpan input) {
  Bytes footer;
  zip::put_u64(footer, 0);
  zip::put_u64(footer, 0);
  zip::put_u32(footer, kFormatVersion);
  footer += kCommitMagic;
  Bytes record = Bytes(input.view()) + encode_checksum(input, footer) + footer;
  zip::put_u32(record, crc32(0, record));
  read_head_of(record);
  return goes_through([&] {
    const Metadata metadata = decode_commit_record(record, "a record");
    if (!metadata.commit) throw FuzzFault("a record without a commit");
    decode_first_entry(record, metadata);
  });
}

std::vector<Bytes> sections_of_version_1() {
  const Bytes record = file_bytes(std::string(CAIRN_TEST_DATA) + "/cairn-format-1/nested/.metadata");
  const std::size_t begin = parse_commit_footer(record)->section_offset;
  return {record.substr(begin, record.size() - kCommitFooterBytes - begin)};
}

// Records of version 1 have positions that follow from the layout.
std::vector<Bytes> metadata_sections() {
  return {encode_metadata(sample_metadata()), encode_metadata(decode_commit_record(golden("nested/.metadata"))),
          encode_metadata(decode_metadata(sections_of_version_1().front(), 1))};
}

// --- verification --------------------------------------------------------------------------------

// A small checkpoint of PyTorch's in memory, of which one object is the input.
bool run_verify(const ObjectName& name, ByteSpan input) {
  static const std::shared_ptr<Store> store = [] {
    auto opened = open_store("mem://fuzz_verify");
    opened->create_root();
    return opened;
  }();
  static const Bytes record = golden("single/.metadata"), data = golden("single/__0_0.distcp");
  replace_object(*store, kCommitRecordName, record);
  replace_object(*store, "__0_0.distcp", data);
  replace_object(*store, name, Bytes(input.view()));
  const auto found = verify_checkpoint(*store, 1);
  for (const VerifyFault& fault : found)
    if (fault.object.empty() || fault.what.empty()) throw FuzzFault("a fault is without a place or a text");
  return found.empty();
}

bool run_verify_record(ByteSpan input) { return run_verify(kCommitRecordName, input); }
bool run_verify_data(ByteSpan input) { return run_verify("__0_0.distcp", input); }

std::vector<Bytes> pytorch_records() { return {golden("single/.metadata")}; }
std::vector<Bytes> pytorch_data() { return {golden("single/__0_0.distcp")}; }

std::vector<Bytes> commit_records() { return {encode_commit_record(sample_metadata())}; }

}  // namespace

std::vector<FuzzTarget> format_targets() {
  std::vector<FuzzTarget> targets{{"unpickler", run_unpickler, pickles},
                                  {"torch_metadata", run_torch_metadata, torch_metadata},
                                  {"zip", run_zip, archives},
                                  {"tensor_archive", run_tensor_archive, archives},
                                  {"leaf", run_leaf, leaves},
                                  {"leaf_pickle", run_leaf_pickle, leaf_pickles},
                                  {"trailer", run_trailer, trailers},
                                  {"trailer_body", run_trailer_body, trailer_bodies},
                                  {"commit_record", run_commit_record, commit_records},
                                  {"commit_section", run_commit_section, metadata_sections},
                                  {"metadata_section", run_metadata_section, metadata_sections},
                                  {"section_of_version_1", run_section_of_version_1, sections_of_version_1},
                                  {"verify_record", run_verify_record, pytorch_records},
                                  {"verify_data", run_verify_data, pytorch_data}};
  if (why_not_undone({kZstdTransform}).empty())
    targets.insert(targets.end(), {{"zstd_item", run_zstd_item, zstd_items}, {"seek_table", run_seek_table, seek_tables}});
  return targets;
}

}  // namespace cairn::testing
