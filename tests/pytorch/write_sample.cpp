// The C++ half of check_interchange.py, which says what the files mean.
//
//   write_sample write CHECKPOINT EXPECTED.json [ZSTD_LEVEL [masked|reused]]
//       saves a sample state from two ranks, and a description of what PyTorch must find in it. If
//       reused, takes its tensors over from another checkpoint, which is removed
//   write_sample write-safetensors DIR
//       saves its tensors as safetensors files, to DIR/model and DIR/distributed, and joins the
//       latter in DIR/joined
//   write_sample read-safetensors DIR
//       reads safetensors files of these tensors; exits with 0 if they are correct
//   write_sample read DIR
//       reads the checkpoint that PyTorch wrote over a copy of it; exits with 0 if it is correct
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>

#include <nlohmann/json.hpp>

#include <cairn/runtime/cairn.hpp>
#include <cairn/state/hugging_face.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/storage/stream_transform.hpp>
#include <cairn/tests/support/in_process_world.hpp>
#include <cairn/tests/support/sample_state.hpp>

using namespace cairn;
using cairn::testing::counting;

namespace {

std::string hex(const void* data, std::size_t size) {
  static const char* digits = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < size; ++i) {
    const auto byte = static_cast<const unsigned char*>(data)[i];
    text += digits[byte >> 4];
    text += digits[byte & 15];
  }
  return text;
}

// Tensors that all ranks hold; "sharded" ones are cut over the ranks when they are saved.
std::vector<std::pair<std::string, torch::Tensor>> tensors() {
  return {{"weight", counting({6, 5})},
          {"large", counting({300, 200}, 3)},
          {"bfloat16", counting({3, 4}, 1, torch::kBFloat16)},
          {"int8", counting({7}, 0, torch::kInt8)},
          {"bool", counting({4}).to(torch::kBool)},
          {"complex", torch::complex(counting({2, 3}), counting({2, 3}, 9))},
          {"scalar", torch::tensor(3.25, torch::kFloat64)},
          {"empty", torch::empty({0, 4})},
          {"transposed", counting({4, 6}).t()},
          {"名前.with.dots", counting({2}, 4, torch::kInt64)}};
}

// Registers a transform that check_interchange.py knows, and returns its descriptor.
std::string register_masked() {
  const auto mask = [](ByteSpan bytes) {
    Bytes masked(bytes.view());
    for (char& c : masked) c = static_cast<char>(c ^ 0x5A);
    return masked;
  };
  register_stream_transform(
      "stream.masked/1", {[mask](ByteSink output) -> ByteSink { return [mask, output](ByteSpan bytes) { output(mask(bytes)); }; },
                          [mask](ByteSource input) -> ByteSource {
                            return [mask, input](MutableByteSpan to) {
                              const std::size_t length = input(to);
                              std::memcpy(to.data(), mask(to.subspan(0, length)).data(), length);
                              return length;
                            };
                          }});
  return "stream.masked/1";
}

void write(const std::string& checkpoint, const std::string& expected_file, const SaveOptions& options) {
  const auto whole = tensors();
  testing::on_all_ranks(2, [&](World& world) {
    Dict model;
    for (const auto& [name, tensor] : whole) {
      const bool is_cut = name == "weight" || name == "large";
      model.insert(name,
                   is_cut ? Value(ShardedTensor::distribute(tensor, testing::over_all_ranks(2), world.rank())) : Value(tensor));
    }
    const StateDict state{{"model", frozen(Value(model))},
                          {"epoch", 3},
                          {"name", "run"},
                          {"rate", 0.5},
                          {"done", false},
                          {"nothing", Value()},
                          {"blob", Blob{std::string("\x80\x00bytes", 7)}},
                          {"list", List{counting({2}), Dict{{"x", counting({3})}}}}};
    Checkpointer checkpointer(world);
    if (options.writer.reuse != Reuse::kOff) checkpointer.save(state, checkpoint + ".donor", options);
    checkpointer.save(state, checkpoint, options);
  });
  if (options.writer.reuse != Reuse::kOff) {
    const Metadata metadata = read_metadata(*open_store(checkpoint));
    if (metadata.commit->shares_with.empty()) throw std::runtime_error("nothing was taken over");
    std::filesystem::remove_all(checkpoint + ".donor");
  }

  nlohmann::json expected;
  const auto add = [&](const std::string& name, const torch::Tensor& tensor, nlohmann::json path) {
    const torch::Tensor plain = tensor.contiguous();
    expected["tensors"][name] = {{"dtype", to_string(*dtype_of(plain.scalar_type()))},
                                 {"shape", plain.sizes().vec()},
                                 {"hex", hex(plain.data_ptr(), static_cast<std::size_t>(plain.nbytes()))}};
    expected["paths"][name] = std::move(path);
  };
  for (const auto& [name, tensor] : whole) add("model." + name, tensor, {"model", name});
  add("list.0", counting({2}), {"list", 0});
  add("list.1.x", counting({3}), {"list", 1, "x"});
  expected["values"] = {{"epoch", "3"}, {"name", "'run'"}, {"rate", "0.5"}, {"done", "False"}, {"nothing", "None"}};
  for (const char* name : {"epoch", "name", "rate", "done", "nothing", "blob"}) expected["paths"][name] = {name};
  expected["blobs"]["blob"] = hex("\x80\x00bytes", 7);
  std::ofstream(expected_file) << expected.dump(1);
}

