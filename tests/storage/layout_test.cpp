// Positions of items in their files.
#include <limits>

#include <cairn/base/error.hpp>
#include <cairn/storage/format/file_layout.hpp>
#include <cairn/tests/support/plain.hpp>

using namespace cairn;

namespace {

void add_tensor(SavePlan& plan, const std::string& name, Extents sizes, DType dtype = DType::kFloat32) {
  WriteItem item;
  item.name = plan.names.intern(name);
  item.type = WriteItemType::kTensor;
  item.properties.dtype = dtype;
  item.size = sizes;
  item.chunk = Box::whole(sizes);
  plan.items.push_back(item);
}

void add_bytes(SavePlan& plan, const std::string& name) {
  WriteItem item;
  item.name = plan.names.intern(name);
  plan.items.push_back(item);
}

}  // namespace

TEST_CASE("layout: a tensor that no file can hold is refused") {
  SavePlan plan;
  add_tensor(plan, "huge", {std::int64_t{1} << 60});
  add_tensor(plan, "huge too", {std::int64_t{1} << 60});
  CHECK_THROWS_AS(layout_files(plan, true), Error);
}

TEST_CASE("layout: bytes objects must be reported as planned") {
  SavePlan plan;
  add_bytes(plan, "a");
  add_bytes(plan, "b");
  const FileLayout file = layout_files(plan, true).at(0);
  CHECK_THROWS_AS(place_unsized(file, {1}), Error);
  CHECK_THROWS_AS(place_unsized(file, {1, 2, 3}), Error);
  CHECK_THROWS_AS(place_unsized(file, {1, std::numeric_limits<std::uint64_t>::max()}), Error);
  const auto placed = place_unsized(file, {5, 7});
  REQUIRE(placed.size() == 2);
  CHECK(placed[0].offset == 0);
  CHECK(placed[1].offset == 5);
  CHECK(placed[1].length == 7);
}

TEST_CASE("layout: tensors are adjacent, payloads are aligned, bytes objects come last") {
  SavePlan plan;
  add_tensor(plan, "small", {3});
  add_bytes(plan, "bytes");
  add_tensor(plan, "large", {128, 256});
  add_tensor(plan, "empty", {0, 4});
  add_tensor(plan, "scalar", {}, DType::kInt64);
  const auto files = layout_files(plan, true);
  REQUIRE(files.size() == 1);
  const FileLayout& file = files[0];
  CHECK(file.unsized_items == std::vector<std::uint32_t>{1});
  REQUIRE(file.tensors.size() == 4);
  std::uint64_t end = 0;
  for (const PlacedTensor& tensor : file.tensors) {
    CHECK(tensor.offset == end);
    CHECK(tensor.payload_offset() % kSmallPayloadAlignment == 0);
    end = tensor.end();
  }
  CHECK(file.tensors_end == end);
  CHECK(file.tensors[1].item == 2);
  CHECK(file.tensors[1].layout.payload_bytes == 128 * 256 * 4);
  CHECK(file.tensors[1].payload_offset() % kLargePayloadAlignment == 0);
  CHECK(file.tensors[2].layout.payload_bytes == 0);
  CHECK(file.tensors[3].layout.payload_bytes == 8);
}

TEST_CASE("layout: several files are about equally long, whatever the bytes objects") {
  SavePlan plan;
  add_bytes(plan, "bytes");
  for (const std::int64_t rows : {5, 1, 1, 3, 2, 2})
    add_tensor(plan, "tensor" + std::to_string(plan.items.size()), {rows, 100'000});
  const auto files = layout_files(plan, 3);
  REQUIRE(files.size() == 3);
  CHECK(files[0].unsized_items == std::vector<std::uint32_t>{0});
  std::vector<std::vector<std::uint32_t>> items;
  for (const FileLayout& file : files) {
    items.emplace_back();
    for (const PlacedTensor& tensor : file.tensors) items.back().push_back(tensor.item);
  }
  CHECK(items == std::vector<std::vector<std::uint32_t>>{{3, 5, 6}, {1}, {2, 4}});
  plan.items[0].content_bytes = std::uint64_t{1} << 30;  // the coordinator may not know it
  for (std::size_t i = 0; i < 3; ++i) CHECK(layout_files(plan, 3)[i].tensors_end == files[i].tensors_end);
  CHECK(layout_files(plan, 100).size() == 7);
}
