#include <cairn/training/group_from_environment.hpp>

#include <atomic>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cairn/base/wait.hpp>
#include <cairn/runtime/launch/launchers.hpp>
#include <cairn/runtime/launch/own_address.hpp>
#include <cairn/runtime/launch/tcp_store.hpp>

namespace cairn::training {

ProcessGroup process_group_from_environment(ProcessGroupOptions options) {
  const Variables variables = variables_of_process();
  const auto task = find_task(variables);
  if (!task || task->size == 1) return ProcessGroup::single();
  const Place place = place_of(*task, variables);
  // Several groups in one process are matched across ranks by the order in which they are made.
  static std::atomic<unsigned> made{0};
  check_own_address(options.address, variables);
  const Deadline deadline = options.timeout;
  const auto store = open_store(place, deadline);
  options.address = own_address({options.address, place.master_host, true, deadline.left()}, variables).host;
  return ProcessGroup::from_store(store, place.rank, place.world_size, options, "training" + std::to_string(made++));
}

}  // namespace cairn::training
