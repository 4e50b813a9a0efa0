// Checkpoints that PyTorch 2.11 wrote: their metadata, values and archives. The test of the reader
// compares all tensors but complex ones, which its files of expected tensors lack.
#include <filesystem>
#include <memory>
#include <string>

#include <cairn/tests/support/torch.hpp>

#include <cairn/formats/torch_archive.hpp>
#include <cairn/state/checkpoint_writer.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/storage/format/commit_record.hpp>
#include <cairn/storage/read_metadata.hpp>
#include <cairn/storage/verify_checkpoint.hpp>
#include <cairn/tests/support/local_protocol.hpp>
#include <cairn/tests/support/safetensors.hpp>
#include <cairn/tests/support/sample_state.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tests/support/thrown.hpp>

using namespace cairn;
using namespace cairn::testing;

namespace {

const std::string kRoot = std::string(CAIRN_TEST_DATA) + "/pytorch-2.11/";

class Golden {
 public:
  explicit Golden(const std::string& folder)
      : folder_(kRoot + folder + "/"), metadata_(decode_commit_record(file_bytes(folder_ + ".metadata"), folder)) {}

  const Metadata& metadata() const { return metadata_; }

  std::string bytes_at(const StorageInfo& info) const {
    return file_bytes(folder_ + metadata_.files.at(info.file).name).substr(info.offset, info.length);
  }

  Value value(const std::string& fqn) const {
    const auto& entry = std::get<BytesStorageMetadata>(*metadata_.find(fqn));
    REQUIRE(entry.storage.has_value());
    return deserialize_leaf(bytes_at(*entry.storage));
  }

 private:
  std::string folder_;
  Metadata metadata_;
};

}  // namespace

TEST_CASE("the golden metadata is PyTorch's") {
  const Golden golden("nested");
  CHECK_FALSE(golden.metadata().commit.has_value());
  CHECK(golden.metadata().checkpoint_id == "/tmp/fx/nested");
  CHECK(golden.metadata().save_id == "5dd92e26-9bc4-4242-a8cb-fb3b358f75c8");
  CHECK(golden.metadata().version == "1.0.0");
  const auto path_of = [&](const std::string& fqn) {
    for (const auto& [name, path] : golden.metadata().planner_data)
      if (name == fqn) return path;
    return Path{};
  };
  CHECK((path_of("list.1.x") == Path{std::string("list"), std::int64_t{1}, std::string("x")}));
  CHECK((path_of("unicode.名前") == Path{std::string("unicode.名前")}));
  CHECK(Golden("single").metadata().files.size() == 1);
  CHECK(Golden("threads").metadata().files.size() == 48);
}

TEST_CASE("complex tensors of the golden") {
  StateDict target{{"complex", torch::zeros({2, 3}, torch::kComplexFloat)}};
  load_locally(kRoot + "nested", {&target}, [] { return std::make_unique<CheckpointReader>(); });
  const auto counting = torch::arange(6, torch::kDouble).reshape({2, 3});
  CHECK(torch::equal(target["complex"].tensor(), torch::complex(counting * 0.25 + 1, -counting).to(torch::kComplexFloat)));
}

TEST_CASE("byte objects of the goldens") {
  const Golden nested("nested");
  CHECK(nested.value("train_state.epoch").to_int() == 3);
  CHECK(nested.value("train_state.name").to_text() == "run");
  CHECK(nested.value("train_state.lrs").ivalue().toDoubleVector() == std::vector<double>{0.1, 0.01});
  // A BytesIO whose content is itself the output of torch.save.
  const auto losses = deserialize_leaf(nested.value("train_state.losses").blob().bytes);
  CHECK(losses.ivalue().toDoubleVector() == std::vector<double>{0.5, 0.25});
  CHECK(Golden("single").value("step").to_int() == 5);
  for (const std::string folder : {"fsdp_even", "fsdp_uneven", "hsdp_2x2"}) {
    const Golden golden(folder);
    std::size_t values = 0;
    for (const auto& [fqn, entry] : golden.metadata().state_dict_metadata) {
      if (!std::holds_alternative<BytesStorageMetadata>(entry)) continue;
      const auto& shown = fqn;
      CAPTURE(shown);
      golden.value(fqn);
      ++values;
    }
    CHECK(values > 0);
    CHECK(golden.value("optimizer.param_groups.0.lr").to_double() == 0.05);
  }
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

TEST_CASE("missing parts of PyTorch's records of single ranks are named") {
  namespace fs = std::filesystem;
  const TemporaryDirectory directory;
  const std::string url = directory.path() + "/copy";
  const auto error_without = [&](const std::vector<std::string>& names) {
    fs::remove_all(url);
    fs::copy(std::string(CAIRN_TEST_DATA) + "/pytorch-2.14/rank_local", url);
    for (const std::string& name : names) fs::remove(url + "/" + name);
    return thrown_by([&] { read_metadata(*open_store(url)); });
  };
  const std::string format = "PyTorch wrote one record for each rank (use_collectives=False)";
  CHECK(error_without({"__0.metadata"}) == Saying{ErrorCode::kNotFound, "there is no record of rank 0"});
  CHECK(error_without({"__1_0.distcp"}) == Saying{ErrorCode::kNotFound, "there is no __1_0.distcp"});
  CHECK(error_without({"__1_0.distcp"}) == Saying{ErrorCode::kNotFound, format});
  CHECK(error_without({"__1.metadata"}) == Saying{ErrorCode::kMismatch, "model.rows"});
  CHECK(error_without({"__1.metadata"}) == Saying{ErrorCode::kMismatch, format});
}
