// Cairn's own writer and reader, which call a function of the test before each hook.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <cairn/state/checkpoint_writer.hpp>

namespace cairn::testing {

using BeforeHook = std::function<void(const std::string& hook)>;  // receives the hook's name

class WatchedWriter : public CheckpointWriter {
 public:
  explicit WatchedWriter(BeforeHook before) : before_(std::move(before)) {}
  void reset(const std::string& id) override {
    before_("reset");
    CheckpointWriter::reset(id);
  }
  void set_up_storage_writer(const StorageContext& context) override {
    before_("set_up_storage_writer");
    CheckpointWriter::set_up_storage_writer(context);
  }
  SavePlan prepare_local_plan(SavePlan plan) override {
    before_("prepare_local_plan");
    return CheckpointWriter::prepare_local_plan(std::move(plan));
  }
  std::vector<SavePlan> prepare_global_plan(std::vector<SavePlan> plans) override {
    before_("prepare_global_plan");
    return CheckpointWriter::prepare_global_plan(std::move(plans));
  }
  Future<WriteResults> write_data(const SavePlan& plan, SavePlanner& planner) override {
    before_("write_data");
    return CheckpointWriter::write_data(plan, planner);
  }
  void finish(Metadata metadata, std::vector<WriteResults> results) override {
    before_("finish");
    CheckpointWriter::finish(std::move(metadata), std::move(results));
  }

 private:
  const BeforeHook before_;
};

class WatchedReader : public CheckpointReader {
 public:
  explicit WatchedReader(BeforeHook before) : before_(std::move(before)) {}
  void reset(const std::string& id) override {
    before_("reset");
    CheckpointReader::reset(id);
  }
  Metadata read_metadata() override {
    before_("read_metadata");
    return CheckpointReader::read_metadata();
  }
  LoadPlan prepare_local_plan(LoadPlan plan) override {
    before_("prepare_local_plan");
    return CheckpointReader::prepare_local_plan(std::move(plan));
  }
  std::vector<LoadPlan> prepare_global_plan(std::vector<LoadPlan> plans) override {
    before_("prepare_global_plan");
    return CheckpointReader::prepare_global_plan(std::move(plans));
  }
  Future<bool> read_data(const LoadPlan& plan, LoadPlanner& planner) override {
    before_("read_data");
    return CheckpointReader::read_data(plan, planner);
  }

 private:
  const BeforeHook before_;
};

}  // namespace cairn::testing
