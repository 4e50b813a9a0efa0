// Encodes and decodes Cairn's section of the commit record. Preserves everything in
// cairn::Metadata. Pure and thread-safe.
//
// Decoding checks everything, so the result needs no further checks, except that `check_coverage`
// checks whether chunks tile their tensors. Throws kCorrupt that names the fault; skips fields of
// later versions. Encoding throws kInvalidArgument for inconsistent metadata, so that whatever it
// returns can be decoded, and kUnsupported above 2 GiB, which Protobuf cannot encode.
#pragma once

#include <cairn/base/bytes.hpp>
#include <cairn/planning/metadata.hpp>

namespace cairn {

Bytes encode_metadata(const Metadata& metadata);
Metadata decode_metadata(ByteSpan bytes);

}  // namespace cairn
