// State dicts in files of torch.save, loaded by TorchSaveReader. serialize_leaf writes such files.
#include <filesystem>
#include <fstream>
#include <utility>

#include <cairn/tests/support/torch.hpp>

#include <cairn/base/error.hpp>
#include <cairn/formats/torch_archive.hpp>
#include <cairn/state/leaf_bytes.hpp>
#include <cairn/state/torch_save.hpp>
#include <cairn/storage/saved_files.hpp>
#include <cairn/tests/storage/damage.hpp>
#include <cairn/tests/support/laid_out_state.hpp>
#include <cairn/tests/support/local_protocol.hpp>
#include <cairn/tests/support/sample_state.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tests/support/thrown.hpp>

using namespace cairn;
using namespace cairn::testing;
using namespace std::string_literals;

namespace {

std::string put(const TemporaryDirectory& directory, const std::string& bytes) {
  const std::string path = directory.path() + "/model.pt";
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

void load_file(const std::string& path, std::vector<StateDict>& states) {
  std::vector<StateDict*> ranks;
  for (StateDict& state : states) ranks.push_back(&state);
  load_locally(path, ranks, [] { return std::make_unique<TorchSaveReader>(); });
}

}  // namespace

TEST_CASE("torch.save: a file loads in any layout") {
  TemporaryDirectory directory;
  StateDict saved;
  for (const auto& [name, whole] : whole_tensors()) saved.insert(name, whole);
  const std::string path = put(directory, serialize_leaf(saved));
  for (const char* layout : {"dim-0", "dim-1", "uneven"}) {
    std::vector<StateDict> states;
    for (int rank = 0; rank < 3; ++rank) states.push_back(state_in_layout(layout, rank, 3, true));
    load_file(path, states);
    for (int rank = 0; rank < 3; ++rank) CHECK(holds_expected(states[static_cast<std::size_t>(rank)], layout, rank, 3));
  }
}

TEST_CASE("torch.save: one opaque value leaves the others readable, and its tensors") {
  // {"model": {"w": …}, "odd": own.Model(_w=…, lr=…, broken: a tensor without its storage), "step":
  // 7}
  const auto tensor = [](const std::string& storage) {
    return "ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x00"s + storage +
           "X\x03\x00\x00\x00"s + "cpuK\x02tQK\x00K\x02\x85K\x01\x85\x89"s + "ccollections\nOrderedDict\n)RtR";
  };
  const auto key = [](const std::string& text) { return "X"s + static_cast<char>(text.size()) + "\0\0\0"s + text; };
  const std::string odd =
      "cown\nModel\n)\x81}(" + key("_w") + tensor("1") + key("lr") + "K\x03" + key("broken") + tensor("9") + "ub";
  const std::string pickle =
      "\x80\x02}(" + key("model") + "}" + key("w") + tensor("0") + "s" + key("odd") + odd + key("step") + "K\x07" + "u.";
  const float first[] = {1, 2}, second[] = {3, 4};
  const std::vector<ByteSpan> storages{ByteSpan(first, sizeof first), ByteSpan(second, sizeof second)};
  TemporaryDirectory directory;
  const std::string path = put(directory, write_torch_archive(pickle, storages));

  TorchSaveReader reader;
  reader.reset(path);
  std::vector<std::string> names;
  for (const auto& [name, entry] : reader.read_metadata().state_dict_metadata) names.push_back(name);
  CHECK(names == std::vector<std::string>{"model.w", "odd", "step", "odd._w"});
  const auto files = open_torch_save(path);
  CHECK(files->value("odd").opaque == "own.Model");
  CHECK(files->elements("odd._w", 0).dense() == Bytes(reinterpret_cast<const char*>(second), sizeof second));

  std::vector<StateDict> states(1);
  states[0]["model"]["w"] = torch::zeros({2});
  states[0]["odd"]["_w"] = torch::zeros({2});
  states[0]["step"] = 0;
  load_file(path, states);
  CHECK(torch::equal(states[0]["model"]["w"].tensor(), torch::tensor({1.0f, 2.0f})));
  CHECK(torch::equal(states[0]["odd"]["_w"].tensor(), torch::tensor({3.0f, 4.0f})));
  CHECK(states[0]["step"].to_int() == 7);
  states[0]["odd"] = Value();
  CHECK(thrown_by([&] { load_file(path, states); }).says("own.Model"));

  // Each place of a tensor has a copy of its name, also where a pickle shares the name.
  std::string many =
      "\x80\x02"
      "cown\nModel\n(" +
      tensor("0") + "q\x01X\0\0\1\0"s + std::string(1 << 16, 'k') + "q\x02";
  for (int i = 0; i < 2000; ++i) many += "}h\x02h\x01s";
  TorchSaveReader of_many;
  of_many.reset(put(directory, write_torch_archive(many + "tR.", storages)));
  CHECK(thrown_by([&] { of_many.read_metadata(); }).says("more memory"));
}

// Files of PyTorch 2.14, of four ranks: "w" on a mesh of 2 by 2, cut by its second axis, "p" cut by
// all four, of which the last has nothing, and "r" on all.
TEST_CASE("torch.save: a DTensor is joined with the parts in the files of other ranks") {
  namespace fs = std::filesystem;
  const std::string data = std::string(CAIRN_TEST_DATA) + "/pytorch-2.14/torch_save/";
  const auto whole = torch::arange(20, torch::kFloat32).reshape({5, 4});
  for (const int ranks : {1, 2}) {
    std::vector<StateDict> states;
    for (int rank = 0; rank < ranks; ++rank)
      states.push_back({{"w", ShardedTensor::zeros(over_all_ranks(ranks, 1), {5, 4}, rank)},
                        {"p", torch::zeros({5, 4})},
                        {"r", torch::zeros({5, 4})},
                        {"plain", torch::zeros({2})}});
    load_file(data + "rank1.pt", states);
    for (int rank = 0; rank < ranks; ++rank) {
      const StateDict& state = states[static_cast<std::size_t>(rank)];
      CHECK(torch::equal(state.at("w").sharded().local_shards().at(0).tensor, whole.chunk(ranks, 1)[rank]));
      for (const char* name : {"p", "r"}) CHECK(torch::equal(state.at(name).tensor(), whole));
      CHECK(torch::equal(state.at("plain").tensor(), torch::ones({2})));
    }
  }

  const TemporaryDirectory directory;
  const std::string alone = directory.path() + "/rank1.pt";
  fs::copy(data + "rank1.pt", alone);
  std::vector<StateDict> states{{{"r", torch::zeros({5, 4})}, {"plain", torch::zeros({2})}}};
  load_file(alone, states);
  CHECK(torch::equal(states[0].at("r").tensor(), whole));
  states[0]["w"] = torch::zeros({5, 4});
  CHECK(thrown_by([&] { load_file(alone, states); }) ==
        Saying{
            ErrorCode::kMismatch,
            "\"w\": the checkpoint holds a value of torch.distributed.tensor.DTensor, of which there is only the part [3:5, 0:4]"});
  fs::copy(data + "rank0.pt", directory.path() + "/rank0.pt");
  std::ofstream(directory.path() + "/rank3.pt") << "no archive";
  load_file(alone, states);  // "w" is whole on ranks 0 and 1
  CHECK(torch::equal(states[0].at("w").tensor(), whole));
  states[0]["p"] = torch::zeros({5, 4});
  CHECK(thrown_by([&] { load_file(alone, states); }) == Saying{ErrorCode::kMismatch, "\"p\""});

  // A part without all of its elements is damaged, whatever the other files have.
  const MappedFile mapped(data + "rank1.pt");
  const TorchArchive archive(mapped.bytes(), "rank1.pt");
  std::vector<Bytes> storages;
  const auto key = [&] { return std::to_string(storages.size()); };
  while (archive.has_storage(key())) storages.push_back(archive.read_storage(key()));
  REQUIRE(storages.size() > 3);
  int damaged = 0;  // of "w", "p", "r" and "plain"; the others have the ranks of a mesh
  for (Bytes& storage : storages) {
    const Bytes kept = std::exchange(storage, Bytes("short"));
    const std::string path = put(directory, write_torch_archive(archive.pickle(), {storages.begin(), storages.end()}));
    damaged += thrown_by([&] { open_torch_save(path); }) == Saying{ErrorCode::kCorrupt, "are described"};
    storage = kept;
  }
  CHECK(damaged == 4);
}

TEST_CASE("torch.save: a device that PyTorch would refuse is opaque") {
  const TemporaryDirectory directory;
  const auto text = [](const std::string& value) { return "X"s + static_cast<char>(value.size()) + "\0\0\0"s + value; };
  for (const char* name : {"cuda:zzz", "cuda:", "cuda:-7", "cuda:01", "cuda: +1", "cuda:1:1", "cuda:99999999999", "banana", ""}) {
    CAPTURE(name);
    const std::string pickle = "\x80\x02}" + text("device") + "ctorch\ndevice\n" + text(name) + "\x85Rs.";
    const auto file = open_torch_save(put(directory, write_torch_archive(pickle, {})));
    CHECK(file->value("device").is_opaque());
    CHECK(file->value("device").why.find("which PyTorch does not know") != std::string::npos);
  }
}

TEST_CASE("torch.save: buffers and whole DTensors are tensors") {
  const std::string data = std::string(CAIRN_TEST_DATA) + "/pytorch-2.14/torch_save/";
  const auto whole = torch::arange(6, torch::kFloat32).reshape({2, 3});
  std::vector<StateDict> states{{{"w", torch::zeros({2, 3})}, {"b", torch::zeros({2, 3})}}};
  load_file(data + "buffer.pt", states);
  for (const char* name : {"w", "b"}) CHECK(torch::equal(states[0].at(name).tensor(), whole));
  states = {{{"w", torch::zeros({2, 3})}}};
  load_file(data + "dtensor.pt", states);
  CHECK(torch::equal(states[0].at("w").tensor(), whole));
}
