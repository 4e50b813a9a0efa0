// Cairn's own reader. It names damage and loss, reads exactly the needed bytes, and returns
// everything that was written, in Cairn's and PyTorch's checkpoints and in any layout.
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <set>

#include <cairn/tests/support/torch.hpp>

#include <cairn/base/error.hpp>
#include <cairn/state/checkpoint_writer.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/format/trailer.hpp>
#include <cairn/storage/format/zstd_item.hpp>
#include <cairn/storage/stores/file_store.hpp>
#include <cairn/storage/stores/memory_store.hpp>
#include <cairn/storage/verify_checkpoint.hpp>
#include <cairn/tests/storage/store_tools.hpp>
#include <cairn/tests/support/emptied_memory.hpp>
#include <cairn/tests/support/local_protocol.hpp>
#include <cairn/tests/support/safetensors.hpp>
#include <cairn/tests/support/sample_state.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tests/support/thrown.hpp>
#include <cairn/tests/support/wrapped_store.hpp>

using namespace cairn;
using namespace cairn::testing;

namespace {

constexpr std::int64_t kBlock = kChecksumBlockBytes;

// Records every range that is read from data files.
class RecordingStore : public WrappedStore {
 public:
  using WrappedStore::WrappedStore;
  void read(const ObjectName& name, const std::vector<ReadRange>& ranges) override {
    if (name == kCommitRecordName) return WrappedStore::read(name, ranges);
    WrappedStore::read(name, ranges);
    std::lock_guard lock(mutex);
    for (const ReadRange& range : ranges) reads.push_back({name, range.offset, range.offset + range.destination.size()});
  }
  std::optional<ObjectEnd> read_end(const ObjectName& name, std::size_t bytes_max) override {
    auto end = WrappedStore::read_end(name, bytes_max);
    std::lock_guard lock(mutex);
    if (end && name != kCommitRecordName) reads.push_back({name, end->object_bytes - end->content.size(), end->object_bytes});
    return end;
  }
  struct Range {
    std::string name;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };
  std::mutex mutex;
  std::vector<Range> reads;
};

// The store of "recorded://name/path" is that of "mem://name/path" with its reads recorded.
std::shared_ptr<RecordingStore> recorded;
std::shared_ptr<StoreControl> recorded_control;

void register_recorded() {
  static const bool once = [] {
    register_store("recorded", [](const std::string& url) {
      auto store = std::make_shared<RecordingStore>(open_store("mem" + url.substr(url.find("://"))), recorded_control);
      recorded = store;
      return store;
    });
    return true;
  }();
  (void)once;
  recorded_control = std::make_shared<StoreControl>();
}

std::unique_ptr<StorageReader> make_reader(CheckpointReaderOptions options = {}) {
  return std::make_unique<CheckpointReader>(options);
}

void save(const std::string& url, std::uint64_t counter, const std::vector<const StateDict*>& states,
          CheckpointWriterOptions options = {}) {
  LocalSave how{url, local_save_id(counter)};
  save_locally(how, states, [&] { return std::make_unique<CheckpointWriter>(options); });
}

void load(const std::string& url, const std::vector<StateDict*>& states, CheckpointReaderOptions options = {}) {
  load_locally(url, states, [&] { return make_reader(options); });
}

bool can_compress() { return why_not_undone({kZstdTransform}).empty(); }

StateDict plain_state(bool filled) {
  torch::manual_seed(3);
  StateDict state{{"a", filled ? torch::randn({1000, 100}) : torch::zeros({1000, 100})},
                  {"b", filled ? torch::randn({70}) : torch::zeros({70})},
                  {"c", filled ? Value("text") : Value("")},
                  {"d", filled ? torch::randn({500, 200}) : torch::zeros({500, 200})}};
  return state;
}

bool same(const StateDict& a, const StateDict& b) {
  for (const auto& [key, value] : a)
    if (value.is_tensor() && !torch::equal(value.tensor(), b.at(key).tensor())) return false;
  return a.at("c").to_text() == b.at("c").to_text();
}

}  // namespace

