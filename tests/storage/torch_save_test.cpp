// State dicts in files of torch.save, loaded by TorchSaveReader. serialize_leaf writes such files.
#include <filesystem>
#include <fstream>

#include <cairn/tests/support/torch.hpp>

#include <cairn/base/error.hpp>
#include <cairn/storage/torch_save.hpp>
#include <cairn/tests/support/laid_out_state.hpp>
#include <cairn/tests/support/local_protocol.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tests/support/thrown.hpp>

using namespace cairn;
using namespace cairn::testing;

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

Thrown error_of_loading(const std::string& path) {
  std::vector<StateDict> states(1);
  states[0]["weight"] = torch::zeros({3});
  return thrown_by([&] { load_file(path, states); });
}

}  // namespace

TEST_CASE("torch.save: nested tensors and values of a file load in place") {
  TemporaryDirectory directory;
  StateDict saved, model;
  model["weight"] = torch::arange(12, torch::kFloat32).reshape({3, 4}).t();
  model["tied"] = model.at("weight").tensor()[1];
  model["half"] = torch::randn({5}).to(torch::kBFloat16);
  saved["model"] = model;
  saved["step"] = std::int64_t{7};
  saved["name"] = "text";
  const std::string path = put(directory, serialize_leaf(saved));
  for (const std::string& id : {path, "file:" + path}) {
    std::vector<StateDict> states(1);
    StateDict zeros;
    for (const auto& [name, value] : model) zeros.insert(name, torch::zeros_like(value.tensor()));
    states[0]["model"] = zeros;
    states[0]["step"] = std::int64_t{0};
    states[0]["name"] = "";
    load_file(id, states);
    for (const auto& [name, value] : model) {
      INFO(name);
      CHECK(torch::equal(states[0].at("model").dict().at(name).tensor(), value.tensor()));
    }
    CHECK(states[0].at("step").ivalue().toInt() == 7);
    CHECK(states[0].at("name").ivalue().toStringRef() == "text");
  }
}

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

TEST_CASE("torch.save: a changed bit in a tensor is found") {
  TemporaryDirectory directory;
  StateDict saved;
  saved["weight"] = torch::full({3}, 1.5f);
  std::string bytes = serialize_leaf(saved);
  const float element = 1.5f;
  const std::size_t at = bytes.find(std::string(reinterpret_cast<const char*>(&element), sizeof element));
  REQUIRE(at != std::string::npos);
  CHECK(!error_of_loading(put(directory, bytes)).is_error);
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  const Thrown thrown = error_of_loading(put(directory, bytes));
  CHECK(thrown.code == ErrorCode::kCorrupt);
  CHECK(thrown.says("the checksum of a tensor's elements does not match"));
}

TEST_CASE("torch.save: what is no file of torch.save is refused") {
  TemporaryDirectory directory;
  CHECK(error_of_loading(directory.path() + "/nothing.pt").code == ErrorCode::kNotFound);
  CHECK(error_of_loading(directory.path()).code == ErrorCode::kCorrupt);
  CHECK(error_of_loading(put(directory, "text")).code == ErrorCode::kCorrupt);
  CHECK(error_of_loading(put(directory, serialize_leaf(std::int64_t{3}))).says("not a state dict"));
  CHECK(error_of_loading("mem://name/model.pt").code == ErrorCode::kUnsupported);
}
