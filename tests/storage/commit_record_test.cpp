// The commit record: damaged records, round trips, and records that PyTorch's versions wrote.
#include <string>

#include <cairn/tests/support/plain.hpp>

#include <cairn/messages/metadata.pb.h>
#include <cairn/base/digest.hpp>
#include <cairn/formats/item_archive.hpp>
#include <cairn/formats/pickler.hpp>
#include <cairn/formats/torch_metadata.hpp>
#include <cairn/formats/zip_format.hpp>
#include <cairn/storage/format/commit_footer.hpp>
#include <cairn/storage/format/commit_head.hpp>
#include <cairn/storage/format/commit_record.hpp>
#include <cairn/storage/format/metadata_codec.hpp>
#include <cairn/storage/format/trailer.hpp>
#include <cairn/storage/read_metadata.hpp>
#include <cairn/storage/stores/memory_store.hpp>
#include <cairn/storage/verify_checkpoint.hpp>
#include <cairn/tests/storage/store_tools.hpp>
#include <cairn/tests/support/sample_metadata.hpp>
#include <cairn/tests/support/thrown.hpp>

using namespace cairn;
using namespace cairn::testing;
using namespace std::string_literals;

namespace {

constexpr std::string_view kModule = "torch.distributed.checkpoint.metadata";
constexpr std::string_view kFilesystem = "torch.distributed.checkpoint.filesystem";

Metadata sample() {
  Metadata metadata = sample_metadata();
  TensorStorageMetadata uneven;
  uneven.size = {2, 2, 2, 2, 2};
  uneven.chunks = {{{0, 0, 0, 0, 0}, {2, 2, 2, 2, 2}}, {{0, 0, 0, 0, 0}, {0, 2, 2, 2, 2}}};
  uneven.storage = {{0, 900, 1000, 1344, {}}, {0, 1900, 700, 2304, {}}};
  metadata.state_dict_metadata.emplace_back("uneven", uneven);
  metadata.reindex();
  return metadata;
}

Thrown decoding(const std::string& record) {
  return thrown_by([&] { decode_commit_record(record); });
}

// Returns the pickle alone, as if PyTorch had written it.
std::string torch_pickle(const Metadata& metadata) { return pickle_torch_metadata(metadata, "5dd92e26-9bc4"); }

// Returns a record that is valid except for the footer that `change` modifies. Recomputes the
// CRC-32.
template <class Change>
std::string with_footer(Change change) {
  auto record = encode_commit_record(sample());
  auto footer = record.substr(record.size() - 32);
  change(footer);
  record = record.substr(0, record.size() - 32) + footer.substr(0, 28);
  zip::put_u32(record, crc32(0, record));
  return record;
}

void begin(Pickler& out, std::string_view module, std::string_view name) {
  out.global(module, name);
  out.tuple(0);
  out.new_object();
  out.empty_dict();
  out.mark();
}

void end(Pickler& out) {
  out.set_items();
  out.build();
}

// Returns a Metadata pickle whose state_dict_metadata, storage_data and planner_data the caller
// writes.
template <class Entries, class Storage, class Planner>
std::string pickle_of(Entries entries, Storage storage, Planner planner) {
  Pickler out(4);
  begin(out, kModule, "Metadata");
  out.text("state_dict_metadata");
  entries(out);
  out.text("planner_data");
  planner(out);
  out.text("storage_data");
  storage(out);
  end(out);
  return std::move(out).finish();
}

const auto kNothing = [](Pickler& out) { out.none(); };

// Returns metadata of one tensor "t" with the given writers of properties, size and chunk list.
template <class Properties, class Size, class Chunks, class Storage = void (*)(Pickler&)>
std::string tensor_metadata(Properties properties, Size size, Chunks chunks, Storage storage = kNothing) {
  return pickle_of(
      [&](Pickler& out) {
        out.empty_dict();
        out.mark();
        out.text("t");
        begin(out, kModule, "TensorStorageMetadata");
        out.text("properties");
        properties(out);
        out.text("size");
        size(out);
        out.text("chunks");
        chunks(out);
        end(out);
        out.set_items();
      },
      storage, kNothing);
}

void size_of(Pickler& out, std::vector<std::int64_t> sizes) {
  out.global("torch", "Size");
  if (sizes.size() > 3) out.mark();
  for (const auto size : sizes) out.integer(size);
  out.tuple(sizes.size());
  out.tuple(1);
  out.reduce();
}

// Writes properties as PyTorch before 2.3 did: other modules, no version, no storage_meta.
void old_properties(Pickler& out, std::string_view dtype = "float32", std::string_view layout = "torch.strided") {
  constexpr std::string_view kOldModule = "torch.distributed._shard.sharded_tensor.metadata";
  out.global(kOldModule, "TensorProperties");
  out.tuple(0);
  out.new_object();
  out.mark();
  out.global("torch", dtype);
  out.global("torch.serialization", "_get_layout");
  out.text(layout);
  out.tuple(1);
  out.reduce();
  out.boolean(true);
  out.global(kOldModule, "MEM_FORMAT_ENCODING");
  out.integer(0);
  out.tuple(1);
  out.reduce();
  out.boolean(false);
  out.tuple(5);
  out.build();
}

void chunk_list(Pickler& out, const std::vector<Box>& boxes) {
  out.empty_list();
  out.mark();
  for (const auto& box : boxes) {
    begin(out, kModule, "ChunkStorageMetadata");
    out.text("offsets");
    size_of(out, box.offsets.to_vector());
    out.text("sizes");
    size_of(out, box.sizes.to_vector());
    end(out);
  }
  out.appends();
}

const auto kProperties = [](Pickler& out) { old_properties(out); };

// Writes storage_data of one item of "t". `more` adds fields to its index.
template <class More>
void storage_of_t(Pickler& out, const char* path, std::int64_t offset, std::int64_t length, More more) {
  out.empty_dict();
  out.mark();
  begin(out, kModule, "MetadataIndex");
  out.text("fqn");
  out.text("t");
  more();
  end(out);
  begin(out, kFilesystem, "_StorageInfo");
  out.text("relative_path");
  out.text(path);
  out.text("offset");
  out.integer(offset);
  out.text("length");
  out.integer(length);
  end(out);
  out.set_items();
}

}  // namespace

