// Checkpoints in safetensors files: what the writer leaves, what the reader takes and refuses, and
// consolidation. tests/support/safetensors.hpp is a second parser of the format.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>

#include <cairn/tests/support/torch.hpp>

#include <cairn/base/error.hpp>
#include <cairn/formats/safetensors.hpp>
#include <cairn/state/hugging_face.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/runs/run_directory.hpp>
#include <cairn/storage/verify_checkpoint.hpp>
#include <cairn/tests/support/laid_out_state.hpp>
#include <cairn/tests/support/local_protocol.hpp>
#include <cairn/tests/support/read_part.hpp>
#include <cairn/tests/support/safetensors.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tests/support/thrown.hpp>
#include <cairn/tests/support/wrapped_store.hpp>

using namespace cairn;
using namespace cairn::testing;

namespace {

constexpr const char* kIndex = "model.safetensors.index.json";

HuggingFaceWriterOptions options_for(HuggingFaceFiles files) {
  HuggingFaceWriterOptions options;
  options.files = files;
  return options;
}

void save(const std::string& url, const std::vector<StateDict>& states, const HuggingFaceWriterOptions& options = {}) {
  LocalSave call{url, local_save_id(1)};
  call.step = 7;
  std::vector<const StateDict*> ranks;
  for (const StateDict& state : states) ranks.push_back(&state);
  save_locally(call, ranks, [&] { return std::make_unique<HuggingFaceStorageWriter>(options); });
}

void load(const std::string& url, std::vector<StateDict>& states, const HuggingFaceReaderOptions& options = {}) {
  std::vector<StateDict*> ranks;
  for (StateDict& state : states) ranks.push_back(&state);
  load_locally(url, ranks, [&] { return std::make_unique<HuggingFaceStorageReader>(options); });
}

std::vector<StateDict> states_of(const std::string& layout, int world, bool zeroed = false) {
  std::vector<StateDict> states;
  for (int rank = 0; rank < world; ++rank) states.push_back(state_in_layout(layout, rank, world, zeroed));
  return states;
}

bool loads_as(const std::string& url, const std::string& layout, int world) {
  std::vector<StateDict> states = states_of(layout, world, true);
  load(url, states);
  for (int rank = 0; rank < world; ++rank)
    if (!holds_expected(states[static_cast<std::size_t>(rank)], layout, rank, world)) return false;
  return true;
}

std::set<std::string> names_at(const std::string& directory) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory))
    if (entry.is_regular_file()) names.insert(std::filesystem::relative(entry.path(), directory).string());
  return names;
}

void put(const std::string& path, const std::string& bytes) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string length_of(const std::string& header) {
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header.size() >> (8 * i));
  return bytes;
}

// A file as PyTorch's writer makes it: the float32 elements `values` at `offset` of the vector "w".
void put_part(const std::string& path, std::int64_t offset, const std::vector<float>& values) {
  const std::string bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  const std::string header = R"({"__metadata__":{"DCP_SHARDING_INFO":"{\"w\":{\"saved_offsets\":[)" + std::to_string(offset) +
                             R"(]}}","DCP_VERSION":"1.0","format":"pt"},"w":{"dtype":"F32","shape":[)" +
                             std::to_string(values.size()) + R"(],"data_offsets":[0,)" + std::to_string(bytes.size()) + "]}}";
  put(path, length_of(header) + header + bytes);
}

// A file with weight "a.weight" of one-byte elements, and its scales.
void put_quantized(const std::string& path, const std::string& type, const torch::Tensor& weight, const torch::Tensor& scales,
                   const std::string& scale_type = "F32") {
  const std::string bytes = std::string(static_cast<const char*>(scales.data_ptr()), scales.nbytes()) +
                            std::string(static_cast<const char*>(weight.data_ptr()), weight.nbytes());
  const nlohmann::json header{
      {"a.weight", {{"dtype", type}, {"shape", weight.sizes().vec()}, {"data_offsets", {scales.nbytes(), bytes.size()}}}},
      {"a.weight_scale_inv", {{"dtype", scale_type}, {"shape", scales.sizes().vec()}, {"data_offsets", {0, scales.nbytes()}}}}};
  put(path, length_of(header.dump()) + header.dump() + bytes);
}

HuggingFaceReaderOptions dequantized(std::int64_t block_size) {
  HuggingFaceReaderOptions options;
  options.dequantize_to = DType::kFloat32;
  options.block_size = block_size;
  return options;
}

Thrown thrown_by_reading(const std::string& directory, const HuggingFaceReaderOptions& options = {}) {
  HuggingFaceStorageReader reader(options);
  reader.reset(directory);
  return thrown_by([&] { reader.read_metadata(); });
}

std::string error_of_reading(const std::string& directory) { return thrown_by_reading(directory).what; }

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// A writer that calls a function of the test before it finishes.
class LateWriter : public HuggingFaceStorageWriter {
 public:
  LateWriter(std::function<void()> before, std::function<bool(bool)> discards, const HuggingFaceWriterOptions& options)
      : HuggingFaceStorageWriter(options), before_(std::move(before)), discards_(std::move(discards)) {}
  void finish(Metadata metadata, std::vector<WriteResults> results) override {
    before_();
    HuggingFaceStorageWriter::finish(std::move(metadata), std::move(results));
  }
  void discard(bool ends_attempt) noexcept override {
    if (discards_(ends_attempt)) HuggingFaceStorageWriter::discard(ends_attempt);
  }

 private:
  const std::function<void()> before_;
  const std::function<bool(bool)> discards_;
};

// Saves, and calls `before` when all is written. Then the writers for which `discards` returns true
// discard their files; it receives whether the writer is the coordinator's.
Thrown thrown_by_late_save(
    const LocalSave& call, const std::vector<StateDict>& states, const std::function<void()>& before,
    const HuggingFaceWriterOptions& options = {}, const std::function<bool(bool)>& discards = [](bool) { return true; }) {
  std::vector<const StateDict*> ranks;
  for (const StateDict& state : states) ranks.push_back(&state);
  return thrown_by([&] { save_locally(call, ranks, [&] { return std::make_unique<LateWriter>(before, discards, options); }); });
}

}  // namespace

