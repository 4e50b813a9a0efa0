// Metadata to the bytes of the commit record's own section and back. Pure; thread-safe. Everything in cairn::Metadata survives.
//
// Decoding checks everything: what it returns can be used without further checks; whether chunks tile their tensors is for
// `check_coverage`. Bytes that are not what they should be give kCorrupt naming what is wrong; fields of later versions are
// skipped. Encoding throws kInvalidArgument on metadata that contradicts itself, so that what it gives can be decoded again, and
// kUnsupported above 2 GiB, which Protobuf cannot carry.
#pragma once

#include <cairn/base/bytes.hpp>
#include <cairn/planning/metadata.hpp>

namespace cairn {

Bytes encode_metadata(const Metadata& metadata);
Metadata decode_metadata(ByteSpan bytes);

}  // namespace cairn