TEST_CASE("every truncation of a commit record is found") {
  const auto record = encode_commit_record(sample());
  for (std::size_t length = 0; length < record.size(); ++length)
    REQUIRE(decoding(record.substr(0, length)).code == ErrorCode::kCorrupt);
}

TEST_CASE("the record of another save of one plan is the one that is encoded anew") {
  // The last ids are also texts that PyTorch's record has for other reasons.
  for (const char* id : {"/run/step_1", "/run/step_1000000", "modules", "version", "1.0.0", "epoch", "__0_0_x.distcp"})
    for (const char* other : {"/a", "load_id", "model.weight", "__1_0_x.distcp"}) {
      CAPTURE(std::string(id));
      CAPTURE(std::string(other));
      Metadata first = sample();
      first.checkpoint_id = id;
      const EncodedPlan plan(first);
      CHECK(encode_commit_record(plan, first) == encode_commit_record(first));
      Metadata second = sample();
      second.checkpoint_id = other;
      second.save_id = "0123-abc-234567";
      second.files[0] = {"__0_0_a longer name.distcp", 5000, 77, 10};
      second.files[1] = {"y", 6000, 78, 20};
      second.commit->step = 101;
      second.commit->user_metadata.clear();
      Metadata alone = second;  // without entries and paths
      alone.state_dict_metadata.clear();
      alone.planner_data.clear();
      const Bytes record = encode_commit_record(plan, alone);
      CHECK(record == encode_commit_record(second));
      CHECK(encode_metadata(decode_commit_record(record)) == encode_metadata(second));
      const TorchMetadata torch = unpickle_torch_metadata(record, "the pickle");
      CHECK(torch.metadata.checkpoint_id == other);
      CHECK(torch.metadata.save_id == "cairn-0123-abc-234567");
      std::vector<std::string> names;
      for (const FileInfo& file : torch.metadata.files) names.push_back(file.name);
      CHECK(names == std::vector<std::string>{second.files[0].name, "y"});
    }
}

