#include <cairn/runtime/worlds/agreement.hpp>

#include <unistd.h>

#include <charconv>
#include <utility>

#include <cairn/actors/rank_runtime.hpp>
#include <cairn/base/error.hpp>
#include <cairn/runtime/worlds/caller_executor.hpp>

namespace cairn {

Agreement::Agreement(World world, std::string name) : world_(std::move(world)), name_(std::move(name)), process_(::getpid()) {
  world_.claim_checkpointer(name_);
}

Agreement::~Agreement() {
  // In a forked child, a thread that is missing there may hold the world's lock.
  if (::getpid() == process_) world_.release_checkpointer(name_);
}

std::string Agreement::reach(const std::string& about, const std::string& own, const Decide& decide,
                             std::optional<Duration> deadline) {
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

std::string pack_texts(const std::vector<std::string>& texts) {
  std::string packed;
  // Lengths come first, because texts may contain any byte.
  for (const std::string& text : texts) packed += std::to_string(text.size()) + ":" + text;
  return packed;
}

std::vector<std::string> unpack_texts(const std::string& packed) {
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
