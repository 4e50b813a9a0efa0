// The write engine: the bytes that reach the store, the limit on writes in flight, and failures.
#include <cstring>
#include <map>
#include <thread>
#include <tuple>

#include <cairn/tests/support/torch.hpp>

#include <cairn/base/digest.hpp>
#include <cairn/base/error.hpp>
#include <cairn/formats/torch_archive.hpp>
#include <cairn/state/tensor_items.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/storage/engine/write_engine.hpp>
#include <cairn/storage/format/trailer.hpp>
#include <cairn/storage/format/zstd_item.hpp>
#include <cairn/storage/stores/memory_store.hpp>
#include <cairn/tests/support/thrown.hpp>
#include <cairn/tests/support/wrapped_store.hpp>

using namespace cairn;
using testing::Saying;
using testing::StoreControl;
using testing::StoreFault;
using testing::thrown_by;
using testing::WrappedStore;

namespace {

// A planner that plans and resolves a given list of items.
class ListedItems : public SavePlanner {
 public:
  void add(const std::string& name, ResolvedData data) {
    WriteItem item;
    item.name = plan.names.intern(name);
    if (const auto* tensor = std::get_if<torch::Tensor>(&data)) {
      item.type = WriteItemType::kTensor;
      item.properties.dtype = *dtype_of(tensor->scalar_type());
      item.size = extents_of(tensor->sizes());
      item.chunk = Box::whole(item.size);
    } else {
      item.content_bytes = std::get<Bytes>(data).size();
    }
    plan.items.push_back(item);
    data_.push_back(std::move(data));
  }

  void set_up_planner(const StateDict&, int, bool) override {}
  SavePlan create_local_plan() override { return plan; }
  GlobalSavePlan create_global_plan(std::vector<SavePlan>) override { return {}; }
  SavePlan finish_plan(SavePlan new_plan) override { return new_plan; }
  ResolvedData resolve_data(const SavePlan&, const WriteItem& item) override {
    {
      std::lock_guard lock(mutex_);
      ++resolved[plan.names[item.name]];
    }
    if (plan.names[item.name] == fails) throw std::logic_error("cannot resolve");
    return data_.at(item.name);
  }

  SavePlan plan;
  std::string fails;
  std::map<std::string, int> resolved;  // number of calls by name

 private:
  std::mutex mutex_;
  std::vector<ResolvedData> data_;
};

constexpr std::uint64_t kPieceBytes = kChecksumBlockBytes;

// Levels of compression: none, and 1 in a build with zstd.
std::vector<int> levels() { return why_not_undone({kZstdTransform}).empty() ? std::vector{0, 1} : std::vector{0}; }

struct Fixture {
  Fixture() : store(std::make_shared<WrappedStore>(memory, control)) {}

  WriteRequest request(bool single_file = true) {
    WriteRequest request;
    request.store = store;
    request.plan = &items.plan;
    request.source = std::make_shared<PlannedSource>(items.plan, items);
    request.save_id = "id";
    request.copy_first = copy_first;
    for (FileLayout& layout : layout_files(items.plan, single_file, compressed))
      request.files.push_back({"file" + std::to_string(request.files.size()), std::move(layout)});
    return request;
  }

  Bytes content(const ObjectName& name) const {
    Bytes bytes(memory->size_bytes(name), '\0');
    memory->read(name, {{0, {bytes.data(), bytes.size()}}});
    return bytes;
  }

