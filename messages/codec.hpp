// Envelopes to bytes and back. Pure; thread-safe. The wire form is Protobuf, described in the .proto files of this folder.
#pragma once

#include <memory>
#include <string>

#include <cairn/base/bytes.hpp>
#include <cairn/messages/control.hpp>

namespace cairn::protocol {

// Bounds of what `decode` accepts, whoever sent it, and of what `encode` sends.
inline constexpr std::size_t kNameBytesMax = 64 * 1024;       // a checkpointer's name, a checkpoint id, a key
inline constexpr std::size_t kRanksMax = 1u << 20;            // entries of a failure map
inline constexpr std::size_t kAgreementTextMax = 64 * 1024;   // bytes that one rank brings to an agreement
inline constexpr std::size_t kAgreementAnswerMax = 16 << 20;  // bytes of its answer

// Encodes an envelope. Throws kInvalidArgument for a name or text beyond its bound or an inconsistent plan, kUnsupported above 2
// GiB.
std::string encode(const Envelope& envelope);

// An envelope as bytes: `own`, then `shared`.
struct EncodedEnvelope {
  std::string own;
  std::shared_ptr<const std::string> shared;  // the message's Ending; null if it has none
};

// Encodes envelopes as `encode` does, but encodes an Ending that goes to many ranks only once. Not thread-safe.
class EnvelopeEncoder {
 public:
  EncodedEnvelope encode(const Envelope& envelope);

 private:
  std::shared_ptr<const Ending> ending_;  // the last one
  std::shared_ptr<const std::string> bytes_;
};

// Throws kCorrupt, saying which field is wrong, unless `bytes` is an envelope whose every field is within its bounds. What it
// returns can be used without further checks, except that ranks are not compared with the size of a world.
Envelope decode(ByteSpan bytes);

}  // namespace cairn::protocol
