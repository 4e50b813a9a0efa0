#include <cairn/state/call_hooks.hpp>

#include <string>
#include <utility>
#include <vector>

#include <cairn/base/error.hpp>

namespace cairn {
namespace {

// An empty id is not validated: user-defined writers may need none.
template <class Storage>
void reset_storage(Storage& storage, const std::string& checkpoint_id) {
  if (!checkpoint_id.empty() && !storage.validate_checkpoint_id(checkpoint_id))
    throw Error(
        ErrorCode::kInvalidArgument,
        "\"" + checkpoint_id + "\" is not a checkpoint id that this writer or reader can handle; pass a path or URL of its kind");
  storage.reset(checkpoint_id);
}

// The hooks of SavePlanner and StorageWriter, as one object.
class PlannedSave final : public SaveHooks {
 public:
  PlannedSave(const StateDict& state_dict, SavePlanner& planner, StorageWriter& writer, std::string rules)
      : state_dict_(state_dict), planner_(planner), writer_(writer), rules_(std::move(rules)) {}

  void reset(const std::string& checkpoint_id) override { reset_storage(writer_, checkpoint_id); }
  void set_up_planner(int rank, bool is_coordinator) override { planner_.set_up_planner(state_dict_, rank, is_coordinator); }
  void set_up_storage_writer(const StorageContext& context) override { writer_.set_up_storage_writer(context); }
  SavePlan create_local_plan() override { return planner_.create_local_plan(); }
  SavePlan prepare_local_plan(SavePlan plan) override { return writer_.prepare_local_plan(std::move(plan)); }
  GlobalSavePlan create_global_plan(std::vector<SavePlan> all_plans) override {
    return planner_.create_global_plan(std::move(all_plans));
  }
  std::vector<SavePlan> prepare_global_plan(std::vector<SavePlan> plans) override {
    return writer_.prepare_global_plan(std::move(plans));
  }
  bool repeats(const std::string& of, const std::vector<std::shared_ptr<const SavePlan>>& plans) override {
    return !rules_.empty() && writer_.repeats(of + rules_, plans);
  }
  SavePlan finish_plan(SavePlan new_plan) override { return planner_.finish_plan(std::move(new_plan)); }
  Future<WriteResults> write_data(const SavePlan& plan) override { return writer_.write_data(plan, planner_); }
  void finish(Metadata metadata, std::vector<WriteResults> results) override {
    writer_.finish(std::move(metadata), std::move(results));
  }
  Committed committed(const std::string& save_id) override { return writer_.committed(save_id); }
  void abandon() noexcept override { writer_.abandon(); }
  void discard(bool ends_attempt) noexcept override { writer_.discard(ends_attempt); }

 private:
  const StateDict& state_dict_;
  SavePlanner& planner_;
  StorageWriter& writer_;
  const std::string rules_;
};

// The hooks of LoadPlanner and StorageReader, as one object.
class PlannedLoad final : public LoadHooks {
 public:
  PlannedLoad(StateDict& state_dict, LoadPlanner& planner, StorageReader& reader, FitState fit, bool keeps_local_plans)
      : state_dict_(state_dict),
        planner_(planner),
        reader_(reader),
        fit_(std::move(fit)),
        keeps_local_plans_(keeps_local_plans) {}

  void reset(const std::string& checkpoint_id) override { reset_storage(reader_, checkpoint_id); }
  Metadata read_metadata() override { return reader_.read_metadata(); }
  void set_up_planner(const Metadata& metadata, const StorageContext& context) override {
    if (fit_) fit_(metadata, context);
    planner_.set_up_planner(state_dict_, metadata, context.rank, context.is_coordinator);
  }
  void set_up_storage_reader(const Metadata& metadata, const StorageContext& context) override {
    reader_.set_up_storage_reader(metadata, context);
  }
  LoadPlan create_local_plan() override {
    LoadPlan made = planner_.create_local_plan();
    // Belongs to this phase, because no rank changes data before all ranks have planned.
    planner_.compare_shared([this](const LoadPlan& reads) { reader_.read_data(reads, planner_).get(); });
    return made;
  }
  LoadPlan prepare_local_plan(LoadPlan plan) override { return reader_.prepare_local_plan(std::move(plan)); }
  bool keeps_local_plans() const override { return keeps_local_plans_; }
  std::vector<LoadPlan> create_global_plan(std::vector<LoadPlan> all_plans) override {
    return planner_.create_global_plan(std::move(all_plans));
  }
  std::vector<LoadPlan> prepare_global_plan(std::vector<LoadPlan> plans) override {
    return reader_.prepare_global_plan(std::move(plans));
  }
  LoadPlan finish_plan(LoadPlan central_plan) override { return planner_.finish_plan(std::move(central_plan)); }
  Future<bool> read_data(const LoadPlan& plan) override { return reader_.read_data(plan, planner_); }
  void abandon() noexcept override { reader_.abandon(); }

 private:
  StateDict& state_dict_;
  LoadPlanner& planner_;
  StorageReader& reader_;
  const FitState fit_;
  const bool keeps_local_plans_;
};

}  // namespace

std::shared_ptr<SaveHooks> make_save_hooks(const StateDict& state_dict, SavePlanner& planner, StorageWriter& writer,
                                           std::string rules) {
  return std::make_shared<PlannedSave>(state_dict, planner, writer, std::move(rules));
}

std::shared_ptr<LoadHooks> make_load_hooks(StateDict& state_dict, LoadPlanner& planner, StorageReader& reader, FitState fit,
                                           bool keeps_local_plans) {
  return std::make_shared<PlannedLoad>(state_dict, planner, reader, std::move(fit), keeps_local_plans);
}

}  // namespace cairn
