// A decision that one rank makes and all ranks follow. Internal.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <cairn/runtime/world.hpp>

namespace cairn {

// Its calls are operations of the actors' own (AgreeCall in actors/rank_runtime.hpp): two messages a rank. Ranks that die, freeze, or do
// not come are found and told of as in any other call, and the trainer's own communication is not used.
class Agreement {
 public:
  // `name`: as of a Checkpointer, and of none of the world's.
  Agreement(World world, std::string name);
  ~Agreement();
  Agreement(const Agreement&) = delete;
  Agreement& operator=(const Agreement&) = delete;

  // On every rank. `about` is the same on all of them, else they are told kMismatch; texts of errors quote it. Each brings `own`; rank 0
  // answers in `decide`, on its calling thread, given what all have brought, by rank. The answer is returned on every rank. What `decide`
  // throws is thrown on all, as CheckpointException. `decide` may run twice, if an actor dies.
  using Decide = std::function<std::string(const std::vector<std::string>& brought)>;
  // `deadline`: as in LoadOptions.
  std::string reach(const std::string& about, const std::string& own, const Decide& decide,
                    std::optional<std::chrono::milliseconds> deadline = std::nullopt);

 private:
  const World world_;
  const std::string name_;
  const pid_t process_;
  std::uint64_t calls_ = 0;
};

// Several texts in one, and back. kCorrupt for a text that is not such a one.
std::string pack_texts(const std::vector<std::string>& texts);
std::vector<std::string> unpack_texts(const std::string& packed);

}  // namespace cairn
