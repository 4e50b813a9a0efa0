// The plan of `cairn convert`, for any format: which keys to write, under which names and with
// which dtypes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <cairn/tools/commands.hpp>
#include <cairn/tools/tensor_source.hpp>
#include <cairn/tools/terminal.hpp>

namespace cairn::tools {

struct ConvertOptions {
  std::string source;
  std::string destination;
  std::string format;                // "safetensors", "torch", "dcp"
  std::vector<std::string> renames;  // "REGEX=REPL", applied to each key in this order
  std::vector<std::string> select;   // patterns for keys of the source
  std::vector<std::string> exclude;
  std::string cast;          // a dtype for floating-point tensors; "": unchanged
  std::optional<int> world;  // for dcp: the number of ranks to shard over
  std::uint64_t memory = 256u << 20;
  bool force = false;
  bool skip_unsupported = false;  // leave out what the format cannot represent, instead of refusing
};

struct ConvertedKey {
  std::string source;  // the key in the source
  std::string key;     // the key in the output
  Path path;           // the nested path of `key`
  bool is_tensor = false;
  TensorStorageMetadata stored;   // for tensors: as in the source
  DType dtype = DType::kFloat32;  // for tensors: the dtype to write

  std::uint64_t bytes() const;  // the size of the tensor in the target dtype
};

// Maps keys of the source to keys of the target. Throws WrongUse for invalid options. Throws
// kAlreadyExists, naming both keys, if two keys would get the same name. Throws kUnsupported if the
// size of a tensor in bytes does not fit into an int64.
class Conversion {
 public:
  explicit Conversion(const ConvertOptions& options);

  const ConvertOptions& options() const { return options_; }
  TensorSource& source() const { return *source_; }
  const std::vector<ConvertedKey>& keys() const { return keys_; }
  // With `skip_unsupported`, leaves out keys that the target cannot represent; without it, throws
  // kUnsupported, naming all of them. `why` returns the reason, or "" if the target can represent
  // the key.
  void leave_out(const std::function<std::string(const ConvertedKey&)>& why);
  // Leaves out all values that are not tensors, even without `skip_unsupported`. `report` mentions
  // them.
  void drop_values();

  // Reads a part of a tensor, converts it to the target dtype, and returns its elements in
  // row-major order; bytes of a tensor that as_packed_bytes describes. Throws kCancelled after a
  // signal that EndingSignals catches. The first call calls `require_room`.
  Bytes read(const ConvertedKey& key, const Box& box);
  // Throws kNoSpace if the tensors do not fit into the free space at the destination. Call it
  // before making a plan of the tensors, because the plan's size grows with theirs.
  void require_room();
  // Returns the number of elements of `key` to read at a time, within ConvertOptions::memory.
  std::int64_t piece_elements(const ConvertedKey& key) const;
  // Lists on standard error what was left out. Returns false if values were left out without
  // `skip_unsupported`.
  bool report() const;

 private:
  std::string renamed(const std::string& key) const;

  const ConvertOptions options_;
  const std::unique_ptr<TensorSource> source_;
  std::vector<ConvertedKey> keys_;
  std::vector<std::string> unsupported_;  // "key: why"
  std::vector<std::string> values_;       // keys of values that were left out
  std::optional<std::uint64_t> bytes_;    // the size of all tensors, once there is room for them
  std::uint64_t done_ = 0;
  ProgressBar progress_{"writing"};
};

// The totals for the last line of output.
struct Converted {
  std::size_t tensors = 0;
  std::size_t values = 0;
  std::uint64_t bytes = 0;
  bool starts_over = false;  // the output of an earlier, killed conversion was removed first
};

Converted convert_to_safetensors(Conversion& conversion);
Converted convert_to_torch(Conversion& conversion);
Converted convert_to_dcp(Conversion& conversion);

}  // namespace cairn::tools
