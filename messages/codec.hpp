// Encodes and decodes envelopes, which carry the messages between ranks. The functions are
// thread-safe. The wire format is Protobuf, described in the .proto files of this folder.
#pragma once

#include <memory>
#include <string>

#include <cairn/base/bytes.hpp>
#include <cairn/messages/control.hpp>

namespace cairn {
class SharedNames;
}

namespace cairn::protocol {

// Limits that `decode` enforces. `encode` enforces those on names and on inputs to agreements.
inline constexpr std::size_t kNameBytesMax = 64 << 10;        // a checkpointer's name, a checkpoint id, a key
inline constexpr std::size_t kRanksMax = 1u << 20;            // ranks of a world
inline constexpr std::size_t kAgreementTextMax = 64 << 10;    // text that one rank contributes to an agreement, in bytes
inline constexpr std::size_t kAgreementAnswerMax = 16 << 20;  // the answer of an agreement, in bytes

// Encodes an envelope. Throws kInvalidArgument for an inconsistent plan, and for a name or text
// beyond its limit. Throws kUnsupported if the result would exceed 2 GiB, the limit of Protobuf.
std::string encode(const Envelope& envelope);

// An encoded envelope: the bytes of `own`, then those of `shared`.
struct EncodedEnvelope {
  std::string own;
  std::shared_ptr<const std::string> shared;  // the encoded Ending of the message; null if it has none
};

// Encodes envelopes like `encode`, but encodes an Ending (control.hpp) only once, even if it goes
// to many ranks. Not thread-safe.
class EnvelopeEncoder {
 public:
  EncodedEnvelope encode(const Envelope& envelope);

 private:
  std::shared_ptr<const Ending> ending_;  // the last Ending encoded; `bytes_` is its encoding
  std::shared_ptr<const std::string> bytes_;
};

// Decodes an envelope. Throws kCorrupt, naming the fault, if a field is outside its limits. The
// caller must still check that ranks are below the size of the world, and that the chunks of plans
// lie within their tensors.
Envelope decode(ByteSpan bytes);

// Decodes envelopes like `decode`, but makes local save plans with equal names share memory. Not
// thread-safe.
class EnvelopeDecoder {
 public:
  EnvelopeDecoder();
  ~EnvelopeDecoder();
  Envelope decode(ByteSpan bytes);

 private:
  std::unique_ptr<SharedNames> seen_;
};

}  // namespace cairn::protocol
