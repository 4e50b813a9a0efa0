#include <cairn/state/device_copies.hpp>

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>
#ifdef CAIRN_HAS_CUDA
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#endif

#include <cairn/base/error.hpp>

namespace cairn {
namespace {

#ifdef CAIRN_HAS_CUDA
bool is_captured(const c10::Device& device) {
  if (!device.is_cuda()) return false;
  // The function below asks about the current stream of the current device.
  const c10::cuda::CUDAGuard guard(device);
  return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
}
#else
bool is_captured(const c10::Device&) { return false; }
#endif

}  // namespace

bool has_pinned_memory() { return at::globalContext().hasCUDA(); }

// Asks for the primary context, because asking for anything else would create one.
std::vector<c10::Device> cuda_devices_in_use() {
  std::vector<c10::Device> used;
  if (!at::globalContext().hasCUDA() || !c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA)) return used;
  const auto count = c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).deviceCount();
  for (int i = 0; i < static_cast<int>(count); ++i) {
    const auto index = static_cast<c10::DeviceIndex>(i);
    if (at::detail::getCUDAHooks().hasPrimaryContext(index)) used.emplace_back(c10::DeviceType::CUDA, index);
  }
  return used;
}

c10::Stream SideStreams::of(const c10::Device& device) {
  const auto key = std::make_pair(device.type(), device.index());
  const auto found = streams_.find(key);
  if (found != streams_.end()) return found->second;
  if (is_captured(device))
    throw Error(ErrorCode::kPrecondition,
                "cannot stage tensors of " + device.str() +
                    ": its current stream is being captured into a graph; save after the capture has ended");
  const c10::impl::VirtualGuardImpl devices(device.type());
  const c10::Stream side = devices.getStreamFromGlobalPool(device);
  c10::Event given(device.type());
  // The side stream waits for the work that the trainer's stream has been given so far. Without it,
  // the copies could read tensors that are still being computed.
  given.record(devices.getStream(device));
  given.block(side);
  streams_.emplace(key, side);
  return side;
}

std::vector<c10::Stream> SideStreams::all() const {
  std::vector<c10::Stream> streams;
  for (const auto& [device, stream] : streams_) streams.push_back(stream);
  return streams;
}

void SideStreams::wait() {
  for (const auto& [device, stream] : streams_) stream.synchronize();
  streams_.clear();
}

void DeviceCopies::add(const torch::Tensor& from, torch::Tensor& to) {
  const c10::StreamGuard guard(streams_.of(from.device()));
  to.copy_(from, /*non_blocking=*/true);
}

void DeviceCopies::add_joined(const std::vector<torch::Tensor>& parts, const std::vector<std::int64_t>& gaps, torch::Tensor& to) {
  const c10::StreamGuard guard(streams_.of(parts.front().device()));
  torch::Tensor joined;
  try {
    // Allocated under the guard of the side stream: LibTorch's allocator gives its memory only to
    // later work of that stream, so it may be freed before the copies are done.
    joined = torch::empty(to.sizes(), parts.front().options());
  } catch (const c10::Error&) {  // the trainer uses all of the device's memory
    std::int64_t at = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      to.narrow(0, at, parts[i].numel()).copy_(parts[i], /*non_blocking=*/true);
      at += parts[i].numel() + gaps[i];
    }
    return;
  }
  std::vector<torch::Tensor> pieces;
  std::int64_t at = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    pieces.push_back(parts[i]);
    at += parts[i].numel();
    // Fillers for the gaps, so that one copy covers the whole destination. Their bytes are never
    // read.
    if (gaps[i] > 0) pieces.push_back(torch::empty({gaps[i]}, parts[i].options()));
    at += gaps[i];
  }
  check_invariant(at == to.numel(), "parts and gaps do not make up what they become");
  at::cat_out(joined, pieces);
  to.copy_(joined, /*non_blocking=*/true);
}

void DeviceCopies::wait() { streams_.wait(); }

// The sources and destinations are freed after this. Copies in flight would use freed memory.
DeviceCopies::~DeviceCopies() {
  try {
    wait();
  } catch (...) {  // the device has failed, so no copies are running
  }
}

}  // namespace cairn