TEST_CASE("checkpoint reader: a place without a checkpoint says what it is") {
  const TemporaryDirectory directory;
  const auto read = [](const std::string& url) {
    return thrown_by([&] {
      CheckpointReader reader;
      reader.reset(url);
      reader.read_metadata();
    });
  };
  const std::string path = directory.path();
  CHECK(read(path + "/missing") == Saying{ErrorCode::kNotFound, "no such directory or an empty one"});
  std::filesystem::create_directories(path + "/other");
  std::ofstream(path + "/other/notes.txt") << "text";
  CHECK(read(path + "/other") == Saying{ErrorCode::kNotFound, "notes.txt"});
  std::filesystem::create_directories(path + "/died");
  std::ofstream(path + "/died/__0_0.distcp") << "text";
  CHECK(read(path + "/died").says("died half-way"));
  open_store(path + "/running")->create_root();
  open_store(path + "/running")->begin_attempt(local_save_id(1));
  CHECK(read(path + "/running").says("has not ended"));
  const StateDict state = plain_state(true);
  save(path + "/run/step_1", 1, {&state});
  CHECK(read(path + "/run").says("/run/step_1"));
  CHECK(read("nosuch://x").code == ErrorCode::kInvalidArgument);

  // The wrong path may be the root of a disk, so the search stays at its first level.
  struct Shallow : FileStore {
    using FileStore::FileStore;
    bool listed_all = false;
    std::vector<ObjectInfo> list(const ObjectName& prefix) override {
      listed_all = listed_all || prefix.empty();
      return FileStore::list(prefix);
    }
  } shallow(path);
  CHECK(thrown_by([&] { read_metadata(shallow); }) == Saying{ErrorCode::kNotFound, "(died, …)"});
  CHECK_FALSE(shallow.listed_all);
}

TEST_CASE("checkpoint reader: reading before it is set up is refused") {
  CheckpointReader reader;
  DefaultLoadPlanner planner;
  CHECK(thrown_by([&] { reader.read_data({}, planner); }).code == ErrorCode::kPrecondition);
}

TEST_CASE("checkpoint reader: errors about a damaged file name rank, tensor and offset") {
  const EmptiedMemory memory("reader");
  const std::string url = "mem://reader/x";
  const StateDict state = plain_state(true);
  save(url, 1, {&state});
  const auto store = open_store(url);
  const ObjectName file = data_file_name(0, 0, local_save_id(1));
  const Bytes whole = get_object(*store, file);
  const auto a = std::get<TensorStorageMetadata>(*read_metadata(*store).find("a")).storage.at(0);
  const auto attempt = [&](CheckpointReaderOptions options = {}) {
    return thrown_by([&] {
      StateDict target = plain_state(false);
      load(url, {&target}, options);
    });
  };
  const auto check = [&](ErrorCode code) {
    const Thrown error = attempt();
    CHECK(error == Saying{code, "rank 0"});
    CHECK(error.says(file));
    CHECK(error.says("\"a\""));
    return error;
  };
  const auto flip = [&](std::size_t at) {
    Bytes flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
    replace_object(*store, file, flipped);
  };

  SUBCASE("missing") {
    store->remove(file);
    check(ErrorCode::kNotFound);
  }
  SUBCASE("short") {
    replace_object(*store, file, whole.substr(0, whole.size() - 1));
    check(ErrorCode::kCorrupt);
  }
  SUBCASE("damaged payload") {
    const std::size_t at = a.payload_offset + 2 * kBlock + 77;
    flip(at);
    CHECK(check(ErrorCode::kCorrupt).says("offsets " + std::to_string(at / kBlock * kBlock)));
    CheckpointReaderOptions trusting;
    trusting.verify = false;
    CHECK_FALSE(attempt(trusting).is_error);
  }
  SUBCASE("verify_first changes nothing when something is damaged") {
    flip(std::get<TensorStorageMetadata>(*read_metadata(*store).find("d")).storage.at(0).payload_offset);
    StateDict target = plain_state(false);
    CheckpointReaderOptions first;
    first.verify_first = true;
    CHECK(thrown_by([&] { load(url, {&target}, first); }).code == ErrorCode::kCorrupt);
    CHECK(target["a"].tensor().eq(0).all().item<bool>());
  }
}

