#include <cairn/tests/support/plain.hpp>

#include <functional>
#include <string>
#include <vector>

#include <cairn/messages/metadata.pb.h>
#include <cairn/base/error.hpp>
#include <cairn/formats/item_archive.hpp>
#include <cairn/messages/columns.hpp>
#include <cairn/storage/format/metadata_codec.hpp>
#include <cairn/tests/messages/corruption.hpp>
#include <cairn/tests/support/thrown.hpp>

namespace cairn {
namespace {

using testing::is_corrupt;

// Two files; tensor "w" in two chunks, one of them transformed; bytes object "b".
Metadata sample() {
  Metadata metadata;
  metadata.files = {{"f0", 1000, 7, 10}, {"f1", 1000, 8, 10}};
  TensorStorageMetadata tensor;
  tensor.size = {4, 6};
  tensor.chunks = {{{0, 0}, {2, 6}}, {{2, 0}, {2, 6}}};
  tensor.storage = {{0, 0, 100, 64, {}}, {1, 0, 100, 64, {"zstd"}}};
  BytesStorageMetadata bytes;
  bytes.storage = StorageInfo{0, 100, 10, 100, {}};
  metadata.state_dict_metadata = {{"w", tensor}, {"b", bytes}};
  metadata.planner_data = {{"w", {"w"}}};
  metadata.commit = CommitInfo{};
  metadata.commit->user_metadata = {{"k", "v"}};
  return metadata;
}

TEST_CASE("every field of metadata survives the journey, and later versions' fields are skipped") {
  const std::string odd("any\xff\0", 5);
  const auto tensor = [](Metadata& m) -> TensorStorageMetadata& {
    return std::get<TensorStorageMetadata>(m.state_dict_metadata[0].second);
  };
  const auto bytes = [](Metadata& m) -> BytesStorageMetadata& {
    return std::get<BytesStorageMetadata>(m.state_dict_metadata[1].second);
  };
  const std::vector<std::function<void(Metadata&)>> changes = {
      [](Metadata& m) { m = {}; },
      [&](Metadata& m) { m.files[0].name = odd; },
      [](Metadata& m) { m.files[0].length.reset(); },
      [](Metadata& m) { m.files[0].crc32.reset(); },
      [](Metadata& m) { m.files[0].trailer_length.reset(); },
      [&](Metadata& m) { m.files[1].written_by = odd; },
      [&](Metadata& m) { m.commit->shares_with.push_back(odd); },
      [&](Metadata& m) { m.state_dict_metadata[0].first = odd; },
      [&](Metadata& m) { tensor(m).properties.dtype = DType::kInt8; },
      [&](Metadata& m) { tensor(m).properties.memory_format = MemoryFormat::kPreserve; },
      [&](Metadata& m) { tensor(m).properties.requires_grad = true; },
      [&](Metadata& m) { tensor(m).size = {4, 7}; },
      [&](Metadata& m) { tensor(m).chunks[1].offsets = {1, 0}; },
      [&](Metadata& m) { tensor(m).chunks[1].sizes = {1, 6}; },
      [&](Metadata& m) { tensor(m).storage.clear(); },
      [&](Metadata& m) { tensor(m) = {}; },
      [&](Metadata& m) { tensor(m).storage[0].file = 1; },
      [&](Metadata& m) { tensor(m).storage[0].offset = 1; },
      [&](Metadata& m) { tensor(m).storage[0].length = 99; },
      [&](Metadata& m) { tensor(m).storage[0].payload_offset = 0; },
      [&](Metadata& m) { tensor(m).storage[0].transforms = {"x", odd}; },
      [&](Metadata& m) { bytes(m).storage->length = 9; },
      [&](Metadata& m) { bytes(m).storage.reset(); },
      [](Metadata& m) { m.planner_data[0].second = {"x", std::int64_t{1}}; },
      [](Metadata& m) { m.planner_data.emplace_back("not an entry", Path{"y"}); },
      [&](Metadata& m) { m.checkpoint_id = odd; },
      [&](Metadata& m) { m.save_id = odd; },
      [&](Metadata& m) { m.version = odd; },
      [](Metadata& m) { m.commit.reset(); },
      [](Metadata& m) { m.commit->sequence = ~std::uint64_t{0}; },
      [](Metadata& m) { m.commit->step = 0; },
      [](Metadata& m) { m.commit->step = -1; },
      [](Metadata& m) { m.commit->world_size = 3; },
      [&](Metadata& m) { m.commit->plan_digest = odd; },
      [&](Metadata& m) { m.commit->writer_version = odd; },
      [&](Metadata& m) { m.commit->user_metadata[odd] = odd; },
      [&](Metadata& m) { m.commit->retired = {"", odd}; },
  };
  const std::string later = {'\xFA', '\x06', '\x03', 'x', 'y', 'z'};  // field 111, three bytes
  for (std::size_t i = 0; i < changes.size(); ++i) {
    CAPTURE(i);
    Metadata metadata = sample();
    changes[i](metadata);
    const Bytes encoded = encode_metadata(metadata);
    CHECK(encoded != encode_metadata(sample()));
    CHECK(encode_metadata(decode_metadata(encoded + later)) == encoded);
  }
}

TEST_CASE("metadata whose columns do not fit each other is corrupt, and the error says why") {
  using Message = v1::Metadata;
  const std::vector<std::pair<const char*, std::function<void(Message&)>>> cases = {
      {"entries differ in length", [](Message& m) { m.add_stored(true); }},
      {"entries differ in length", [](Message& m) { m.add_kinds(v1::ENTRY_KIND_BYTES); }},
      {"names differ in length", [](Message& m) { m.mutable_names()->clear_shared(); }},
      {"unknown kind", [](Message& m) { m.set_kinds(0, static_cast<v1::EntryKind>(0)); }},
      {"unknown kind", [](Message& m) { m.set_kinds(0, static_cast<v1::EntryKind>(6)); }},
      {"fewer tensors", [](Message& m) { m.set_kinds(1, v1::ENTRY_KIND_TENSOR); }},
      {"more tensors", [](Message& m) { m.add_dims(0), m.add_tensor_properties(0), m.add_chunk_counts(0); }},
      {"tensors differ in length", [](Message& m) { m.add_dims(0); }},
      {"properties that are not there", [](Message& m) { m.set_tensor_properties(0, 3); }},
      {"dimensions", [](Message& m) { m.set_dims(0, 77); }},
      {"negative", [](Message& m) { m.set_sizes(0, -1); }},
      {"too large", [](Message& m) { m.set_sizes(0, std::numeric_limits<std::int64_t>::max()); }},
      {"more chunks", [](Message& m) { m.set_chunk_counts(0, 3); }},
      {"more sizes",
       [](Message& m) {
         m.set_chunk_counts(0, 1), m.mutable_locations()->Clear();
         m.set_kinds(0, v1::ENTRY_KIND_UNSTORED_TENSOR), m.set_kinds(1, v1::ENTRY_KIND_UNSTORED_BYTES);
       }},
      {"outside", [](Message& m) { m.set_chunk_extents(4, 3); }},
      {"outside", [](Message& m) { m.set_chunk_extents(4, std::numeric_limits<std::int64_t>::max()); }},
      {"negative", [](Message& m) { m.set_chunk_extents(4, -1); }},
      {"more sizes", [](Message& m) { m.add_chunk_extents(4); }},
      {"fewer locations", [](Message& m) { m.mutable_locations()->Clear(); }},
      {"more locations", [](Message& m) { m.set_kinds(0, v1::ENTRY_KIND_UNSTORED_TENSOR); }},
      {"fewer numbers of chunks", [](Message& m) { m.clear_chunk_counts(); }},
      {"more numbers of chunks", [](Message& m) { m.add_chunk_counts(0); }},
      {"locations differ in length", [](Message& m) { m.mutable_locations()->add_offsets(1); }},
      {"locations differ in length",
       [](Message& m) { m.mutable_locations()->add_offsets(1), m.mutable_locations()->add_payload_offsets(1); }},
      {"locations differ in length", [](Message& m) { m.mutable_locations()->add_lengths(1); }},
      {"locations differ in length", [](Message& m) { m.mutable_locations()->clear_lengths(); }},
      {"locations differ in length",
       [](Message& m) { m.mutable_locations()->clear_offsets(), m.mutable_locations()->clear_payload_offsets(); }},
      {"locations differ in length", [](Message& m) { m.mutable_locations()->add_transforms(1); }},
      {"file that is not there", [](Message& m) { m.mutable_locations()->set_files(0, 2); }},
      {"beyond the end of file 'f0'", [](Message& m) { m.mutable_locations()->set_offsets(0, 901); }},
      {"beyond the end of file 'f0'", [](Message& m) { m.mutable_locations()->set_offsets(0, ~0ull); }},
      {"outside their archive", [](Message& m) { m.mutable_locations()->set_payload_offsets(1, 101); }},
      {"transforms that are not there", [](Message& m) { m.mutable_locations()->set_transforms(1, 2); }},
      {"list of transforms",
       [](Message& m) {
         for (int i = 0; i < 17; ++i) m.mutable_locations()->mutable_transform_lists(0)->add_names("x");
       }},
      {"no name", [](Message& m) { m.mutable_files(0)->clear_name(); }},
      {"two files have the name 'f1'", [](Message& m) { m.mutable_files(0)->set_name("f1"); }},
      {"trailer", [](Message& m) { m.mutable_files(0)->set_trailer_length(1001); }},
      {"world size", [](Message& m) { m.mutable_commit()->set_world_size(~0u); }},
      {"user's metadata", [](Message& m) { *m.mutable_commit()->add_user_metadata() = m.commit().user_metadata(0); }},
      {"path refers", [](Message& m) { m.mutable_planner_data()->set_names(0, 2); }},
      {"appears twice", [](Message& m) { m.mutable_names()->set_text("ww"); }},
  };
  for (const auto& [reason, spoil] : cases) {
    const auto& shown = reason;
    CAPTURE(shown);
    v1::Metadata message;
    REQUIRE(message.ParseFromString(encode_metadata(sample())));
    spoil(message);
    const std::string bytes = message.SerializeAsString();
    CHECK(is_corrupt([&] { decode_metadata(bytes); }, reason));
  }
}

TEST_CASE("a few bytes do not unfold into gigabytes") {
  // Chunks of a 0-dim tensor need no entries, so the decoder must not trust their count alone.
  Metadata metadata;
  TensorStorageMetadata scalar;
  scalar.chunks = {Box{}};
  metadata.state_dict_metadata = {{"s", scalar}};
  v1::Metadata chunks, names;
  REQUIRE(chunks.ParseFromString(encode_metadata(metadata)));
  chunks.set_chunk_counts(0, ~0u);
  CHECK(is_corrupt([&] { decode_metadata(chunks.SerializeAsString()); }, "more chunks"));
  for (int i = 0; i < 100'000; ++i) names.mutable_names()->add_lengths(0);  // of a text without room for them
  CHECK(is_corrupt([&] { decode_metadata(names.SerializeAsString()); }, "names differ in length"));
  names.mutable_names()->set_shared(std::string(100'000, '\0'));
  CHECK(is_corrupt([&] { decode_metadata(names.SerializeAsString()); }, "appears twice"));
  names.Clear();
  names.mutable_names()->set_text(std::string(300, 'x'));
  names.mutable_names()->add_lengths(300);
  names.mutable_names()->add_lengths(0);
  names.mutable_names()->set_shared(std::string("\0\x80", 2));
  CHECK(is_corrupt([&] { decode_metadata(names.SerializeAsString()); }, "shares more"));
}

// Returns a tensor of rows, one chunk of them in each file, with one 0-dim tensor and one bytes
// object in the first file, all where the layout places them.
Metadata laid_out(bool is_compressed) {
  Metadata metadata;
  TensorStorageMetadata rows, scalar;
  BytesStorageMetadata bytes;
  const std::vector<std::string> transforms(is_compressed ? 1 : 0, "zstd");
  std::vector<std::uint64_t> ends(2);
  const auto place = [&](std::uint32_t file, const Extents& sizes) {
    const ItemLayout layout = item_layout(DType::kFloat32, sizes, ends[file]);
    StorageInfo storage{file, ends[file], is_compressed ? 50 : layout.total_bytes(), ends[file] + layout.prefix_bytes, transforms};
    if (is_compressed) storage.payload_offset = 0;
    ends[file] += storage.length;
    return storage;
  };
  rows.size = {4, 6};
  rows.chunks = {{{0, 0}, {2, 6}}, {{2, 0}, {2, 6}}};
  rows.storage = {place(0, {2, 6}), place(1, {2, 6})};
  scalar.chunks = {Box{}};
  scalar.storage = {place(0, {})};
  bytes.storage = StorageInfo{0, ends[0], 10, ends[0], {}};
  metadata.state_dict_metadata = {{"b", bytes}, {"rows", rows}, {"s", scalar}};
  metadata.files = {{"f0", ends[0] + 10 + 30, 7, 30}, {"f1", ends[1] + 30, 8, 30}};
  return metadata;
}

std::vector<StorageInfo> locations_of(const Metadata& metadata) {
  const auto tensor = [&](int i) { return std::get<TensorStorageMetadata>(metadata.state_dict_metadata[i].second).storage; };
  std::vector<StorageInfo> all = tensor(1);
  all.push_back(tensor(2).at(0));
  all.push_back(std::get<BytesStorageMetadata>(metadata.state_dict_metadata[0].second).storage.value());
  return all;
}

TEST_CASE("positions that follow from the layout are derived, not recorded") {
  for (const bool is_compressed : {false, true}) {
    const Metadata metadata = laid_out(is_compressed);
    v1::Metadata message;
    REQUIRE(message.ParseFromString(encode_metadata(metadata)));
    CHECK(message.locations().offsets_size() == 0);
    CHECK(message.locations().payload_offsets_size() == 0);
    CHECK(message.locations().lengths_size() == (is_compressed ? 4 : 1));
    const auto wanted = locations_of(metadata), found = locations_of(decode_metadata(message.SerializeAsString()));
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      CAPTURE(i);
      CHECK(found[i].file == wanted[i].file);
      CHECK(found[i].offset == wanted[i].offset);
      CHECK(found[i].length == wanted[i].length);
      CHECK(found[i].payload_offset == wanted[i].payload_offset);
    }
  }
}

// Three ranks with a file each: a tensor, a value and a tensor below "opt" in each of two; in the
// third, what has no layout.
Metadata of_three_ranks() {
  Metadata metadata;
  for (std::uint32_t file = 0; file < 3; ++file) {
    const std::string rank = std::to_string(file);
    std::uint64_t end = 0;
    TensorStorageMetadata tensor;
    tensor.size = {4, 6};
    tensor.chunks = {Box::whole(tensor.size)};
    for (const std::string& name : {rank + ".w", "opt." + rank}) {
      const ItemLayout layout = item_layout(DType::kFloat32, tensor.size, end);
      tensor.storage = {{file, end, layout.total_bytes(), end + layout.prefix_bytes, {}}};
      end += layout.total_bytes();
      metadata.state_dict_metadata.emplace_back(name, tensor);
    }
    BytesStorageMetadata bytes;
    bytes.storage = StorageInfo{file, end, 10 + file, file == 2 ? 0 : end, {}};
    metadata.state_dict_metadata.emplace_back(rank + ".b", bytes);
    metadata.files.push_back({"f" + rank, end + 10 + file + 30, 7, 30});
  }
  for (const auto& [name, entry] : metadata.state_dict_metadata) metadata.planner_data.emplace_back(name, Path{name});
  metadata.planner_data.emplace_back("opt", Path{"opt"});  // of no entry
  return metadata;
}

TEST_CASE("a load decodes the entries that it needs, where they are, and the names of the others") {
  const Metadata all = of_three_ranks();
  const Bytes encoded = encode_metadata(all);
  struct Case {
    std::vector<std::string> names, prefixes, entries, others, paths;
  };
  for (const Case& one : std::vector<Case>{
           {{"1.w"}, {}, {"1.w"}, {"0.w", "opt.0", "0.b", "opt.1", "1.b", "2.w", "opt.2", "2.b"}, {}},
           {{"2.b", "0.b"}, {}, {"0.b", "2.b"}, {"0.w", "opt.0", "1.w", "opt.1", "1.b", "2.w", "opt.2"}, {}},
           {{"opt.2"}, {"1"}, {"1.w", "1.b", "opt.2"}, {"0.w", "opt.0", "0.b", "opt.1", "2.w", "2.b"}, {"1.w", "1.b"}},
           {{},
            {"opt"},
            {"opt.0", "opt.1", "opt.2"},
            {"0.w", "0.b", "1.w", "1.b", "2.w", "2.b"},
            {"opt.0", "opt.1", "opt.2", "opt"}},
           {{}, {}, {}, {"0.w", "opt.0", "0.b", "1.w", "opt.1", "1.b", "2.w", "opt.2", "2.b"}, {}},
       }) {
    CAPTURE(one.entries);
    NeededNames needed;
    for (const std::string& name : one.names) needed.names.intern(name);
    needed.prefixes = one.prefixes;
    const Metadata found = decode_metadata(encoded, kFormatVersion, &needed);
    CHECK(found.names().all() == one.entries);
    CHECK(found.others.names == one.others);
    for (std::size_t i = 0; i < one.others.size(); ++i) CHECK(found.others.are_bytes[i] == (one.others[i].back() == 'b'));
    std::vector<std::string> paths;
    for (const auto& [name, path] : found.planner_data) paths.push_back(name);
    CHECK(paths == one.paths);
    for (const auto& [name, entry] : found.state_dict_metadata) {
      const auto location = [&](const Metadata::Entry& of) {
        const auto* bytes = std::get_if<BytesStorageMetadata>(&of);
        const StorageInfo& at = bytes ? bytes->storage.value() : std::get<TensorStorageMetadata>(of).storage.at(0);
        return std::vector<std::uint64_t>{at.file, at.offset, at.length, at.payload_offset};
      };
      CHECK(location(entry) == location(*all.find(name)));
    }
  }
}

TEST_CASE("everything is decoded if a needed name is missing, or paths do not follow from names") {
  Metadata metadata = of_three_ranks();
  const auto is_whole = [&](const NeededNames& needed) {
    const Metadata found = decode_metadata(encode_metadata(metadata), kFormatVersion, &needed);
    return found.others.names.empty() && encode_metadata(found) == encode_metadata(metadata);
  };
  NeededNames missing, only_a_path, nothing_below, present;
  missing.names.intern("3.w");
  only_a_path.names.intern("opt");
  nothing_below.prefixes = {"opt", "op"};
  present.names.intern("0.w");
  CHECK(is_whole(missing));
  CHECK(is_whole(only_a_path));
  CHECK(is_whole(nothing_below));
  CHECK_FALSE(is_whole(present));
  metadata.planner_data[0].second = {"another"};
  CHECK(is_whole(present));
}

TEST_CASE("what a load needs is checked as in a full record, with all that shares its file") {
  NeededNames needed;
  needed.names.intern("1.w");
  using Message = v1::Metadata;
  const auto fails = [&](const std::function<void(Message&)>& spoil, const char* reason) {
    Message message;
    REQUIRE(message.ParseFromString(encode_metadata(of_three_ranks())));
    spoil(message);
    return is_corrupt([&] { decode_metadata(message.SerializeAsString(), kFormatVersion, &needed); }, reason);
  };
  CHECK(fails([](Message& m) { m.mutable_files(1)->set_length(m.files(1).length() + 1); }, "do not add up"));
  CHECK(fails([](Message& m) { m.mutable_locations()->set_lengths(1, 11 + 1); }, "do not add up"));
  CHECK(fails([](Message& m) { m.mutable_locations()->set_files(7, 3); }, "not there"));
  CHECK(fails([](Message& m) { m.add_dims(1), m.add_tensor_properties(0); }, "more tensors"));
  CHECK(fails([](Message& m) { m.mutable_names()->mutable_text()->append("x"); }, "longer than the names"));
  const auto name_twice = [](Message& m) {
    NameTable names;
    for (const char* name : {"0.w", "opt.0", "0.b", "1.w", "opt.1", "1.b", "1.w ", "opt.2", "2.b", "opt"}) names.intern(name);
    m.clear_names();
    columns::names_to_proto(names, *m.mutable_names());
    auto& text = *m.mutable_names()->mutable_text();  // the seventh name becomes that of the fourth
    text.erase(text.find(' '), 1);
    m.mutable_names()->set_lengths(6, m.names().lengths(6) - 1);
  };
  CHECK(fails(name_twice, "appears twice"));
}

TEST_CASE("a file whose items are elsewhere is recorded explicitly, and the others are not") {
  const auto rows = [](Metadata& m) -> auto& { return std::get<TensorStorageMetadata>(m.state_dict_metadata[1].second).storage; };
  const auto bytes = [](Metadata& m) -> auto& { return *std::get<BytesStorageMetadata>(m.state_dict_metadata[0].second).storage; };
  for (const auto& move : std::vector<std::function<void(Metadata&)>>{
           [](Metadata& m) { std::swap(m.state_dict_metadata[1], m.state_dict_metadata[2]); },  // another order than in the file
           [&](Metadata& m) { rows(m)[0].payload_offset = 0; },
           [&](Metadata& m) { rows(m)[0].length -= 1; },
           [&](Metadata& m) { rows(m)[0].transforms = {"zstd"}; },
           [&](Metadata& m) { bytes(m).payload_offset = 0; },
           [&](Metadata& m) { bytes(m) = rows(m)[0]; },  // two items with the same bytes
           [](Metadata& m) { *m.files[0].length += 1; },  // there is more in the file
           [](Metadata& m) { m.files[0].length.reset(); },
           [](Metadata& m) { m.files[0].trailer_length.reset(); },
           [](Metadata& m) { m.state_dict_metadata.pop_back(); },
       }) {
    Metadata metadata = laid_out(false);
    move(metadata);
    v1::Metadata message;
    REQUIRE(message.ParseFromString(encode_metadata(metadata)));
    CHECK(message.files(0).explicit_positions());
    CHECK_FALSE(message.files(1).explicit_positions());
    CHECK(decode_metadata(message.SerializeAsString()).state_dict_metadata.size() == metadata.state_dict_metadata.size());
    CHECK(encode_metadata(decode_metadata(message.SerializeAsString())) == encode_metadata(metadata));
  }
}

TEST_CASE("lengths that contradict the table of files are corrupt") {
  using Message = v1::Metadata;
  for (const auto& spoil : std::vector<std::function<void(Message&)>>{
           [](Message& m) { m.mutable_files(0)->set_length(m.files(0).length() + 1); },
           [](Message& m) { m.mutable_files(0)->set_length(m.files(0).length() - 1); },
           [](Message& m) { m.mutable_files(0)->set_trailer_length(29); },
           [](Message& m) { m.mutable_files(0)->set_length(~std::uint64_t{0}); },
           [](Message& m) { m.mutable_files(0)->clear_length(); },
           [](Message& m) { m.mutable_files(0)->clear_trailer_length(); },
           [](Message& m) { m.mutable_locations()->set_lengths(0, 11); },
           [](Message& m) { m.mutable_locations()->set_files(2, 0); },
           [](Message& m) { m.set_sizes(1, 600), m.set_chunk_extents(3, 600); },
           [](Message& m) { m.set_sizes(1, 1LL << 58), m.set_chunk_extents(3, 1LL << 58); },
           [](Message& m) { m.mutable_properties(0)->set_dtype(v1::DTYPE_COMPLEX128); },
       }) {
    Message message;
    REQUIRE(message.ParseFromString(encode_metadata(laid_out(false))));
    spoil(message);
    CHECK(is_corrupt([&] { decode_metadata(message.SerializeAsString()); }, "do not add up to the length of the file"));
  }
  Message message;
  REQUIRE(message.ParseFromString(encode_metadata(laid_out(false))));
  message.mutable_locations()->set_lengths(0, ~std::uint64_t{0});
  CHECK(is_corrupt([&] { decode_metadata(message.SerializeAsString()); }, "beyond the end of file 'f0'"));
}

TEST_CASE("fields of later versions are listed by number and size") {
  const std::string later("\xFA\x06\x03xyz\xF8\x06\x96\x01", 10);  // field 111: three bytes after their length, and a number
  CHECK((decode_metadata(encode_metadata(sample()) + later).later_fields ==
         std::vector<std::pair<std::uint32_t, std::uint64_t>>{{111, 4}, {111, 2}}));
  CHECK(decode_metadata(encode_metadata(sample())).later_fields.empty());
}

TEST_CASE("metadata that contradicts itself is not written") {
  const auto refused = [](auto spoil) {
    Metadata metadata = sample();
    spoil(metadata);
    return testing::thrown_by([&] { encode_metadata(metadata); }).code == ErrorCode::kInvalidArgument;
  };
  const auto tensor_of = [](Metadata& metadata) -> TensorStorageMetadata& {
    return std::get<TensorStorageMetadata>(metadata.state_dict_metadata[0].second);
  };
  CHECK(refused([&](Metadata& metadata) { tensor_of(metadata).chunks[1].offsets = {3, 0}; }));
  CHECK(refused([&](Metadata& metadata) { tensor_of(metadata).chunks[1].offsets = {2}; }));
  CHECK(refused([&](Metadata& metadata) { tensor_of(metadata).storage.pop_back(); }));
  CHECK(refused([&](Metadata& metadata) { tensor_of(metadata).storage[0].file = 2; }));
  CHECK(refused([&](Metadata& metadata) { metadata.state_dict_metadata[1].first = "w"; }));
  // A reader would refuse these. Such a record must not replace a readable one.
  CHECK(refused([&](Metadata& metadata) { tensor_of(metadata).storage[0].offset = 901; }));
  CHECK(refused([&](Metadata& metadata) { tensor_of(metadata).storage[0].length = ~std::uint64_t{0}; }));
  CHECK(refused([&](Metadata& metadata) { tensor_of(metadata).storage[0].payload_offset = 101; }));
  CHECK(refused([&](Metadata& metadata) { tensor_of(metadata).storage[1] = {1, 10, 20, 9, {}}; }));
  CHECK(refused([&](Metadata& metadata) { tensor_of(metadata).size = {-1, 6}; }));
  CHECK(refused([&](Metadata& metadata) { tensor_of(metadata).size = {std::numeric_limits<std::int64_t>::max(), 6}; }));
  CHECK(refused([&](Metadata& metadata) { metadata.files[1].name = "f0"; }));
  CHECK(refused([&](Metadata& metadata) { metadata.files[1].name.clear(); }));
  CHECK(refused([&](Metadata& metadata) { metadata.files[1].trailer_length = 1001; }));
  CHECK(refused([&](Metadata& metadata) { metadata.commit->world_size = -1; }));
  CHECK(refused([&](Metadata& metadata) { metadata.planner_data.push_back(metadata.planner_data[0]); }));
}

}  // namespace
}  // namespace cairn
