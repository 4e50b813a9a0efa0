#include <cairn/runtime/checkpoints/read_sharing.hpp>

#include <utility>

#include <cairn/actors/rank_runtime.hpp>
#include <cairn/actors/read_streams.hpp>
#include <cairn/base/log.hpp>
#include <cairn/base/process_name.hpp>

namespace cairn {

ReadSharing read_sharing(const World& world, StorageReader& reader, const LoadOptions& options) {
  ReadSharing sharing;
  if (options.planner || options.storage_reader || options.read_once == ReadOnce::kOff || world.size() == 1) return sharing;
  auto& own = dynamic_cast<CheckpointReader&>(reader);
  // Called if something cannot be shared. Ranks then read it themselves.
  const auto warn = [&world](const std::string& why) {
    write_log(LogLevel::kWarning, world.rank(), "read_once: " + why);
    world.runtime().note("read_once: something was not shared, and the log says why");
  };
  sharing.offer = [&world, &own, warn, wanted = options.read_once](const LoadPlan& plan) {
    ReadOffer offer = own.offer(plan, wanted);
    if (offer.mode == ReadOnce::kOff) return offer;
    try {
      offer.address = to_string(world.transport()->address());
      offer.host = machine_name();
    } catch (const Error& error) {
      warn(std::string("no rank shares what it reads, because this rank cannot: ") + error.what());
      offer = {};
    }
    return offer;
  };
  sharing.share = [&world, &own, warn](const std::shared_ptr<const SharedReads>& shared) {
    own.share(shared, make_read_streams(world.transport(), shared, world.stream_deadline(), warn));
  };
  return sharing;
}

}  // namespace cairn
