// What `cairn convert` is to write, whatever the format: which keys under which names, of which types.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>
#include <nlohmann/json.hpp>

#include <cairn/runtime/tools/tensor_source.hpp>
#include <cairn/runtime/tools/terminal.hpp>

namespace cairn::tools {

struct ConvertOptions {
  std::string source;
  std::string destination;
  std::string format;                // "safetensors", "torch", "dcp"
  std::vector<std::string> renames;  // "REGEX=REPL", applied to each key one after the other
  std::vector<std::string> select;   // patterns of the source's keys
  std::vector<std::string> exclude;
  std::string cast;          // a dtype for tensors of floating point; "": as they are
  std::optional<int> world;  // dcp: over so many ranks
  std::uint64_t memory = 256u << 20;
  bool force = false;
  bool skip_unsupported = false;  // leave out what the format cannot hold, instead of refusing
};

struct ConvertedKey {
  std::string source;  // its key there
  std::string key;
  Path path;  // how it nests
  bool is_tensor = false;
  TensorStorageMetadata stored;   // of tensors: as in the source
  DType dtype = DType::kFloat32;  // of tensors: as it is to be

  std::uint64_t bytes() const;  // of the tensor, as it is to be
};

// Which of the source's keys become which. Throws WrongUse for options that cannot be meant, kAlreadyExists where two keys would become
// one, naming both.
class Conversion {
 public:
  explicit Conversion(const ConvertOptions& options);

  const ConvertOptions& options() const { return options_; }
  TensorSource& source() const { return *source_; }
  const std::vector<ConvertedKey>& keys() const { return keys_; }
  // What the target cannot hold is left out, if that is asked for; else kUnsupported, naming all of it. `why`: "" if it can.
  void leave_out(const std::function<std::string(const ConvertedKey&)>& why);
  // Left out with a word, but without being asked for.
  void drop_values();

  // The elements of a part of a tensor, of the type that they are to have, dense.
  torch::Tensor read(const ConvertedKey& key, const Box& box);
  // Elements of it that are in memory at a time.
  std::int64_t piece_elements(const ConvertedKey& key) const;
  // Says what was left out, to standard error.
  void report() const;
  // Equal if and only if the same is converted in the same way.
  nlohmann::ordered_json identity() const;

 private:
  std::string renamed(std::string key) const;

  const ConvertOptions options_;
  const std::unique_ptr<TensorSource> source_;
  std::vector<ConvertedKey> keys_;
  std::vector<std::string> unsupported_;  // "key: why"
  std::vector<std::string> values_;       // dropped
  std::uint64_t bytes_ = 0;
  std::uint64_t done_ = 0;
  ProgressBar progress_{"converting"};
};

// What was made, for the last line.
struct Converted {
  std::size_t tensors = 0;
  std::size_t values = 0;
  std::uint64_t bytes = 0;
  bool resumed = false;
};

Converted convert_to_safetensors(Conversion& conversion);
Converted convert_to_torch(Conversion& conversion);
Converted convert_to_dcp(Conversion& conversion);

}  // namespace cairn::tools