TEST_CASE("Hugging Face: files of one rank load in two, and those of two in three") {
  TemporaryDirectory directory;
  for (const HuggingFaceFiles files : {HuggingFaceFiles::kModel, HuggingFaceFiles::kDistributed}) {
    const std::string place = directory.path() + (files == HuggingFaceFiles::kModel ? "/model" : "/distributed");
    save(place + "1", states_of("replicated", 1), options_for(files));
    CHECK(loads_as(place + "1", "dim-0", 2));
    save(place + "2", states_of("dim-0", 2), options_for(files));
    CHECK(loads_as(place + "2", "dim-1", 3));
    save(place + "3", states_of("uneven", 3), options_for(files));
    CHECK(loads_as(place + "3", "replicated", 1));
    // The same files without Cairn's commit record.
    for (const char* world : {"1", "2", "3"}) std::filesystem::remove(place + world + "/.metadata");
    CHECK(loads_as(place + "1", "dim-0", 2));
    CHECK(loads_as(place + "2", "dim-1", 3));
    CHECK(loads_as(place + "3", "replicated", 1));
  }
}

TEST_CASE("Hugging Face: empty, 0-dim, shared and small types return bit for bit") {
  TemporaryDirectory directory;
  const torch::Tensor shared = torch::arange(24, torch::kFloat32).reshape({4, 6});
  StateDict state{{"empty", torch::empty({0, 5})},
                  {"scalar", torch::tensor(-0.0, torch::kFloat64)},
                  {"whole", shared},
                  {"view", shared.t()},
                  {"row", shared[2]},
                  {"bf16", torch::randn({33}).to(torch::kBFloat16)},
                  {"f16", torch::randn({7, 3}).to(torch::kHalf)},
                  {"bool", torch::tensor({true, false, true})},
                  {"u8", torch::arange(5, torch::kUInt8)}};
  const auto fp8 = scalar_type_of(DType::kFloat8E4M3Fn);
  if (fp8) state["fp8"] = torch::arange(9, torch::kUInt8).view(*fp8);
  save(directory.path() + "/model", {state});
  StateDict loaded;
  for (const auto& [name, value] : state) loaded.insert(name, torch::empty_like(value.tensor()));
  std::vector<StateDict> states{loaded};
  load(directory.path() + "/model", states);
  for (const auto& [name, value] : state) {
    const auto& shown = name;
    INFO(shown);
    const torch::Tensor found = states[0].at(name).tensor().contiguous(), expected = value.tensor().contiguous();
    REQUIRE(found.nbytes() == expected.nbytes());
    CHECK((found.numel() == 0 || std::memcmp(found.data_ptr(), expected.data_ptr(), found.nbytes()) == 0));
  }
}

