#include <cairn/runtime/agreement.hpp>

#include <charconv>
#include <memory>
#include <utility>

namespace cairn {
namespace {

// Brings this rank's text, and takes the answer.
class AgreementPlanner final : public LoadPlanner {
 public:
  explicit AgreementPlanner(std::string own) : own_(std::move(own)) {}
  const std::string& answer() const { return answer_; }

  void set_up_planner(StateDict&, const Metadata&, int, bool) override {}
  LoadPlan create_local_plan() override {
    LoadPlan plan;
    plan.storage_data = own_;
    return plan;
  }
  std::vector<LoadPlan> create_global_plan(std::vector<LoadPlan> all_plans) override { return all_plans; }
  LoadPlan finish_plan(LoadPlan central_plan) override {
    answer_ = central_plan.storage_data;
    return central_plan;
  }
  void load_bytes(const LoadPlan&, const ReadItem&, Bytes) override {}
  torch::Tensor resolve_tensor(const LoadPlan&, const ReadItem&) override { return {}; }
  void commit_tensor(const LoadPlan&, const ReadItem&, torch::Tensor) override {}

 private:
  const std::string own_;
  std::string answer_;
};

// Answers on the coordinator; there is nothing to read.
class AgreementReader final : public StorageReader {
 public:
  explicit AgreementReader(const Agreement::Decide& decide) : decide_(decide) {}

  void reset(const std::string&) override {}
  Metadata read_metadata() override { return {}; }
  void set_up_storage_reader(const Metadata&, const StorageContext&) override {}
  LoadPlan prepare_local_plan(LoadPlan plan) override { return plan; }
  std::vector<LoadPlan> prepare_global_plan(std::vector<LoadPlan> plans) override {
    std::vector<std::string> brought;
    for (LoadPlan& plan : plans) brought.push_back(std::move(plan.storage_data));
    const std::string answer = decide_(brought);
    for (LoadPlan& plan : plans) plan.storage_data = answer;
    return plans;
  }
  Future<bool> read_data(const LoadPlan&, LoadPlanner&) override { return ready_future(true); }

 private:
  const Agreement::Decide& decide_;
};

}  // namespace

std::string Agreement::reach(const std::string& about, const std::string& own, const Decide& decide,
                             std::optional<std::chrono::milliseconds> deadline) {
  const auto planner = std::make_shared<AgreementPlanner>(own);
  LoadOptions options;
  options.planner = planner;
  options.storage_reader = std::make_shared<AgreementReader>(decide);
  options.deadline = deadline;
  StateDict nothing;
  try {
    checkpointer_.load(nothing, about, options);
  } catch (const CheckpointException& failed) {
    throw CheckpointException("agreeing on " + about, failed.failures(), failed.committed(), failed.save_id());
  }
  return planner->answer();
}

std::string pack_texts(const std::vector<std::string>& texts) {
  std::string packed;
  for (const std::string& text : texts) packed += std::to_string(text.size()) + ":" + text;
  return packed;
}

std::vector<std::string> unpack_texts(const std::string& packed) {
  std::vector<std::string> texts;
  for (std::size_t at = 0; at < packed.size();) {
    const char* const end = packed.data() + packed.size();
    std::size_t length = 0;
    const auto [next, error] = std::from_chars(packed.data() + at, end, length);
    if (error != std::errc() || next == end || *next != ':' || length > static_cast<std::size_t>(end - next - 1))
      throw Error(ErrorCode::kCorrupt, "cannot take texts apart: they end or are no texts at byte " + std::to_string(at));
    texts.emplace_back(next + 1, length);
    at = static_cast<std::size_t>(next + 1 - packed.data()) + length;
  }
  return texts;
}

}  // namespace cairn