TEST_CASE("a cut-off record of Cairn's is not taken for PyTorch's") {
  const auto metadata = sample();
  const auto pickle = pickle_torch_metadata(metadata, "cairn-" + metadata.save_id);
  const auto thrown = decoding(pickle);
  CHECK(thrown.code == ErrorCode::kCorrupt);
  CHECK(thrown.says("footer"));
}

TEST_CASE("a save with too many chunks for a record is refused by their number") {
  const auto failure = thrown_by([] { check_commit_record_fits(23'000'000); });
  CHECK(failure.code == ErrorCode::kUnsupported);
  for (const char* part : {"23000000 chunks", "2208000000 bytes", "2147483648"}) CHECK(failure.says(part));
  CHECK_FALSE(thrown_by([] { check_commit_record_fits(kCommitRecordBytesMax / kCommitRecordBytesPerChunkMin); }).is_error);
}

TEST_CASE("the number of chunks that is refused is one that no record can hold") {
  // Tensors sharded by rows over many ranks with one file each, as in a large job.
  constexpr std::uint32_t ranks = 512;
  constexpr int tensors = 40;
  Metadata metadata;
  metadata.save_id = "cairn-" + std::string(32, '0') + "-00000000-1";
  metadata.version = "1.0.0";
  metadata.commit = CommitInfo{};
  metadata.commit->sequence = 1;
  std::uint64_t end = 0;
  for (int i = 0; i < tensors; ++i) {
    TensorStorageMetadata tensor;
    tensor.size = {ranks * 8, 4096};
    const ItemLayout layout = item_layout(DType::kFloat32, {8, 4096}, end);
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      tensor.chunks.push_back({{rank * 8, 0}, {8, 4096}});
      tensor.storage.push_back({rank, end, layout.total_bytes(), end + layout.prefix_bytes, {}});
    }
    end += layout.total_bytes();
    metadata.state_dict_metadata.emplace_back("layers." + std::to_string(i) + ".weight", std::move(tensor));
  }
  for (std::uint32_t rank = 0; rank < ranks; ++rank)
    metadata.files.push_back({"__" + std::to_string(rank) + "_0_" + metadata.save_id + ".distcp", end + 70'000, 1u << 31, 70'000});
  metadata.reindex();
  const std::uint64_t bytes = encode_commit_record(metadata).size();
  CAPTURE(static_cast<double>(bytes) / (ranks * tensors));
  CHECK(bytes >= kCommitRecordBytesPerChunkMin * ranks * tensors);
  CHECK(bytes < kCommitRecordBytesPerChunkMin * ranks * tensors * 12 / 10);
}

// Returns the metadata of a transformer with the state of Adam, whose tensors are split by rows
// over all ranks: 1,000 chunks for each rank.
Metadata transformer(std::uint32_t ranks) {
  Metadata metadata;
  metadata.save_id = "cairn-" + std::string(32, '0') + "-00000000-1";
  metadata.checkpoint_id = "/runs/7b/step_100";
  metadata.commit = CommitInfo{1, 100, static_cast<int>(ranks), std::string(64, 'a'), "0.1.0", {}, {}};
  std::uint64_t end = 0;
  const auto add = [&](const Path& path, Extents size) {
    TensorStorageMetadata tensor;
    tensor.size = size;
    tensor.size[0] *= ranks;
    const ItemLayout layout = item_layout(DType::kFloat32, size, end);
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      Box chunk = Box::whole(size);
      chunk.offsets[0] = rank * size[0];
      tensor.chunks.push_back(chunk);
      tensor.storage.push_back({rank, end, layout.total_bytes(), end + layout.prefix_bytes, {}});
    }
    end += layout.total_bytes();
    metadata.planner_data.emplace_back(to_string(path), path);
    metadata.state_dict_metadata.emplace_back(to_string(path), std::move(tensor));
  };
  const std::vector<std::pair<std::string, Extents>> layer = {
      {"self_attn.q_proj.weight", {512, 4096}},   {"self_attn.k_proj.weight", {128, 4096}},
      {"self_attn.v_proj.weight", {128, 4096}},   {"self_attn.o_proj.weight", {512, 4096}},
      {"mlp.gate_proj.weight", {1376, 4096}},     {"mlp.up_proj.weight", {1376, 4096}},
      {"mlp.down_proj.weight", {512, 11008}},     {"input_layernorm.weight", {512}},
      {"post_attention_layernorm.weight", {512}}, {"mlp.router.gate.weight", {8, 4096}}};
  const auto for_all = [&](auto visit) {
    for (int i = 0; i < 25; ++i)
      for (const auto& [name, size] : layer) visit("model.layers." + std::to_string(i) + "." + name, size);
  };
  for_all([&](const std::string& name, const Extents& size) { add({"model", name}, size); });
  for_all([&](const std::string& name, const Extents& size) {
    for (const char* of : {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}) add({"optimizer", "state", name, of}, size);
  });
  for (std::uint32_t rank = 0; rank < ranks; ++rank)
    metadata.files.push_back(
        {"__" + std::to_string(rank) + "_0_" + metadata.save_id + ".distcp", end + 900'000, 1u << 31, 900'000});
  return metadata;
}

