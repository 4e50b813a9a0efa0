#include <cairn/runtime/launch/rendezvous.hpp>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <sstream>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cairn/base/error.hpp>
#include <cairn/base/log.hpp>
#include <cairn/base/process_name.hpp>
#include <cairn/base/random.hpp>
#include <cairn/base/rank_text.hpp>
#include <cairn/runtime/launch/meeting_store.hpp>
#include <cairn/runtime/launch/tcp_store.hpp>

namespace cairn {
namespace {

// Counts the secrets that a rank has asked the store for.
std::string secrets_key(int rank) { return "cairn/secrets/" + std::to_string(rank); }

// The store cannot tell a second process of a rank from the same process that comes again.
std::string came_more_than_once(const std::vector<int>& ranks) {
  return "; " + name_ranks(ranks) +
         " came more than once: see whether two processes have the same RANK (a rank also comes again for its next world, or to "
         "try again)";
}

bool only_local(const std::string& address) { return address.rfind("127.", 0) == 0 || address.rfind("[::1]", 0) == 0; }

constexpr const char* kSigned = "cairn rendezvous v1";  // purpose, part of each signature
constexpr const char* kSameSecret = "give all ranks the same secret (WorldOptions::secret_file, CAIRN_SECRET_FILE)";

// A rank's entry in the store: "<world size> <machine> <address> <signature>".
struct Card {
  int world_size = 0;
  std::string machine;
  std::string address;
  std::string signature;
};

// Returns the signed part of a card.
std::string content(const Card& card) { return std::to_string(card.world_size) + " " + card.machine + " " + card.address; }
std::string encode(const Card& card) { return content(card) + " " + card.signature; }

Card decode_card(const std::string& text) {
  Card card;
  std::istringstream fields(text);
  fields >> card.world_size >> card.machine >> card.address >> card.signature;
  return card;
}

// Rank 0's verdict is the assembly or an error: "0\n<signature>\n<incarnation>\n<address>\n…" or
// "<code>\n<text>". `content` returns the signed part.
std::string content(const Assembly& assembly) {
  std::string text = assembly.incarnation;
  for (const auto& address : assembly.addresses) text += "\n" + address;
  return text;
}

std::string encode(const Error& error) { return std::to_string(static_cast<int>(error.code())) + "\n" + error.what(); }

struct Verdict {
  std::string signature;
  Assembly assembly;
};

Verdict decode_verdict(const std::string& text) {
  std::istringstream lines(text);
  std::string line;
  std::getline(lines, line);
  if (line != "0")
    throw Error(static_cast<ErrorCode>(std::atoi(line.c_str())), text.substr(std::min(text.size(), line.size() + 1)));
  Verdict verdict;
  std::getline(lines, verdict.signature);
  std::getline(lines, verdict.assembly.incarnation);
  while (std::getline(lines, line)) verdict.assembly.addresses.push_back(line);
  return verdict;
}

// One rank's side of one rendezvous.
class Meeting {
 public:
  Meeting(c10d::Store& store, int rank, int world_size, const Deadline& deadline, const Secret& secret, Duration first_notice)
      : rank_(rank),
        world_size_(world_size),
        secret_(secret),
        whole_store_(store),
        generation_(store.add(joins_key(rank), 1)),
        store_(store, "cairn/" + std::to_string(generation_) + "/", "the world of " + std::to_string(world_size) + " ranks", rank,
               world_size, deadline, first_notice) {}

  void publish(const std::string& address) {
    Card card{world_size_, machine_name(), address, ""};
    card.signature = sign(card_key(rank_), content(card));
    if (rank_ == 0) store_.set("leader", "here");
    store_.arrive(std::to_string(rank_) + " " + encode(card));
  }

  Assembly lead() {
    try {
      const Assembly assembly = collect();
      store_.set("verdict", "0\n" + sign("verdict", content(assembly)) + "\n" + content(assembly));
      await_readers(world_size_ - 1);
      return assembly;
    } catch (const Error& error) {
      store_.set("verdict", encode(error));
      // Also wait for ranks whose card was refused or not read: the store may end with this rank.
      await_readers(static_cast<int>(store_.arrivals()) - 1);
      throw;
    }
  }