TEST_CASE("checkpoint reader: a replaced checkpoint is told from a damaged one") {
  const EmptiedMemory memory("reader");
  const std::string url = "mem://reader/x";
  const StateDict state = plain_state(true);
  save(url, 1, {&state});
  // Two more saves run between reading the metadata and reading the data. They remove the files of
  // the first save.
  class Late : public DefaultLoadPlanner {
   public:
    std::function<void()> act;
    LoadPlan finish_plan(LoadPlan plan) override {
      act();
      return plan;
    }
  } planner;
  planner.act = [&] {
    save(url, 2, {&state});
    save(url, 3, {&state});
  };
  StateDict target = plain_state(false);
  CheckpointReader reader;
  CHECK(thrown_by([&] { load_locally(url, {{&target, &planner, &reader}}); }) == Saying{ErrorCode::kChanged, local_save_id(3)});
  load(url, {&target});
  CHECK(same(target, state));
}

TEST_CASE("checkpoint reader: an exception of the store or planner fails the read") {
  register_recorded();
  const EmptiedMemory memory("recorded");
  const std::string url = "recorded://recorded/x";
  const StateDict state = plain_state(true);
  save(url, 1, {&state});
  std::size_t failing = 0;
  for (bool failed = true; failed; ++failing) {
    recorded_control = std::make_shared<StoreControl>();
    recorded_control->fail_at(failing);
    StateDict target = plain_state(false);
    CheckpointReaderOptions options;
    options.bytes_in_flight_max = kBlock;
    try {
      load(url, {&target}, options);
      failed = false;
      CHECK(same(target, state));
    } catch (const StoreFault&) {
    }
  }
  CHECK(failing > 5);

  recorded_control = std::make_shared<StoreControl>();
  class Failing : public DefaultLoadPlanner {
   public:
    void commit_tensor(const LoadPlan&, const ReadItem&, torch::Tensor) override { throw std::logic_error("planner"); }
  } planner;
  StateDict target = plain_state(false);
  CheckpointReader reader;
  CHECK_THROWS_AS(load_locally(url, {{&target, &planner, &reader}}), std::logic_error);
}

TEST_CASE("checkpoint reader: exactly the blocks that are needed are read, each once") {
  register_recorded();
  const EmptiedMemory memory("recorded");
  const std::string url = "recorded://recorded/x";
  StateDict state;
  torch::manual_seed(4);
  const torch::Tensor whole = torch::randn({2000, 1000});  // about 61 blocks
  state["w"] = whole;
  state["other"] = torch::randn({1000, 1000});
  save(url, 1, {&state});
  const auto storage = std::get<TensorStorageMetadata>(*read_metadata(*open_store(url)).find("w")).storage.at(0);
  const auto info = read_metadata(*open_store(url)).files.at(0);

  const auto read_part = [&](std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns, bool verify) {
    StateDict target;
    LocalShard shard{torch::zeros({rows, columns}), {row, column}};
    target["w"] = ShardedTensor({2000, 1000}, DType::kFloat32, {shard});
    CheckpointReaderOptions options;
    options.verify = verify;
    options.bytes_in_flight_max = 8 * kBlock;
    load(url, {&target}, options);
    CHECK(shard.tensor.equal(whole.narrow(0, row, rows).narrow(1, column, columns)));
    std::uint64_t bytes = 0;
    std::set<std::pair<std::uint64_t, std::uint64_t>> seen;
    for (const auto& range : recorded->reads) {
      if (verify && range.begin >= *info.length - *info.trailer_length) continue;
      bytes += range.end - range.begin;
      for (const auto& [begin, end] : seen) CHECK((range.end <= begin || range.begin >= end));
      seen.insert({range.begin, range.end});
    }
    return bytes;
  };
  // A range of rows.
  CHECK(read_part(500, 700, 0, 1000, false) == 700 * 4000);
  CHECK(read_part(500, 700, 0, 1000, true) <= 700 * 4000 + 2 * kBlock);
  CHECK(read_part(7, 1, 0, 1000, true) <= 2 * kBlock);
  // The gaps between a column range's rows are too small to skip, so one range covers all rows.
  CHECK(read_part(0, 2000, 250, 500, false) == 2000 * 4000 - 2000);
  CHECK(read_part(0, 2000, 999, 1, true) <= 2000 * 4000 + 2 * kBlock);
  CHECK(read_part(1234, 1, 17, 1, false) == 4);
  CHECK(storage.payload_offset % 4096 == 0);
}