TEST_CASE("Cairn's part of a checkpoint takes at most 48 bytes for each item") {
  for (const std::uint32_t ranks : {1u, 64u}) {
    const Metadata metadata = transformer(ranks);
    Trailer trailer;
    trailer.save_id = metadata.save_id;
    trailer.content_bytes = *metadata.files[0].length - 900'000;
    trailer.block_crc32.resize(static_cast<std::size_t>((trailer.content_bytes + kChecksumBlockBytes - 1) / kChecksumBlockBytes));
    const std::size_t trailers = ranks * (encode_trailer(trailer).size() - 4 * trailer.block_crc32.size());
    const double per_item =
        static_cast<double>(encode_metadata(metadata).size() + kCommitFooterBytes + trailers) / (1000.0 * ranks);
    CAPTURE(ranks);
    CAPTURE(per_item);
    CHECK(metadata.state_dict_metadata.size() == 1000);
    CHECK(per_item <= (ranks == 1 ? 36 : 10));
  }
}

TEST_CASE("a checkpoint of format version 1 reads as one of today's, and its positions need no columns") {
  const auto store = open_store("file://" CAIRN_TEST_DATA "/cairn-format-1/nested");
  CHECK(verify_checkpoint(*store).empty());
  const Metadata metadata = read_metadata(*store);
  const std::string section = encode_metadata(metadata);
  const Metadata again = decode_metadata(section);
  v1::Metadata message;
  REQUIRE(message.ParseFromString(section));
  CHECK(message.locations().offsets_size() == 0);
  std::size_t items = 0;
  for (std::size_t i = 0; i < metadata.state_dict_metadata.size(); ++i) {
    const auto of = [i](const Metadata& from) {
      const auto& entry = from.state_dict_metadata[i].second;
      const auto* tensor = std::get_if<TensorStorageMetadata>(&entry);
      return tensor ? tensor->storage : std::vector<StorageInfo>{*std::get<BytesStorageMetadata>(entry).storage};
    };
    const auto before = of(metadata), after = of(again);
    REQUIRE(before.size() == after.size());
    items += before.size();
    for (std::size_t item = 0; item < before.size(); ++item)
      CHECK((before[item].offset == after[item].offset && before[item].length == after[item].length &&
             before[item].payload_offset == after[item].payload_offset));
  }
  CHECK(items > metadata.state_dict_metadata.size());
}

TEST_CASE("what follows PyTorch's pickle must be Cairn's") { CHECK(decoding(torch_pickle(sample()) + "x").says("1 bytes follow")); }

