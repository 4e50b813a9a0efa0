// A user-defined writer and reader that can fail in any phase on any rank. They store nothing, or
// pass each call that does not fail to another writer or reader.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <cairn/state/storage.hpp>

namespace cairn::testing {

// Maps each failing hook to the ranks on which it fails: {"write_data", {2}}. A hook that only the
// coordinator runs fails if the coordinator is listed. "<hook>_number" throws an int in that hook.
using FailOn = std::map<std::string, std::set<int>>;

// The exception that a failing hook throws. It is not one of Cairn's types.
class PlannedFault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class FaultSwitch {
 public:
  FaultSwitch(FailOn fail_on, int rank) : fail_on_(std::move(fail_on)), rank_(rank) {}

  void pass(const std::string& hook) {
    calls_.push_back(hook);
    if (fails(hook)) throw PlannedFault("planned fault in " + hook);
    if (fails(hook + "_number")) throw 42;
  }
  bool fails(const std::string& hook) const {
    const auto found = fail_on_.find(hook);
    return found != fail_on_.end() && found->second.count(rank_) > 0;
  }
  const std::vector<std::string>& calls() const { return calls_; }

 private:
  FailOn fail_on_;
  int rank_;
  std::vector<std::string> calls_;
};

template <class T>
Future<T> failed_future(const std::string& hook) {
  Promise<T> promise;
  promise.set_exception(std::make_exception_ptr(PlannedFault("planned fault in " + hook)));
  return promise.future();
}

class FaultyWriter : public StorageWriter {
 public:
  // `inner` may be null: nothing is stored.
  FaultyWriter(FailOn fail_on, int rank, std::shared_ptr<StorageWriter> inner = nullptr)
      : faults(std::move(fail_on), rank), inner_(std::move(inner)) {}

  void reset(const std::string& checkpoint_id) override {
    faults.pass("reset");
    if (inner_) inner_->reset(checkpoint_id);
  }
  void set_up_storage_writer(const StorageContext& context) override {
    faults.pass("set_up_storage_writer");
    if (inner_) inner_->set_up_storage_writer(context);
  }
  SavePlan prepare_local_plan(SavePlan plan) override {
    faults.pass("prepare_local_plan");
    return inner_ ? inner_->prepare_local_plan(std::move(plan)) : plan;
  }
  std::vector<SavePlan> prepare_global_plan(std::vector<SavePlan> plans) override {
    faults.pass("prepare_global_plan");
    return inner_ ? inner_->prepare_global_plan(std::move(plans)) : plans;
  }
  Future<WriteResults> write_data(const SavePlan& plan, SavePlanner& planner) override {
    faults.pass("write_data");
    if (faults.fails("write_data_async")) return failed_future<WriteResults>("write_data_async");
    return inner_ ? inner_->write_data(plan, planner) : ready_future(WriteResults{});
  }
  void finish(Metadata metadata, std::vector<WriteResults> results) override {
    faults.pass("finish");
    if (inner_) inner_->finish(std::move(metadata), std::move(results));
  }
  Committed committed(const std::string& save_id) override { return inner_ ? inner_->committed(save_id) : Committed::kNo; }
  void abandon() noexcept override {
    if (inner_) inner_->abandon();
  }
  void discard(bool ends_attempt) noexcept override {
    if (inner_) inner_->discard(ends_attempt);
  }

  FaultSwitch faults;

 private:
  const std::shared_ptr<StorageWriter> inner_;
};

class FaultyReader : public StorageReader {
 public:
  // With `inner`, the metadata are those that it reads.
  FaultyReader(Metadata metadata, FailOn fail_on, int rank, std::shared_ptr<StorageReader> inner = nullptr)
      : faults(std::move(fail_on), rank), metadata_(std::move(metadata)), inner_(std::move(inner)) {}

  void reset(const std::string& checkpoint_id) override {
    faults.pass("reset");
    if (inner_) inner_->reset(checkpoint_id);
  }
  Metadata read_metadata() override {
    faults.pass("read_metadata");
    return inner_ ? inner_->read_metadata() : metadata_;
  }
  void set_up_storage_reader(const Metadata& metadata, const StorageContext& context) override {
    faults.pass("set_up_storage_reader");
    if (inner_) inner_->set_up_storage_reader(metadata, context);
  }
  LoadPlan prepare_local_plan(LoadPlan plan) override {
    faults.pass("prepare_local_plan");
    return inner_ ? inner_->prepare_local_plan(std::move(plan)) : plan;
  }
  std::vector<LoadPlan> prepare_global_plan(std::vector<LoadPlan> plans) override {
    faults.pass("prepare_global_plan");
    return inner_ ? inner_->prepare_global_plan(std::move(plans)) : plans;
  }
  Future<bool> read_data(const LoadPlan& plan, LoadPlanner& planner) override {
    faults.pass("read_data");
    if (faults.fails("read_data_async")) return failed_future<bool>("read_data_async");
    return inner_ ? inner_->read_data(plan, planner) : ready_future(true);
  }
  void abandon() noexcept override {
    if (inner_) inner_->abandon();
  }

  FaultSwitch faults;

 private:
  Metadata metadata_;
  const std::shared_ptr<StorageReader> inner_;
};

}  // namespace cairn::testing
