// What one rank decides and all go by. Internal.
//
// Each agreement is a load that reads nothing: texts travel in its plans, so ranks that die, freeze, or do not come are found and told
// of as in any other call, and the trainer's own communication is not used.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/runtime/checkpointer.hpp>

namespace cairn {

// Names of checkpointers end so whose calls are agreements: listeners are not told of these.
inline constexpr std::string_view kAgreementSuffix = ".agreement";

class Agreement {
 public:
  // `name`: as of a Checkpointer, of which it is one; ends in kAgreementSuffix.
  Agreement(World world, std::string name) : checkpointer_(std::move(world), std::move(name)) {}

  // On every rank. `about` is the same on all of them, else they are told kMismatch; texts of errors quote it. Each brings `own`; rank 0
  // answers in `decide`, on its calling thread, given what all have brought, by rank. The answer is returned on every rank. What `decide`
  // throws is thrown on all, as CheckpointException.
  using Decide = std::function<std::string(const std::vector<std::string>& brought)>;
  // `deadline`: as in LoadOptions.
  std::string reach(const std::string& about, const std::string& own, const Decide& decide,
                    std::optional<std::chrono::milliseconds> deadline = std::nullopt);

 private:
  Checkpointer checkpointer_;
};

// Several texts in one, and back. kCorrupt for a text that is not such a one.
std::string pack_texts(const std::vector<std::string>& texts);
std::vector<std::string> unpack_texts(const std::string& packed);

}  // namespace cairn