TEST_CASE("a record followed by a fence mark reads as without it, and a damaged mark is found") {
  const std::string record = encode_commit_record(sample());
  std::string marked = record + make_fence_mark(std::string(16, 'n'));
  CHECK(encode_commit_record(decode_commit_record(marked)) == record);
  const auto store = open_store("mem://commit_record_test");
  put_object(*store, kCommitRecordName, marked);
  CHECK(read_commit_head(*store)->save_id == sample().save_id);
  forget_memory("commit_record_test");
  for (std::size_t at = record.size(); at < marked.size(); ++at) {
    marked[at] ^= 1;
    CHECK(is_refusal(decoding(marked)));
    marked[at] ^= 1;
  }
}

TEST_CASE("a newer format version says so") {
  const auto newer = with_footer([](std::string& footer) { footer[16] = 3; });
  CHECK(decoding(newer).code == ErrorCode::kUnsupported);
  CHECK(decoding(newer).says("version 3"));
  CHECK(decoding(newer).says("newer Cairn"));
  CHECK(decoding(with_footer([](std::string& footer) { footer[16] = 0; })).code == ErrorCode::kCorrupt);
  CHECK(decoding(with_footer([](std::string& footer) { footer[0] = static_cast<char>(footer[0] + 1); })).code ==
        ErrorCode::kCorrupt);
  CHECK(decoding(with_footer([](std::string& footer) { footer[8] = static_cast<char>(footer[8] + 1); })).code ==
        ErrorCode::kCorrupt);
  CHECK(decoding(with_footer([](std::string& footer) { footer[7] = '\x7f'; })).code == ErrorCode::kCorrupt);
}

TEST_CASE("a record of Cairn's without its head, or a file's length, checksum or trailer, is refused") {
  const auto whole = sample();
  const auto pickle = pickle_torch_metadata(whole, "cairn-" + whole.save_id);
  const auto record_of = [&](const Metadata& metadata, std::optional<std::size_t> head_bytes = std::nullopt) {
    const auto section = encode_metadata(metadata);
    auto record = pickle + section;
    zip::put_u64(record, pickle.size());
    zip::put_u64(record, record.size() - 8 - head_bytes.value_or(encode_head(metadata).size()));
    zip::put_u32(record, kFormatVersion);
    record += kCommitMagic;
    zip::put_u32(record, crc32(0, record));
    return record;
  };
  CHECK_FALSE(decoding(record_of(whole)).is_error);
  CHECK(decoding(record_of(whole, 0)).code == ErrorCode::kCorrupt);  // a head without save id and commit
  Metadata nameless = whole;
  nameless.save_id.clear();
  CHECK(decoding(record_of(nameless)).code == ErrorCode::kCorrupt);
  for (std::size_t file = 0; file < whole.files.size(); ++file)
    for (int field = 0; field < 3; ++field) {
      auto metadata = whole;
      FileInfo& info = metadata.files[file];
      if (field == 0) info.length.reset();
      if (field == 1) info.crc32.reset();
      if (field == 2) info.trailer_length.reset();
      const auto thrown = decoding(record_of(metadata));
      CAPTURE(field);
      CHECK(thrown.code == ErrorCode::kCorrupt);
      CHECK(thrown.says(info.name));
      CHECK(thrown_by([&] { encode_commit_record(metadata); }).code == ErrorCode::kInvalidArgument);
    }
}

TEST_CASE("a record needs a save id, a commit and names that Python can read") {
  using Change = void (*)(Metadata&);
  for (const Change change :
       {Change([](Metadata& metadata) { metadata.save_id.clear(); }), Change([](Metadata& metadata) { metadata.commit.reset(); }),
        Change([](Metadata& metadata) { metadata.state_dict_metadata[0].first = "bad\xff"; }), Change([](Metadata& metadata) {
          std::get<TensorStorageMetadata>(metadata.state_dict_metadata[0].second).storage.pop_back();
        })}) {
    auto metadata = sample();
    change(metadata);
    CHECK(thrown_by([&] { encode_commit_record(metadata); }).code == ErrorCode::kInvalidArgument);
  }
}