TEST_CASE("checkpoint reader: later reads open no file and read no small block again") {
  register_recorded();
  const EmptiedMemory memory("recorded");
  const std::string url = "recorded://recorded/x";
  constexpr int kTensors = 600;
  const auto name_of = [](int i) { return "t" + std::to_string(i); };
  torch::manual_seed(9);
  std::vector<StateDict> states(2);
  for (int i = 0; i < kTensors; ++i)
    for (std::size_t rank = 0; rank < states.size(); ++rank)
      states[rank][name_of(i) + (rank == 0 ? "a" : "b")] = torch::randn({30});
  save(url, 1, {&states[0], &states[1]});
  OpenReader<CheckpointReader> opened(url);
  const Metadata& metadata = opened.metadata;
  const auto read = [&](const std::string& name) {
    StateDict target;
    target[name] = torch::zeros({30});
    LoadPlannerOptions options;
    options.flatten_state_dict = false;
    DefaultLoadPlanner planner(options);
    planner.set_up_planner(target, metadata, 0, true);
    const LoadPlan plan = planner.finish_plan(planner.create_global_plan({planner.create_local_plan()}).front());
    opened.reader.read_data(plan, planner).get();
    return target[name].tensor();
  };
  for (int i = 0; i < kTensors; ++i)
    for (std::size_t rank = 0; rank < states.size(); ++rank) {
      const std::string name = name_of(i) + (rank == 0 ? "a" : "b");
      REQUIRE(read(name).equal(states[rank][name].tensor()));
    }
  std::map<std::string, std::map<std::uint64_t, int>> times;  // of each begin of a range, by file
  std::uint64_t bytes = 0;
  for (const auto& range : recorded->reads) {
    ++times[range.name][range.begin];
    bytes += range.end - range.begin;
  }
  std::uint64_t all = 0;
  for (const FileInfo& file : metadata.files) {
    all += *file.length;
    CHECK(times[file.name][*file.length - *file.trailer_length] == 1);
    REQUIRE(*file.length > 4 * kBlock);
  }
  CHECK(bytes <= all + 2 * 2 * kBlock);  // the first read of each file keeps nothing

  // A file that is damaged after it was opened: its checksums are known, so the damage is found.
  StorageContext context;
  context.checkpoint_id = url;
  opened.reader.set_up_storage_reader(metadata, context);
  CHECK(read("t0b").equal(states[1]["t0b"].tensor()));
  const ObjectName file = metadata.files.at(std::get<TensorStorageMetadata>(*metadata.find("t0b")).storage.at(0).file).name;
  Bytes damaged = get_object(*open_store(url), file);
  const std::uint64_t at = 2 * kBlock + 99;
  damaged[at] = static_cast<char>(damaged[at] ^ 1);
  replace_object(*open_store(url), file, damaged);
  int refused = 0;
  for (int i = 0; i < kTensors; ++i) refused += thrown_by([&] { read(name_of(i) + "b"); }).code == ErrorCode::kCorrupt;
  CHECK(refused > 1);
  CHECK(refused < kTensors);
}

