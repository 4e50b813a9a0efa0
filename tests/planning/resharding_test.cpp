#include <cairn/tests/support/plain.hpp>

#include <vector>

#include <cairn/base/error.hpp>
#include <cairn/planning/resharding.hpp>
#include <cairn/tests/support/layouts.hpp>

namespace cairn {
namespace {

using testing::all_layouts;
using testing::BoxLayout;
using testing::for_each_element;

// Returns the elements of `box` in a tensor whose elements hold their own linear indices.
std::vector<std::int64_t> cut_out(const Box& box, const Extents& size) {
  std::vector<std::int64_t> elements;
  for_each_element(box, size, [&](const Extents&, std::size_t linear) { elements.push_back(static_cast<std::int64_t>(linear)); });
  return elements;
}

Extents sum(const Extents& a, const Extents& b) {
  Extents result = a;
  for (std::size_t dim = 0; dim < a.size(); ++dim) result[dim] += b[dim];
  return result;
}

// Executes the plan as a reader does: copies parts of stored chunks into `wanted`. In the result,
// -1 means never written and -2 means written twice.
std::vector<std::int64_t> carry_out(const LoadPlan& plan, const TensorStorageMetadata& stored, const Box& wanted) {
  std::vector<std::int64_t> result(static_cast<std::size_t>(volume(wanted.sizes)), -1);
  for (const ReadItem& item : plan.items) {
    REQUIRE(item.storage_chunk < stored.chunks.size());
    const Box& chunk = stored.chunks[item.storage_chunk];
    REQUIRE(item.storage_chunk_offset == chunk.offsets);
    REQUIRE(item.dest_chunk_offset == wanted.offsets);
    REQUIRE(fits({item.storage_offsets, item.lengths}, chunk.sizes));
    REQUIRE(fits({item.dest_offsets, item.lengths}, wanted.sizes));
    std::vector<std::size_t> targets;
    for_each_element({item.dest_offsets, item.lengths}, wanted.sizes,
                     [&](const Extents&, std::size_t linear) { targets.push_back(linear); });
    const std::vector<std::int64_t> source = cut_out({sum(chunk.offsets, item.storage_offsets), item.lengths}, stored.size);
    REQUIRE(source.size() == targets.size());
    for (std::size_t i = 0; i < targets.size(); ++i) result[targets[i]] = result[targets[i]] == -1 ? source[i] : -2;
  }
  return result;
}

// Returns the chunks that a save with this layout stores: each distinct non-empty box once.
std::vector<Box> stored_chunks(const BoxLayout& layout) {
  std::vector<Box> chunks;
  for (const auto& boxes : layout.boxes)
    for (const Box& box : boxes)
      if (!box.empty() && std::find(chunks.begin(), chunks.end(), box) == chunks.end()) chunks.push_back(box);
  return chunks;
}

void check_all_pairs(const Extents& size, int ranks_saved, int ranks_loaded, Random& random) {
  for (const BoxLayout& source : all_layouts(size, ranks_saved, random)) {
    TensorStorageMetadata stored;
    stored.size = size;
    stored.chunks = stored_chunks(source);
    const ChunkIndex index(stored.chunks);
    for (const BoxLayout& target : all_layouts(size, ranks_loaded, random)) {
      CAPTURE(source.name);
      CAPTURE(target.name);
      CAPTURE(to_string(size));
      for (const auto& boxes : target.boxes) {
        for (const Box& wanted : boxes) {
          LoadPlan plan;
          const NameId name = plan.names.intern("t");
          append_reads(stored, index, name, name, wanted, plan);
          CHECK(carry_out(plan, stored, wanted) == cut_out(wanted, size));
        }
      }
    }
  }
}

TEST_CASE("B4.3 every layout loads into every layout, at every pair of world sizes") {
  const auto random = seeded_random(21);
  for (const int saved : {1, 2, 3, 4, 8})
    for (const int loaded : {1, 2, 3, 4, 8}) check_all_pairs({7, 10}, saved, loaded, *random);
}

TEST_CASE("tensors of any dimensions are resharded") {
  const auto random = seeded_random(22);
  for (const Extents& size :
       {Extents{}, Extents{1}, Extents{13}, Extents{0, 4}, Extents{5, 1}, Extents{3, 4, 5}, Extents{2, 3, 2, 3, 2}})
    check_all_pairs(size, 4, 3, *random);
}

TEST_CASE("the index finds exactly the chunks that meet a box") {
  const auto random = seeded_random(23);
  const auto random_box = [&](std::int64_t most) {
    Box box{{0, 0, 0}, {0, 0, 0}};
    for (std::size_t dim = 0; dim < 3; ++dim) {
      box.offsets[dim] = static_cast<std::int64_t>(random->next() % 12);
      box.sizes[dim] = static_cast<std::int64_t>(random->next() % static_cast<std::uint64_t>(most));
    }
    return box;
  };
  for (int round = 0; round < 200; ++round) {
    std::vector<Box> chunks;
    const std::uint64_t count = random->next() % 30;
    for (std::uint64_t i = 0; i < count; ++i) chunks.push_back(random_box(6));
    const ChunkIndex index(chunks);
    for (int query = 0; query < 20; ++query) {
      const Box box = random_box(8);
      std::vector<std::uint32_t> expected;
      for (std::uint32_t i = 0; i < chunks.size(); ++i)
        if (intersect(chunks[i], box)) expected.push_back(i);
      CHECK(index.find(box) == expected);
    }
  }
}

TEST_CASE("a box of other dimensions than the stored tensor is refused") {
  TensorStorageMetadata stored;
  stored.size = {4};
  stored.chunks = {{{0}, {4}}};
  LoadPlan plan;
  CHECK_THROWS_AS(append_reads(stored, ChunkIndex(stored.chunks), 0, 0, {{0, 0}, {2, 2}}, plan), Error);
  CHECK(ChunkIndex(stored.chunks).find({}).empty());
  const std::vector<Box> mixed{{{0}, {4}}, {{0, 0}, {4, 4}}};
  CHECK_THROWS_AS(ChunkIndex{mixed}, Error);
}

}  // namespace
}  // namespace cairn