TEST_CASE("classes outside DCP's are refused by name") {
  const auto planner = [](Pickler& out) {
    out.global("os", "system");
    out.text("true");
    out.tuple(1);
    out.reduce();
  };
  const auto thrown = decoding(pickle_of([](Pickler& out) { out.empty_dict(); }, kNothing, planner));
  CHECK(thrown.code == ErrorCode::kUnsupported);
  CHECK(thrown.says("os.system"));
  // The name is on the list of known ones but in the wrong place. It is still not called.
  const auto getattr = [](Pickler& out) {
    out.global("builtins", "getattr");
    out.global("torch", "Size");
    out.text("__class__");
    out.tuple(2);
    out.reduce();
  };
  CHECK(is_refusal(decoding(pickle_of([](Pickler& out) { out.empty_dict(); }, kNothing, getattr))));
}

TEST_CASE("a class with the fields of DCP's Metadata is read as Metadata") {
  for (const bool has_slots : {false, true}) {
    Pickler out(4);
    out.global("megatron.core.dist_checkpointing.strategies.torch", "MCoreMetadata");
    out.tuple(0);
    out.new_object();
    if (has_slots) out.none();
    out.empty_dict();
    out.mark();
    out.text("state_dict_metadata");
    out.empty_dict();
    out.mark();
    out.text("step");
    begin(out, kModule, "BytesStorageMetadata");
    end(out);
    out.set_items();
    for (const char* const field : {"planner_data", "storage_data"}) {
      out.text(field);
      out.none();
    }
    out.text("mcore_data");
    out.global("os", "system");
    out.text("true");
    out.tuple(1);
    out.reduce();
    out.set_items();
    if (has_slots) out.tuple(2);
    out.build();
    const auto metadata = decode_commit_record(std::move(out).finish());
    CHECK(metadata.find("step") != nullptr);
  }
  // Only the root may be of another class, and it needs the fields.
  Pickler out(4);
  begin(out, "own", "Thing");
  out.text("mcore_data");
  out.none();
  end(out);
  const auto thrown = decoding(std::move(out).finish());
  CHECK(thrown.code == ErrorCode::kUnsupported);
  CHECK(thrown.says("own.Thing"));
}

TEST_CASE("metadata that contradicts itself is refused, saying what is wrong") {
  const auto chunks = [](std::vector<Box> boxes) { return [boxes](Pickler& out) { chunk_list(out, boxes); }; };
  const auto size = [](std::vector<std::int64_t> sizes) { return [sizes](Pickler& out) { size_of(out, sizes); }; };
  CHECK_FALSE(decoding(tensor_metadata(kProperties, size({4}), chunks({{{0}, {4}}}))).is_error);
  CHECK(decoding(tensor_metadata(kProperties, size({4}), chunks({{{1}, {4}}}))).says("does not fit"));
  CHECK(decoding(tensor_metadata(kProperties, size({4}), chunks({{{0, 0}, {4, 1}}}))).says("does not fit"));
  CHECK(is_refusal(decoding(tensor_metadata(kProperties, size({-4}), chunks({})))));
  const std::int64_t huge = std::int64_t{1} << 62;
  CHECK(decoding(tensor_metadata(kProperties, size({huge, huge}), chunks({}))).code == ErrorCode::kCorrupt);
  CHECK(is_refusal(decoding(tensor_metadata(kProperties, size({4}), chunks({{{huge}, {huge}}})))));
  const auto sparse = [](Pickler& out) { old_properties(out, "float32", "torch.sparse_coo"); };
  CHECK(decoding(tensor_metadata(sparse, size({4}), chunks({}))).says("torch.sparse_coo"));
  const auto quantized = [](Pickler& out) { old_properties(out, "qint8"); };
  const Metadata unread = decode_commit_record(tensor_metadata(quantized, size({4}), chunks({})));
  CHECK(std::get<TensorStorageMetadata>(*unread.find("t")).unknown_dtype == "qint8");
  const auto no_dtype = [](Pickler& out) { old_properties(out, "Size"); };
  CHECK(decoding(tensor_metadata(no_dtype, size({4}), chunks({}))).says("torch.Size is no dtype"));
  CHECK(is_refusal(decoding(tensor_metadata(kNothing, size({4}), chunks({})))));
}

