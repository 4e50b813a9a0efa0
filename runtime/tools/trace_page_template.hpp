// The page of `cairn trace export --to html`, with marks where the trace belongs: made of html/ when this is built.
#pragma once

#include <string_view>

namespace cairn::tools {

// `<!--summary-->`, for people without scripts, then `<!--data-->`, each once.
extern const std::string_view kTracePageTemplate;

}  // namespace cairn::tools
