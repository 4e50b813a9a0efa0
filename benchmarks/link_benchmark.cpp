// Connections between two ranks of one process over loopback, with and without TLS: the time of the
// first message, which includes making the connection; the round trip of a short message; and the
// throughput of 64 MiB of plan.
//
// Then streams of the data plane, through shared memory, TCP and TLS. Their limits were measured in
// turn with them: two passes of memcpy through as much memory, one thread on each side; a plain
// socket; AES-GCM on records of 16 KiB, one thread on each side; and AES-GCM after the socket on
// the same thread.
//
// Prints one JSON object per line: {name, value, unit}; TLS rows also have limit, the value without
// TLS, and ratio. Values are medians; ratios of streams are medians of the ratios of pairs.
// `--quick`: fewer repetitions. `--data`: streams only.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sys/socket.h>

#include <openssl/evp.h>

#include <caf/actor_system.hpp>
#include <caf/event_based_actor.hpp>
#include <caf/exit_reason.hpp>
#include <caf/scoped_actor.hpp>
#include <caf/send.hpp>

#include <cairn/actors/caf_system.hpp>
#include <cairn/actors/links/data_stream.hpp>
#include <cairn/actors/links/links.hpp>
#include <cairn/actors/links/socket_transport.hpp>
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

// The memory of both sides, and the time that they take for kDataBytes.
constexpr std::size_t kDataBytes = 256u << 20;
constexpr std::size_t kSlots = 4;
constexpr std::size_t kRecordBytes = 16384;

struct DataBench {
  std::vector<char> from = std::vector<char>(kDataBytes, 'f');
  std::vector<char> to = std::vector<char>(kDataBytes, 't');

  // Returns GB/s of two functions that run on threads of their own.
  template <class Send, class Receive>
  static double rate(Send send, Receive receive) {
    const auto start = SteadyClock::now();
    std::thread sender(send);
    receive();
    sender.join();
    return static_cast<double>(kDataBytes) / 1e9 / std::chrono::duration<double>(SteadyClock::now() - start).count();
  }

  double stream(const char* secret, bool shared_memory) {
    std::unique_ptr<Transport> ranks[2];
    for (int rank = 0; rank < 2; ++rank) {
      TransportConfig config;
      config.rank = rank;
      config.incarnation = std::string(32, 'a');
      config.shared_memory = shared_memory;
      if (*secret != '\0') config.secret = Secret(std::string_view(secret));
      ranks[rank] = make_transport(std::move(config));
    }
    const auto out = ranks[0]->open(ranks[1]->address(), 1);
    const auto in = ranks[1]->receive(0, 1, std::chrono::seconds(10));
    return rate(
        [&] {
          out->send({from.data(), kDataBytes});
          out->finish();
        },
        [&] {
          std::size_t at = 0;
          char none = 0;
          while (at < kDataBytes) at += in->receive({to.data() + at, kDataBytes - at});
          in->receive({&none, 1});
        });
  }

  double two_copies() {
    std::vector<char> slots(kSlots * kDataBlockBytesMax, 's');
    Arrivals filled, emptied;
    const auto slot = [&](std::size_t block) { return slots.data() + block % kSlots * kDataBlockBytesMax; };
    return rate(
        [&] {
          for (std::size_t i = 0; i < kDataBytes / kDataBlockBytesMax; ++i) {
            if (i >= kSlots) emptied.wait(i - kSlots + 1);
            std::memcpy(slot(i), from.data() + i * kDataBlockBytesMax, kDataBlockBytesMax);
            filled.add();
          }
        },
        [&] {
          for (std::size_t i = 0; i < kDataBytes / kDataBlockBytesMax; ++i) {
            filled.wait(i + 1);
            std::memcpy(to.data() + i * kDataBlockBytesMax, slot(i), kDataBlockBytesMax);
            emptied.add();
          }
        });
  }

  double plain_socket() {
    const Socket listener = listen_on("127.0.0.1", 0);
    const Endpoint at = local_endpoint(listener);
    const Socket out(::socket(at.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(out.get(), reinterpret_cast<const sockaddr*>(&at.storage), at.length) != 0) return 0;
    const Socket in(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    return rate(
        [&] {
          for (std::size_t done = 0; done < kDataBytes;) {
            const auto count = ::send(out.get(), from.data() + done, std::min(kDataBlockBytesMax, kDataBytes - done), MSG_NOSIGNAL);
            if (count <= 0) return;
            done += static_cast<std::size_t>(count);
          }
        },
        [&] {
          for (std::size_t done = 0; done < kDataBytes;) {
            const auto count = ::recv(in.get(), to.data() + done, std::min(kDataBlockBytesMax, kDataBytes - done), 0);
            if (count <= 0) return;
            done += static_cast<std::size_t>(count);
          }
        });
  }

  double aes_gcm() {
    const auto pass = [](const char* bytes, int encrypts) {
      const unsigned char key[16] = {1}, nonce[12] = {2};
      std::vector<unsigned char> record(kRecordBytes + 16);
      EVP_CIPHER_CTX* const cipher = EVP_CIPHER_CTX_new();
      EVP_CipherInit_ex(cipher, EVP_aes_128_gcm(), nullptr, key, nonce, encrypts);
      int length = 0;
      for (std::size_t at = 0; at < kDataBytes; at += kRecordBytes) {
        EVP_CipherInit_ex(cipher, nullptr, nullptr, nullptr, nonce, encrypts);
        EVP_CipherUpdate(cipher, record.data(), &length, reinterpret_cast<const unsigned char*>(bytes + at), kRecordBytes);
        EVP_CipherFinal_ex(cipher, record.data() + length, &length);  // decrypting, refuses the tag
      }
      EVP_CIPHER_CTX_free(cipher);
    };
    return rate([&] { pass(from.data(), 1); }, [&] { pass(to.data(), 0); });
  }
};

struct Pairs {
  std::vector<double> values, limits, ratios;
  void add(double value, double limit) {
    values.push_back(value);
    limits.push_back(limit);
    ratios.push_back(value / limit);
  }
  void print(const char* name) const {
    std::printf("{\"name\": \"data_%s\", \"value\": %.4g, \"unit\": \"GB/s\", \"limit\": %.4g, \"ratio\": %.3g}\n", name,
                median(values), median(limits), median(ratios));
  }
};

void measure_data(int repetitions) {
  DataBench bench;
  Pairs memory, tcp, tls, tls_series;
  bench.two_copies();  // touches all memory
  for (int i = 0; i < repetitions; ++i) {
    const double copies = bench.two_copies();
    memory.add(bench.stream("", true), copies);
    const double socket = bench.plain_socket();
    tcp.add(bench.stream("", false), socket);
    const double cipher = bench.aes_gcm();
    const double secure = bench.stream("the secret of the benchmark", false);
    tls.add(secure, cipher);
    tls_series.add(secure, 1 / (1 / socket + 1 / cipher));
  }
  memory.print("shared_memory");
  tcp.print("tcp");
  tls.print("tls_beside_aes_gcm");
  tls_series.print("tls_beside_socket_and_aes_gcm");
}

int run(int repetitions, bool data_only) {
  measure_data(repetitions);
  if (data_only) return 0;
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

int main(int argc, char** argv) {
  const std::string option = argc > 1 ? argv[1] : "";
  return cairn::run(option == "--quick" ? 3 : 15, option == "--data");
}
