// Where commands take tensors from: a checkpoint in any store, or a file that torch.save wrote of a state dict. Reads what is asked for,
// and holds nothing.
#pragma once

#include <memory>
#include <string>

#include <torch/types.h>

#include <cairn/base/bytes.hpp>
#include <cairn/planning/metadata.hpp>
#include <cairn/state/state_dict.hpp>

namespace cairn::tools {

// Whether parts of PyTorch's tensors are checked: the only checksum there is covers a whole chunk, which is then read in addition. What
// Cairn wrote is always checked, and whole tensors are.
enum class CheckParts { kYes, kNo };

// Not thread-safe, but for `read` and `read_bytes` of the two below: any thread, one at a time.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  // Names, shapes and nesting. Of a file, every tensor is one chunk, of no known place.
  virtual const Metadata& metadata() const = 0;
  // As people know it.
  virtual std::string name() const = 0;
  // Another one if the content is: for conversions that are resumed.
  virtual std::string identity() const = 0;

  // The elements of `box` of a tensor, dense, in memory, of the type that is stored. kUnsupported for types that LibTorch cannot hold;
  // kCorrupt and what stores throw.
  virtual torch::Tensor read(const std::string& fqn, const Box& box) = 0;
  // Of a key that is no tensor: what torch.save wrote of it, and what that is. kUnsupported for classes that are not known.
  virtual Bytes read_bytes(const std::string& fqn) = 0;
  virtual Value read_value(const std::string& fqn) = 0;

 protected:
  // kUnsupported, naming the key.
  torch::ScalarType scalar_type(const std::string& fqn) const;
};

// `place`: a path or URL of a checkpoint, or the path of a file. Errors as open_existing's; kCorrupt, kUnsupported for what is none.
std::unique_ptr<TensorSource> open_tensor_source(const std::string& place, CheckParts check);

}  // namespace cairn::tools
