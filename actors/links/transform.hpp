// The seam between the bytes of a socket and the bytes of frames: encryption goes here (tls_transform.hpp). One per connection, used on
// one thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <cairn/base/bytes.hpp>

namespace cairn {

class Transform {
 public:
  using Wire = std::vector<char>;  // bytes for the socket are appended here

  virtual ~Transform() = default;
  // Called once, before anything else: an opener may have something to say first.
  virtual void start(Wire& wire) = 0;
  // Whether frames may be sent. It becomes true at the latest when the other side's first frame was received.
  virtual bool ready() const = 0;
  // Bytes came from the socket: what they mean is appended to `frames`, what they must be answered with to `wire`. Throws
  // kPermission if the other side may not speak to us, kCorrupt if it does not keep to the rules; `wire` may hold a last word even
  // then.
  virtual void receive(ByteSpan bytes, std::string& frames, Wire& wire) = 0;
  // Only when ready.
  virtual void send(ByteSpan frame, Wire& wire) = 0;
  // Which rank an opener has said to be that could not prove it; -1 if it has said nothing of the kind. Anybody may say anything.
  virtual int claimed_rank() const { return -1; }
};

enum class ConnectionSide { kOpener, kAcceptor };
using TransformFactory = std::function<std::unique_ptr<Transform>(ConnectionSide)>;

// Bytes pass as they are: for loopback and trusted networks.
TransformFactory plain_transform();

}  // namespace cairn