TEST_CASE("Hugging Face: files end at the size asked for, and the index names each tensor's") {
  TemporaryDirectory directory;
  HuggingFaceWriterOptions options;
  options.file_bytes_max = 500;
  const std::string place = directory.path() + "/model";
  for (const char* layout : {"replicated", "dim-1"}) {
    std::filesystem::remove_all(place);
    save(place, states_of(layout, 2), options);
    const auto index = nlohmann::json::parse(file_bytes(place + "/" + kIndex));
    std::set<std::string> files;
    std::uint64_t total = 0;
    for (const auto& [name, whole] : whole_tensors()) {
      const std::string file = index.at("weight_map").at(name);
      files.insert(file);
      CHECK(has(file_bytes(place + "/" + file), R"("__metadata__":{"format":"pt"})"));
      CHECK(torch::equal(tensor_of(cairn::testing::read_safetensors(place + "/" + file).at(name)), whole));
      total += whole.nbytes();
    }
    CHECK(files.size() > 2);
    CHECK(index.at("weight_map").size() == whole_tensors().size());
    CHECK(index.at("metadata").at("total_size") == total);
    CHECK(loads_as(place, "dim-0", 3));
  }
}

TEST_CASE("Hugging Face: a parser in Python opens the files") {
  TemporaryDirectory directory;
  StateDict state{{"matrix", torch::arange(6, torch::kFloat32).reshape({2, 3})}, {"count", torch::tensor(5, torch::kInt64)}};
  save(directory.path() + "/model", {state});
  put(directory.path() + "/parse.py", R"(
import json, struct, sys
place = sys.argv[1] + "/"
index = json.load(open(place + "model.safetensors.index.json"))
found = {}
for name in set(index["weight_map"].values()):
    data = open(place + name, "rb").read()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    assert header.pop("__metadata__") == {"format": "pt"}
    body, at = data[8 + length:], 0
    for key, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        assert begin == at and index["weight_map"][key] == name
        found[key] = entry["shape"], entry["dtype"], struct.unpack({"F32": "<6f", "I64": "<q"}[entry["dtype"]], body[begin:end])
        at = end
    assert at == len(body)
assert found == {"matrix": ([2, 3], "F32", (0, 1, 2, 3, 4, 5)), "count": ([], "I64", (5,))}, found
)");
  CHECK(std::system(("python3 " + directory.path() + "/parse.py " + directory.path() + "/model").c_str()) == 0);
}

TEST_CASE("Hugging Face: consolidated files equal those of a save by one rank") {
  TemporaryDirectory directory;
  const std::string place = directory.path();
  save(place + "/one", states_of("replicated", 1));
  save(place + "/parts", states_of("uneven", 3), options_for(HuggingFaceFiles::kDistributed));
  HuggingFaceWriterOptions options;
  options.writer.bytes_in_flight_max = 3u << 20;
  for (const bool with_record : {true, false}) {
    if (!with_record) std::filesystem::remove(place + "/parts/.metadata");
    const std::string to = place + (with_record ? "/joined" : "/joined_without_record");
    consolidate_safetensors_files(place + "/parts", to, options);
    CHECK(names_at(to) == names_at(place + "/one"));
    for (const std::string name : {kIndex, "model-00001-of-00001.safetensors"})
      CHECK(file_bytes(to + "/" + name) == file_bytes(place + "/one/" + name));
    CHECK(loads_as(to, "dim-0", 2));
  }
}

TEST_CASE("Hugging Face: saves and consolidation list what files cannot hold, or leave it out") {
  TemporaryDirectory directory;
  StateDict state{{"weight", torch::ones({2})}, {"step", std::int64_t{3}}, {"wave", torch::ones({2}, torch::kComplexDouble)}};
  LocalSave call{directory.path() + "/from", local_save_id(1)};
  save_locally(call, {&state}, [] { return std::make_unique<CheckpointWriter>(); });
  state["name"] = "text";  // is saved only
  for (const bool consolidates : {false, true}) {
    const std::string to = directory.path() + (consolidates ? "/to" : "/model");
    HuggingFaceWriterOptions options;
    const auto write = [&] {
      consolidates ? consolidate_safetensors_files(call.checkpoint_id, to, options) : save(to, {state}, options);
    };
    const Thrown thrown = thrown_by(write);
    CHECK(thrown.code == ErrorCode::kUnsupported);
    for (const char* name : {"\"step\"", "\"wave\""}) CHECK(thrown.says(name));
    CHECK(thrown.says("\"name\"") != consolidates);
    CHECK(!thrown.says("\"weight\""));
    CHECK(names_at(to).empty());

    options.skip_unsupported = true;
    write();
    const Metadata metadata = read_metadata(*open_store(to));
    CHECK(metadata.state_dict_metadata.size() == 1);
    CHECK(metadata.planner_data.size() == 1);
  }
}