TEST_CASE("checkpoint reader: every dtype, shape and layout of files loads") {
  const EmptiedMemory memory("reader");
  const TemporaryDirectory directory;
  torch::manual_seed(5);
  StateDict state;
  std::map<std::string, torch::Tensor> tensors;
  for (const torch::ScalarType type :
       {torch::kFloat32, torch::kFloat64, torch::kFloat16, torch::kBFloat16, torch::kInt8, torch::kUInt8, torch::kInt16,
        torch::kInt32, torch::kInt64, torch::kBool, torch::kComplexFloat, torch::kComplexDouble}) {
    const std::string name = c10::toString(type);
    tensors[name] = torch::randint(0, 2, {40, 30, 20}).to(type);
    tensors[name + " transposed"] = torch::randint(0, 2, {30, 200}).to(type).t();
    tensors[name + " scalar"] = torch::randint(0, 2, {}).to(type);
    tensors[name + " empty"] = torch::empty({3, 0, 2}, type);
  }
  tensors["conjugated"] = torch::view_as_complex(torch::randn({40, 50, 2})).conj();
  tensors["stepped"] = torch::randn({100, 100}).slice(0, 3, 97, 7).slice(1, 0, 100, 3);
  tensors["expanded"] = torch::randn({100, 1}).expand({100, 1000});
  tensors["channels last"] = torch::randn({4, 3, 50, 60}).contiguous(at::MemoryFormat::ChannelsLast);
  for (const auto& [name, tensor] : tensors) state[name] = tensor;
  state["none"] = Value();
  state["blob"] = Blob{Bytes(2 * kBlock + 3, 'z')};

  for (const std::string& url : {std::string("mem://reader/x"), directory.path() + "/x"})
    for (const auto& [single_file, zstd_level] : {std::pair(true, 0), {false, 0}, {true, 3}, {false, 1}}) {
      if (zstd_level > 0 && !can_compress()) continue;
      CheckpointWriterOptions options;
      options.single_file_per_rank = single_file;
      options.zstd_level = zstd_level;
      save(url, static_cast<std::uint64_t>(10 * zstd_level + (single_file ? 1 : 2)), {&state}, options);
      CHECK(verify_checkpoint(*open_store(url)).empty());
      for (const std::uint64_t in_flight : {std::uint64_t{kBlock}, std::uint64_t{64} << 20}) {
        StateDict target;
        for (const auto& [name, tensor] : tensors) target[name] = torch::zeros_like(tensor);
        target["expanded"] = torch::zeros({100, 1000});
        target["conjugated"] = torch::zeros_like(tensors["conjugated"]).conj();
        target["stepped"] = torch::zeros({34, 14}).t();
        target["none"] = Value(1);
        target["blob"] = Blob{};
        CheckpointReaderOptions reading;
        reading.bytes_in_flight_max = in_flight;
        reading.threads = 3;
        load(url, {&target}, reading);
        for (const auto& [name, tensor] : tensors) {
          const auto& shown = name;
          INFO(shown);
          CHECK(target[name].tensor().equal(tensor));
        }
        CHECK(target["none"].is_none());
        CHECK(target["blob"].blob().bytes == Bytes(2 * kBlock + 3, 'z'));
      }
    }
}