  Assembly follow() {
    if (!store_.poll([this] { return store_.has("verdict"); }, [this] { return missing_for_all(); })) throw unled();
    const std::string verdict = store_.get("verdict");
    store_.add("readers", 1);
    Verdict decoded = decode_verdict(verdict);
    if (decoded.signature != sign("verdict", content(decoded.assembly)))
      throw Error(ErrorCode::kPermission,
                  "what rank 0 says is not signed with the secret of rank " + std::to_string(rank_) + ": " + kSameSecret);
    const auto size = static_cast<int>(decoded.assembly.addresses.size());
    if (size != world_size_) throw different_size(rank_, world_size_, 0, size);
    return std::move(decoded.assembly);
  }

 private:
  static std::string joins_key(int rank) { return "cairn/joins/" + std::to_string(rank); }
  static std::string card_key(int rank) { return "card/" + std::to_string(rank); }  // used in signatures
  // Signs the key along with the text, so that a signed text is invalid under another key or in
  // another generation.
  std::string sign(const std::string& key, const std::string& text) const {
    return secret_.sign(kSigned, store_.prefix() + key + "\n" + text);
  }

  // Reads the cards of all ranks that have arrived since the last call.
  void read_arrivals() {
    store_.read_cards([this](const std::string& text) {
      const int rank = std::atoi(text.c_str());
      Card card = decode_card(text.substr(std::min(text.size(), text.find(' '))));
      if (card.world_size != world_size_) throw different_size(rank, card.world_size, rank_, world_size_);
      if (rank < 0 || rank >= world_size_ || cards_[static_cast<std::size_t>(rank)]) return;
      cards_[static_cast<std::size_t>(rank)] = std::move(card);
      ++came_;
    });
  }

  Assembly collect() {
    const auto have_all_come = [&] {
      read_arrivals();
      return came_ == world_size_;
    };
    if (!store_.poll(have_all_come, [this] { return missing(); })) throw incomplete(missing());
    std::vector<int> others;
    for (int rank = 0; rank < world_size_; ++rank) {
      const auto& card = *cards_[static_cast<std::size_t>(rank)];
      if (card.signature != sign(card_key(rank), content(card))) others.push_back(rank);
    }
    if (!others.empty())
      throw Error(ErrorCode::kPermission,
                  name_ranks(others) +
                      (secret_.empty() ? ", unlike rank 0, came with a secret: " : " came without the secret of rank 0: ") +
                      kSameSecret);
    Assembly assembly;
    assembly.incarnation = random_hex(*system_random(), 128);
    const bool on_several_machines =
        std::any_of(cards_.begin(), cards_.end(), [this](const auto& card) { return card->machine != cards_.front()->machine; });
    for (int rank = 0; rank < world_size_; ++rank) {
      const auto& card = *cards_[static_cast<std::size_t>(rank)];
      if (on_several_machines && only_local(card.address)) {
        throw Error(ErrorCode::kInvalidArgument,
                    "rank " + std::to_string(rank) + " listens at " + card.address +
                        ", which ranks on other machines or in other containers cannot reach: " +
                        (secret_.empty() ? "give all ranks the same secret (CAIRN_SECRET_FILE, or CAIRN_SECRET=store), because "
                                           "ranks without one use loopback addresses only"
                                         : "set CAIRN_BIND_ADDRESS, CAIRN_SOCKET_IFNAME or WorldOptions::bind_address of that rank "
                                           "to an address of its network"));
      }
      assembly.addresses.push_back(card.address);
    }
    return assembly;
  }

  // Waits until `count` ranks have read the verdict.
  void await_readers(int count) {
    store_.stay_until([&] { return store_.add("readers", 0) >= count; });
  }

  // Returns the ranks whose cards this rank has not read.
  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (int rank = 0; rank < world_size_; ++rank) {
      if (!cards_[static_cast<std::size_t>(rank)]) ranks.push_back(rank);
    }
    return ranks;
  }

  // Returns the missing ranks if this rank is the one to name them.
  std::vector<int> missing_for_all() {
    if (store_.has("leader")) return {};  // it names them
    if (!store_.is_large() || store_.speaks()) read_arrivals();
    return store_.speaks() ? missing() : std::vector<int>();
  }

