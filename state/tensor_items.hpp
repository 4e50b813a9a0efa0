// Gives the engines the tensors and bytes objects of the caller's planner. Internal.
#pragma once

#include <memory>

#include <cairn/base/bytes.hpp>
#include <cairn/planning/plan.hpp>
#include <cairn/state/device_copies.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/storage/engine/item_data.hpp>

namespace cairn {

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