TEST_CASE("checkpoint reader: PyTorch's checkpoints load on 1 to 4 ranks, in any cut") {
  const std::string root = std::string(CAIRN_TEST_DATA) + "/pytorch-2.11/";
  for (const char* const folder : {"single", "threads", "fsdp_even", "fsdp_uneven", "hsdp_2x2", "nested"}) {
    INFO(folder);
    const std::string url = root + folder;
    const auto expected = read_safetensors(url + "/expected.safetensors");
    const auto store = open_store(url);
    const Metadata metadata = read_metadata(*store);
    CHECK(verify_checkpoint(*store).empty());
    for (int world = 1; world <= 4; ++world)
      for (const std::int64_t dim : {0, 1})
        for (const bool verify_first : {false, true}) {
          if (verify_first && world != 2) continue;
          std::vector<StateDict> targets(static_cast<std::size_t>(world));
          std::vector<StateDict*> pointers;
          ChunkShardingSpec spec;
          for (int rank = 0; rank < world; ++rank) spec.placements.push_back(rank);
          for (int rank = 0; rank < world; ++rank) {
            StateDict& target = targets[static_cast<std::size_t>(rank)];
            for (const auto& [fqn, entry] : metadata.state_dict_metadata) {
              const auto* tensor = std::get_if<TensorStorageMetadata>(&entry);
              if (!tensor) continue;
              const auto type = *scalar_type_of(tensor->properties.dtype);
              spec.dim = dim;
              if (static_cast<std::int64_t>(tensor->size.size()) > dim)
                target[fqn] = ShardedTensor::zeros(spec, tensor->size, rank, torch::TensorOptions().dtype(type));
              else
                target[fqn] = torch::zeros(array_of(tensor->size), type);
            }
            pointers.push_back(&target);
          }
          CheckpointReaderOptions options;
          options.verify_first = verify_first;
          options.bytes_in_flight_max = kBlock;
          LoadPlannerOptions planning;
          planning.flatten_state_dict = false;
          load_locally(
              url, pointers, [&] { return make_reader(options); }, planning);
          for (const auto& [fqn, stored] : expected) {
            const auto& shown = fqn;
            INFO(shown);
            const torch::Tensor tensor = tensor_of(stored);
            for (const StateDict& target : targets) {
              const Value& value = target.at(fqn);
              if (value.is_tensor()) {
                CHECK(torch::equal(value.tensor(), tensor));
                continue;
              }
              for (const LocalShard& shard : value.sharded().local_shards())
                CHECK(torch::equal(shard.tensor, part_of(tensor, shard.offsets, extents_of(shard.tensor.sizes()))));
            }
          }
        }
  }
}

// The files of expected tensors lack complex ones.
TEST_CASE("complex tensors of the golden") {
  StateDict target{{"complex", torch::zeros({2, 3}, torch::kComplexFloat)}};
  const std::string url = std::string(CAIRN_TEST_DATA) + "/pytorch-2.11/nested";
  load_locally(url, {&target}, [] { return std::make_unique<CheckpointReader>(); });
  const auto counting = torch::arange(6, torch::kDouble).reshape({2, 3});
  CHECK(torch::equal(target["complex"].tensor(), torch::complex(counting * 0.25 + 1, -counting).to(torch::kComplexFloat)));
}

// PyTorch 2.14's: saved by two ranks with use_collectives=False.
TEST_CASE("PyTorch's records of single ranks load on any number of ranks") {
  const std::string url = std::string(CAIRN_TEST_DATA) + "/pytorch-2.14/rank_local";
  const auto whole = torch::arange(20, torch::kFloat32).reshape({5, 4});
  for (const int ranks : {1, 2, 3}) {
    std::vector<StateDict> states;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto rows = ShardedTensor::zeros(over_all_ranks(ranks), {5, 4}, rank);
      states.push_back({{"model", Dict{{"rows", rows}, {"same", torch::zeros({3}, torch::kLong)}}}, {"step", 0}, {"rank", -1}});
    }
    std::vector<StateDict*> pointers;
    for (StateDict& state : states) pointers.push_back(&state);
    load_locally(url, pointers, [] { return std::make_unique<CheckpointReader>(); });
    for (int rank = 0; rank < ranks; ++rank) {
      const StateDict& state = states[static_cast<std::size_t>(rank)];
      const auto expected = ShardedTensor::distribute(whole, over_all_ranks(ranks), rank);
      const auto& shards = state.at("model").dict().at("rows").sharded().local_shards();
      REQUIRE(shards.size() == expected.local_shards().size());
      for (std::size_t i = 0; i < shards.size(); ++i) CHECK(torch::equal(shards[i].tensor, expected.local_shards()[i].tensor));
      CHECK(torch::equal(state.at("model").dict().at("same").tensor(), torch::arange(3)));
      CHECK(state.at("step").to_int() == 7);
      CHECK(state.at("rank").to_int() == 0);
    }
  }
  CHECK(verify_checkpoint(*open_store(url), 1, {}).empty());
}
