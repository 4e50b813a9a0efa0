// Reads a single value written by torch.save, from Cairn or from PyTorch.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <cairn/base/bytes.hpp>
#include <cairn/formats/torch_archive.hpp>
#include <cairn/state/state_dict.hpp>
#include <cairn/state/tensor_types.hpp>

namespace cairn {

// Converts Python values as follows:
//   None, bool, int, float, complex, str, torch.device   an IValue of that kind
//   tuple, torch.Size               an IValue tuple; `is_torch_size` recognises the latter
//   list                            a List if it is empty, or if it contains a tensor, dict or
//                                   bytes, directly or in an inner list; otherwise an IValue list,
//                                   typed if all elements have one type
//   dict, OrderedDict               a Dict with text keys; inside a tuple, an IValue dict
//   bytes, bytearray, io.BytesIO    a Blob; inside a tuple, what plain_value_of makes of it
//   Tensor, Parameter, Buffer       a tensor on the CPU; also a DTensor with all its elements
//   torch.dtype                     an IValue enum with PyTorch's name of the type (dtype_value)
// A value that is, or contains, anything else is an Opaque as a whole. Throws kUnsupported if the
// values would take more memory than 64 MiB plus 48 times the length of the pickle. Throws kCorrupt
// if the archive is damaged. Never executes code from the archive.
Value read_leaf(ByteSpan archive);

// Reads a whole state dict from an archive that need not be in memory. `load_storage` must return
// all elements of storage `key` as a flat tensor of type `type`; the dict's tensors are views of
// it. The storages of conjugated or negated tensors are read from `archive` instead, with a CRC-32
// check, because their elements are converted. A tensor of a type that LibTorch lacks is returned
// in its carrier type (carrier_type_of) and listed in `carried`. A tensor of a type that DType
// lacks is on the meta device, and also listed in `carried`. Only leaves that `flatten` makes
// become opaque: an opaque value in a dict leaves the others as they are. If the saved value is
// itself opaque, it is the only one in the result, under its name. Throws as read_leaf does. Also
// throws kUnsupported for any other value that is not a dict, before it converts anything. With a
// `key`, returns {key: value} for a value of any kind.
using LoadStorage = std::function<torch::Tensor(const std::string& key, at::ScalarType type)>;
Dict read_saved_dict(const TorchArchive& archive, const LoadStorage& load_storage, CarriedTypes& carried,
                     const std::string& key = "");

struct SavedPickle;  // a pickle and its tree

// The part of a DTensor that a file has.
struct SavedPart {
  torch::Tensor local;
  Extents size;  // of the whole
  Box box;       // of `local` within the whole
};

// An opaque value as the functions above make it.
class SavedOpaque final : public Opaque {
 public:
  SavedOpaque(std::shared_ptr<const SavedPickle> saved, const PickleValue& pickle, std::string name, std::string why, Dict tensors,
              std::optional<SavedPart> part)
      : saved_(std::move(saved)),
        pickle_(pickle),
        name_(std::move(name)),
        why_(std::move(why)),
        tensors_(std::move(tensors)),
        part_(std::move(part)) {}
  const std::string& name() const override { return name_; }
  const std::string& why() const override { return why_; }
  Bytes archive() const override;
  const PickleValue& pickle() const { return pickle_; }
  // Returns the tensors in a value that read_saved_dict made, nested by attributes, keys and
  // indices. Leaves out tensors that are incomplete.
  const Dict& tensors() const { return tensors_; }
  // Returns a part of a DTensor, if read_saved_dict found one that is not in a tuple.
  const std::optional<SavedPart>& part() const { return part_; }

 private:
  const std::shared_ptr<const SavedPickle> saved_;
  const PickleValue pickle_;
  const std::string name_;
  const std::string why_;
  const Dict tensors_;
  const std::optional<SavedPart> part_;
};

}  // namespace cairn
