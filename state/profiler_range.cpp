#include <cairn/state/profiler_range.hpp>

#include <string>
#include <utility>

#include <ATen/record_function.h>

namespace cairn {

ProfilerRange::ProfilerRange(const char* name) noexcept {
  try {
    // Asks first, because a RecordFunction is large, and none is needed most of the time.
    auto observers = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
    if (!observers) return;
    range_ = std::make_unique<at::RecordFunction>(std::move(*observers));
    range_->before(("cairn::" + std::string(name)).c_str());
  } catch (...) {  // out of memory
  }
}

ProfilerRange::~ProfilerRange() = default;
ProfilerRange::ProfilerRange(ProfilerRange&&) noexcept = default;

}  // namespace cairn
