#include <cairn/tests/support/plain.hpp>

#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include <cairn/base/error.hpp>
#include <cairn/base/random.hpp>
#include <cairn/messages/metadata.pb.h>
#include <cairn/messages/metadata_codec.hpp>
#include <cairn/tests/messages/corruption.hpp>

namespace cairn {
namespace {

using testing::each_flip;
using testing::each_truncation;
using testing::is_corrupt;
using testing::random_extents;
using testing::random_text;

StorageInfo random_storage(Random& random, const std::vector<FileInfo>& files) {
  StorageInfo storage;
  storage.file = static_cast<std::uint32_t>(random.next() % files.size());
  storage.offset = random.next() % 1000;
  storage.length = random.next() % 1000;
  if (random.next() % 2 == 0) storage.payload_offset = storage.offset + random.next() % (storage.length + 1);
  for (std::uint64_t i = random.next() % 3; random.next() % 3 == 0 && i > 0; --i)
    storage.transforms.push_back(random_text(random, 5));
  return storage;
}

Metadata random_metadata(Random& random) {
  Metadata metadata;
  for (std::uint64_t i = 1 + random.next() % 4; i > 0; --i) {
    FileInfo file;
    file.name = "file " + std::to_string(i);
    if (random.next() % 2 == 0) file.length = 2000 + random.next() % 1000;
    if (random.next() % 2 == 0) file.crc32 = static_cast<std::uint32_t>(random.next());
    if (random.next() % 2 == 0) file.trailer_length = static_cast<std::uint32_t>(random.next() % 2000);
    metadata.files.push_back(file);
  }
  const std::uint64_t entries = random.next() % 20;
  for (std::uint64_t i = 0; i < entries; ++i) {
    const std::string fqn = std::to_string(i) + random_text(random, 20);
    if (random.next() % 3 == 0) {
      BytesStorageMetadata bytes;
      if (random.next() % 2 == 0) bytes.storage = random_storage(random, metadata.files);
      metadata.state_dict_metadata.emplace_back(fqn, bytes);
    } else {
      TensorStorageMetadata tensor;
      tensor.properties.dtype = static_cast<DType>(1 + random.next() % kDTypeCount);
      tensor.properties.memory_format = static_cast<MemoryFormat>(random.next() % 3);
      tensor.properties.requires_grad = random.next() % 2 == 0;
      const std::size_t dims = random.next() % 6;
      tensor.size = random_extents(random, dims, 50);
      const bool stored = random.next() % 2 == 0;
      for (std::uint64_t c = random.next() % 5; c > 0; --c) {
        Box chunk{random_extents(random, dims, 50), random_extents(random, dims, 50)};
        for (std::size_t dim = 0; dim < dims; ++dim) {
          chunk.offsets[dim] = std::min(chunk.offsets[dim], tensor.size[dim]);
          chunk.sizes[dim] = std::min(chunk.sizes[dim], tensor.size[dim] - chunk.offsets[dim]);
        }
        tensor.chunks.push_back(chunk);
        if (stored) tensor.storage.push_back(random_storage(random, metadata.files));
      }
      metadata.state_dict_metadata.emplace_back(fqn, tensor);
    }
    if (random.next() % 2 == 0) metadata.planner_data.emplace_back(fqn, Path{fqn});
    if (random.next() % 8 == 0) metadata.planner_data.emplace_back("not an entry " + fqn, Path{"x", std::int64_t{1}});
  }
  metadata.checkpoint_id = random_text(random, 20);
  metadata.save_id = random_text(random, 20);
  metadata.version = random_text(random, 5);
  if (random.next() % 2 == 0) {
    CommitInfo commit;
    commit.sequence = random.next();
    if (random.next() % 2 == 0) commit.step = random.next() % 4 == 0 ? 0 : static_cast<std::int64_t>(random.next());
    commit.world_size = static_cast<int>(random.next() % 1000);
    commit.plan_digest = random_text(random, 64);
    commit.writer_version = random_text(random, 10);
    for (std::uint64_t i = random.next() % 4; i > 0; --i) commit.user_metadata[random_text(random, 10)] = random_text(random, 10);
    for (std::uint64_t i = random.next() % 3; i > 0; --i) commit.retired.push_back(random_text(random, 30));
    metadata.commit = commit;
  }
  metadata.user_planner_data = random_text(random, 20);
  metadata.user_storage_data = random_text(random, 20);
  return metadata;
}

auto fields(const StorageInfo& info) { return std::tie(info.file, info.offset, info.length, info.payload_offset, info.transforms); }
auto fields(const FileInfo& file) { return std::tie(file.name, file.length, file.crc32, file.trailer_length); }
auto fields(const CommitInfo& commit) {
  return std::tie(commit.sequence, commit.step, commit.world_size, commit.plan_digest, commit.writer_version, commit.user_metadata,
                  commit.retired);
}

void check_equal(const Metadata& a, const Metadata& b) {
  REQUIRE(a.state_dict_metadata.size() == b.state_dict_metadata.size());
  for (std::size_t i = 0; i < a.state_dict_metadata.size(); ++i) {
    const auto& [fqn_a, entry_a] = a.state_dict_metadata[i];
    const auto& [fqn_b, entry_b] = b.state_dict_metadata[i];
    CHECK(fqn_a == fqn_b);
    REQUIRE(entry_a.index() == entry_b.index());
    if (const auto* bytes = std::get_if<BytesStorageMetadata>(&entry_a)) {
      const auto& other = std::get<BytesStorageMetadata>(entry_b);
      REQUIRE(bytes->storage.has_value() == other.storage.has_value());
      if (bytes->storage) CHECK((fields(*bytes->storage) == fields(*other.storage)));
      continue;
    }
    const auto& tensor = std::get<TensorStorageMetadata>(entry_a);
    const auto& other = std::get<TensorStorageMetadata>(entry_b);
    CHECK(tensor.properties == other.properties);
    CHECK(tensor.size == other.size);
    CHECK(tensor.chunks == other.chunks);
    REQUIRE(tensor.storage.size() == other.storage.size());
    for (std::size_t c = 0; c < tensor.storage.size(); ++c) CHECK((fields(tensor.storage[c]) == fields(other.storage[c])));
  }
  REQUIRE(a.files.size() == b.files.size());
  for (std::size_t i = 0; i < a.files.size(); ++i) CHECK((fields(a.files[i]) == fields(b.files[i])));
  CHECK(a.planner_data == b.planner_data);
  CHECK(a.checkpoint_id == b.checkpoint_id);
  CHECK(a.save_id == b.save_id);
  CHECK(a.version == b.version);
  REQUIRE(a.commit.has_value() == b.commit.has_value());
  if (a.commit) CHECK((fields(*a.commit) == fields(*b.commit)));
  CHECK(a.user_planner_data == b.user_planner_data);
  CHECK(a.user_storage_data == b.user_storage_data);
}

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

TEST_CASE("metadata survives the journey, whatever is in it") {
  const auto random = seeded_random(61);
  check_equal(Metadata{}, decode_metadata(encode_metadata(Metadata{})));
  check_equal(sample(), decode_metadata(encode_metadata(sample())));
  for (int round = 0; round < 500; ++round) {
    CAPTURE(round);
    const Metadata metadata = random_metadata(*random);
    const Bytes bytes = encode_metadata(metadata);
    const Metadata back = decode_metadata(bytes);
    // A tensor without chunks has no storage info, so nothing records whether it was stored.
    check_equal(metadata, back);
    CHECK(encode_metadata(back) == bytes);
  }
}

TEST_CASE("the same metadata gives the same bytes, and later versions' fields are skipped") {
  CHECK(encode_metadata(sample()) == encode_metadata(sample()));
  const std::string later = {'\xFA', '\x06', '\x03', 'x', 'y', 'z'};  // field 111, three bytes
  check_equal(sample(), decode_metadata(encode_metadata(sample()) + later));
}

TEST_CASE("bytes cut short or flipped anywhere are decoded or refused, nothing else") {
  const auto random = seeded_random(62);
  const auto use = [](const Bytes& bytes) { encode_metadata(decode_metadata(bytes)); };
  for (int round = 0; round < 8; ++round) {
    const Bytes bytes = encode_metadata(random_metadata(*random));
    each_truncation(bytes, use);
    each_flip(bytes, use);
  }
}

TEST_CASE("metadata whose columns do not fit each other is corrupt, and the error says why") {
  using Message = v1::Metadata;
  const std::vector<std::pair<const char*, std::function<void(Message&)>>> cases = {
      {"entries differ in length", [](Message& m) { m.add_stored(true); }},
      {"entries differ in length", [](Message& m) { m.add_kinds(v1::ENTRY_KIND_BYTES), m.add_stored(false); }},
      {"unknown kind", [](Message& m) { m.set_kinds(0, static_cast<v1::EntryKind>(0)); }},
      {"unknown kind", [](Message& m) { m.set_kinds(0, static_cast<v1::EntryKind>(5)); }},
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
         m.set_chunk_counts(0, 1), m.set_stored(0, false), m.mutable_locations()->Clear(), m.set_stored(1, false);
       }},
      {"outside", [](Message& m) { m.set_chunk_extents(4, 3); }},
      {"outside", [](Message& m) { m.set_chunk_extents(4, std::numeric_limits<std::int64_t>::max()); }},
      {"negative", [](Message& m) { m.set_chunk_extents(4, -1); }},
      {"more sizes", [](Message& m) { m.add_chunk_extents(4); }},
      {"fewer locations", [](Message& m) { m.mutable_locations()->Clear(); }},
      {"more locations", [](Message& m) { m.set_stored(0, false); }},
      {"locations differ in length", [](Message& m) { m.mutable_locations()->add_offsets(1); }},
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
      {"same name", [](Message& m) { m.mutable_files(0)->set_name("f1"); }},
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
  CHECK(is_corrupt([&] { decode_metadata(names.SerializeAsString()); }, "more names"));
}

TEST_CASE("metadata that contradicts itself is not written") {
  const auto refused = [](auto spoil) {
    Metadata metadata = sample();
    spoil(metadata);
    try {
      encode_metadata(metadata);
    } catch (const Error& error) {
      return error.code() == ErrorCode::kInvalidArgument;
    }
    return false;
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
