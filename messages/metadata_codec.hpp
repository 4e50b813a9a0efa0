// Encodes and decodes Cairn's section of the commit record. Preserves everything in
// cairn::Metadata. The functions are thread-safe.
//
// Decoding checks everything except whether chunks tile their tensors; see `check_coverage`.
// Decoding throws kCorrupt, naming the fault, and skips fields of later versions. Encoding throws
// kInvalidArgument for inconsistent metadata, so its result can always be decoded. Encoding throws
// kUnsupported above 2 GiB, the limit of Protobuf.
#pragma once

#include <cairn/base/bytes.hpp>
#include <cairn/planning/metadata.hpp>

namespace cairn {

Bytes encode_metadata(const Metadata& metadata);
Metadata decode_metadata(ByteSpan bytes);

}  // namespace cairn
