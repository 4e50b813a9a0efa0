// Plans and write results to bytes and back. Pure; thread-safe.
//
// Decoding checks everything: what it returns can be used without further checks. Bytes that are not what they should be give
// kCorrupt naming what is wrong; fields of later versions are skipped. Encoding throws kInvalidArgument on a plan that contradicts
// itself, as a user-defined planner might make, and kUnsupported above 2 GiB, which Protobuf cannot carry.
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
