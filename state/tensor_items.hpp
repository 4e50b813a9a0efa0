// Gives the engines the tensors and bytes objects of the caller's planner. Internal.
#pragma once

#include <cstdint>
#include <memory>

#include <torch/types.h>

#include <cairn/base/bytes.hpp>
#include <cairn/planning/plan.hpp>
#include <cairn/state/device_copies.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/storage/engine/strided_bytes.hpp>

namespace cairn {

// A tensor as a run of bytes, for any strides and device.
//
// Plain loops on the calling thread copy host tensors. LibTorch copies tensors on other devices,
// and host tensors whose elements need conversion. The latter are copied in parts too small for
// LibTorch to start threads.
class TensorBytes final : public ElementRun {
 public:
  // The run holds elements of `dtype`; if the tensor has another dtype, copies convert. Throws
  // kUnsupported for a tensor without strides (sparse, quantized, undefined).
  TensorBytes(const torch::Tensor& tensor, torch::ScalarType dtype);
  // Does the same with the tensor's own dtype.
  explicit TensorBytes(const torch::Tensor& tensor);

  // The tensor as it was given.
  const torch::Tensor& tensor() const { return tensor_; }
  std::uint64_t size_bytes() const override { return size_bytes_; }
  bool is_on_host() const override { return tensor_.device().is_cpu(); }
  char* direct() const override { return plain_.direct(); }
  void read(std::uint64_t first, MutableByteSpan destination) const override;
  void write(std::uint64_t first, ByteSpan source) const override;

 private:
  template <bool kRead>
  void copy_by_torch(std::uint64_t first, char* bytes, std::uint64_t length) const;

  const torch::Tensor tensor_;
  const torch::ScalarType dtype_;
  const std::size_t element_bytes_;
  std::uint64_t size_bytes_ = 0;
  bool is_plain_ = false;
  StridedBytes plain_;  // of a plain tensor
};

// Both keep references to their arguments, and the current streams of the thread that makes them.
// Runs that they return are TensorBytes.
class PlannedSource final : public ItemSource {
 public:
  PlannedSource(const SavePlan& plan, SavePlanner& planner) : plan_(plan), planner_(planner) {}
  std::shared_ptr<void> enter_thread() const override { return std::make_shared<CurrentStreams::Scope>(streams_); }
  std::shared_ptr<const ElementRun> elements_of(const WriteItem& item) override;
  Bytes bytes_of(const WriteItem& item) override;

 private:
  const SavePlan& plan_;
  SavePlanner& planner_;
  const CurrentStreams streams_ = CurrentStreams::capture();
};

class PlannedDestination final : public ItemDestination {
 public:
  PlannedDestination(const LoadPlan& plan, LoadPlanner& planner) : plan_(plan), planner_(planner) {}
  std::shared_ptr<void> enter_thread() const override { return std::make_shared<CurrentStreams::Scope>(streams_); }
  std::shared_ptr<const ElementRun> elements_for(const ReadItem& item, DType stored) override;
  void commit(const ReadItem& item, const ElementRun& elements) override;
  void take_bytes(const ReadItem& item, Bytes bytes) override;

 private:
  const LoadPlan& plan_;
  LoadPlanner& planner_;
  const CurrentStreams streams_ = CurrentStreams::capture();
};

}  // namespace cairn
