#include <cairn/tests/support/plain.hpp>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <cairn/base/error.hpp>
#include <cairn/messages/columns.hpp>
#include <cairn/messages/plan_codec.hpp>
#include <cairn/tests/messages/corruption.hpp>
#include <cairn/tests/messages/random_plans.hpp>
#include <cairn/tests/support/plan_bytes.hpp>
#include <cairn/tests/support/thrown.hpp>

namespace cairn {
namespace {

using testing::check_equal;
using testing::is_corrupt;
using testing::random_load_plan;
using testing::random_results;
using testing::random_save_plan;

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

// --- round trips ---------------------------------------------------------------------------------

// --- bad bytes -----------------------------------------------------------------------------------

v1::SavePlan sample_save_message() {
  SavePlan plan;
  WriteItem tensor;
  tensor.name = plan.names.intern("a.w");
  tensor.type = WriteItemType::kShard;
  tensor.size = {4, 6};
  tensor.chunk = {{2, 0}, {2, 6}};
  WriteItem bytes;
  bytes.name = plan.names.intern("step");
  plan.items = {tensor, bytes};
  plan.mappings.edit() = {{0, {"a", "w"}}, {1, {"elsewhere", std::int64_t{3}}}};
  v1::SavePlan message;
  to_proto(plan, message);
  return message;
}

// A part that a message has as bytes, encoded again when the object ends.
template <class Part>
class Edited {
 public:
  explicit Edited(std::string& bytes) : bytes_(bytes) { columns::parse(bytes, part_, "part"); }
  ~Edited() { bytes_ = part_.SerializeAsString(); }
  Part* operator->() { return &part_; }

