// A rank that cannot connect to some others, in a world where all other pairs can.
#include "actor_world.hpp"

#include <caf/event_based_actor.hpp>
#include <caf/send.hpp>

namespace cairn::test {
namespace {

// Passes the supervisor's messages on to its links. Answers messages for blocked ranks with
// LinkDown.
class Blocking : public caf::event_based_actor {
 public:
  Blocking(caf::actor_config& config, caf::actor links, caf::actor owner, std::set<int> blocked)
      : caf::event_based_actor(config), links_(std::move(links)), owner_(std::move(owner)), blocked_(std::move(blocked)) {}

 protected:
  caf::behavior make_behavior() override {
    monitor(links_);
    set_down_handler([this](caf::down_msg&) { quit(); });
    return {
        [this](const LinkSend& message) { pass(message); },
        [this](const LinkOpen& message) { pass(message); },
        [this](const LinkDrop& message) { caf::anon_send(links_, message); },
        [this](const LinkClose& message) { caf::anon_send(links_, message); },
    };
  }
  void on_exit() override {
    links_ = nullptr;
    owner_ = nullptr;
  }

 private:
  template <class Message>
  void pass(const Message& message) {
    const int to = message.rank;
    if (blocked_.count(to) != 0)
      caf::anon_send(owner_, LinkDown{to, LinkDownCause::kUnreachable, "no route to rank " + std::to_string(to)});
    else
      caf::anon_send(links_, message);
  }
  caf::actor links_;
  caf::actor owner_;
  const std::set<int> blocked_;
};

class BlockedRank : public LinksFactory {
 public:
  BlockedRank(int world_size, int one, std::set<int> others)
      : links_(make_memory_links(world_size)), one_(one), others_(std::move(others)) {}
  caf::actor spawn(caf::actor_system& system, int rank, const RuntimeOptions& options, const caf::actor& owner) override {
    const caf::actor links = links_->spawn(system, rank, options, owner);
    if (rank != one_ && others_.count(rank) == 0) return links;
    return system.spawn<Blocking>(links, owner, rank == one_ ? others_ : std::set<int>{one_});
  }

 private:
  const std::shared_ptr<LinksFactory> links_;
  const int one_;
  const std::set<int> others_;
};

TEST_CASE("an unreachable coordinator ends the call on all ranks, with the reason") {
  for (const auto& ranks : {std::pair(0, 2), std::pair(1, 0), std::pair(2, 3)}) {
    const int coordinator = ranks.first, cut_off = ranks.second;
    CAPTURE(coordinator);
    RuntimeOptions options;
    options.join_deadline = std::chrono::hours(1);
    ActorWorld world(4, options, 2, std::make_shared<BlockedRank>(4, coordinator, std::set<int>{cut_off}));
    CallSettings settings;
    settings.coordinator_rank = coordinator;
    const auto outcomes = world.save(settings);
    CHECK(all_equal(outcomes));
    REQUIRE(ranks_of(outcomes[0].failures) == std::set<int>{cut_off});
    const Failure& failure = outcomes[0].failures.at(cut_off);
    CHECK(failure.kind == FailureKind::kLost);
    CHECK_MESSAGE(failure.what.find("no route to rank ") != std::string::npos, failure.what);
    CHECK(outcomes[0].committed == Committed::kNo);
  }
}

TEST_CASE("a coordinator that no rank can reach is lost on all others, whoever calls first") {
  for (const std::vector<int>& order : {std::vector<int>{0, 2, 3}, {3, 2, 0}, {2, 0, 3}}) {
    RuntimeOptions options;
    options.join_deadline = std::chrono::hours(1);
    ActorWorld world(4, options, 2, std::make_shared<BlockedRank>(4, 1, std::set<int>{0, 2, 3}));
    CallSettings settings;
    settings.coordinator_rank = 1;
    std::vector<Future<CallResult>> futures;
    for (const int rank : order) futures.push_back(world.start_save(rank, settings));
    const auto outcomes = ActorWorld::collect(futures);
    CHECK(all_equal(outcomes));
    CHECK(ranks_of(outcomes[0].failures) == std::set<int>{1});
  }
}

}  // namespace
}  // namespace cairn::test
