// Values that torch.save wrote, without tensors of LibTorch: how the values of a state nest, which
// are opaque, and the pickle that Cairn saves of each. Nothing in a pickle is executed.
//
// A value that is, or contains, anything but these is opaque as a whole: None, bool, int, float,
// complex, str, bytes, bytearray, io.BytesIO, tensors, torch.device, torch.dtype, torch.Size,
// lists, tuples, dicts and OrderedDicts with keys of text, ints or bools.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <cairn/base/bytes.hpp>
#include <cairn/formats/blob.hpp>
#include <cairn/formats/pickler.hpp>
#include <cairn/formats/torch_archive.hpp>
#include <cairn/formats/unpickler.hpp>
#include <cairn/planning/metadata.hpp>

namespace cairn {

// The pickle of an archive and its tree.
struct SavedPickle {
  explicit SavedPickle(const TorchArchive& archive, std::uint64_t bytes_max = std::numeric_limits<std::uint64_t>::max());
  SavedPickle(Bytes pickle, const std::string& what);
  const Bytes pickle;
  const PickleTree tree;
};

// Returns bytes, a bytearray or a BytesIO; nothing for other values. Protocol 2 writes bytes as a
// call of _codecs.encode, and empty ones as a call of their class.
std::optional<Blob> blob_of(const PickleValue& value);
// Returns the pairs of a dict or of an OrderedDict; nothing for other values.
std::optional<PickleValue> pairs_of(const PickleValue& value);
// Describes a tensor as it would be loaded: those of whole numbers need no gradients.
TensorDescription described_tensor(const PickleValue& value);
// Returns the name of a dtype. Throws kUnsupported for any other global.
std::string dtype_name_of(const PickleValue& global);
// Returns the text of a torch.device: "cuda:0". Throws kUnsupported for what PyTorch would refuse.
std::string device_name_of(const PickleValue& device);

enum class BlobsAs : std::uint8_t {
  kOwnType = 1,  // as DCP stores them; torch.load(weights_only=True) refuses an io.BytesIO
  kBytes,        // as Python bytes
};

// Throws kUnsupported for values that are nested deeper than what is written may be. The limit is
// below the reader's (PickleLimits::depth_max), because a tensor or Blob takes several levels
// there.
void check_nesting(int depth);

// Put values into a pickle as Python does. A device has a name such as "cuda:0".
void put_blob(Pickler& out, const Blob& blob, BlobsAs as);
void put_complex(Pickler& out, double real, double imaginary);
void put_device(Pickler& out, const std::string& name);

// How the values of one archive are taken. The archive is not trusted: bounds the memory that its
// values take beyond its own size, and the time to look at them. A byte of a pickle can be a list.
// In addition, containers are copied to each place of a shared Python object, and nested sharing
// could multiply the copies without limit.
class SavedRules {
 public:
  static constexpr std::uint64_t kContainerBytes = 192;  // estimated: a list, and its entries in tables
  static constexpr std::uint64_t kKeyBytes = 96;
  static constexpr std::uint64_t kPartBytes = 16;  // of an opaque value, for the time that it takes to look there

  // `what` begins error texts.
  SavedRules(const SavedPickle& saved, std::string what)
      : budget_bytes_(kHeldFree + kHeldPerByte * saved.pickle.size()), what_(std::move(what)) {}

  // Throws kUnsupported if the values take more memory than 64 MiB plus 48 times the length of the
  // pickle. That is no reason to call a value opaque: `is_spent` returns true from then on.
  void spend(const PickleValue& on, std::uint64_t bytes);
  bool is_spent() const { return is_spent_; }

  // Returns the keys of a dict as texts. Throws kUnsupported for other keys, and for two keys with
  // one text.
  std::vector<std::string> keys_of(const PickleValue& pairs);

  // Lists with a tensor or a dict, directly or in an inner list, are split, as flattening splits
  // them. Others are one value.
  enum class Nesting : std::uint8_t { kNone, kBytes, kSplit };
  Nesting nesting(const PickleValue& list);

 private:
  // A text takes about as much as a container here. The smallest container that Python writes in
  // earnest, a tuple of two small ints, has 6 bytes of pickle.
  static constexpr std::uint64_t kHeldFree = 64 << 20;
  static constexpr std::uint64_t kHeldPerByte = 48;

  std::uint64_t budget_bytes_;  // the bytes that copies may still use
  bool is_spent_ = false;
  const std::string what_;
  std::unordered_map<std::uint32_t, Nesting> nesting_;
};

// One value of a state.
struct SavedValue {
  std::shared_ptr<const SavedPickle> saved;  // has the tree of `value`
  PickleValue value;
  std::optional<TensorDescription> tensor{};  // if it is a tensor
  std::string opaque{};                       // the class that makes it opaque; "" if it is not
  std::string why{};                          // why it is opaque, or cannot be read
  std::optional<DistributedPart> part{};      // of a DTensor that is opaque because the rest is elsewhere

  bool is_opaque() const { return !opaque.empty(); }
};

// Puts values into a pickle as torch.save would put them.
class SavedPickler {
 public:
  // Tensors get the storages "0", "1", … in the order in which they are put.
  SavedPickler(Pickler& out, BlobsAs blobs) : out_(out), blobs_(blobs) {}
  // Throws kUnsupported for an opaque value, and for values that Python could not read.
  void put(const SavedValue& value);
  // Does so for a value of the pickle `saved`, which bounds the memory by `rules`.
  void put(const PickleValue& value, SavedRules& rules, const SavedPickle* saved);
  // Does so for a tensor whose elements are elsewhere.
  void put_tensor(DType dtype, const Extents& sizes, bool requires_grad);
  const std::vector<TensorDescription>& tensors() const { return tensors_; }

 private:
  Pickler& out_;
  const BlobsAs blobs_;
  std::vector<TensorDescription> tensors_;
  // The parts that were put, by pickle and id: a list, dict or tuple that appears in several places
  // becomes one object in Python.
  std::unordered_map<const SavedPickle*, std::unordered_map<std::uint32_t, Pickler::Slot>> slots_;
};

struct PickledLeaf {
  Bytes pickle;                            // the entry "data.pkl" of an archive
  std::vector<TensorDescription> tensors;  // tensors[i] is to be storage "i"
};
PickledLeaf pickle_leaf(const SavedValue& value, BlobsAs blobs);

// --- the values of a state, by their flattened names; saved_entries.cpp implements this part ---

struct SavedEntry {
  std::string fqn;
  Path path;
  SavedValue value;
  std::string within{};  // the name of the opaque value that it is in; "" for others
};

// Returns the values of a state, flattened, and then the tensors in opaque values, below the names
// of these, by attributes, keys and indices; those may have the name of another entry. If the saved
// value is itself opaque, its class is its name. Throws kCorrupt if the archive is damaged, and
// kUnsupported for a value of another kind than a dict. With a `key`, returns the flattened
// {key: value} for a value of any kind.
std::vector<SavedEntry> saved_entries(const TorchArchive& archive, const std::string& key = "");
// Does so for a pickle without tensors that was made here.
std::vector<SavedEntry> saved_entries(Bytes pickle, const std::string& what);
// Returns the whole of an archive as one value, which is never split. Checks the elements of
// tensors in it.
SavedValue saved_value(const TorchArchive& archive);
// Returns the whole as an opaque value, for this reason.
SavedValue opaque_value(const std::shared_ptr<const SavedPickle>& saved, const TorchArchive& archive, const std::string& why);

}  // namespace cairn
