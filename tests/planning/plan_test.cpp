#include <cairn/tests/support/plain.hpp>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <cairn/base/error.hpp>
#include <cairn/planning/flat_names.hpp>
#include <cairn/planning/plan.hpp>

namespace cairn {
namespace {

TEST_CASE("the payload of an item is what its elements take") {
  WriteItem item;
  item.content_bytes = 77;
  CHECK(item.payload_bytes() == 77);
  item.type = WriteItemType::kShard;
  item.properties.dtype = DType::kFloat64;
  item.chunk = {{0, 0}, {3, 5}};
  CHECK(item.payload_bytes() == 120);
  item.chunk.sizes = {0, std::numeric_limits<std::int64_t>::max()};
  CHECK(item.payload_bytes() == 0);
  item.chunk.sizes = {1, std::numeric_limits<std::int64_t>::max()};
  CHECK_THROWS_AS(item.payload_bytes(), Error);
}

SavePlan sample_save_plan() {
  SavePlan plan;
  WriteItem tensor;
  tensor.name = plan.names.intern("weight");
  tensor.type = WriteItemType::kShard;
  tensor.size = {4, 6};
  tensor.chunk = {{2, 0}, {2, 6}};
  WriteItem bytes;
  bytes.name = plan.names.intern("step");
  bytes.content_hash = 1;
  plan.items = {tensor, bytes};
  plan.mappings.edit() = {{0, {"weight"}}, {1, {"step", std::int64_t{3}}}};
  return plan;
}

TEST_CASE("the digest of a save plan covers all that makes it another plan") {
  const Digest original = plan_digest(sample_save_plan());
  CHECK(plan_digest(sample_save_plan()) == original);
  const std::vector<std::function<void(SavePlan&)>> changes = {
      [](SavePlan& plan) { plan.items[0].name = plan.names.intern("other"); },
      [](SavePlan& plan) { plan.items[0].type = WriteItemType::kTensor; },
      [](SavePlan& plan) { plan.items[0].properties.dtype = DType::kFloat16; },
      [](SavePlan& plan) { plan.items[0].properties.requires_grad = true; },
      [](SavePlan& plan) { plan.items[0].properties.memory_format = MemoryFormat::kPreserve; },
      [](SavePlan& plan) { plan.items[0].properties.pin_memory = true; },
      [](SavePlan& plan) {
        plan.items[0].size = {4, 7};
      },
      [](SavePlan& plan) {
        plan.items[0].chunk.offsets = {1, 0};
      },
      [](SavePlan& plan) {
        plan.items[0].chunk.sizes = {1, 6};
      },
      [](SavePlan& plan) { plan.items[1].per_rank = true; },
      [](SavePlan& plan) { plan.items[0].frozen = true; },
      [](SavePlan& plan) { plan.items.pop_back(); },
      [](SavePlan& plan) { std::swap(plan.items[0], plan.items[1]); },
      [](SavePlan& plan) {
        plan.mappings.edit()[0].second = {"we", "ight"};
      },
      [](SavePlan& plan) {
        plan.mappings.edit()[1].second = {"step", "3"};
      },
      [](SavePlan& plan) { plan.mappings.edit().clear(); },
      [](SavePlan& plan) { plan.planner_data = "x"; },
      [](SavePlan& plan) { plan.storage_data = "x"; },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    CAPTURE(i);
    SavePlan plan = sample_save_plan();
    changes[i](plan);
    CHECK(plan_digest(plan) != original);
  }
}

TEST_CASE("the digest of a save plan leaves out contents of bytes objects and name ids") {
  const Digest original = plan_digest(sample_save_plan());
  SavePlan plan = sample_save_plan();
  plan.items[1].content_hash = 99;
  plan.items[1].content_bytes = 12345;
  CHECK(plan_digest(plan) == original);

  SavePlan renumbered;
  renumbered.names.intern("unused");
  const NameId step = renumbered.names.intern("step");
  const NameId weight = renumbered.names.intern("weight");
  renumbered.items = sample_save_plan().items;
  renumbered.items[0].name = weight;
  renumbered.items[1].name = step;
  renumbered.mappings.edit() = {{weight, {"weight"}}, {step, {"step", std::int64_t{3}}}};
  CHECK(plan_digest(renumbered) == original);
}

TEST_CASE("a plan with names that are not there has no digest") {
  SavePlan plan = sample_save_plan();
  plan.items[0].name = 2;
  CHECK_THROWS_AS(plan_digest(plan), Error);
}

TEST_CASE("a list of names has them in order") {
  NameList list;
  CHECK(list.empty());
  list.reserve(1, 1);
  for (const char* name : {"a.b", "", "c"}) list.add(name);
  CHECK(list.size() == 3);
  CHECK(list[0] == "a.b");
  CHECK(list[1].empty());
  CHECK(list == std::vector<std::string>{"a.b", "", "c"});
  CHECK_FALSE(list == std::vector<std::string>{"a.b", "c"});
}

TEST_CASE("a list of names is filled once, when a name is used, and can be added to") {
  int fills = 0;
  const NameList list(2, [&](NameList& names) {
    ++fills;
    for (const char* name : {"a", "b"}) names.add(name);
  });
  const NameList copy = list;
  NameList longer = list;
  CHECK(copy.size() == 2);
  CHECK_FALSE(copy.empty());
  CHECK(fills == 0);
  longer.add("c");
  CHECK(longer == std::vector<std::string>{"a", "b", "c"});
  CHECK(copy == std::vector<std::string>{"a", "b"});
  CHECK(list[1] == "b");
  CHECK(fills == 1);
}

TEST_CASE("metadata know their names, also after a change") {
  Metadata metadata;
  metadata.state_dict_metadata = {{"a", BytesStorageMetadata{}}, {"b", BytesStorageMetadata{}}};
  const NameTable names = metadata.names();
  CHECK(names.all() == std::vector<std::string>{"a", "b"});
  CHECK(metadata.names().shares_with(names));
  metadata.state_dict_metadata[0].first = "c";
  CHECK(metadata.names().all() == std::vector<std::string>{"c", "b"});
  CHECK(metadata.find("c") == &metadata.state_dict_metadata[0].second);
  CHECK(metadata.find("a") == nullptr);
}

TEST_CASE("two paths of one name are refused as such, also in a state of long names") {
  struct Entry {
    Path path;
  };
  FlatNames names;
  std::vector<Entry> entries;
  const auto add = [&](const Path& path) {
    names.add(to_string(path), path, entries);
    entries.push_back({path});
  };
  add({"a", "b"});
  // More than 64 MiB, and less than a KiB each.
  for (int i = 0; i < 70'000; ++i) add({std::to_string(i) + std::string(990, 'x')});
  try {
    add({"a.b"});
    FAIL("not refused");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kAlreadyExists);
    CHECK(std::string(error.what()).find("both flatten to \"a.b\"") != std::string::npos);
  }
}

}  // namespace
}  // namespace cairn