  // Checks that each file matches its result and its trailer, and that it holds every item of the
  // plan.
  void check_files(const WriteRequest& written, const std::vector<FileResult>& results) {
    REQUIRE(results.size() == written.files.size());
    for (std::size_t i = 0; i < results.size(); ++i) {
      const Bytes bytes = content(results[i].name);
      CHECK(results[i].name == written.files[i].name);
      REQUIRE(results[i].length_bytes == bytes.size());
      CHECK(results[i].crc32 == crc32(0, bytes));
      const Trailer trailer =
          decode_trailer(ByteSpan(bytes).subspan(bytes.size() - results[i].trailer_length_bytes, results[i].trailer_length_bytes),
                         bytes.size(), "");
      for (std::size_t block = 0; block < trailer.block_crc32.size(); ++block) {
        const std::uint64_t begin = block * kPieceBytes;
        const std::uint64_t length = std::min(kPieceBytes, trailer.content_bytes - begin);
        CHECK(trailer.block_crc32[block] == crc32(0, ByteSpan(bytes).subspan(begin, length)));
      }
      const FileLayout& layout = written.files[i].layout;
      std::vector<PlacedItem> placed = place_unsized(layout, results[i].bytes_item_lengths);
      for (const PlacedTensor& tensor : layout.tensors) placed.push_back({tensor.item, tensor.offset, tensor.layout.total_bytes()});
      for (const PlacedItem& item : placed) {
        const WriteItem& planned = items.plan.items[item.item];
        const std::string& name = items.plan.names[planned.name];
        const ByteSpan stored = ByteSpan(bytes).subspan(item.offset, item.length);
        const ResolvedData expected = items.resolve_data(items.plan, planned);
        if (planned.type == WriteItemType::kByteIO) {
          CHECK(stored.view() == std::get<Bytes>(expected));
          continue;
        }
        StorageInfo place;
        place.length = item.length;
        if (compressed) place.transforms = {kZstdTransform};
        const PlainItem plain = undo_transforms(
            place, planned.properties.dtype, &planned.chunk.sizes,
            [&](std::uint64_t offset, MutableByteSpan to) { std::memcpy(to.data(), stored.data() + offset, to.size()); }, name);
        const TorchArchive archive(plain.size_bytes, plain.read_at, name);
        const ArchivedTensor archived = read_archived_tensor(archive);
        CHECK(archived.description.sizes == planned.chunk.sizes);
        const torch::Tensor dense = std::get<torch::Tensor>(expected).resolve_conj().resolve_neg().contiguous();
        CHECK(archive.read_storage(archived.description.storage_key) ==
              Bytes(static_cast<const char*>(dense.data_ptr()), dense.nbytes()));
      }
      for (const PlacedTensor& tensor : layout.tensors) {
        const auto read_at = [&](std::uint64_t offset, MutableByteSpan to) {
          std::memcpy(to.data(), bytes.data() + tensor.offset + offset, to.size());
        };
        const TorchArchive archive(tensor.layout.total_bytes(), read_at, "");
        CHECK(read_archived_tensor(archive).storage.offset + tensor.offset == tensor.payload_offset());
      }
    }
  }

