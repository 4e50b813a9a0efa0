// A decision that one rank makes and all ranks follow. Internal.
#pragma once

#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <cairn/base/error.hpp>
#include <cairn/runtime/worlds/caller_executor.hpp>
#include <cairn/runtime/worlds/world.hpp>

namespace cairn {

// Each call of `reach` is an operation of the actors (AgreeCall in actors/call.hpp) and takes two
// messages per rank. Dead, silent and late ranks are detected and reported as in a save or load.
// The trainer's own communication is not used.
class Agreement {
 public:
  // `name` must be the same on all ranks. Throws kAlreadyExists if a checkpointer or agreement of
  // this world has the same name.
  Agreement(World world, std::string name) : world_(std::move(world)), name_(std::move(name)) { world_.claim_checkpointer(name_); }
  ~Agreement() {
    // In a forked child, a thread that is missing there may hold the world's lock.
    if (::getpid() == process_) world_.release_checkpointer(name_);
  }
  Agreement(const Agreement&) = delete;
  Agreement& operator=(const Agreement&) = delete;

  // Collective. Returns rank 0's decision on every rank. `about` says what is decided: error texts
  // quote it, and all ranks fail with kMismatch if ranks pass different texts. `own` is this rank's
  // input. `decide` runs on rank 0, on the calling thread; it gets the inputs of all ranks, by
  // rank, and returns the decision. If `decide` throws, all ranks throw CheckpointException. If an
  // actor dies, `decide` may run twice.
  using Decide = std::function<std::string(const std::vector<std::string>& brought)>;
  // `deadline` has the meaning that it has in LoadOptions.
  std::string reach(const std::string& about, const std::string& own, const Decide& decide,
                    std::optional<Duration> deadline = std::nullopt) {
    if (::getpid() != process_)
      throw Error(ErrorCode::kPrecondition, "the ranks cannot agree on " + about +
                                                " in a forked child process: it has none of the world's threads and connections");
    AgreeCall call;
    // Ranks match their calls by these, so each rank must make the same calls in one order.
    call.id = {name_, ++calls_};
    call.checkpoint_id = about;
    call.deadline = deadline;
    call.report_directory = world_.report_directory("", "");
    call.text = own;
    // Runs on this thread, so that it may use the caller's objects without locks.
    call.decide = decide;
    CallResult outcome = run_agreement(world_.runtime(), std::move(call));
    if (!outcome.ok()) throw CheckpointException("agreeing on " + about, std::move(outcome));
    return std::move(outcome.answer);
  }

 private:
  const World world_;
  const std::string name_;
  const pid_t process_ = ::getpid();
  std::uint64_t calls_ = 0;
};

// Packs several texts into one, and unpacks them. Throws kCorrupt for a text that `pack_texts` did
// not make.
inline std::string pack_texts(const std::vector<std::string>& texts) {
  std::string packed;
  // Lengths come first, because texts may contain any byte.
  for (const std::string& text : texts) packed += std::to_string(text.size()) + ":" + text;
  return packed;
}

inline std::vector<std::string> unpack_texts(const std::string& packed) {
  std::vector<std::string> texts;
  for (std::size_t at = 0; at < packed.size();) {
    const char* const end = packed.data() + packed.size();
    std::size_t length = 0;
    const auto [next, error] = std::from_chars(packed.data() + at, end, length);
    // The text comes from another rank, so each length is checked against what is there.
    if (error != std::errc() || next == end || *next != ':' || length > static_cast<std::size_t>(end - next - 1))
      throw Error(ErrorCode::kCorrupt, "cannot take texts apart: they end or are no texts at byte " + std::to_string(at));
    texts.emplace_back(next + 1, length);
    at = static_cast<std::size_t>(next + 1 - packed.data()) + length;
  }
  return texts;
}

}  // namespace cairn