  // Returns the error for a world in which rank 0 has published no verdict. In large worlds it
  // names rank 0 only.
  Error unled() {
    if (!store_.is_large()) {
      read_arrivals();
      return incomplete(missing());
    }
    return incomplete(store_.has("leader") ? std::vector<int>() : std::vector<int>{0});
  }

  // Returns the ranks that are here and have begun a later rendezvous, or wait for a later secret,
  // as a second process of the same rank would.
  std::vector<int> come_again() {
    std::vector<int> ranks;
    const auto secrets = whole_store_.add(secrets_key(rank_), 0);
    for (int rank = 0; rank < world_size_; ++rank) {
      if (!cards_[static_cast<std::size_t>(rank)]) continue;
      if (whole_store_.add(joins_key(rank), 0) > generation_ || whole_store_.add(secrets_key(rank), 0) > secrets)
        ranks.push_back(rank);
    }
    return ranks;
  }

  Error incomplete(const std::vector<int>& missing) {
    std::ostringstream text;
    text << "the world of " << world_size_ << " ranks did not assemble within " << seconds_text(store_.deadline().whole()) << ": ";
    if (missing.empty()) {
      text << "rank 0 did not confirm that all had come";
    } else {
      text << name_ranks(missing) << " did not come";
    }
    text << "; see whether their processes run and reach the store, and whether they have the same WORLD_SIZE";
    std::vector<int> twice = come_again();
    const bool is_alone = missing.size() + 1 == cards_.size();
    if (is_alone && generation_ > 1) twice = {rank_};
    if (!twice.empty()) text << came_more_than_once(twice);
    return Error(ErrorCode::kDeadline, text.str());
  }

  static Error different_size(int rank, int its_size, int other, int other_size) {
    return Error(ErrorCode::kMismatch, "rank " + std::to_string(rank) + " expects a world of " + std::to_string(its_size) +
                                           " ranks, but rank " + std::to_string(other) + " expects " +
                                           std::to_string(other_size) + ": set the same WORLD_SIZE on all ranks");
  }

  const int rank_;
  const int world_size_;
  const Secret& secret_;
  c10d::Store& whole_store_;
  const std::int64_t generation_;
  MeetingStore store_;
  // The cards read so far.
  std::vector<std::optional<Card>> cards_ = std::vector<std::optional<Card>>(static_cast<std::size_t>(world_size_));  // by rank
  int came_ = 0;
};

}  // namespace

Secret share_secret(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size, Deadline deadline,
                    Duration first_notice) {
  const std::string nothing_came = "rank " + std::to_string(rank) + " got no secret from rank 0 through the store within " +
                                   seconds_text(deadline.whole()) +
                                   ": see whether rank 0 runs, and set CAIRN_SECRET=store, or secret_from_store, on all ranks";
  return bounded_talk<Secret>(
      [=] {
        const auto turn = store->add(secrets_key(rank), 1);
        MeetingStore meeting(*store, "cairn/secret/" + std::to_string(turn) + "/", "the exchange of the job's secret", rank,
                             world_size, deadline, first_notice);
        const std::string key = "drawn";
        if (rank == 0) meeting.set(key, random_hex(*system_random(), 256));
        meeting.arrive(std::to_string(rank));
        const auto missing = [&]() -> std::vector<int> {
          if (!meeting.is_large()) meeting.read_cards([](const std::string&) {});
          if (meeting.speaks() || turn > 1) return {0};
          return {};
        };
        if (!meeting.poll([&] { return meeting.has(key); }, missing))
          throw Error(ErrorCode::kDeadline, nothing_came + (turn > 1 ? came_more_than_once({rank}) : ""));
        return Secret(ByteSpan(meeting.get(key)));
      },
      deadline, nothing_came);
}

Assembly assemble(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size, const std::string& address,
                  Deadline deadline, const Secret& secret, Duration first_notice) {
  return bounded_talk<Assembly>(
      [=] {
        Meeting meeting(*store, rank, world_size, deadline, secret, first_notice);
        meeting.publish(address);
        return rank == 0 ? meeting.lead() : meeting.follow();
      },
      deadline,
      "rank " + std::to_string(rank) +
          ": the store through which the ranks are to meet does not answer: its process stands still, or " +
          "what listens there (MASTER_ADDR, MASTER_PORT) is no store");
}

}  // namespace cairn
