// Connections between two ranks of one process over loopback, with and without TLS: the time of the
// first message, which includes making the connection; the round trip of a short message; and the
// throughput of 64 MiB of plan.
//
// Prints one JSON object per line: {name, value, unit}; TLS rows also have limit, the value without
// TLS, and ratio. Times are medians. `--quick`: fewer repetitions.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <caf/actor_system.hpp>
#include <caf/event_based_actor.hpp>
#include <caf/exit_reason.hpp>
#include <caf/scoped_actor.hpp>
#include <caf/send.hpp>

#include <cairn/actors/caf_system.hpp>
#include <cairn/actors/links/links.hpp>
#include <cairn/actors/links/tcp_links.hpp>
#include <cairn/actors/links/tls_transform.hpp>

namespace cairn {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::size_t kPlanBytes = 64u << 20;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Counts messages that have arrived.
class Arrivals {
 public:
  void add() {
    const std::lock_guard lock(mutex_);
    ++count_;
    changed_.notify_all();
  }
  void wait(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return count_ >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t count_ = 0;
};

caf::behavior count_messages(caf::event_based_actor*, std::shared_ptr<Arrivals> arrivals) {
  return {
      [](const LinkUp&) {},
      [](const LinkDown&) {},
      [](const LinkRefused&) {},
      [arrivals](const LinkMessage&) { arrivals->add(); },
  };
}

struct Rank {
  std::shared_ptr<Arrivals> arrivals = std::make_shared<Arrivals>();
  caf::actor owner;
  caf::actor links;
};

// Two connected ranks. Destroying the object closes the connections.
class TwoRanks {
 public:
  TwoRanks(caf::actor_system& system, bool secured) : system_(system) {
    const std::string incarnation(32, 'a');
    std::vector<Socket> listeners;
    std::vector<std::string> addresses;
    for (int rank = 0; rank < 2; ++rank) {
      listeners.push_back(listen_on("127.0.0.1", 0));
      addresses.push_back(to_string(local_endpoint(listeners.back())));
    }
    for (int rank = 0; rank < 2; ++rank) {
      TcpLinksConfig config;
      config.listener = std::move(listeners[static_cast<std::size_t>(rank)]);
      config.addresses = addresses;
      config.incarnation = incarnation;
      if (secured) config.transform = tls_transform(Secret(std::string_view("the secret of the benchmark")), incarnation, rank);
      Rank& self = ranks_[rank];
      self.owner = system.spawn(count_messages, self.arrivals);
      self.links = make_tcp_links(std::move(config))->spawn(system, rank, RuntimeOptions(), self.owner);
    }
  }
  ~TwoRanks() {
    caf::scoped_actor self{system_};
    for (Rank& rank : ranks_) {
      caf::anon_send(rank.links, LinkClose{});
      self->wait_for(rank.links);
      caf::anon_send_exit(rank.owner, caf::exit_reason::user_shutdown);
      self->wait_for(rank.owner);
    }
  }
  TwoRanks(const TwoRanks&) = delete;
  TwoRanks& operator=(const TwoRanks&) = delete;

  // Returns the seconds until a message from one rank has arrived at the other.
  double send(int from, const SharedBytes& bytes) {
    Rank& receiver = ranks_[1 - from];
    const auto start = SteadyClock::now();
    caf::anon_send(ranks_[from].links, LinkSend{1 - from, bytes});
    receiver.arrivals->wait(++expected_[1 - from]);
    return std::chrono::duration<double>(SteadyClock::now() - start).count();
  }

 private:
  caf::actor_system& system_;
  Rank ranks_[2];
  std::size_t expected_[2] = {0, 0};
};

struct Figures {
  double first_message_ms = 0;
  double round_trip_us = 0;
  double plan_mib_per_s = 0;
};

Figures measure(caf::actor_system& system, bool secured, int repetitions) {
  const auto small = std::make_shared<const std::string>(100, 's');
  const auto plan = std::make_shared<const std::string>(kPlanBytes, 'p');
  std::vector<double> first;
  for (int i = 0; i < 10 * repetitions; ++i) {
    TwoRanks ranks(system, secured);
    first.push_back(ranks.send(0, small));
  }
  TwoRanks ranks(system, secured);
  ranks.send(0, small);
  std::vector<double> round_trips;
  for (int i = 0; i < 200 * repetitions; ++i) round_trips.push_back(ranks.send(0, small) + ranks.send(1, small));
  std::vector<double> plans;
  for (int i = 0; i < repetitions; ++i) plans.push_back(ranks.send(0, plan));
  return {median(first) * 1e3, median(round_trips) * 1e6, static_cast<double>(kPlanBytes >> 20) / median(plans)};
}

void print(const char* name, double value, const char* unit) {
  std::printf("{\"name\": \"link_%s_plain\", \"value\": %.4g, \"unit\": \"%s\"}\n", name, value, unit);
}

void print(const char* name, double value, const char* unit, double limit) {
  std::printf("{\"name\": \"link_%s_tls\", \"value\": %.4g, \"unit\": \"%s\", \"limit\": %.4g, \"ratio\": %.3g}\n", name, value,
              unit, limit, value / limit);
}

int run(int repetitions) {
  const auto system = ActorSystem::create(2);
  const Figures plain = measure(system->caf_system(), false, repetitions);
  const Figures tls = measure(system->caf_system(), true, repetitions);
  print("first_message", plain.first_message_ms, "ms");
  print("first_message", tls.first_message_ms, "ms", plain.first_message_ms);
  print("round_trip_100B", plain.round_trip_us, "us");
  print("round_trip_100B", tls.round_trip_us, "us", plain.round_trip_us);
  print("plan_64MiB", plain.plan_mib_per_s, "MiB/s");
  print("plan_64MiB", tls.plan_mib_per_s, "MiB/s", plain.plan_mib_per_s);
  return 0;
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) { return cairn::run(argc > 1 && std::strcmp(argv[1], "--quick") == 0 ? 3 : 15); }
