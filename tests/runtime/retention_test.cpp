// Retention policies: the checkpoints that each keeps, and invalid policies.
#include <cairn/tests/support/torch.hpp>  // before the headers that use doctest

#include <limits>

#include <cairn/runtime/worlds/agreement.hpp>
#include <cairn/storage/runs/retention.hpp>
#include <cairn/tests/support/thrown.hpp>

using namespace cairn;
using namespace cairn::testing;

namespace {

using NameSet = std::set<std::string>;

CheckpointInfo at_step(std::int64_t step, std::optional<double> loss = std::nullopt, const std::string& name = "") {
  CheckpointInfo info;
  info.name = name.empty() ? "step_" + std::to_string(step) : name;
  info.step = step;
  if (loss) info.annotations.metrics["loss"] = *loss;
  return info;
}

RetentionPolicy keep_last(std::uint32_t count) {
  RetentionPolicy policy;
  policy.keep_last = count;
  return policy;
}

}  // namespace

TEST_CASE("policies that cannot be meant are refused") {
  const auto refused = [](const RetentionPolicy& policy, const char* word) {
    const Thrown thrown = thrown_by([&] { check_policy(policy); });
    CHECK(thrown.code == ErrorCode::kInvalidArgument);
    CHECK_MESSAGE(thrown.says(word), thrown.what);
  };
  refused(keep_last(0), "keep_last");
  RetentionPolicy policy;
  policy.keep_every = -1;
  refused(policy, "keep_every");
  policy.keep_every = 10;
  refused(policy, "keep_every removes nothing without keep_last");
  policy = {};
  policy.keep_best = 1;
  policy.metric = "loss";
  refused(policy, "keep_best removes nothing without keep_last");
  policy = keep_last(1);
  policy.keep_best = 1;
  refused(policy, "name of a metric");
  policy = {};
  policy.better = static_cast<Better>(7);
  refused(policy, "better");
  check_policy({});
  check_policy(keep_last(1));
}

TEST_CASE("the last ones are those committed last, whatever their steps") {
  const std::vector<CheckpointInfo> went_back{at_step(60), at_step(50), at_step(100), at_step(90)};
  CHECK(kept_by(keep_last(2), went_back) == NameSet{"step_50", "step_60"});
  CHECK(kept_by(keep_last(9), went_back).size() == 4);
  CHECK(kept_by(keep_last(1), {}).empty());
}

TEST_CASE("of every n-th step the one committed last stays") {
  RetentionPolicy policy = keep_last(1);
  policy.keep_every = 100;
  CheckpointInfo without_step = at_step(0, std::nullopt, "step_7");
  without_step.step.reset();
  CHECK(kept_by(policy, {at_step(250), at_step(200, {}, "step_200.2"), at_step(150), without_step, at_step(200), at_step(100),
                         at_step(0)}) == NameSet{"step_250", "step_200.2", "step_100", "step_0"});
}

TEST_CASE("the best have the best metric; a missing or non-finite one is never best") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  const std::vector<CheckpointInfo> all{at_step(7, nan),       at_step(6),      at_step(5, 2.0),     at_step(4, 1.0),
                                        at_step(3, -infinity), at_step(2, 1.0), at_step(1, infinity)};
  RetentionPolicy policy = keep_last(1);
  policy.keep_best = 1;
  policy.metric = "loss";
  CHECK(kept_by(policy, all) == NameSet{"step_7", "step_4"});  // the later of two equal ones
  policy.keep_best = 2;
  CHECK(kept_by(policy, all) == NameSet{"step_7", "step_4", "step_2"});
  policy.better = Better::kHigher;
  policy.keep_best = 1;
  CHECK(kept_by(policy, all) == NameSet{"step_7", "step_5"});
  policy.keep_best = 100;
  CHECK(kept_by(policy, all) == NameSet{"step_7", "step_5", "step_4", "step_2"});
  policy.metric = "accuracy";
  CHECK(kept_by(policy, all) == NameSet{"step_7"});
}

TEST_CASE("texts come apart as they were packed, and other texts are refused") {
  for (const std::vector<std::string>& texts :
       std::vector<std::vector<std::string>>{{}, {""}, {"", ""}, {"a"}, {"3:abc", std::string("\0:1", 3), ""}})
    CHECK(unpack_texts(pack_texts(texts)) == texts);
  for (const char* text : {":", "1", "1:", "2:a", "-1:a", "x", "1:a2", "99999999999999999999999:a", "18446744073709551615:a"}) {
    CAPTURE(text);
    CHECK(thrown_by([&] { unpack_texts(text); }).code == ErrorCode::kCorrupt);
  }
}

TEST_CASE("annotations travel between ranks and records, metrics to the last bit") {
  Annotations annotations;
  annotations.metrics = {{"loss", 0.1}, {"tiny", 5e-324}, {"nan", std::numeric_limits<double>::quiet_NaN()}};
  annotations.user_metadata = {{"git", "of this one"}, {"", ""}};
  RunCheckpoint checkpoint{"step_5",
                           {{7, -3, 0, "", "", user_metadata_of({{"git", "of all"}, {"host", "a"}}, annotations), {}}, "cairn-id"}};
  const std::string text = checkpoint_text(checkpoint);
  const CheckpointInfo info = info_of(RunDirectory("mem://info/run"), checkpoint_in(text));
  CHECK(info.name == "step_5");
  CHECK(info.checkpoint_id == "mem://info/run/step_5");
  CHECK(info.save_id == "cairn-id");
  CHECK(info.sequence == 7);
  CHECK(info.step == -3);
  CHECK(info.annotations.metrics.at("loss") == 0.1);
  CHECK(info.annotations.metrics.at("tiny") == 5e-324);
  CHECK(std::isnan(info.annotations.metrics.at("nan")));
  CHECK(info.annotations.user_metadata == std::map<std::string, std::string>{{"git", "of this one"}, {"host", "a"}, {"", ""}});
  for (std::size_t length = 0; length < text.size(); ++length) {
    CAPTURE(length);
    CHECK(thrown_by([&] { checkpoint_in(text.substr(0, length)); }).code == ErrorCode::kCorrupt);
  }
  annotations.user_metadata = {{"metric.loss", "1"}};
  CHECK(thrown_by([&] { user_metadata_of({}, annotations); }).code == ErrorCode::kInvalidArgument);
}