 private:
  std::string& bytes_;
  Part part_;
};
Edited<v1::Names> names(v1::SavePlan& message) { return Edited<v1::Names>(*message.mutable_names()); }
Edited<v1::Paths> paths(v1::SavePlan& message) { return Edited<v1::Paths>(*message.mutable_mappings()); }

TEST_CASE("a save plan with contradicting columns is corrupt, and the error says why") {
  CHECK_NOTHROW(from_proto(sample_save_message()));
  using Message = v1::SavePlan;
  const std::vector<std::pair<const char*, std::function<void(Message&)>>> cases = {
      {"name that is not there", [](Message& m) { m.set_item_names(0, 2); }},
      {"differ in length", [](Message& m) { m.add_item_names(0); }},
      {"unknown type", [](Message& m) { m.set_item_types(0, static_cast<v1::WriteItemType>(0)); }},
      {"unknown type", [](Message& m) { m.set_item_types(0, static_cast<v1::WriteItemType>(9)); }},
      {"unknown type", [](Message& m) { m.set_item_types(0, static_cast<v1::WriteItemType>(-1)); }},
      {"do not add up", [](Message& m) { m.add_item_dims(2); }},
      {"do not add up", [](Message& m) { m.add_content_bytes(2); }},
      {"do not add up", [](Message& m) { m.add_content_hashes(2), m.add_content_hashes(2); }},
      {"fewer bytes objects", [](Message& m) { m.set_item_types(0, v1::WRITE_ITEM_TYPE_BYTES); }},
      {"fewer tensors", [](Message& m) { m.set_item_types(1, v1::WRITE_ITEM_TYPE_TENSOR); }},
      {"properties that are not there", [](Message& m) { m.set_item_properties(0, 1); }},
      {"dtype 0", [](Message& m) { m.mutable_properties(0)->clear_dtype(); }},
      {"dtype 99", [](Message& m) { m.mutable_properties(0)->set_dtype(static_cast<v1::DType>(99)); }},
      {"memory format", [](Message& m) { m.mutable_properties(0)->clear_memory_format(); }},
      {"fewer sizes", [](Message& m) { m.set_item_dims(0, 3); }},
      {"more sizes", [](Message& m) { m.set_item_dims(0, 1); }},
      {"dimensions", [](Message& m) { m.set_item_dims(0, 65); }},
      {"negative", [](Message& m) { m.set_extents(1, -6); }},
      {"negative", [](Message& m) { m.set_extents(2, -1); }},
      {"too large", [](Message& m) { m.set_extents(0, kHuge / 4); }},
      {"too large", [](Message& m) { m.set_extents(4, kHuge); }},
      {"own", [](Message& m) { m.add_per_rank_items(2); }},
      {"frozen", [](Message& m) { m.add_frozen_items(2); }},
      {"appears twice",
       [](Message& m) {
         names(m)->set_text("aaaaaa");
         names(m)->set_lengths(0, 3);
         names(m)->set_lengths(1, 3);
       }},
      {"beyond the text", [](Message& m) { names(m)->set_lengths(1, 5); }},
      {"longer than the names", [](Message& m) { names(m)->set_lengths(1, 3); }},
      {"names differ in length", [](Message& m) { names(m)->add_lengths(0); }},
      {"a name shares more",
       [](Message& m) {
         names(m)->set_shared({1, 0});
       }},
      {"a name shares more",
       [](Message& m) {
         names(m)->set_shared({0, 4});
       }},
      {"path refers to a name", [](Message& m) { paths(m)->set_names(0, 2); }},
      {"two paths", [](Message& m) { paths(m)->set_names(1, 0); }},
      {"paths differ in length", [](Message& m) { paths(m)->add_lengths(1); }},
      {"more steps than there are", [](Message& m) { paths(m)->set_lengths(0, 9); }},
      {"do not fit its text", [](Message& m) { paths(m)->set_steps(0, 4); }},
      {"do not fit its text", [](Message& m) { paths(m)->set_steps(0, 400); }},
      {"not a number", [](Message& m) { paths(m)->set_steps(0, 3); }},
      {"more than its paths need", [](Message& m) { paths(m)->add_steps(0); }},
      {"more than its paths need",
       [](Message& m) {
         names(m)->set_text("a.wstep");
         paths(m)->set_renamed(0, 7);
         paths(m)->set_lengths(1, 1);
         paths(m)->set_steps(2, 8);
         paths(m)->mutable_steps()->RemoveLast();
       }},
      {"text of all", [](Message& m) { paths(m)->set_text_lengths(0, 99); }},
  };
  for (const auto& [reason, spoil] : cases) {
    const auto& shown = reason;
    CAPTURE(shown);
    v1::SavePlan message = sample_save_message();
    spoil(message);
    CHECK(is_corrupt([&, &message = message] { from_proto(message); }, reason));
  }
}

TEST_CASE("names with a beginning are visited as all names are") {
  const auto random = seeded_random(1);
  for (int repeat = 0; repeat < 200; ++repeat) {
    NameTable table;
    for (int i = 0; i < 50; ++i) {
      std::string name;
      for (std::uint64_t length = random->next() % 8; length > 0; --length) name += static_cast<char>('a' + random->next() % 2);
      table.intern(name);
    }
    v1::Names message;
    columns::names_to_proto(table, message);
    const std::string beginning = table[static_cast<NameId>(random->next() % table.size())].substr(0, random->next() % 5);
    std::vector<std::string> expected, visited;
    for (const std::string& name : table.all()) expected.push_back(name.substr(0, beginning.size()) == beginning ? name : "");
    columns::visit_names(message, "list", beginning, [&](std::string_view name) { visited.emplace_back(name); });
    CHECK(visited == expected);
  }
}

TEST_CASE("a load plan with contradicting columns is corrupt, and the error says why") {
  LoadPlan plan;
  ReadItem item;
  item.dest_name = plan.names.intern("a");
  item.dest_chunk_offset = item.dest_offsets = item.storage_chunk_offset = item.storage_offsets = item.lengths = {1, 2};
  plan.items = {item};
  using Message = v1::LoadPlan;
  const std::vector<std::pair<const char*, std::function<void(Message&)>>> cases = {
      {"name that is not there", [](Message& m) { m.set_dest_names(0, 1); }},
      {"name that is not there", [](Message& m) { m.set_storage_names(0, 1); }},
      {"unknown type", [](Message& m) { m.set_item_types(0, static_cast<v1::LoadItemType>(3)); }},
      {"differ in length", [](Message& m) { m.add_dims(0); }},
      {"differ in length", [](Message& m) { m.add_storage_chunks(0); }},
      {"differ in length", [](Message& m) { m.clear_dest_names(); }},
      {"number of dimensions", [](Message& m) { m.set_dims(0, 1), m.mutable_extents()->RemoveLast(); }},
      {"more sizes", [](Message& m) { m.add_extents(0); }},
      {"fewer sizes", [](Message& m) { m.mutable_extents()->RemoveLast(); }},
      {"negative", [](Message& m) { m.set_extents(9, -1); }},
      {"too large", [](Message& m) { m.set_extents(9, kHuge); }},
  };
  for (const auto& [reason, spoil] : cases) {
    const auto& shown = reason;
    CAPTURE(shown);
    v1::LoadPlan message;
    to_proto(plan, message);
    CHECK_NOTHROW(from_proto(message));
    spoil(message);
    CHECK(is_corrupt([&, &message = message] { from_proto(message); }, reason));
  }
}

TEST_CASE("write results that cannot be true are corrupt") {
  const auto refused = [](auto spoil, const char* reason) {
    v1::WriteResults message;
    message.add_files()->set_name("f");
    message.mutable_files(0)->set_length_bytes(100);
    message.add_items()->set_fqn("x");
    CHECK_NOTHROW(from_proto(message));
    spoil(message);
    return is_corrupt([&] { from_proto(message); }, reason);
  };
  CHECK(refused([](v1::WriteResults& m) { m.mutable_files(0)->clear_name(); }, "no name"));
  CHECK(refused([](v1::WriteResults& m) { m.mutable_files(0)->set_trailer_length_bytes(101); }, "trailer"));
  CHECK(refused([](v1::WriteResults& m) { m.mutable_files(0)->add_bytes_item_lengths(101); }, "longer than the file"));
  CHECK(refused([](v1::WriteResults& m) { m.mutable_items(0)->add_offset(1); }, "offset"));
  CHECK(refused([](v1::WriteResults& m) { m.mutable_items(0)->set_has_offset(true), m.mutable_items(0)->add_offset(-1); },
                "negative"));
  CHECK(refused([](v1::WriteResults& m) { m.mutable_items(0)->set_offset_bytes(~0ull), m.mutable_items(0)->set_length_bytes(1); },
                "beyond"));
}

// --- bad plans -----------------------------------------------------------------------------------

TEST_CASE("a plan that contradicts itself is not sent") {
  const auto refused = [](auto spoil) {
    SavePlan plan = from_proto(sample_save_message());
    spoil(plan);
    return testing::thrown_by([&] { encode_save_plan(plan); }).code == ErrorCode::kInvalidArgument;
  };
  CHECK(refused([](SavePlan& plan) { plan.items[0].name = 2; }));
  CHECK(refused([](SavePlan& plan) { plan.items[0].type = static_cast<WriteItemType>(0); }));
  CHECK(refused([](SavePlan& plan) { plan.items[0].chunk.offsets = {1}; }));
  CHECK(refused([](SavePlan& plan) { plan.items[0].chunk.sizes = {1, 2, 3}; }));
  CHECK(refused([](SavePlan& plan) { plan.items[0].properties.dtype = static_cast<DType>(99); }));
  CHECK(refused([](SavePlan& plan) { plan.items[0].properties.memory_format = static_cast<MemoryFormat>(9); }));
  CHECK(refused([](SavePlan& plan) { plan.mappings.edit()[0].first = 2; }));
  CHECK(refused([](SavePlan& plan) { plan.mappings.edit()[0].first = 1; }));
  LoadPlan load;
  load.items.emplace_back();
  CHECK_THROWS_AS(encode_load_plan(load), Error);
  load.names.intern("x");
  CHECK_NOTHROW(encode_load_plan(load));
  load.items[0].lengths = {1};
  CHECK_THROWS_AS(encode_load_plan(load), Error);
}

}  // namespace
}  // namespace cairn
