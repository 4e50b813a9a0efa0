// Encodes and decodes plans and write results. Pure and thread-safe.
//
// Decoding checks everything, so the result needs no further checks. Throws kCorrupt that names the
// fault; skips fields of later versions. Encoding throws kInvalidArgument for an inconsistent plan,
// as a user-defined planner might make, and kUnsupported above 2 GiB, which Protobuf cannot encode.
#pragma once

#include <cairn/base/bytes.hpp>
#include <cairn/planning/plan.hpp>

namespace cairn {

Bytes encode_save_plan(const SavePlan& plan);
SavePlan decode_save_plan(ByteSpan bytes);

Bytes encode_load_plan(const LoadPlan& plan);
LoadPlan decode_load_plan(ByteSpan bytes);

Bytes encode_write_results(const WriteResults& results);
WriteResults decode_write_results(ByteSpan bytes);

}  // namespace cairn
