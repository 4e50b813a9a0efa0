// A decision that one rank makes and all ranks follow. Internal.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <cairn/runtime/worlds/world.hpp>

namespace cairn {

// Each call of `reach` is an operation of the actors (AgreeCall in actors/call.hpp) and takes two
// messages per rank. Dead, silent and late ranks are detected and reported as in a save or load.
// The trainer's own communication is not used.
class Agreement {
 public:
  // `name` must be the same on all ranks. Throws kAlreadyExists if a checkpointer or agreement of
  // this world has the same name.
  Agreement(World world, std::string name);
  ~Agreement();
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
                    std::optional<Duration> deadline = std::nullopt);

 private:
  const World world_;
  const std::string name_;
  const pid_t process_;
  std::uint64_t calls_ = 0;
};

// Packs several texts into one, and unpacks them. Throws kCorrupt for a text that `pack_texts` did
// not make.
std::string pack_texts(const std::vector<std::string>& texts);
std::vector<std::string> unpack_texts(const std::string& packed);

}  // namespace cairn
