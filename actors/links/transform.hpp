// Converts between the bytes of a socket and the bytes of frames, for example by encryption
// (tls_transform.hpp). Each connection has its own transform, used on one thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <cairn/base/bytes.hpp>

namespace cairn {

class Transform {
 public:
  using Wire = std::vector<char>;  // bytes for the socket are appended to it

  virtual ~Transform() = default;
  // Starts the transform. Called once, before anything else. May append to `wire` on the connecting
  // side.
  virtual void start(Wire& wire) = 0;
  // Returns whether frames may be sent. Becomes true no later than the arrival of the peer's first
  // frame.
  virtual bool ready() const = 0;
  // Takes bytes from the socket. Appends decoded bytes to `frames`, and any reply to `wire`. Throws
  // kPermission if the other side is not authorized, kCorrupt if it violates the protocol. Even if
  // this throws, `wire` may hold a last reply, which must be sent.
  virtual void receive(ByteSpan bytes, std::string& frames, Wire& wire) = 0;
  // Encodes a frame. Must be called only if `ready()` is true.
  virtual void send(ByteSpan frame, Wire& wire) = 0;
  // Returns the rank that the connecting side claimed to be, without proof; -1 if it claimed none.
  // Anyone can claim anything.
  virtual int claimed_rank() const { return -1; }
};

enum class ConnectionSide { kOpener, kAcceptor };
using TransformFactory = std::function<std::unique_ptr<Transform>(ConnectionSide)>;

}  // namespace cairn