TEST_CASE("items that share bytes are refused, unless one item is recorded twice") {
  const auto with = [](auto change) {
    auto metadata = sample();
    change(std::get<TensorStorageMetadata>(*metadata.find("model.weight")).storage,
           *std::get<BytesStorageMetadata>(*metadata.find("epoch")).storage);
    return decoding(torch_pickle(metadata));
  };
  using Chunks = std::vector<StorageInfo>;
  const auto same_place = with([](Chunks& chunks, StorageInfo&) { chunks[1].file = chunks[0].file; });
  CHECK(same_place.code == ErrorCode::kCorrupt);
  CHECK(same_place.says("\"model.weight\" and \"model.weight\" at the same bytes, from 0 on, of \"__0_0_x.distcp\""));
  const auto overlapping = with([](Chunks& chunks, StorageInfo& epoch) { epoch.offset = chunks[1].offset + chunks[1].length - 1; });
  CHECK(overlapping.says("\"model.weight\" and \"epoch\" at the same bytes"));
  const auto within = with([](Chunks& chunks, StorageInfo& epoch) { epoch.offset = chunks[1].offset + 1; });
  CHECK(within.code == ErrorCode::kCorrupt);
  const auto two_names = with([](Chunks& chunks, StorageInfo& epoch) { epoch = chunks[1]; });
  CHECK_FALSE(two_names.is_error);
  auto twice = sample();  // as recorded when ranks held the same chunk
  auto& weight = std::get<TensorStorageMetadata>(*twice.find("model.weight"));
  weight.chunks.push_back(weight.chunks[1]);
  weight.storage.push_back(weight.storage[1]);
  CHECK_FALSE(decoding(torch_pickle(twice)).is_error);
}

TEST_CASE("file names stay within the checkpoint") {
  for (const auto* name : {"../x", "/etc/passwd", "a/../b", "", "a//b", "./a", "a/"}) {
    CAPTURE(name);
    const auto storage = [&](Pickler& out) { storage_of_t(out, name, 0, 1, [] {}); };
    CHECK(decoding(pickle_of([](Pickler& out) { out.empty_dict(); }, storage, kNothing)).says("no file name"));
  }
}

TEST_CASE("one list in very many places is refused before it fills the memory") {
  // 3,000 tensors refer to one list of 3,000 chunks: nine million boxes from a few hundred
  // kilobytes.
  Pickler out(4);
  begin(out, kModule, "Metadata");
  out.text("state_dict_metadata");
  out.empty_dict();
  out.mark();
  Pickler::Slot list = 0;
  for (int i = 0; i < 3000; ++i) {
    out.text("t" + std::to_string(i));
    begin(out, kModule, "TensorStorageMetadata");
    out.text("properties");
    old_properties(out);
    out.text("size");
    size_of(out, {1, 1, 1, 1, 1, 1, 1, 1});
    out.text("chunks");
    if (i == 0) {
      out.empty_list();
      list = out.remember();
      out.mark();
      begin(out, kModule, "ChunkStorageMetadata");
      out.text("offsets");
      size_of(out, {0, 0, 0, 0, 0, 0, 0, 0});
      out.text("sizes");
      size_of(out, {1, 1, 1, 1, 1, 1, 1, 1});
      end(out);
      const auto chunk = out.remember();
      for (int k = 0; k < 3000; ++k) out.recall(chunk);
      out.appends();
    } else {
      out.recall(list);
    }
    end(out);
  }
  out.set_items();
  end(out);
  const auto thrown = decoding(std::move(out).finish());
  CHECK(thrown.code == ErrorCode::kUnsupported);
  CHECK(thrown.says("many places"));
}

TEST_CASE("one dict as the fields of very many objects is refused before it takes for ever") {
  const auto storage = [](Pickler& out) {
    out.empty_dict();
    out.mark();
    Pickler::Slot fields = 0;
    for (int i = 0; i < 1000; ++i) {
      out.global(kModule, "MetadataIndex");
      out.tuple(0);
      out.new_object();
      if (i == 0) {
        out.empty_dict();
        fields = out.remember();
        out.mark();
        for (int k = 0; k < 1000; ++k) {
          out.text("field " + std::to_string(k));
          out.none();
        }
        out.set_items();
      } else {
        out.recall(fields);
      }
      out.build();
      out.none();
    }
    out.set_items();
  };
  const auto thrown = decoding(pickle_of([](Pickler& out) { out.empty_dict(); }, storage, kNothing));
  CHECK(thrown.code == ErrorCode::kCorrupt);
  CHECK(thrown.says("with 1000 fields"));
}

