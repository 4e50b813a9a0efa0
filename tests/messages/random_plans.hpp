// Random plans and write results with every kind of valid content.
#pragma once

#include <cairn/tests/support/plain.hpp>

#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include <cairn/base/random.hpp>
#include <cairn/planning/plan.hpp>
#include <cairn/planning/read_once.hpp>
#include <cairn/tests/messages/corruption.hpp>

namespace cairn::testing {

inline Path random_path(Random& random) {
  Path path;
  for (std::uint64_t i = random.next() % 5; i > 0; --i) {
    if (random.next() % 3 == 0) {
      path.emplace_back(static_cast<std::int64_t>(random.next()));
    } else {
      path.emplace_back(random_text(random, 6));
    }
  }
  return path;
}

inline SavePlan random_save_plan(Random& random) {
  SavePlan plan;
  const bool with_tensors = random.next() % 2 == 0;
  for (std::uint64_t i = random.next() % 20; i > 0; --i) {
    WriteItem item;
    const Path path = random_path(random);
    const std::size_t known = plan.names.size();
    item.name = plan.names.intern(random.next() % 2 == 0 ? to_string(path) : random_text(random, 30));
    if (plan.names.size() > known && random.next() % 4 != 0) plan.mappings.edit().emplace_back(item.name, path);
    item.type = static_cast<WriteItemType>(1 + random.next() % 3);
    item.per_rank = random.next() % 8 == 0;
    item.frozen = random.next() % 8 == 0;
    if (item.type == WriteItemType::kByteIO) {
      item.content_hash = random.next();
      item.content_bytes = random.next();
    } else {
      if (with_tensors) item.content_hash = random.next();
      item.properties.dtype = static_cast<DType>(1 + random.next() % kDTypeCount);
      item.properties.memory_format = static_cast<MemoryFormat>(random.next() % 3);
      item.properties.requires_grad = random.next() % 2 == 0;
      item.properties.pin_memory = random.next() % 2 == 0;
      const std::size_t dims = random.next() % 7;
      item.size = random_extents(random, dims, 100);
      item.chunk = {random_extents(random, dims, 100), random_extents(random, dims, 100)};
    }
    plan.items.push_back(item);
  }
  plan.planner_data = random_text(random, 20);
  plan.storage_data = random_text(random, 20);
  return plan;
}

inline PlanPart random_part(Random& random) {
  PlanPart part;
  for (std::uint64_t i = random.next() % 5; i > 0; --i)
    part.runs.push_back({static_cast<std::uint32_t>(random.next()), static_cast<std::uint32_t>(random.next())});
  for (std::uint64_t i = random.next() % 3; i > 0; --i) {
    const std::size_t dims = random.next() % 7;
    part.chunks.emplace_back(static_cast<std::uint32_t>(random.next()),
                             Box{random_extents(random, dims, 100), random_extents(random, dims, 100)});
  }
  part.has_mappings = random.next() % 2 == 0;
  part.planner_data = random_text(random, 20);
  part.storage_data = random_text(random, 20);
  return part;
}

inline void check_equal(const PlanPart& a, const PlanPart& b) {
  const auto numbers = [](const PlanPart& part) {
    std::vector<std::uint32_t> all;
    for (const auto& [begin, items] : part.runs) all.insert(all.end(), {begin, items});
    return all;
  };
  CHECK(numbers(a) == numbers(b));
  CHECK((a.chunks == b.chunks));
  CHECK(a.has_mappings == b.has_mappings);
  CHECK(a.planner_data == b.planner_data);
  CHECK(a.storage_data == b.storage_data);
}

inline void check_equal(const SavePlan& a, const SavePlan& b) {
  CHECK(plan_digest(a) == plan_digest(b));
  CHECK(a.names.all() == b.names.all());
  CHECK(a.mappings == b.mappings);
  REQUIRE(a.items.size() == b.items.size());
  const auto fields = [](const WriteItem& item) {
    return std::tie(item.name, item.type, item.properties, item.size, item.chunk, item.content_hash, item.content_bytes,
                    item.per_rank);
  };
  for (std::size_t i = 0; i < a.items.size(); ++i) CHECK((fields(a.items[i]) == fields(b.items[i])));
  CHECK(a.planner_data == b.planner_data);
  CHECK(a.storage_data == b.storage_data);
}

inline std::vector<FileRange> random_ranges(Random& random) {
  std::vector<FileRange> ranges;
  FileRange last;
  for (std::uint64_t left = random.next() % 6; left > 0; --left) {
    if (random.next() % 3 == 0) last = {last.file + 1, 0, 0};
    const std::uint64_t begin = last.end + random.next() % 1000;
    last = {last.file, begin, begin + 1 + random.next() % 1000};
    ranges.push_back(last);
  }
  return ranges;
}

inline ReadOffer random_offer(Random& random) {
  if (random.next() % 2 == 0) return {};
  return {random.next() % 2 == 0 ? ReadOnce::kHost : ReadOnce::kWorld, random_text(random, 40), random_text(random, 80),
          random_ranges(random)};
}

inline std::shared_ptr<const SharedReads> random_shared(Random& random) {
  if (random.next() % 2 == 0) return nullptr;
  SharedReads shared;
  shared.stream = random.next();
  for (const FileRange& range : random_ranges(random))
    shared.ranges.push_back({range, static_cast<std::uint32_t>(random.next() % 64),
                             std::vector<std::uint32_t>(random.next() % 4, static_cast<std::uint32_t>(random.next() % 64))});
  shared.addresses = {{1, random_text(random, 80)}, {7, random_text(random, 80)}};
  return std::make_shared<const SharedReads>(std::move(shared));
}

inline LoadPlan random_load_plan(Random& random) {
  LoadPlan plan;
  for (std::uint64_t i = random.next() % 20; i > 0; --i) {
    ReadItem item;
    item.type = static_cast<LoadItemType>(1 + random.next() % 2);
    item.dest_name = plan.names.intern(random_text(random, 20));
    item.storage_name = plan.names.intern(random_text(random, 20));
    item.storage_chunk = static_cast<std::uint32_t>(random.next());
    const std::size_t dims = random.next() % 7;
    item.dest_chunk_offset = random_extents(random, dims, 100);
    item.dest_offsets = random_extents(random, dims, 100);
    item.storage_chunk_offset = random_extents(random, dims, 100);
    item.storage_offsets = random_extents(random, dims, 100);
    item.lengths = random_extents(random, dims, 100);
    if (item.type == LoadItemType::kByteIO) item.dest_chunk_offset = {};
    plan.items.push_back(item);
  }
  plan.planner_data = random_text(random, 20);
  plan.storage_data = random_text(random, 20);
  plan.offer = random_offer(random);
  plan.shared = random_shared(random);
  return plan;
}

inline WriteResults random_results(Random& random) {
  WriteResults results;
  for (std::uint64_t i = random.next() % 5; i > 0; --i) {
    FileResult file;
    file.name = "f" + random_text(random, 20);
    file.length_bytes = 1000000 + random.next() % 1000;
    file.crc32 = static_cast<std::uint32_t>(random.next());
    file.trailer_length_bytes = static_cast<std::uint32_t>(random.next() % 1000);
    if (random.next() % 2 == 0) file.written_by = random_text(random, 30);
    for (std::uint64_t j = random.next() % 5; j > 0; --j) file.bytes_item_lengths.push_back(random.next() % 1000);
    results.files.push_back(file);
  }
  for (std::uint64_t i = random.next() % 5; i > 0; --i) {
    WriteResult item;
    item.index.fqn = random_text(random, 20);
    if (random.next() % 2 == 0) item.index.offset = random_extents(random, random.next() % 6, 100);
    item.size_bytes = random.next();
    item.relative_path = random_text(random, 20);
    item.offset_bytes = random.next() / 2;
    item.length_bytes = random.next() / 2;
    item.user_data = random_text(random, 20);
    results.items.push_back(item);
  }
  return results;
}

inline void check_equal(const FileRange& a, const FileRange& b) {
  CHECK(a.file == b.file);
  CHECK(a.begin == b.begin);
  CHECK(a.end == b.end);
}

inline void check_equal(const ReadOffer& a, const ReadOffer& b) {
  CHECK(a.mode == b.mode);
  CHECK(a.host == b.host);
  CHECK(a.address == b.address);
  REQUIRE(a.needs.size() == b.needs.size());
  for (std::size_t i = 0; i < a.needs.size(); ++i) check_equal(a.needs[i], b.needs[i]);
}

inline void check_equal(const SharedReads& a, const SharedReads& b) {
  CHECK(a.stream == b.stream);
  CHECK((a.addresses == b.addresses));
  REQUIRE(a.ranges.size() == b.ranges.size());
  for (std::size_t i = 0; i < a.ranges.size(); ++i) {
    check_equal(a.ranges[i].bytes, b.ranges[i].bytes);
    CHECK(a.ranges[i].reader == b.ranges[i].reader);
    CHECK(a.ranges[i].receivers == b.ranges[i].receivers);
  }
}

inline void check_equal(const LoadPlan& a, const LoadPlan& b) {
  CHECK(a.names.all() == b.names.all());
  const auto fields = [](const ReadItem& item) {
    return std::tie(item.type, item.dest_name, item.storage_name, item.dest_chunk_offset, item.dest_offsets,
                    item.storage_chunk_offset, item.storage_offsets, item.lengths, item.storage_chunk);
  };
  REQUIRE(a.items.size() == b.items.size());
  for (std::size_t i = 0; i < a.items.size(); ++i) CHECK((fields(a.items[i]) == fields(b.items[i])));
  CHECK(a.planner_data == b.planner_data);
  CHECK(a.storage_data == b.storage_data);
  check_equal(a.offer, b.offer);
  REQUIRE((a.shared == nullptr) == (b.shared == nullptr));
  if (a.shared) check_equal(*a.shared, *b.shared);
}

inline void check_equal(const WriteResults& a, const WriteResults& b) {
  const auto of_file = [](const FileResult& file) {
    return std::tie(file.name, file.length_bytes, file.crc32, file.trailer_length_bytes, file.written_by, file.bytes_item_lengths);
  };
  const auto of_item = [](const WriteResult& item) {
    return std::tie(item.index.fqn, item.index.offset, item.size_bytes, item.relative_path, item.offset_bytes, item.length_bytes,
                    item.user_data);
  };
  REQUIRE(a.files.size() == b.files.size());
  for (std::size_t i = 0; i < a.files.size(); ++i) CHECK((of_file(a.files[i]) == of_file(b.files[i])));
  REQUIRE(a.items.size() == b.items.size());
  for (std::size_t i = 0; i < a.items.size(); ++i) CHECK((of_item(a.items[i]) == of_item(b.items[i])));
}

}  // namespace cairn::testing
