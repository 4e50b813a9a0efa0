#include <cairn/runtime/observation/progress.hpp>

#include <cairn/base/enum_names.hpp>

namespace cairn {

const char* to_string(SaveProgress::Step step) noexcept {
  static constexpr const char* kNames[] = {"staging", "queued", "planning", "writing", "publishing", "done"};
  return name_in<SaveProgress::Step::kDone>(kNames, step, "unknown");
}

}  // namespace cairn
