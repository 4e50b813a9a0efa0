// A user-defined writer and reader that store nothing and can fail in any phase on any rank.
#pragma once

#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <cairn/storage/storage.hpp>

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
  FaultyWriter(FailOn fail_on, int rank) : faults(std::move(fail_on), rank) {}

  void reset(const std::string&) override { faults.pass("reset"); }
  void set_up_storage_writer(const StorageContext&) override { faults.pass("set_up_storage_writer"); }
  SavePlan prepare_local_plan(SavePlan plan) override {
    faults.pass("prepare_local_plan");
    return plan;
  }
  std::vector<SavePlan> prepare_global_plan(std::vector<SavePlan> plans) override {
    faults.pass("prepare_global_plan");
    return plans;
  }
  Future<WriteResults> write_data(const SavePlan&, SavePlanner&) override {
    faults.pass("write_data");
    if (faults.fails("write_data_async")) return failed_future<WriteResults>("write_data_async");
    return ready_future(WriteResults{});
  }
  void finish(Metadata, std::vector<WriteResults>) override { faults.pass("finish"); }
  Committed committed(const std::string&) override { return Committed::kNo; }

  FaultSwitch faults;
};

class FaultyReader : public StorageReader {
 public:
  FaultyReader(Metadata metadata, FailOn fail_on, int rank) : faults(std::move(fail_on), rank), metadata_(std::move(metadata)) {}

  void reset(const std::string&) override { faults.pass("reset"); }
  Metadata read_metadata() override {
    faults.pass("read_metadata");
    return metadata_;
  }
  void set_up_storage_reader(const Metadata&, const StorageContext&) override { faults.pass("set_up_storage_reader"); }
  LoadPlan prepare_local_plan(LoadPlan plan) override {
    faults.pass("prepare_local_plan");
    return plan;
  }
  std::vector<LoadPlan> prepare_global_plan(std::vector<LoadPlan> plans) override {
    faults.pass("prepare_global_plan");
    return plans;
  }
  Future<bool> read_data(const LoadPlan&, LoadPlanner&) override {
    faults.pass("read_data");
    if (faults.fails("read_data_async")) return failed_future<bool>("read_data_async");
    return ready_future(true);
  }

  FaultSwitch faults;

 private:
  Metadata metadata_;
};

}  // namespace cairn::testing
