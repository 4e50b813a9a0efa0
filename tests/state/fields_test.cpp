// A user's struct that is saved field by field.
#include <cairn/base/error.hpp>
#include <cairn/state/fields.hpp>
#include <cairn/tests/state/memory_checkpoint.hpp>

using namespace cairn;
using namespace cairn::test;

namespace {

struct Kept {
  bool warm = false;
  int small = 0;
  std::int64_t step = 0;
  std::uint64_t seed = 0;
  float loss = 0;
  double best = 0;
  std::string phase;
  torch::Tensor average = torch::zeros({2, 3});
  Blob notes;
};

std::shared_ptr<Stateful> object_of(const std::shared_ptr<Kept>& kept) {
  return stateful(kept, {{"warm", &Kept::warm},
                         {"small", &Kept::small},
                         {"step", &Kept::step},
                         {"seed", &Kept::seed},
                         {"loss", &Kept::loss},
                         {"best", &Kept::best},
                         {"phase", &Kept::phase},
                         {"average", &Kept::average},
                         {"notes", &Kept::notes}});
}

std::shared_ptr<Kept> sample() {
  auto kept = std::make_shared<Kept>();
  kept->warm = true;
  kept->small = -7;
  kept->step = std::int64_t{1} << 40;
  kept->seed = 12345678901234567u;
  kept->loss = 0.1f;
  kept->best = 1e-300;
  kept->phase = "cool down";
  kept->average = counted({2, 3});
  kept->notes = Blob{std::string("\0\xff notes", 8)};
  return kept;
}

}  // namespace

TEST_CASE("a struct's fields come back as they were, tensors in place") {
  const auto saved = sample();
  const MemoryCheckpoint checkpoint = save({StateDict{{"kept", object_of(saved)->state_dict()}}});
  const auto fresh = std::make_shared<Kept>();
  const torch::Tensor average = fresh->average;
  const auto object = object_of(fresh);
  StateDict state{{"kept", object->state_dict()}};
  load(checkpoint, state);
  object->load_state_dict(state.at("kept").dict());
  CHECK(fresh->warm);
  CHECK(fresh->small == -7);
  CHECK(fresh->step == std::int64_t{1} << 40);
  CHECK(fresh->seed == 12345678901234567u);
  CHECK(fresh->loss == 0.1f);
  CHECK(fresh->best == 1e-300);
  CHECK(fresh->phase == "cool down");
  CHECK(same(average, counted({2, 3})));
  CHECK(fresh->notes == saved->notes);
  // Loading from other tensors copies into the struct's own.
  average.zero_();
  object->load_state_dict(object_of(saved)->state_dict());
  CHECK(same(average, counted({2, 3})));
}

TEST_CASE("fields that are missing, unexpected or of another type are named; none changes") {
  const auto kept = std::make_shared<Kept>();
  const auto object = object_of(kept);
  Dict wrong = object_of(sample())->state_dict();
  wrong.erase("warm");
  wrong["small"] = std::int64_t{1} << 40;
  wrong["step"] = 0.5;
  wrong["seed"] = -1;
  wrong["loss"] = "little";
  wrong["phase"] = 3;
  wrong["average"] = torch::zeros({3, 2});
  wrong["notes"] = "text";
  wrong["more"] = 1;
  std::string text;
  CHECK(code_of([&] { object->load_state_dict(wrong); }, &text) == ErrorCode::kMismatch);
  for (const char* part :
       {"\"warm\" is missing", "\"small\" is a number of a smaller range than 1099511627776", "\"step\" is a whole number, not",
        "\"seed\" is a number of a smaller range than -1", "\"loss\" is a number, not", "\"phase\" is text, not",
        "\"average\" is a tensor of size [2, 3] Float, not a tensor of size [3, 2] Float", "\"notes\" is bytes, not",
        "\"more\" is not a field of it", "no field was set"}) {
    CAPTURE(part);
    CHECK(has(text, part));
  }
  CHECK_FALSE(has(text, "\"best\""));
  CHECK(kept->best == 0);
  CHECK(kept->average.sum().item<float>() == 0);
}

TEST_CASE("fields by reference, a whole number for a fraction, and what cannot be saved") {
  double rate = 0;
  torch::Tensor undefined;
  std::uint64_t huge = std::uint64_t{1} << 63;
  const auto object = stateful_fields({{"rate", rate}});
  object->load_state_dict({{"rate", 3}});
  CHECK(rate == 3.0);
  CHECK(code_of([&] { object->load_state_dict({{"rate", true}}); }) == ErrorCode::kMismatch);
  CHECK(code_of([&] { stateful_fields({{"t", undefined}})->state_dict(); }) == ErrorCode::kPrecondition);
  CHECK(code_of([&] { stateful_fields({{"h", huge}})->state_dict(); }) == ErrorCode::kPrecondition);
  CHECK(code_of([&] { stateful_fields({{"twice", rate}, {"twice", rate}}); }) == ErrorCode::kInvalidArgument);
  CHECK(code_of([] { stateful(std::shared_ptr<Kept>(), {{"step", &Kept::step}}); }) == ErrorCode::kInvalidArgument);
}
