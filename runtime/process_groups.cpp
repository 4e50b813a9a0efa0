#include <cairn/runtime/process_groups.hpp>

#include <atomic>
#include <cerrno>

#include <unistd.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cairn/base/error.hpp>
#include <cairn/runtime/launchers.hpp>
#include <cairn/runtime/rendezvous.hpp>

namespace cairn::training {

ProcessGroup process_group_from_environment(ProcessGroupOptions options) {
  const Variables variables = variables_of_process();
  const auto task = find_task(variables);
  if (!task || task->size == 1) return ProcessGroup::single();
  const Place place = place_of(*task, variables);
  const std::string& host = place.master_host;
  if (options.address.empty() && host != "localhost" && host != "::1" && host.rfind("127.", 0) != 0) {
    char name[256] = "";
    if (::gethostname(name, sizeof(name) - 1) != 0) throw system_error("ask for the name of", "this machine", errno);
    options.address = name;
  }
  // Several groups in one process are matched across ranks by the order in which they are made.
  static std::atomic<unsigned> made{0};
  const auto store = open_store(place, options.timeout);
  return ProcessGroup::from_store(store, place.rank, place.world_size, options, "training" + std::to_string(made++));
}

}  // namespace cairn::training
