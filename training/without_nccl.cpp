#include <cairn/base/error.hpp>
#include <cairn/training/c10d_backends.hpp>

namespace cairn::training {

std::unique_ptr<C10dBackend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>&, int, int, std::chrono::milliseconds) {
  throw Error(ErrorCode::kUnsupported, "process group: this build of Cairn has no NCCL, which tensors on CUDA devices need");
}

}  // namespace cairn::training