TEST_CASE("Hugging Face: files are written, not linked, whatever the writer may reuse") {
  const TemporaryDirectory directory;
  HuggingFaceWriterOptions options;
  options.writer.reuse = Reuse::kDigest;
  HuggingFaceStorageWriter writer(options);
  DefaultSavePlanner planner;
  const StateDict state{{"w", torch::ones({1000})}};
  for (const std::uint64_t step : {1u, 2u})
    save_locally({directory.path() + "/step_" + std::to_string(step), local_save_id(step)}, {{&state, &planner, &writer}});
  CHECK(std::filesystem::hard_link_count(directory.path() + "/step_2/model-00001-of-00001.safetensors") == 1);
}

TEST_CASE("Hugging Face: compression is refused") {
  HuggingFaceWriterOptions options;
  options.writer.zstd_level = 1;
  CHECK(thrown_by([&] { HuggingFaceStorageWriter writer(options); }).code == ErrorCode::kInvalidArgument);
}

TEST_CASE("Hugging Face: a place with safetensors files is refused and keeps them") {
  TemporaryDirectory directory;
  for (const char* name : {"model.safetensors", "model-00001-of-00001.safetensors", "shard-00001-model-00001-of-00001.safetensors",
                           "model.safetensors.index.json.part", ".metadata"}) {
    const std::string place = directory.path() + "/" + std::to_string(std::string(name).size());
    put(place + "/" + name, "theirs");
    put(place + "/config.json", "{}");
    CHECK(thrown_by([&] { save(place, states_of("dim-0", 2)); }).says(name));
    CHECK(names_at(place) == std::set<std::string>{name, "config.json"});
  }
}

TEST_CASE("Hugging Face: a file has its name only when it is whole") {
  std::vector<bool> found;
  std::mutex mutex;  // the threads of all ranks write
  register_around("watched", "file", [&](Store& inner, const DecoratedOperation& operation, const std::function<void()>& act) {
    act();
    if (operation.name != std::string("write_at") || !ends_with(operation.object, kSafetensorsEnd)) return;
    const bool is_there = inner.exists(std::string(operation.object));
    const std::lock_guard<std::mutex> lock(mutex);
    found.push_back(is_there);
  });
  for (const std::string layout : {"replicated", "dim-0"}) {
    for (const HuggingFaceFiles files : {HuggingFaceFiles::kModel, HuggingFaceFiles::kDistributed}) {
      CAPTURE(layout);
      TemporaryDirectory directory;
      const std::string place = directory.path() + "/model";
      found.clear();
      save("watched://" + place, states_of(layout, 2), options_for(files));
      CHECK(!found.empty());
      CHECK(std::count(found.begin(), found.end(), true) == 0);
      CHECK(loads_as(place, "dim-1", 2));
    }
  }
}

TEST_CASE("Hugging Face: the next save removes parts that a killed save left") {
  TemporaryDirectory directory;
  const std::vector<StateDict> states = states_of("dim-0", 2);
  LocalSave call{directory.path() + "/model", local_save_id(2)};
  const auto be_killed = [] { throw Error(ErrorCode::kUnavailable, "killed"); };
  CHECK(thrown_by_late_save(call, states, be_killed, {}, [](bool) { return false; }).says("killed"));
  CHECK(names_at(call.checkpoint_id).size() == 2);
  save(call.checkpoint_id, states);
  CHECK(names_at(call.checkpoint_id) == std::set<std::string>{".metadata", kIndex, "model-00001-of-00001.safetensors"});
  CHECK(open_store(call.checkpoint_id)->open_attempts().empty());
  CHECK(loads_as(call.checkpoint_id, "dim-1", 2));
}

TEST_CASE("Hugging Face: a save that fails removes its index before its files, and leaves none") {
  std::vector<std::string> removed;
  register_around("removals", "file", [&](Store&, const DecoratedOperation& operation, const std::function<void()>& act) {
    act();
    if (operation.name == std::string("remove")) removed.emplace_back(operation.object);
  });
  TemporaryDirectory directory;
  for (const bool replicated : {true, false}) {
    const std::string place = directory.path() + (replicated ? "/one" : "/two");
    LocalSave call{"removals://" + place, local_save_id(1)};
    // Another job ends this save at the last moment.
    const auto states = replicated ? states_of("replicated", 1) : states_of("dim-0", 2);
    CHECK(thrown_by_late_save(call, states, [&] { open_store(place)->fence(local_save_id(1)); }).code == ErrorCode::kFenced);
    CHECK(std::filesystem::is_empty(place));
    if (replicated) CHECK(removed == std::vector<std::string>{kIndex, "model-00001-of-00001.safetensors"});
  }
}

