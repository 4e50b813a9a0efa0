// Checkpoints of torch_checkpointing: two that it wrote, and others that the tests make.
#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include <cairn/tests/support/torch.hpp>

#include <cairn/base/error.hpp>
#include <cairn/formats/pickler.hpp>
#include <cairn/formats/safetensors.hpp>
#include <cairn/state/leaf_bytes.hpp>
#include <cairn/state/torch_checkpointing.hpp>
#include <cairn/storage/format/items_record.hpp>
#include <cairn/storage/saved_files.hpp>
#include <cairn/tests/support/laid_out_state.hpp>
#include <cairn/tests/support/local_protocol.hpp>
#include <cairn/tests/support/safetensors.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tests/support/thrown.hpp>

using namespace cairn;
using namespace cairn::testing;

namespace {

const std::string kData = std::string(CAIRN_TEST_DATA) + "/torch_checkpointing-0.1.0/";

// A copy of a checkpoint, or an empty place, in which tests write files.
struct ItemsPlace {
  explicit ItemsPlace(const std::string& copied = "") : path(directory.path() + "/checkpoint") {
    std::filesystem::create_directory(path);
    if (!copied.empty()) std::filesystem::copy(kData + copied, path);
  }
  void put(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories(std::filesystem::path(path + "/" + name).parent_path());
    std::ofstream(path + "/" + name, std::ios::binary) << bytes;
  }
  TemporaryDirectory directory;
  const std::string path;
};

void load_items(const std::string& path, std::vector<StateDict>& states) {
  std::vector<StateDict*> ranks;
  for (StateDict& state : states) ranks.push_back(&state);
  load_locally(path, ranks, [] { return std::make_unique<TorchCheckpointingReader>(); });
}

bool are_equal_states(const StateDict& a, const StateDict& b) {
  const FlatStateDict left = flatten(a), right = flatten(b);
  bool equal = left.size() == right.size();
  for (std::size_t i = 0; equal && i < left.size(); ++i) {
    const Value &one = left[i].value, &other = right[i].value;
    if (one.is_tensor()) equal = torch::equal(one.tensor(), other.tensor());
    if (one.is_ivalue()) equal = one.ivalue() == other.ivalue();
    for (std::size_t shard = 0; equal && one.is_sharded() && shard < one.sharded().local_shards().size(); ++shard)
      equal = torch::equal(one.sharded().local_shards()[shard].tensor, other.sharded().local_shards()[shard].tensor);
  }
  return equal;
}

Thrown error_of_items(const std::string& path) {
  return thrown_by([&] {
    TorchCheckpointingReader reader;
    reader.reset(path);
    reader.read_metadata();
  });
}

// Pickles a record that is spelled as JSON. Keys of digits are ints.
void put_record(Pickler& out, const nlohmann::ordered_json& json) {
  if (json.is_null()) return out.none();
  if (json.is_string()) return void(out.text(json.get<std::string>()));
  if (json.is_number()) return out.integer(json.get<std::int64_t>());
  json.is_array() ? out.empty_list() : out.empty_dict();
  out.mark();
  for (const auto& [key, element] : json.items()) {
    if (json.is_object()) std::isdigit(key[0]) != 0 ? out.integer(std::stoi(key)) : void(out.text(key));
    put_record(out, element);
  }
  json.is_array() ? out.appends() : out.set_items();
}

std::string pickled_record(const std::string& json) {
  Pickler out(4);
  put_record(out, nlohmann::ordered_json::parse(json));
  return std::move(out).finish();
}

// One group of two ranks that hold a float32 tensor.
std::string group_of_two(const std::string& shape, const std::string& placements, const std::string& mesh = "[2]") {
  return R"({"sharding_metadata": {"type": "DTensorShardingMetadata", "data": {"global_shape": )" + shape +
         R"(, "dtype": "torch.float32", "stride": [1], "mesh_spec": {"device_type": "cpu", "mesh_shape": )" + mesh +
         R"(, "mesh_data": [0, 1], "mesh_dim_names": null}, "placements": )" + placements + R"(}}, "ranks": [0, 1]})";
}

std::string nested_record(const std::string& groups, const std::string& version = "2.0") {
  return R"({"metadata": {"model": {"nested_path_to_metadata": {"[\"w\"]": [)" + groups +
         R"(]}, "rank_to_layout_info": {"0": null, "1": null}}}, "world_size": 2, "version": ")" + version + R"("})";
}

constexpr const char* kShard = R"([{"type": "Shard", "dim": 0}])";

std::string layout_text(const std::string& path, const std::string& type) {
  return R"({"file_path": ")" + path + R"(", "serialization_format": {"type": ")" + type + R"("}})";
}

}  // namespace

TEST_CASE("torch_checkpointing: what 1 and 2 ranks wrote loads on 1, 2 and 3, in any layout") {
  const torch::Tensor w = torch::arange(60, torch::kFloat32).reshape({10, 6}), b = torch::arange(7).to(torch::kBFloat16);
  for (const std::string source : {"world_1", "world_2"})
    for (const int world_size : {1, 2, 3})
      for (const char* layout : {"replicated", "dim-0", "dim-1", "uneven"}) {
        CAPTURE(source);
        CAPTURE(world_size);
        CAPTURE(layout);
        const auto states_of = [&](bool zeroed) {
          std::vector<StateDict> states(static_cast<std::size_t>(world_size));
          const auto filled = [&](const torch::Tensor& tensor) { return zeroed ? torch::zeros_like(tensor) : tensor; };
          for (int rank = 0; rank < world_size; ++rank) {
            StateDict& state = states[static_cast<std::size_t>(rank)];
            state["model"] = Dict{{"w", lay_out(layout, filled(w), rank, world_size)}, {"b", filled(b).clone()}};
            state["model"]["nested"] = Dict{{"s", filled(torch::tensor(3.5f)).clone()}};
            if (source == "world_2") state["model"]["nested"]["c"] = lay_out(layout, filled(w), rank, world_size);
            state["step"] = zeroed ? 0 : 7;
            state["plain"] = Dict{{"lr", zeroed ? 0.0 : 0.1}, {"name", zeroed ? "" : "x"}};
          }
          return states;
        };
        std::vector<StateDict> states = states_of(true);
        const std::vector<StateDict> expected = states_of(false);
        load_items(kData + source, states);
        for (std::size_t rank = 0; rank < states.size(); ++rank) CHECK(are_equal_states(states[rank], expected[rank]));
      }
}

TEST_CASE("torch_checkpointing: a value that ranks saved differently is each rank's own") {
  const ItemsPlace place("world_2");
  place.put("plain_1.pt", serialize_leaf(Dict{{"lr", 0.2}, {"name", "x"}}));
  place.put("own_0.pt", serialize_leaf(Dict{{"seen", torch::tensor({1, 2})}}));
  place.put("own_1.pt", serialize_leaf(Dict{{"seen", torch::tensor({3, 4})}}));
  const auto empty = [] {
    return StateDict{{"plain", Dict{{"lr", 0.0}}}, {"own", Dict{{"seen", torch::zeros({2}, torch::kInt64)}}}};
  };
  std::vector<StateDict> states{empty(), empty()};
  load_items(place.path, states);
  CHECK(states[0]["plain"]["lr"].to_double() == 0.1);
  CHECK(states[1]["plain"]["lr"].to_double() == 0.2);
  CHECK(torch::equal(states[1]["own"]["seen"].tensor(), torch::tensor({3, 4})));

  std::vector<StateDict> one{StateDict{{"plain", Dict{{"lr", 0.0}}}}};
  CHECK(thrown_by([&] { load_items(place.path, one); }) ==
        Saying{ErrorCode::kMismatch, "\"plain.lr\" in " + place.path + ": its value on rank 1 differs from that on rank 0"});
  one = {StateDict{{"own", Dict{{"seen", torch::zeros({2}, torch::kInt64)}}}}};
  CHECK(thrown_by([&] { load_items(place.path, one); }) == Saying{ErrorCode::kMismatch, "own.seen"});
  one = {StateDict{{"plain", Dict{{"name", ""}}}}};
  load_items(place.path, one);
  CHECK(one[0]["plain"]["name"].to_text() == "x");
}

TEST_CASE("torch_checkpointing: the files of failed saves are named") {
  const std::string whole = file_bytes(kData + "world_2/model_1.pt");
  const auto with = [](const std::string& name, const std::string& bytes) {
    const ItemsPlace place("world_2");
    place.put(name, bytes);
    return error_of_items(place.path);
  };
  CHECK(with("model_1.pt", "") == Saying{ErrorCode::kCorrupt, "It has 0 bytes: a save that failed leaves an empty or short file"});
  CHECK(with("step_0.pt", "") == Saying{ErrorCode::kCorrupt, "step_0.pt"});
  CHECK(with("metadata.pkl", "") == Saying{ErrorCode::kCorrupt, "metadata.pkl"});
  const Thrown cut = with("model_1.pt", whole.substr(0, whole.size() / 2));
  CHECK(cut == Saying{ErrorCode::kCorrupt, "model_1.pt"});
  CHECK(cut.says("It has 2156 bytes: a save that failed leaves"));
  CHECK(with("model_1.pt", file_bytes(kData + "world_2/step_1.pt")) ==
        Saying{ErrorCode::kCorrupt, "model_1.pt holds no tensor for \"model."});
  CHECK(with("model_1.pt", serialize_leaf(Dict{{"w", torch::zeros({5, 6})}, {"nested", Dict{{"c", torch::zeros({10, 6})}}}})) ==
        Saying{ErrorCode::kCorrupt, "holds [10, 6] float32 for \"model.nested.c\", where [10, 3] float32 was expected"});

  const ItemsPlace place("world_2");
  std::filesystem::remove(place.path + "/model_1.pt");
  CHECK(error_of_items(place.path) == Saying{ErrorCode::kNotFound, "model_1.pt"});
  CHECK(error_of_items(ItemsPlace().path) == Saying{ErrorCode::kNotFound, "torch_checkpointing wrote nothing at"});
  CHECK(error_of_items("mem://torch_checkpointing") == Saying{ErrorCode::kUnsupported, "directories only"});

  // A bit of an element that has changed.
  const ItemsPlace damaged("world_2");
  std::string changed = whole;
  changed[changed.find(std::string("\0\0\xf0\x41\0\0\xf8\x41", 8))] ^= 1;  // 30, 31: the first elements of rank 1
  damaged.put("model_1.pt", changed);
  std::vector<StateDict> states{StateDict{{"model", Dict{{"w", torch::zeros({10, 6})}}}}};
  CHECK(thrown_by([&] { load_items(damaged.path, states); }) == Saying{ErrorCode::kCorrupt, "the checksum of a tensor's elements"});
}

TEST_CASE("torch_checkpointing: without a record a DTensor is refused, and the rest loads") {
  const ItemsPlace place("world_2");
  std::filesystem::remove(place.path + "/metadata.pkl");
  TorchCheckpointingReader reader;
  reader.reset(place.path);
  const Metadata metadata = reader.read_metadata();
  CHECK(std::get<BytesStorageMetadata>(*metadata.find("model.w")).opaque == "torch.distributed.tensor.DTensor");
  CHECK(metadata.find("model.w.3.1._local_tensor") == nullptr);
  const std::string why = open_torch_checkpointing(place.path)->why_unreadable("model.w");
  CHECK(why.find("metadata.pkl does not tell its place") != std::string::npos);
  std::vector<StateDict> states(3);
  for (StateDict& state : states) state = {{"step", 0}, {"model", Dict{{"nested", Dict{{"s", torch::tensor(0.0f)}}}}}};
  load_items(place.path, states);
  for (StateDict& state : states) CHECK(state["step"].to_int() == 7);
  CHECK(torch::equal(states[2]["model"]["nested"]["s"].tensor(), torch::tensor(3.5f)));
  states.resize(1);
  states[0] = {{"model", Dict{{"w", torch::zeros({10, 6})}}}};
  CHECK(thrown_by([&] { load_items(place.path, states); }).says("model.w"));
}

TEST_CASE("torch_checkpointing: version 1.0, and items in other files and formats") {
  const ItemsPlace place;
  const auto groups = group_of_two("[5, 2]", kShard);
  std::string layouts;
  for (const std::string rank : {"0", "1"})
    layouts += (rank == "0" ? "" : ", ") + ("\"" + rank + "\": {\"model\": ") +
               layout_text("rank_" + rank + "/m.safetensors", "SafetensorsSerialization") +
               ", \"optim\": " + layout_text("optim-" + rank, "TorchSerialization") + ", \"absent\": null" +
               (rank == "0" ? ", \"config\": " + layout_text("shared/config.json", "JsonSerialization") +
                                  ", \"note\": " + layout_text("note.bin", "RawSerialization")
                            : "") +
               "}";
  place.put("metadata.pkl", pickled_record(R"({"metadata": {"[\"model\",\"layer\",\"w\"]": [)" + groups +
                                           R"(], "[\"optim\",\"state\",0,\"m\"]": [)" + groups +
                                           R"(]}, "rank_to_layout_info_mappings": {)" + layouts + R"(}, "world_size": 2})"));
  const torch::Tensor w = counting({5, 2});
  for (const int rank : {0, 1}) {
    const torch::Tensor part = w.slice(0, rank * 3, std::min(5, rank * 3 + 3)).contiguous();
    const SafetensorsLayout head = lay_out_safetensors({{"layer.w", DType::kFloat32, extents_of(part.sizes()), {}, {}}}, {});
    place.put("rank_" + std::to_string(rank) + "/m.safetensors",
              head.head + std::string(static_cast<const char*>(part.data_ptr()), part.nbytes()));
    place.put("optim-" + std::to_string(rank), serialize_leaf(Dict{{"state", List{Dict{{"m", part * 2}}}}, {"lr", 0.5}}));
  }
  place.put("shared/config.json", R"({"depth": 3, "names": ["a", "b"], "more": {"big": 1e3, "off": null, "on": true}})");
  place.put("note.bin", std::string("\0raw", 4));
  for (const int world_size : {1, 3}) {
    std::vector<StateDict> states(static_cast<std::size_t>(world_size));
    for (int rank = 0; rank < world_size; ++rank) {
      StateDict& state = states[static_cast<std::size_t>(rank)];
      state["model"] = Dict{{"layer.w", lay_out("dim-0", torch::zeros_like(w), rank, world_size)}};
      state["optim"] = Dict{{"state", List{Dict{{"m", torch::zeros_like(w)}}}}, {"lr", 0.0}};
      state["config"] = Dict{{"depth", 0}, {"names", List{}}, {"more", Dict{{"big", 0.0}, {"on", false}}}};
      state["note"] = Blob{};
    }
    load_items(place.path, states);
    for (int rank = 0; rank < world_size; ++rank) {
      StateDict& state = states[static_cast<std::size_t>(rank)];
      CHECK(are_equal_states({{"w", state["model"]["layer.w"]}}, {{"w", lay_out("dim-0", w, rank, world_size)}}));
      CHECK(torch::equal(state["optim"]["state"].list()[0].dict()["m"].tensor(), w * 2));
      CHECK(state["optim"]["lr"].to_double() == 0.5);
      CHECK(state["config"]["depth"].to_int() == 3);
      CHECK(state["config"]["names"].list()[1].to_text() == "b");
      CHECK(state["config"]["more"]["big"].to_double() == 1000);
      CHECK(state["note"].blob().bytes == std::string("\0raw", 4));
    }
  }
  place.put("shared/config.json", "{");
  CHECK(error_of_items(place.path) == Saying{ErrorCode::kCorrupt, "config.json is no JSON"});
}

TEST_CASE("torch_checkpointing: a record is refused by name where it cannot be read") {
  const auto error = [](const std::string& json) {
    return thrown_by([&] { decode_items_record(pickled_record(json), "the record"); });
  };
  const auto of = [&](const std::string& groups) { return error(nested_record(groups)); };
  CHECK_FALSE(of(group_of_two("[4]", kShard)).is_error);
  CHECK(error(nested_record(group_of_two("[4]", kShard), "3.0")) == Saying{ErrorCode::kUnsupported, "version 3.0"});
  CHECK(of(group_of_two("[4]", R"([{"type": "StridedShard", "dim": 0, "split_factor": 2}])")) ==
        Saying{ErrorCode::kUnsupported, "the placement StridedShard"});
  CHECK(of(group_of_two("[4]", R"([{"type": "Shard", "dim": 1}])")) == Saying{ErrorCode::kCorrupt, "the record"});
  CHECK(of(group_of_two("[4]", "[]")) == Saying{ErrorCode::kCorrupt, "the record"});
  CHECK(of(group_of_two("[4]", kShard, "[3]")) == Saying{ErrorCode::kCorrupt, "the record"});
  CHECK(of(group_of_two("[4]", kShard) + ", " + group_of_two("[5]", kShard)) ==
        Saying{ErrorCode::kUnsupported, "of different sizes or types"});
  CHECK(of("") == Saying{ErrorCode::kCorrupt, "without ranks"});
  const auto replaced = [](std::string text, const std::string& part, const std::string& by) {
    return text.replace(text.find(part), part.size(), by);
  };
  const std::string sound = nested_record(group_of_two("[4]", kShard));
  CHECK(error(replaced(sound, "DTensorShardingMetadata", "Own")) == Saying{ErrorCode::kUnsupported, "sharding of the kind Own"});
  CHECK(error(replaced(sound, "\"world_size\": 2", "\"world_size\": 1")) == Saying{ErrorCode::kCorrupt, "rank 1 of 1"});
  CHECK(error(replaced(sound, R"([\"w\"])", "w")) == Saying{ErrorCode::kCorrupt, "a path that is no list"});
  CHECK(error(replaced(sound, R"("0": null)", R"("0": )" + layout_text("x", "Own"))) ==
        Saying{ErrorCode::kUnsupported, "the serialization Own"});
  for (const char* path : {"../x", "a/../../x", "/x", ""})
    CHECK(error(replaced(sound, R"("0": null)", R"("0": )" + layout_text(path, "TorchSerialization"))) ==
          Saying{ErrorCode::kCorrupt, "leads out of the checkpoint"});
  CHECK(thrown_by([] { decode_items_record(ByteSpan("cos\nsystem\n."), "the record"); }) ==
        Saying{ErrorCode::kUnsupported, "os.system"});
  // Empty shards need no file.
  const ItemsRecord record = decode_items_record(pickled_record(nested_record(group_of_two("[1]", kShard))), "the record");
  CHECK(record.tensors.at(0).files == std::vector<std::uint32_t>{0});
  CHECK(record.files.size() == 2);
}