TEST_CASE("what was recorded comes back, all of it") {
  const auto metadata = sample();
  const auto record = encode_commit_record(metadata);
  // Compares the encoded bytes, so that every field counts.
  CHECK(encode_metadata(decode_commit_record(record)) == encode_metadata(metadata));
  CHECK(encode_commit_record(metadata) == record);
}

TEST_CASE("the pickle says what PyTorch can know") {
  const auto metadata = sample();
  const auto back = decode_commit_record(torch_pickle(metadata));
  CHECK_FALSE(back.commit.has_value());
  CHECK(back.save_id == "5dd92e26-9bc4");
  CHECK(back.checkpoint_id == "/run/step_1");
  CHECK(back.version == "1.0.0");
  CHECK((back.planner_data == metadata.planner_data));
  REQUIRE(back.state_dict_metadata.size() == metadata.state_dict_metadata.size());
  for (std::size_t i = 0; i < back.state_dict_metadata.size(); ++i) {
    const auto& [fqn, entry] = back.state_dict_metadata[i];
    const auto& [wanted_fqn, wanted_entry] = metadata.state_dict_metadata[i];
    const auto& shown = fqn;
    CAPTURE(shown);
    CHECK(fqn == wanted_fqn);
    REQUIRE(entry.index() == wanted_entry.index());
    const auto* tensor = std::get_if<TensorStorageMetadata>(&entry);
    if (tensor == nullptr) {
      CHECK(std::get<BytesStorageMetadata>(entry).storage.has_value() == (fqn == "epoch"));
      continue;
    }
    const auto& wanted = std::get<TensorStorageMetadata>(wanted_entry);
    CHECK((tensor->properties == wanted.properties));
    CHECK((tensor->size == wanted.size));
    CHECK((tensor->chunks == wanted.chunks));
    REQUIRE(tensor->storage.size() == wanted.storage.size());
    for (std::size_t k = 0; k < wanted.storage.size(); ++k) {
      // in PyTorch's storage_data a chunk with elements at the same offset takes its place
      if (tensor->chunks[k].empty()) continue;
      CHECK(back.files[tensor->storage[k].file].name == metadata.files[wanted.storage[k].file].name);
      CHECK(tensor->storage[k].offset == wanted.storage[k].offset);
      CHECK(tensor->storage[k].length == wanted.storage[k].length);
      CHECK((tensor->storage[k].transforms == wanted.storage[k].transforms));
    }
  }
}

TEST_CASE("metadata of older PyTorch reads") {
  const auto pickle = tensor_metadata(
      [](Pickler& out) { old_properties(out, "float16"); }, [](Pickler& out) { size_of(out, {5}); },
      [](Pickler& out) { chunk_list(out, {{{0}, {5}}, {{6}, {0}}}); },  // an empty chunk that begins beyond the end
      [](Pickler& out) {
        storage_of_t(out, "__0_0.distcp", 17, 99, [&] {
          out.text("offset");
          size_of(out, {0});
          out.text("index");
          out.integer(7);  // only a hint: there are two chunks
        });
      });
  const auto metadata = decode_commit_record(pickle);
  CHECK(metadata.save_id.empty());
  CHECK(metadata.version.empty());
  const auto& tensor = std::get<TensorStorageMetadata>(*metadata.find("t"));
  CHECK(tensor.properties.dtype == DType::kFloat16);
  CHECK(tensor.properties.requires_grad);
  REQUIRE(tensor.chunks.size() == 2);
  CHECK((tensor.chunks[1] == Box{{5}, {0}}));
  REQUIRE(tensor.storage.size() == 2);
  CHECK(tensor.storage[0].offset == 17);
  CHECK(tensor.storage[1].length == 0);
}