Dict without_complex(const std::vector<std::pair<std::string, torch::Tensor>>& whole) {
  Dict model;
  for (const auto& [name, tensor] : whole)
    if (!tensor.is_complex()) model.insert(name, tensor);  // safetensors has no complex types
  return model;
}

// Saves the tensors in both forms of safetensors files.
void write_safetensors(const std::string& directory) {
  for (const HuggingFaceFiles files : {HuggingFaceFiles::kModel, HuggingFaceFiles::kDistributed})
    testing::on_all_ranks(2, [&](World& world) {
      Dict model = without_complex(tensors());
      for (const char* name : {"weight", "large"})
        model[name] = ShardedTensor::distribute(model[name].tensor(), testing::over_all_ranks(2), world.rank());
      HuggingFaceWriterOptions options;
      options.files = files;
      SaveOptions save;
      save.storage_writer = std::make_shared<HuggingFaceStorageWriter>(options);
      Checkpointer(world).save(StateDict{{"model", model}},
                               directory + (files == HuggingFaceFiles::kModel ? "/model" : "/distributed"), save);
    });
  consolidate_safetensors_files(directory + "/distributed", directory + "/joined");
}

int read_safetensors(const std::string& directory) {
  const Dict expected = without_complex(tensors());
  Dict model;
  for (const auto& [name, value] : expected) model.insert(name, torch::zeros_like(value.tensor()));
  StateDict state{{"model", model}};
  LoadOptions options;
  options.storage_reader = std::make_shared<HuggingFaceStorageReader>();
  load(state, directory, options);
  for (const auto& [name, value] : expected)
    if (!torch::equal(state["model"][name].tensor(), value.tensor())) {
      std::cerr << "\"" << name << "\" of " << directory << " was read wrongly\n";
      return 1;
    }
  std::cout << "Cairn read " << directory << "\n";
  return 0;
}

int read(const std::string& directory) {
  if (read_metadata(directory).commit) {
    std::cerr << directory << " still counts as Cairn's after PyTorch has overwritten it\n";
    return 1;
  }
  StateDict state{{"step", 0}, {"model", Dict{{"weight", torch::zeros({3, 4}, torch::kFloat64)}}}};
  load(state, directory);
  const bool equal =
      state.at("step").to_int() == 7 && torch::equal(state["model"]["weight"].tensor(), counting({3, 4}, 0, torch::kFloat64));
  std::cout << (equal ? "Cairn read what PyTorch wrote over its checkpoint\n" : "what PyTorch wrote was read wrongly\n");
  return equal ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  const bool is_masked = argc == 6 && std::strcmp(argv[5], "masked") == 0;
  const bool is_reused = argc == 6 && std::strcmp(argv[5], "reused") == 0;
  if (command == "write" && (argc == 4 || argc == 5 || is_masked || is_reused)) {
    SaveOptions options;
    if (argc > 4) options.writer.zstd_level = std::stoi(argv[4]);
    if (is_reused) options.writer.reuse = Reuse::kDeclared;
    if (is_masked) options.writer.transforms = {register_masked()};
    write(argv[2], argv[3], options);
    return 0;
  }
  if (command == "read" && argc == 3) return read(argv[2]);
  if (command == "write-safetensors" && argc == 3) {
    write_safetensors(argv[2]);
    return 0;
  }
  if (command == "read-safetensors" && argc == 3) return read_safetensors(argv[2]);
  std::cerr << "write_sample write CHECKPOINT EXPECTED.json [ZSTD_LEVEL [masked|reused]] | write_sample "
               "read|write-safetensors|read-safetensors DIR\n";
  return 2;
}