TEST_CASE("Hugging Face: files without record and index are refused if a save has begun") {
  TemporaryDirectory directory;
  const auto store = open_store(directory.path());
  put_part(directory.path() + "/model.safetensors", 0, {1, 2});
  store->begin_attempt(local_save_id(1));
  CHECK(has(error_of_reading(directory.path()), "a save to this place is under way, or died"));
  store->fence(local_save_id(1));
  CHECK(has(error_of_reading(directory.path()), "a save to this place is under way, or died"));
  store->clear_attempt(local_save_id(1));
  CHECK(error_of_reading(directory.path()).empty());
}

TEST_CASE("Hugging Face: a save that ends while its place is listed is read whole") {
  TemporaryDirectory directory;
  const std::string place = directory.path() + "/model", aside = directory.path() + "/aside";
  save(place, states_of("dim-0", 2), options_for(HuggingFaceFiles::kDistributed));
  std::filesystem::create_directory(aside);
  for (const char* name : {"/.metadata", "/shard-00002-model-00001-of-00001.safetensors"})
    std::filesystem::rename(place + name, aside + name);
  // The save of another process goes on once the files are listed.
  register_around("saving", "file", [&](Store&, const DecoratedOperation& operation, const std::function<void()>& act) {
    act();
    if (operation.name != std::string("list")) return;
    for (const auto& entry : std::filesystem::directory_iterator(aside))
      std::filesystem::rename(entry.path(), place / entry.path().filename());
  });
  HuggingFaceStorageReader reader;
  reader.reset("saving://" + place);
  CHECK(reader.read_metadata().files.size() == 2);
}

TEST_CASE("Hugging Face: an index that is too large to be one is refused") {
  TemporaryDirectory directory;
  put(directory.path() + "/" + kIndex, "{");
  std::filesystem::resize_file(directory.path() + "/" + kIndex, std::uintmax_t{1} << 40);
  CHECK(has(error_of_reading(directory.path()), "is too large for an index"));
}

TEST_CASE("Hugging Face: stores that give names only to whole objects are read, not written") {
  register_around("latenames", "file", nullptr, [](StoreTraits& traits) { traits.create_takes_name = false; });
  TemporaryDirectory directory;
  save(directory.path() + "/from", states_of("dim-0", 2));
  const std::string at = "latenames://" + directory.path();
  for (const HuggingFaceFiles files : {HuggingFaceFiles::kModel, HuggingFaceFiles::kDistributed}) {
    CHECK(thrown_by([&] { save(at + "/to", states_of("dim-0", 2), options_for(files)); }) ==
          Saying{ErrorCode::kUnsupported, "Save to a directory"});
  }
  CHECK(thrown_by([&] { consolidate_safetensors_files(at + "/from", at + "/to"); }).code == ErrorCode::kUnsupported);
  CHECK(names_at(directory.path() + "/to").empty());
  consolidate_safetensors_files(at + "/from", directory.path() + "/joined");
  CHECK(loads_as(directory.path() + "/joined", "dim-1", 2));
}

TEST_CASE("Hugging Face: a checkpoint in Cairn's own format does not replace safetensors files") {
  TemporaryDirectory directory;
  save(directory.path(), states_of("dim-0", 2));
  const std::set<std::string> names = names_at(directory.path());
  LocalSave call{directory.path(), local_save_id(2)};
  const StateDict state = state_in_layout("replicated", 0, 1);
  CHECK(thrown_by([&] { save_locally(call, {&state}, [] { return std::make_unique<CheckpointWriter>(); }); }) ==
        Saying{ErrorCode::kAlreadyExists, "Remove that checkpoint first"});
  CHECK(names_at(directory.path()) == names);
}

TEST_CASE("Hugging Face: files that a failed save could not remove are no checkpoint") {
  TemporaryDirectory directory;
  LocalSave call{directory.path() + "/model", local_save_id(1)};
  const auto lose_a_rank = [] { throw Error(ErrorCode::kUnavailable, "rank 1 was lost"); };
  // The lost rank removes nothing.
  CHECK(thrown_by_late_save(call, states_of("dim-0", 2), lose_a_rank, options_for(HuggingFaceFiles::kDistributed),
                            [](bool is_coordinators) { return is_coordinators; })
            .says("was lost"));
  CHECK(names_at(call.checkpoint_id) == std::set<std::string>{"shard-00002-model-00001-of-00001.safetensors"});
  CHECK(has(error_of_reading(call.checkpoint_id), "a save to this place is under way, or died"));
}

TEST_CASE("Hugging Face: a clean-up leaves the mark of a dead save with its files") {
  TemporaryDirectory directory;
  const std::string place = directory.path() + "/step_1";
  put_part(place + "/shard-00002-model-00001-of-00001.safetensors", 0, {1, 2});
  const auto store = open_store(place);
  store->begin_attempt(local_save_id(1));
  RunDirectory(directory.path()).remove_remains({}, true, [](const ObjectName&) { return true; });
  CHECK(has(error_of_reading(place), "a save to this place is under way, or died"));
}

