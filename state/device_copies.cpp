#include <cairn/state/device_copies.hpp>

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>
#ifdef CAIRN_HAS_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#endif

#include <cairn/base/device_functions.hpp>
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

// The devices' own functions set the device of the thread for a moment. Without this guard they
// would then set the thread's default, the first device, and so create a context there.
using OnDevice = c10::DeviceGuard;

}  // namespace

#if defined(CAIRN_HAS_CUDA) && TORCH_VERSION_MAJOR >= 2
bool uses_cuda() {
  auto* allocator = c10::cuda::CUDACachingAllocator::get();
  return allocator != nullptr && allocator->initialized();
}
#else
bool uses_cuda() { return at::globalContext().hasCUDA(); }
#endif

// Asks for the primary context, because asking for anything else would create one.
std::vector<c10::Device> cuda_devices_in_use() {
  std::vector<c10::Device> used;
  if (!uses_cuda() || !c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA)) return used;
  const auto count = c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).deviceCount();
  for (int i = 0; i < static_cast<int>(count); ++i) {
    const auto index = static_cast<c10::DeviceIndex>(i);
    if (at::detail::getCUDAHooks().hasPrimaryContext(index)) used.emplace_back(c10::DeviceType::CUDA, index);
  }
  return used;
}

namespace {

#ifdef CAIRN_HAS_CUDA
bool lock_host_memory(char* memory, std::uint64_t bytes) noexcept {
  try {
    const std::vector<c10::Device> devices = cuda_devices_in_use();
    if (devices.empty()) return false;
    const OnDevice device(devices.front());
    // A capture by another thread goes on.
    const c10::cuda::CUDAStreamCaptureModeGuard mode(cudaStreamCaptureModeRelaxed);
    if (cudaHostRegister(memory, bytes, cudaHostRegisterPortable) == cudaSuccess) return true;
    static_cast<void>(cudaGetLastError());  // or LibTorch would report it at its next call
  } catch (...) {  // as if the memory could not be locked
  }
  return false;
}

void unlock_host_memory(char* memory) noexcept {
  try {
    const std::vector<c10::Device> devices = cuda_devices_in_use();
    if (devices.empty()) return;
    const OnDevice device(devices.front());
    const c10::cuda::CUDAStreamCaptureModeGuard mode(cudaStreamCaptureModeRelaxed);
    if (cudaHostUnregister(memory) != cudaSuccess) static_cast<void>(cudaGetLastError());
  } catch (...) {  // the device has failed, and with it whatever the lock was for
  }
}
#else
bool lock_host_memory(char*, std::uint64_t) noexcept { return false; }
void unlock_host_memory(char*) noexcept {}
#endif

void* begin_range(const char* name) noexcept {
  try {
    // Asks first, because a RecordFunction is large, and none is needed most of the time.
    auto observers = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
    if (!observers) return nullptr;
    auto range = std::make_unique<at::RecordFunction>(std::move(*observers));
    range->before(("cairn::" + std::string(name)).c_str());
    return range.release();
  } catch (...) {  // out of memory
    return nullptr;
  }
}

void end_range(void* range) noexcept { delete static_cast<at::RecordFunction*>(range); }

// All code that copies tensors is linked with this file.
[[maybe_unused]] const bool kFunctionsAreSet = [] {
  set_device_functions({begin_range, end_range, lock_host_memory, unlock_host_memory, []() noexcept { return uses_cuda(); }});
  return true;
}();

}  // namespace

// Only devices in use: asking for the stream of another one would create a context there.
CurrentStreams CurrentStreams::capture() {
  CurrentStreams current;
  for (const c10::Device& device : cuda_devices_in_use())
    current.streams_.push_back(c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getStream(device));
  return current;
}

GivenWork::GivenWork(const c10::Device& device)
    : device_(device), end_(new c10::Event(device.type()), [device](c10::Event* event) {
        const OnDevice on(device);
        delete event;
      }) {
  if (is_captured(device))
    throw Error(ErrorCode::kPrecondition,
                "cannot copy tensors of " + device.str() +
                    ": its current stream is being captured into a graph; save after the capture has ended");
  const OnDevice on(device);
  end_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

// The stream waits, because its copies could otherwise read tensors that are still being computed.
void GivenWork::precede(const c10::Stream& stream) const {
  const OnDevice on(device_);
  end_->block(stream);
}

OwnStream::OwnStream(const c10::Device& device) {
  if (device.is_cuda()) begin(device, GivenWork(device));
}

void OwnStream::begin(const c10::Device& device, const GivenWork& given) {
  thread_local std::map<c10::DeviceIndex, c10::Stream> own;
  auto found = own.find(device.index());
  if (found == own.end()) {
    const OnDevice on(device);
    found = own.emplace(device.index(), c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device)).first;
  }
  given.precede(found->second);
  guard_.emplace(found->second);
}

void OwnStream::wait() {
  if (guard_) guard_->current_stream().synchronize();
}

c10::Stream SideStreams::of(const c10::Device& device) {
  const auto key = std::make_pair(device.type(), device.index());
  const auto found = streams_.find(key);
  if (found != streams_.end()) return found->second;
  const GivenWork given(device);
  const c10::Stream side = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  given.precede(side);
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