  std::shared_ptr<Store> memory = [] {
    forget_memory("engine");
    return open_memory_store("mem://engine");
  }();
  std::shared_ptr<StoreControl> control = std::make_shared<StoreControl>();
  std::shared_ptr<WrappedStore> store;
  ListedItems items;
  bool copy_first = false;
  bool compressed = false;
};

// Adds items of all kinds. Their archives end at various positions within a block.
void add_variety(ListedItems& items) {
  torch::manual_seed(1);
  items.add("large", torch::randn({3, 100'000}));
  for (int i = 0; i < 40; ++i) items.add("small" + std::to_string(i), torch::randn({i * 37}));
  items.add("bytes", Bytes("some bytes"));
  items.add("transposed", torch::randn({300, 500}).t());
  items.add("exactly", torch::zeros({kPieceBytes}, torch::kUInt8));
  items.add("scalar", torch::tensor(7, torch::kInt64));
  items.add("empty", torch::empty({0, 3}));
  items.add("large bytes", Bytes(3 * kPieceBytes + 5, 'x'));
  items.add("no bytes", Bytes());
  items.add("complex", torch::view_as_complex(torch::randn({50'000, 2})).conj());
  items.add("stepped", torch::randn({1000, 7}).slice(0, 0, 1000, 3).slice(1, 1, 7, 2));
}

}  // namespace

TEST_CASE_FIXTURE(Fixture, "engine: any failing store operation fails the write and leaves nothing") {
  add_variety(items);
  using Row = std::tuple<bool, bool, int>;
  for (const auto& [single_file, first, level] :
       {Row(true, false, 0), {false, false, 0}, {true, true, 0}, {false, true, 0}, {false, false, levels().back()}}) {
    copy_first = first;
    compressed = level > 0;
    std::size_t failing = 0;
    for (bool failed = true; failed; ++failing) {
      auto now = std::make_shared<StoreControl>();
      now->fail_at(failing);
      store = std::make_shared<WrappedStore>(memory, now);
      WriteEngine engine({3, 4 * kPieceBytes, kPieceBytes, {level, {}}});
      const WriteRequest written = request(single_file);
      const auto future = engine.write(written);
      try {
        const auto results = future.get();
        failed = false;
        check_files(written, results);
        for (const FileResult& file : results) memory->remove(file.name);
      } catch (const StoreFault&) {
        CHECK(memory->list().empty());
      }
      if (failing > 10 && !single_file) failing += 7;  // there are many similar operations
    }
    CHECK(failing > 10);
  }
}

TEST_CASE_FIXTURE(Fixture, "engine: a planner that throws fails the write with its own exception") {
  add_variety(items);
  for (const char* name : {"large", "small0", "small20", "bytes", "empty", "stepped"}) {
    items.fails = name;
    WriteEngine engine({2, 4 * kPieceBytes, kPieceBytes});
    CHECK_THROWS_AS(engine.write(request()).get(), std::logic_error);
    CHECK(memory->list().empty());
  }
}

TEST_CASE_FIXTURE(Fixture, "engine: a planner that resolves to something it did not plan fails the write") {
  WriteEngine engine({2, 4 * kPieceBytes, kPieceBytes});
  SUBCASE("other sizes") { items.add("item", torch::zeros({4})), items.plan.items[0].chunk.sizes = {5}; }
  SUBCASE("other dtype") { items.add("item", torch::zeros({4})), items.plan.items[0].properties.dtype = DType::kInt32; }
  SUBCASE("bytes") { items.add("item", Bytes("x")), items.plan.items[0].type = WriteItemType::kTensor; }
  SUBCASE("tensor") { items.add("item", torch::zeros({4})), items.plan.items[0].type = WriteItemType::kByteIO; }
  CHECK(thrown_by([&] { engine.write(request()).get(); }) == Saying{ErrorCode::kMismatch, "\"item\""});
  CHECK(memory->list().empty());
}

TEST_CASE_FIXTURE(Fixture, "engine: a name that is taken stays whose it is") {
  items.add("item", torch::zeros({4}));
  memory->create("file0", {})->sync(0);
  WriteEngine engine({2, 4 * kPieceBytes, kPieceBytes});
  CHECK(thrown_by([&] { engine.write(request()).get(); }).code == ErrorCode::kAlreadyExists);
  CHECK(memory->exists("file0"));
}

TEST_CASE_FIXTURE(Fixture, "engine: stopping ends a write as cancelled and leaves nothing") {
  add_variety(items);
  items.add("eight blocks", torch::randint(0, 256, {static_cast<std::int64_t>(8 * kPieceBytes)}, torch::kUInt8));
  for (const int level : levels()) {
    compressed = level > 0;
    control->close_gate();
    WriteEngine engine({2, 4 * kPieceBytes, kPieceBytes, {level, {}}});
    const auto future = engine.write(request());
    control->wait_for_writes(2);
    CHECK_THROWS_AS(engine.write(request()), Error);  // an engine runs one write at a time
    std::thread stopper([&] { engine.stop(); });
    control->open_gate();
    stopper.join();
    try {
      for (const FileResult& file : future.get()) memory->remove(file.name);  // it ended before the call to stop
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kCancelled);
      CHECK(memory->list().empty());
    }
    engine.stop();  // nothing is in flight
  }
}

TEST_CASE_FIXTURE(Fixture, "engine: destroying it ends the write under way") {
  add_variety(items);
  Future<std::vector<FileResult>> future;
  {
    WriteEngine engine({2, 4 * kPieceBytes, kPieceBytes});
    future = engine.write(request());
  }
  CHECK(future.ready());
}

TEST_CASE_FIXTURE(Fixture, "engine: two writes are under way at once, never more bytes than allowed") {
  items.add("a", torch::randn({4 * 1024 * 1024}));
  items.add("b", torch::randn({1000}));
  for (const bool single_file : {true, false}) {
    auto now = std::make_shared<StoreControl>();
    store = std::make_shared<WrappedStore>(memory, now);
    now->close_gate();
    WriteEngine engine({4, 2 * kPieceBytes + 100, kPieceBytes});  // memory for two blocks, but four threads
    const WriteRequest written = request(single_file);
    const auto future = engine.write(written);
    now->wait_for_writes(2);
    CHECK_FALSE(future.ready());
    now->open_gate();
    const auto results = future.get();
    CHECK(now->writes_at_once_max() == 2);
    CHECK(now->bytes_at_once_max() <= 2 * kPieceBytes);
    check_files(written, results);
    for (const FileResult& file : results) memory->remove(file.name);
  }
}

TEST_CASE_FIXTURE(Fixture, "engine: files are the same whatever the threads, blocks and memory") {
  add_variety(items);
  Bytes first;
  std::vector<WriteEngineOptions> all{{1, kPieceBytes, kPieceBytes},
                                      {4, kPieceBytes, kPieceBytes},
                                      {4, 3 * kPieceBytes, kPieceBytes},
                                      {3, 64 * kPieceBytes, 2 * kPieceBytes + 1},
                                      {2, 64u << 20, 4u << 20}};
  for (const unsigned threads : {1u, 4u}) all.push_back({threads, 64u << 20, 512u << 10, {levels().back(), {}}});
  for (const WriteEngineOptions& options : all) {
    if (compressed != (options.changes.zstd_level > 0)) first.clear();
    compressed = options.changes.zstd_level > 0;
    WriteEngine engine(options);
    for (const bool first_copied : {false, true}) {
      copy_first = first_copied;
      const WriteRequest written = request();
      const auto results = engine.write(written).get();
      check_files(written, results);
      const Bytes bytes = content("file0");
      if (first.empty()) first = bytes;
      CHECK(bytes == first);
      memory->remove("file0");
    }
  }
}

namespace {

// A store that takes large objects in parts only, and remembers the parts.
class PartsStore : public StoreDecorator {
 public:
  PartsStore(std::shared_ptr<Store> inner, std::uint64_t part_bytes_min, std::uint64_t parts_max)
      : StoreDecorator(std::move(inner)), part_bytes_min_(part_bytes_min), parts_max_(parts_max) {}
  StoreTraits traits() const override { return {part_bytes_min_, parts_max_, false}; }
  std::unique_ptr<ObjectWriter> create(const ObjectName& name, const CreateOptions& options) override {
    part_bytes = options.part_bytes;
    return StoreDecorator::create(name, options);
  }

  std::uint64_t part_bytes = 0;                                      // of the last object
  std::map<ObjectName, std::map<std::uint64_t, std::size_t>> parts;  // offset -> size

 private:
  void around(const DecoratedOperation&, const std::function<void()>& act) override { act(); }
  void write_at(ObjectWriter& writer, const ObjectName& name, std::uint64_t offset, ByteSpan bytes) override {
    {
      std::lock_guard lock(mutex_);
      CHECK(parts[name].emplace(offset, bytes.size()).second);
    }
    writer.write_at(offset, bytes);
  }

  const std::uint64_t part_bytes_min_;
  const std::uint64_t parts_max_;
  std::mutex mutex_;
};

}  // namespace

TEST_CASE_FIXTURE(Fixture, "engine: a store that needs parts gets whole ones in a row, within the memory") {
  add_variety(items);
  items.add("nine blocks", torch::ones({static_cast<std::int64_t>(9 * kPieceBytes)}, torch::kUInt8));
  items.add("five blocks", Bytes(5 * kPieceBytes, 'b'));
  for (const auto& parameters : {std::tuple{0, std::uint64_t{3 * kPieceBytes - 1}, std::uint64_t{0}},
                                 {0, 1, 12},
                                 {0, 1, 0},
                                 {1, 3 * kPieceBytes - 1, 0},
                                 {1, 1, 24}}) {
    const int level = std::get<0>(parameters);
    const std::uint64_t part_bytes_min = std::get<1>(parameters), parts_max = std::get<2>(parameters);
    if (level > levels().back()) continue;
    compressed = level > 0;
    WriteEngine engine({3, 6 * kPieceBytes, kPieceBytes, {level, {}}});
    CAPTURE(level);
    CAPTURE(part_bytes_min);
    CAPTURE(parts_max);
    const auto parts_store = std::make_shared<PartsStore>(memory, part_bytes_min, parts_max);
    WriteRequest written = request();
    written.store = parts_store;
    const auto results = engine.write(written).get();
    CHECK(engine.staging_bytes() <= 6 * kPieceBytes);
    check_files(request(), results);
    for (const auto& written_parts : parts_store->parts) {
      const auto& parts = written_parts.second;
      CAPTURE(written_parts.first);
      if (parts_max > 0) CHECK(parts.size() <= parts_max);
      std::uint64_t end = 0;
      for (const auto& [offset, size] : parts) {
        CHECK(offset == end);
        CHECK((size == parts_store->part_bytes || offset == parts.rbegin()->first));
        end += size;
      }
      CHECK(end == memory->size_bytes(written_parts.first));
    }
    CHECK(parts_store->part_bytes >= part_bytes_min);
    for (const FileResult& file : results) memory->remove(file.name);
  }
  compressed = false;
  WriteEngine engine({3, 6 * kPieceBytes, kPieceBytes});
  WriteRequest too_large = request();
  too_large.store = std::make_shared<PartsStore>(memory, 7 * kPieceBytes, 0);
  CHECK_THROWS_WITH_AS(engine.write(too_large), doctest::Contains("bytes_in_flight_max"), Error);
}

TEST_CASE_FIXTURE(Fixture, "engine: an object of 5 TiB needs fewer than 10,000 parts") {
  constexpr std::uint64_t kHuge = std::uint64_t{5} << 40;
  constexpr std::uint64_t kPartsMax = 10'000;
  items.add("huge", Bytes());
  items.plan.items.back().content_bytes = kHuge;
  WriteRequest huge = request();
  huge.store = std::make_shared<PartsStore>(memory, 8 << 20, kPartsMax);
  WriteEngine engine({1, 6 * kPieceBytes, kPieceBytes});
  const std::string refused = thrown_by([&] { engine.write(huge); }).what;
  CAPTURE(refused);
  const std::string before = "in parts of at least ";
  REQUIRE(refused.find(before) != std::string::npos);
  const std::uint64_t part = std::stoull(refused.substr(refused.find(before) + before.size()));
  CHECK(kHuge / part < kPartsMax * 95 / 100);  // the file is larger than its tensors
  CHECK(part < std::uint64_t{1} << 30);
}

TEST_CASE_FIXTURE(Fixture, "engine: every item is resolved exactly once") {
  add_variety(items);
  WriteEngine engine({4, 16 * kPieceBytes, kPieceBytes});
  for (const bool first_copied : {false, true}) {
    copy_first = first_copied;
    items.resolved.clear();
    for (const FileResult& file : engine.write(request()).get()) memory->remove(file.name);
    CHECK(items.resolved.size() == items.plan.items.size());
    for (const auto& item : items.resolved) {
      INFO(item.first);
      CHECK(item.second == 1);
    }
  }
}

TEST_CASE_FIXTURE(Fixture, "engine: when asked to, it copies all that there is memory for before it writes") {
  items.add("large",
            // 7 blocks and a remainder, because the archive adds bytes of its own
            torch::ones({static_cast<std::int64_t>(7 * kPieceBytes)}, torch::kUInt8));
  copy_first = true;
  control->close_gate();
  for (const std::uint64_t blocks : {8, 100}) {
    WriteEngine engine({1, blocks * kPieceBytes, kPieceBytes});
    engine.prepare(3 * kPieceBytes);
    CHECK(engine.staging_bytes() == 3 * kPieceBytes);
    const auto future = engine.write(request());
    control->wait_for_writes(1);  // the only thread has copied everything and now writes
    CHECK(engine.staging_bytes() == 8 * kPieceBytes);
    CHECK_FALSE(future.ready());
    control->open_gate();
    memory->remove(future.get().front().name);
    CHECK(engine.staging_bytes() == 8 * kPieceBytes);
    engine.release();
    CHECK(engine.staging_bytes() == 0);
    control->close_gate();
  }
}

TEST_CASE("engine: a tensor as bytes, whatever its strides") {
  torch::manual_seed(2);
  const std::vector<torch::Tensor> tensors = {
      torch::randn({4, 5, 6}),
      torch::randn({4, 5, 6}).permute({2, 0, 1}),
      torch::randn({4, 5, 6}).slice(1, 1, 5, 2),
      torch::randn({4, 1, 6}).expand({4, 5, 6}),
      torch::randn({3}).select(0, 1),
      torch::randint(0, 2, {7, 9}).to(torch::kBool).t(),
      torch::randn({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast),
      torch::view_as_complex(torch::randn({6, 4, 2})).t(),
      torch::view_as_complex(torch::randn({6, 4, 2})).conj(),
      at::imag(torch::view_as_complex(torch::randn({6, 4, 2})).conj()),  // negated lazily
      torch::randn({6, 4}).to(torch::kBFloat16).t(),
  };
  for (const torch::Tensor& tensor : tensors) {
    INFO(tensor.sizes(), " ", tensor.strides(), " ", tensor.scalar_type());
    const torch::Tensor dense = tensor.resolve_conj().resolve_neg().contiguous();
    const Bytes expected(static_cast<const char*>(dense.data_ptr()), dense.nbytes());
    const TensorBytes bytes(tensor);
    REQUIRE(bytes.size_bytes() == expected.size());
    const std::size_t step = tensor.element_size();
    torch::Tensor copy = torch::zeros_like(tensor, tensor.options(), at::MemoryFormat::Preserve);
    if (tensor.is_conj()) copy = copy.conj();
    if (tensor.is_neg()) copy = torch::_neg_view(copy);
    const TensorBytes target(copy);
    for (std::size_t first = 0; first < expected.size(); first += step)
      for (std::size_t end = first; end <= expected.size(); end += step) {
        Bytes part(end - first, '\0');
        bytes.read(first, {part.data(), part.size()});
        REQUIRE(part == expected.substr(first, end - first));
      }
    for (std::size_t first = 0; first < expected.size(); first += 3 * step)
      target.write(first, ByteSpan(expected).subspan(first, std::min(3 * step, expected.size() - first)));
    CHECK(copy.equal(tensor));
  }
}

TEST_CASE("engine: tensors without plain bytes are refused") {
  CHECK_THROWS_AS(TensorBytes{torch::Tensor()}, Error);
  CHECK_THROWS_AS(TensorBytes(torch::eye(3).to_sparse()), Error);
  CHECK_THROWS_AS(TensorBytes(torch::zeros({4, 4}).t()).write(1, Bytes("abcd")), InternalError);
}

TEST_CASE_FIXTURE(Fixture, "engine: a store that needs parts gets larger ones if each thread has memory for two") {
  items.add("forty blocks", torch::ones({static_cast<std::int64_t>(40 * kPieceBytes)}, torch::kUInt8));
  for (const auto& parameters : {std::pair{11, 1}, {12, 2}, {25, 4}}) {
    const int memory_blocks = parameters.first, expected_blocks = parameters.second;
    CAPTURE(memory_blocks);
    WriteEngine engine({3, memory_blocks * kPieceBytes, kPieceBytes});
    const auto parts_store = std::make_shared<PartsStore>(memory, kPieceBytes, 0);
    WriteRequest written = request();
    written.store = parts_store;
    const auto results = engine.write(written).get();
    CHECK(parts_store->part_bytes == expected_blocks * kPieceBytes);
    CHECK(engine.staging_bytes() <= memory_blocks * kPieceBytes);
    check_files(request(), results);
    for (const FileResult& file : results) memory->remove(file.name);
  }
}
