// Bytes through a connected socket, encrypted or not, without blocking. Internal.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include <cairn/actors/links/transform.hpp>
#include <cairn/base/bytes.hpp>

namespace cairn {

// Borrows its descriptor. Throws kUnavailable once the connection is closed, and kCorrupt or
// kPermission because of bytes that the peer sent. Used by one thread at a time.
class ByteSocket {
 public:
  virtual ~ByteSocket() = default;
  // Takes the first bytes of `bytes`, as many as fit now, and returns their number.
  virtual std::size_t put(ByteSpan bytes) = 0;
  // Returns whether all bytes that `put` has taken are in the kernel; tries to pass them on.
  virtual bool flush() = 0;
  // Receives up to `to.size()` bytes, and returns their number; 0 if none have arrived. Throws if
  // the connection is known to end before `to` is full.
  virtual std::size_t get(MutableByteSpan to) = 0;
  // Returns whether `put` can go on when the socket has room, and not when bytes arrive.
  virtual bool lacks_room() const { return true; }
};

using ByteSocketFactory = std::function<std::unique_ptr<ByteSocket>(ConnectionSide side, int descriptor)>;
ByteSocketFactory plain_socket();

}  // namespace cairn
