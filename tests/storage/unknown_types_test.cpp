// Elements of types that LibTorch lacks, or that this version does not know.
#include <fstream>
#include <string>

#include <cairn/tests/support/torch.hpp>

#include <cairn/formats/tensor_pickle.hpp>
#include <cairn/formats/torch_archive.hpp>
#include <cairn/formats/torch_metadata.hpp>
#include <cairn/planning/resharding.hpp>
#include <cairn/state/checkpoint_writer.hpp>
#include <cairn/state/ready_plan.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/storage/verify_checkpoint.hpp>
#include <cairn/tests/support/local_protocol.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tests/support/thrown.hpp>

using namespace cairn;
using namespace cairn::testing;

namespace {

// Reads into one tensor, whatever its type.
class PlainLoadPlanner : public ReadyPlan {
 public:
  explicit PlainLoadPlanner(torch::Tensor into) : tensor(std::move(into)) {}
  torch::Tensor resolve_tensor(const LoadPlan&, const ReadItem& item) override {
    return part_of(tensor, item.dest_offsets, item.lengths);
  }

  const torch::Tensor tensor;
};

// Reads the tensor `fqn` into `into`, without LibTorch's types standing in the way.
void read_elements(const std::string& url, const std::string& fqn, const torch::Tensor& into) {
  CheckpointReader reader;
  reader.reset(url);
  const Metadata metadata = reader.read_metadata();
  StorageContext context;
  context.checkpoint_id = url;
  reader.set_up_storage_reader(metadata, context);
  const auto& stored = std::get<TensorStorageMetadata>(*metadata.find(fqn));
  LoadPlan plan;
  const NameId name = plan.names.intern(fqn);
  append_reads(stored, ChunkIndex(stored.chunks), name, name, Box::whole(stored.size), plan);
  PlainLoadPlanner planner(into);
  reader.read_data(plan, planner).get();
}

constexpr std::string_view kNewType = "float6_e3m2";  // of the same length as:
constexpr std::string_view kOldType = "float8_e5m2";

std::string with_new_type(std::string pickle) {
  for (auto at = pickle.find(kOldType); at != std::string::npos; at = pickle.find(kOldType))
    pickle.replace(at, kOldType.size(), kNewType);
  return pickle;
}

// Writes a checkpoint as PyTorch does: "known", the float32 numbers 1, 2, 3, and "new", three bytes
// of kNewType.
void write_with_new_type(const std::string& directory) {
  const float known[] = {1, 2, 3};
  Metadata metadata;
  metadata.files = {{"__0_0.distcp", {}, {}, {}}};
  std::string content;
  const auto add = [&](const std::string& fqn, DType dtype, ByteSpan elements) {
    const std::string archive = write_torch_archive(with_new_type(tensor_pickle(dtype, {3})), {elements});
    TensorStorageMetadata tensor;
    tensor.properties.dtype = dtype;
    tensor.size = {3};
    tensor.chunks = {Box::whole({3})};
    tensor.storage = {{0, content.size(), archive.size(), 0, {}}};
    metadata.state_dict_metadata.emplace_back(fqn, tensor);
    metadata.planner_data.emplace_back(fqn, Path{fqn});
    content += archive;
  };
  add("known", DType::kFloat32, ByteSpan(known, sizeof known));
  add("new", DType::kFloat8E5M2, std::string_view("xyz"));
  std::ofstream(directory + "/__0_0.distcp", std::ios::binary) << content;
  std::ofstream(directory + "/.metadata", std::ios::binary) << with_new_type(pickle_torch_metadata(metadata, "5dd92e26-9bc4"));
}

}  // namespace

TEST_CASE("a tensor of an unknown type leaves the rest of PyTorch's checkpoint readable") {
  const TemporaryDirectory directory;
  const std::string url = directory.path();
  write_with_new_type(url);
  const Metadata metadata = read_metadata(*open_store(url));
  const auto& stored = std::get<TensorStorageMetadata>(*metadata.find("new"));
  CHECK(stored.properties.dtype == DType::kUnknown);
  CHECK(stored.unknown_dtype == kNewType);
  CHECK((stored.size == Extents{3}));

  const auto load = [&](StateDict& state) { load_locally(url, {&state}, [] { return std::make_unique<CheckpointReader>(); }); };
  StateDict known{{"known", torch::zeros(3)}};
  load(known);
  CHECK(known["known"].tensor().equal(torch::tensor({1.0f, 2.0f, 3.0f})));
  for (const auto type : {torch::kFloat, torch::kByte}) {
    StateDict asked{{"known", torch::zeros(3)}, {"new", torch::zeros(3, type)}};
    CHECK(thrown_by([&] { load(asked); }) == Saying{ErrorCode::kUnsupported, "\"new\": it is stored as float6_e3m2"});
    CHECK(asked["known"].tensor().eq(0).all().item<bool>());
  }
  CHECK(thrown_by([&] { read_elements(url, "new", torch::zeros(3, torch::kByte)); }) ==
        Saying{ErrorCode::kUnsupported, "torch.float6_e3m2"});
  CHECK(verify_checkpoint(*open_store(url), 1, {}).empty());

  const ObjectName file = "__0_0.distcp";
  std::string content(open_store(url)->size_bytes(file), '\0');
  open_store(url)->read(file, {{0, {content.data(), content.size()}}});
  content[content.find("xyz")] = 'X';
  std::ofstream(url + "/" + file, std::ios::binary) << content;
  const auto faults = verify_checkpoint(*open_store(url), 1, {});
  REQUIRE(faults.size() == 1);
  CHECK(faults[0].fqn == "new");
}
