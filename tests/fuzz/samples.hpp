// One valid record of every kind, with every field set, as seeds for fuzzing. For metadata see
// sample_metadata.
#pragma once

#include <vector>

#include <cairn/messages/control.hpp>
#include <cairn/planning/plan.hpp>
#include <cairn/storage/format/trailer.hpp>
#include <cairn/tests/support/sample_metadata.hpp>

namespace cairn::testing {

Trailer sample_trailer();
SavePlan sample_save_plan();
LoadPlan sample_load_plan();
WriteResults sample_write_results();
std::vector<protocol::Envelope> sample_envelopes();  // one for each message type

}  // namespace cairn::testing