TEST_CASE("Hugging Face: a save that fails late keeps files of another save") {
  TemporaryDirectory directory;
  const std::vector<StateDict> states = states_of("replicated", 1);
  LocalSave call{directory.path() + "/model", local_save_id(2)};
  const std::string file = call.checkpoint_id + "/model-00001-of-00001.safetensors";
  const auto freeze = [](const std::function<void()>& meanwhile) {
    meanwhile();
    throw Error(ErrorCode::kUnavailable, "the process was frozen until now");
  };
  SUBCASE("that was published") {
    const auto meanwhile = [&] {
      std::filesystem::remove(file);
      save(call.checkpoint_id, states);
    };
    CHECK(thrown_by_late_save(call, states, [&] { freeze(meanwhile); }).says("frozen"));
    CHECK(verify_checkpoint(*open_store(call.checkpoint_id)).empty());
  }
  SUBCASE("that has begun") {
    const auto meanwhile = [&] { open_store(call.checkpoint_id)->begin_attempt(local_save_id(1)); };
    CHECK(thrown_by_late_save(call, states, [&] { freeze(meanwhile); }).says("frozen"));
    CHECK(std::filesystem::exists(file));
  }
}

TEST_CASE("Hugging Face: a changed bit is found by verify, and not consolidated") {
  TemporaryDirectory directory;
  const std::string from = directory.path() + "/from", file = from + "/shard-00002-model-00001-of-00001.safetensors";
  save(from, states_of("dim-0", 2), options_for(HuggingFaceFiles::kDistributed));
  CHECK(verify_checkpoint(*open_store(from)).empty());
  std::string bytes = file_bytes(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  put(file, bytes);
  CHECK(verify_checkpoint(*open_store(from)).size() == 1);
  CHECK(thrown_by([&] { consolidate_safetensors_files(from, directory.path() + "/to"); }) ==
        Saying{ErrorCode::kCorrupt, "shard-00002-model-00001-of-00001.safetensors"});
  CHECK(names_at(directory.path() + "/to").empty());
}

TEST_CASE("Hugging Face: a removed checkpoint takes its files with it, and no others") {
  TemporaryDirectory directory;
  const std::string place = directory.path() + "/step_7";
  for (const HuggingFaceFiles files : {HuggingFaceFiles::kModel, HuggingFaceFiles::kDistributed}) {
    save(place, states_of("dim-0", 2), options_for(files));
    std::set<std::string> theirs{"config.json", "model-other.safetensors"};
    if (files == HuggingFaceFiles::kDistributed) theirs.insert(kIndex);  // such a save does not write one
    for (const std::string& name : theirs) put(place + "/" + name, "theirs");
    const RunDirectory run(directory.path());
    CHECK(run.remove(run.list().checkpoints.at(0)) == std::nullopt);
    CHECK(names_at(place) == theirs);
    std::filesystem::remove_all(place);
  }
}

TEST_CASE("Hugging Face: PyTorch's distributed files load, and gaps and overlaps are refused") {
  TemporaryDirectory directory;
  const auto part = [&](int rank) {
    return directory.path() + "/shard-0000" + std::to_string(rank) + "-model-00001-of-00001.safetensors";
  };
  put_part(part(1), 0, {0, 1, 2});
  put_part(part(2), 3, {3, 4});
  put_part(part(3), 5, {5});
  std::vector<StateDict> states(1);
  states[0]["w"] = torch::zeros({6});
  load(directory.path(), states);
  CHECK(torch::equal(states[0].at("w").tensor(), torch::arange(6, torch::kFloat32)));

  std::filesystem::remove(part(2));
  CHECK(has(error_of_reading(directory.path()), "'w' lacks data in [3:5]"));
  put_part(part(2), 2, {2, 3, 4});
  CHECK(has(error_of_reading(directory.path()), "'w' has overlapping chunks"));
}

TEST_CASE("Hugging Face: one tensor in two files without offsets is refused") {
  TemporaryDirectory directory;
  const std::string header = R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  for (const char* name : {"/a.safetensors", "/b.safetensors"}) put(directory.path() + name, length_of(header) + header + "x");
  CHECK(has(error_of_reading(directory.path()), "\"w\" is in two files"));
  put(directory.path() + "/" + kIndex, R"({"weight_map":{"w":"b.safetensors"}})");
  CHECK(error_of_reading(directory.path()).empty());
  put(directory.path() + "/" + kIndex, R"({"weight_map":{"w":"b.safetensors","v":"b.safetensors"}})");
  CHECK(has(error_of_reading(directory.path()), "lacks \"v\""));
  put(directory.path() + "/" + kIndex, R"({"weight_map":{"w":"../b.safetensors"}})");
  CHECK(has(error_of_reading(directory.path()), "outside its directory"));
}

TEST_CASE("Hugging Face: quantised weights load multiplied by the scales of their blocks") {
  struct Number {
    const char* type;
    unsigned char bits;
    float value;
  };
  const float nan = std::nanf(""), infinity = HUGE_VALF;
  const Number numbers[] = {
      {"F8_E4M3", 0x00, 0},      {"F8_E4M3", 0x01, 0x1p-9f}, {"F8_E4M3", 0x08, 0x1p-6f},   {"F8_E4M3", 0x38, 1},
      {"F8_E4M3", 0xc5, -3.25f}, {"F8_E4M3", 0x7e, 448},     {"F8_E4M3", 0xff, nan},       {"F8_E5M2", 0x01, 0x1p-16f},
      {"F8_E5M2", 0x3c, 1},      {"F8_E5M2", 0x7b, 57344},   {"F8_E5M2", 0xfc, -infinity}, {"F8_E5M2", 0x7d, nan},
      {"I8", 0x7f, 127},         {"I8", 0x80, -128}};
  TemporaryDirectory directory;
  const torch::Tensor scales = torch::tensor({{1.f, 2.f, 3.f}, {4.f, 5.f, 6.f}});
  const torch::Tensor factors = scales.repeat_interleave(3, 0).repeat_interleave(3, 1).narrow(0, 0, 5).narrow(1, 0, 7);
  for (const Number& number : numbers) {
    CAPTURE(number.type);
    CAPTURE(static_cast<int>(number.bits));
    const torch::Tensor weight = torch::full({5, 7}, number.bits, torch::kUInt8);
    put_quantized(directory.path() + "/model.safetensors", number.type, weight, scales);
    std::vector<StateDict> states(1);
    states[0]["a.weight"] = torch::zeros({5, 7});
    load(directory.path(), states, dequantized(3));
    CHECK(torch::allclose(states[0].at("a.weight").tensor(), factors * number.value, 0, 0, true));
  }
}

TEST_CASE("Hugging Face: a quantised weight in parts of two ranks loads on two others") {
  TemporaryDirectory directory;
  const torch::Tensor weight = torch::arange(-20, 15, torch::kInt8).reshape({5, 7});
  const torch::Tensor scales = torch::tensor({{1.f, 2.f, 3.f}, {4.f, 5.f, 6.f}});
  for (const int begin : {0, 2}) {
    const torch::Tensor rows = weight.narrow(0, begin, begin == 0 ? 2 : 3).contiguous();
    const nlohmann::json offsets{{"a.weight", {{"saved_offsets", {begin, 0}}}}};
    nlohmann::json header{{"__metadata__", {{"DCP_SHARDING_INFO", offsets.dump()}, {"DCP_VERSION", "1.0"}, {"format", "pt"}}},
                          {"a.weight", {{"dtype", "I8"}, {"shape", rows.sizes().vec()}, {"data_offsets", {0, rows.nbytes()}}}}};
    std::string bytes(static_cast<const char*>(rows.data_ptr()), rows.nbytes());
    if (begin == 2) {
      header["a.weight_scale_inv"] = {
          {"dtype", "F32"}, {"shape", {2, 3}}, {"data_offsets", {bytes.size(), bytes.size() + scales.nbytes()}}};
      bytes.append(static_cast<const char*>(scales.data_ptr()), scales.nbytes());
    }
    put(directory.path() + "/" + std::to_string(begin) + ".safetensors", length_of(header.dump()) + header.dump() + bytes);
  }
  const torch::Tensor expected =
      weight.to(torch::kFloat32) * scales.repeat_interleave(3, 0).repeat_interleave(3, 1).narrow(0, 0, 5).narrow(1, 0, 7);
  for (const Box& part : {Box{{0, 0}, {3, 7}}, Box{{3, 0}, {2, 7}}, Box{{1, 2}, {3, 4}}}) {
    OpenReader<HuggingFaceStorageReader> opened(directory.path(), dequantized(3));
    const torch::Tensor loaded = read_part(opened.reader, "a.weight", opened.stored("a.weight"), part);
    CHECK(torch::equal(loaded, expected.narrow(0, part.offsets[0], part.sizes[0]).narrow(1, part.offsets[1], part.sizes[1])));
  }
}

TEST_CASE("Hugging Face: scales that belong to no weight, or cannot be used, are refused") {
  struct Row {
    const char* type;
    std::vector<std::int64_t> weight;
    const char* scale_type;
    std::int64_t block;
    Saying refusal;
  };
  TemporaryDirectory directory;
  for (const Row& row : {Row{"F8_E4M3", {5, 7, 1}, "F32", 3, {ErrorCode::kUnsupported, "\"a.weight\""}},
                         Row{"I8", {5, 7}, "F32", 128,
                             {ErrorCode::kMismatch, "has the size [2, 3], but blocks of 128 need [1, 1]"}},
                         // Exponents alone, which must not be misread.
                         Row{"F8_E4M3", {5, 7}, "F8_E8M0", 3, {ErrorCode::kUnsupported, "float8_e8m0fnu"}}}) {
    const auto scales = torch::ones({2, 3}, row.scale_type[1] == '8' ? torch::kUInt8 : torch::kFloat32);
    const auto weight = torch::ones(row.weight, torch::kUInt8);
    put_quantized(directory.path() + "/model.safetensors", row.type, weight, scales, row.scale_type);
    CHECK(thrown_by_reading(directory.path(), dequantized(row.block)) == row.refusal);
  }
  CHECK(thrown_by([] { HuggingFaceStorageReader refused(dequantized(0)); }).code == ErrorCode::kInvalidArgument);
}

TEST_CASE("Hugging Face: hostile headers are refused") {
  TemporaryDirectory directory;
  const auto parts = [](const std::string& info) {
    return R"({"__metadata__":{"DCP_SHARDING_INFO":")" + info + R"("},"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  };
  const std::vector<std::string> headers{"",
                                         "{",
                                         "[]",
                                         "{}",
                                         std::string(1000, '['),
                                         R"({"w":)" + std::string(1000, '['),
                                         R"({"w":{"dtype":"U8","shape":[2],"data_offsets":[0,1]}})",
                                         R"({"w":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})",
                                         R"({"w":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,1]}})",
                                         R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                                         R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[18446744073709551615,0]}})",
                                         R"({"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                                         R"({"w":{"dtype":7,"shape":[1],"data_offsets":[0,1]}})",
                                         R"({"w":{"dtype":"U8","shape":[1.7],"data_offsets":[0,1]}})",
                                         R"({"w":{"dtype":"U8","shape":{"a":1},"data_offsets":[0,1]}})",
                                         R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0.5,1.5]}})",
                                         R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}})",
                                         R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[1]}})",
                                         R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                         R"("w":{"dtype":"I8","shape":[1],"data_offsets":[0,1]}})",
                                         R"({"w":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})",
                                         parts("nonsense"),
                                         parts(R"({\"w\":7})"),
                                         parts(R"({\"w\":{\"saved_offsets\":[]}})"),
                                         parts(R"({\"w\":{\"saved_offsets\":[-1]}})"),
                                         parts(R"({\"w\":{\"saved_offsets\":[0.5]}})"),
                                         parts(R"({\"w\":{\"saved_offsets\":[9223372036854775807]}})"),
                                         parts(R"({\"w\":{\"saved_offsets\":[1],\"global_shape\":[1]}})"),
                                         parts(std::string(1000, '['))};
  for (const std::string& header : headers) {
    CAPTURE(header);
    put(directory.path() + "/model.safetensors", length_of(header) + header + "x");
    CHECK(has(error_of_reading(directory.path()), "damaged, or not a safetensors file"));
  }
  put(directory.path() + "/model.safetensors", std::string(8, '\xff') + "{}");
  CHECK(has(error_of_reading(directory.path()), "it has no header"));
}

TEST_CASE("Hugging Face: a header beyond the format's limit is neither read nor written") {
  constexpr std::uint64_t kHeaderBytes = 100'000'001;
  const auto of_file = [&](char first) {
    return thrown_by([&] {
      read_safetensors(
          2 * kHeaderBytes,
          [&](std::uint64_t offset, MutableByteSpan to) {
            REQUIRE(offset + to.size() <= 9);
            const std::string begin = length_of(std::string(kHeaderBytes, ' ')) + first;
            std::copy_n(begin.data() + offset, to.size(), to.data());
          },
          "a file");
    });
  };
  CHECK(of_file('{').code == ErrorCode::kUnsupported);
  CHECK(of_file('{').says("a header of 100000001 bytes"));
  CHECK(of_file('x').code == ErrorCode::kCorrupt);
  CHECK(thrown_by([&] {
          lay_out_safetensors({}, {{"note", std::string(kHeaderBytes, 'x')}});
        }) == Saying{ErrorCode::kUnsupported, "the format allows 100000000"});
}
