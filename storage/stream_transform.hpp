// Transforms of the bytes of items, such as encryption: DCP's StreamTransformExtension. A program
// registers its transforms. CheckpointWriterOptions::transforms lists those that a save uses. Loads
// undo the transforms that a checkpoint names.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include <cairn/base/bytes.hpp>

namespace cairn {

inline constexpr const char* kZstdTransform = "stream.zstd/1";  // built in: CheckpointWriterOptions::zstd_level

// Takes the next bytes of an item. Called with no bytes once, at the end of the item.
using ByteSink = std::function<void(ByteSpan bytes)>;
// Fills the start of `to` with the next bytes of an item and returns their number. Returns 0 at the
// end of the item, and only there.
using ByteSource = std::function<std::size_t(MutableByteSpan to)>;

// The functions are called on any thread, but each sink or source by one thread at a time.
// Exceptions fail the save or load. For damaged bytes, throw Error with kCorrupt.
struct StreamTransform {
  // Returns a sink that passes the transformed bytes, and then the end, to `output`.
  std::function<ByteSink(ByteSink output)> transform_to;
  // Returns a source of the original bytes. `input` is the source of the transformed bytes. Loads
  // may read an item several times, each time with a new source.
  std::function<ByteSource(ByteSource input)> transform_from;
};

// Registers a transform under the descriptor by which checkpoints name it: its name in PyTorch, '/'
// and a version, such as "stream.rot13/1". Loads also use it for minor versions that are not
// registered themselves, such as "stream.rot13/1.2". Throws kInvalidArgument for a descriptor of
// another form, or for an empty function. Throws kAlreadyExists for a descriptor that is registered
// already or is a version of "stream.zstd/1". Thread-safe.
void register_stream_transform(const std::string& descriptor, StreamTransform transform);

}  // namespace cairn
