// The subcommands of `cairn`. Each prints its result to standard output and returns the exit code; what stops it, it throws.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <cairn/base/error.hpp>
#include <cairn/planning/metadata.hpp>
#include <cairn/storage/store.hpp>

namespace cairn::tools {

// What scripts rely on.
enum ExitCode : int {
  kFine = 0,
  kFoundBad = 1,  // the checkpoint, or reaching it, is at fault
  kWrongUse = 2,  // the command line is
};

// The command line asks for what cannot be: ends as kWrongUse.
class WrongUse : public Error {
 public:
  explicit WrongUse(const std::string& what) : Error(ErrorCode::kInvalidArgument, what) {}
};

struct InspectOptions {
  std::string checkpoint;
  bool json = false;
  bool chunks = false;  // list every chunk in the text form; JSON always does
};
int inspect(const InspectOptions& options);

struct VerifyOptions {
  std::string checkpoint;
  unsigned threads = 2;
};
int verify(const VerifyOptions& options);

struct ConvertOptions {
  std::string source;
  std::string destination;
  std::string format;  // "safetensors"
  bool force = false;
  bool skip_unsupported = false;  // leave out tensors that the format has no type for, instead of refusing
};
int convert(const ConvertOptions& options);

// --- shared by them ---------------------------------------------------------------------------------------------------------

struct OpenedCheckpoint {
  std::shared_ptr<Store> store;
  Metadata metadata;
};

// Throws WrongUse where nothing is, so that a mistyped path is not mistaken for a damaged checkpoint; kNotFound, with what is
// there, where files lie but no checkpoint was completed; kCorrupt and kUnsupported as read_metadata does.
std::shared_ptr<Store> open_existing(const std::string& url);
OpenedCheckpoint open_checkpoint(const std::string& url);

// Bytes of all elements of a tensor.
std::uint64_t tensor_bytes(const TensorStorageMetadata& tensor);
// "12.3 MiB"
std::string human_bytes(std::uint64_t bytes);
// Bytes that are not valid UTF-8 and control characters are shown as \xNN: names come from files, terminals obey escapes.
std::string printable(const std::string& text);
// Whether Cairn wrote the checkpoint, rather than PyTorch.
bool written_by_cairn(const Metadata& metadata);

}  // namespace cairn::tools
