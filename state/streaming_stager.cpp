// A stager that copies no tensors. The writer copies them through its own bounded memory.
#include <memory>
#include <utility>

#include <cairn/state/staged_values.hpp>
#include <cairn/state/staging.hpp>

namespace cairn {
namespace {

class StreamingStaging final : public Staging {
 public:
  explicit StreamingStaging(StateDict state) : state_(std::move(state)) {}
  StateDict finish() override { return std::move(state_); }

 private:
  StateDict state_;
};

}  // namespace

std::unique_ptr<Staging> StreamingStager::begin(const StateDict& state) {
  Value whole{StateDict(state)};
  // Plain values are small, and the trainer may change them before the writer reads them.
  copy_plain_values(whole);
  return std::make_unique<StreamingStaging>(std::move(whole.dict()));
}

}  // namespace cairn
