// Two ranks that cannot connect to each other, in a world where all other pairs can.
#include "actor_world.hpp"

#include <caf/event_based_actor.hpp>
#include <caf/send.hpp>

namespace cairn::test {
namespace {

// Passes the supervisor's messages on to its links. Answers messages for one rank with LinkDown.
class Blocking : public caf::event_based_actor {
 public:
  Blocking(caf::actor_config& config, caf::actor links, caf::actor owner, int blocked)
      : caf::event_based_actor(config), links_(std::move(links)), owner_(std::move(owner)), blocked_(blocked) {}

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
    if (message.rank == blocked_)
      caf::anon_send(owner_, LinkDown{blocked_, LinkDownCause::kUnreachable, "no route to rank " + std::to_string(blocked_)});
    else
      caf::anon_send(links_, message);
  }
  caf::actor links_;
  caf::actor owner_;
  const int blocked_;
};

class BlockedPair : public LinksFactory {
 public:
  BlockedPair(int world_size, int one, int other) : links_(make_memory_links(world_size)), one_(one), other_(other) {}
  caf::actor spawn(caf::actor_system& system, int rank, const RuntimeOptions& options, const caf::actor& owner) override {
    const caf::actor links = links_->spawn(system, rank, options, owner);
    if (rank != one_ && rank != other_) return links;
    return system.spawn<Blocking>(links, owner, rank == one_ ? other_ : one_);
  }

 private:
  const std::shared_ptr<LinksFactory> links_;
  const int one_;
  const int other_;
};

TEST_CASE("an unreachable coordinator ends the call on all ranks, with the reason") {
  for (const auto& [coordinator, cut_off] : {std::pair(0, 2), std::pair(1, 0), std::pair(2, 3)}) {
    CAPTURE(coordinator);
    RuntimeOptions options;
    options.join_deadline = std::chrono::hours(1);
    ActorWorld world(4, options, 2, std::make_shared<BlockedPair>(4, coordinator, cut_off));
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

}  // namespace
}  // namespace cairn::test
