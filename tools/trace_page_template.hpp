// The page of `cairn trace export --to html`, with marks where the trace is inserted. The build
// makes it from html/.
#pragma once

#include <string_view>

namespace cairn::tools {

// Contains `<!--summary-->`, for readers without scripts, then `<!--data-->`, each once.
extern const std::string_view kTracePageTemplate;

}  // namespace cairn::tools
