// Agreements between the ranks of a world.
#include <cairn/tests/support/torch.hpp>

#include <functional>
#include <string>
#include <vector>

#include <cairn/base/error.hpp>
#include <cairn/messages/codec.hpp>
#include <cairn/runtime/worlds/agreement.hpp>
#include <cairn/tests/support/failure_maps.hpp>
#include <cairn/tests/support/in_process_world.hpp>

namespace cairn::testing {
namespace {

constexpr int kAgreeingRanks = 3;

struct Reached {
  std::string answer;
  FailureMap failures;
};

// Runs one agreement in which rank r contributes `own(r)`. Returns the answer or failures of each
// rank.
std::vector<Reached> reach(const std::function<std::string(int)>& own, const Agreement::Decide& decide) {
  std::vector<Reached> reached(kAgreeingRanks);
  on_all_ranks(kAgreeingRanks, [&](World& world) {
    Reached& mine = reached[static_cast<std::size_t>(world.rank())];
    Agreement agreement(world, "agreement");
    try {
      mine.answer = agreement.reach("a test", own(world.rank()), decide);
    } catch (const CheckpointException& failed) {
      mine.failures = failed.failures();
      CHECK(failed.committed() == Committed::kNo);
    }
    // The next agreement succeeds after a success or a failure, also if this rank calls before the
    // others have made the first call.
    CHECK(agreement.reach("a test", "", [](const auto&) { return std::string("next"); }) == "next");
  });
  return reached;
}

TEST_CASE("agreement: every rank gets the answer of rank 0 to all texts") {
  const auto reached = reach([](int rank) { return "text " + std::to_string(rank) + std::string("\0;", 2); },
                             [](const std::vector<std::string>& brought) {
                               std::string all;
                               for (const auto& text : brought) all += text;
                               return all;
                             });
  for (const auto& [answer, failures] : reached) {
    CHECK(failures.empty());
    CHECK(answer == std::string("text 0\0;text 1\0;text 2\0;", 24));
  }
}

TEST_CASE("agreement: an oversized text or an exception in decide fails all ranks") {
  std::string oversized;
  Agreement::Decide decide = [](const auto&) { return std::string("yes"); };
  int failed = 0;
  std::string why;
  SUBCASE("a text") {
    oversized.assign(protocol::kAgreementTextMax + 1, 'x');
    failed = 1;
    why = "Join cannot be sent";
  }
  SUBCASE("the coordinator's own text, which is not sent") {
    oversized.assign(protocol::kAgreementTextMax + 1, 'x');
    why = "this rank's text for an agreement has 65537 bytes";
  }
  SUBCASE("an answer") {
    decide = [](const auto&) { return std::string(protocol::kAgreementAnswerMax + 1, 'x'); };
    why = "the answer of an agreement has 16777217 bytes";
  }
  SUBCASE("an exception") {
    decide = [](const auto&) -> std::string { throw Error(ErrorCode::kInvalidArgument, "nobody knows"); };
    why = "nobody knows";
  }
  const auto reached = reach([&](int rank) { return rank == failed ? oversized : std::string(); }, decide);
  for (const Reached& one : reached) {
    CHECK((one.failures == reached[0].failures));
    CHECK(only_failure(one.failures, failed) == Saying{ErrorCode::kInvalidArgument, why});
  }
}

TEST_CASE("agreement: the longest text and the longest answer travel") {
  const std::string text(protocol::kAgreementTextMax, 't');
  const auto reached = reach([&](int) { return text; },
                             [&](const std::vector<std::string>& brought) {
                               CHECK(brought == std::vector<std::string>(kAgreeingRanks, text));
                               return std::string(protocol::kAgreementAnswerMax, 'a');
                             });
  for (const Reached& one : reached) CHECK(one.answer.size() == protocol::kAgreementAnswerMax);
}

}  // namespace
}  // namespace cairn::testing
