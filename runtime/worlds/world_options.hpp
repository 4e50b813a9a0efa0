// Options of a World: addresses, secret, deadlines, listeners, traces and failure reports.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <cairn/actors/options.hpp>
#include <cairn/base/observer.hpp>
#include <cairn/runtime/observation/call_listener.hpp>
#include <cairn/runtime/observation/progress.hpp>

namespace cairn {

// All waits, including those in `runtime`, are limited to one year.
struct WorldOptions {
  RuntimeOptions runtime;
  // The address at which this rank listens, and at which the other ranks reach it. If empty,
  // CAIRN_BIND_ADDRESS gives the address, or CAIRN_SOCKET_IFNAME the network interface. If neither
  // is set, the rank listens at loopback if it has no secret, or if the ranks do not meet at a
  // TCPStore, or if that store is at a loopback address. Otherwise GLOO_SOCKET_IFNAME or
  // NCCL_SOCKET_IFNAME gives the interface; without them, the rank listens at the address from
  // which it reaches the store's host. See docs/launching.md.
  //
  // `from_addresses` ignores these variables. With it, an empty `bind_address` means the host of
  // this rank's entry in the list of addresses, and `bind_address` may be a wildcard ("0.0.0.0").
  // Addresses other than loopback need a secret; without one, the factory functions throw
  // kPrecondition.
  std::string bind_address;
  // The ports at which this rank may listen, such as "20000-20100", for a firewall between
  // machines. Each rank of a machine takes one, and keeps it over successive worlds. If empty,
  // CAIRN_PORT_RANGE gives them; without either, the system chooses a port. `from_addresses`
  // ignores both. The factory functions throw kInvalidArgument for a malformed range, kUnavailable
  // if all its ports are in use.
  std::string port_range;
  // A secret that only the ranks of this job know. With it, ranks communicate over TLS 1.3, and
  // only with each other. All ranks must have the same secret. Give either the secret itself (at
  // least 16 bytes that cannot be guessed) or a file of mode 0600 that contains it; white space at
  // its end is ignored. If both are empty, the secret comes from the store if `secret_from_store`
  // is set, or else from CAIRN_SECRET_FILE, which cairn-launch sets, or else from CAIRN_SECRET.
  //
  // Without a secret, ranks communicate unencrypted, over loopback addresses only, and anyone who
  // can reach the port can connect. The factory functions throw kPermission for a file that others
  // may read, kInvalidArgument for a secret that is too short.
  std::string secret;
  std::string secret_file;
  // If true, rank 0 draws a secret and passes it to the others through the store in which the ranks
  // meet. CAIRN_SECRET=store does the same. Must be the same on all ranks. Anyone who can read the
  // store can then join, so use it only where the store is out of reach of others. `from_addresses`
  // has no store and throws kInvalidArgument.
  bool secret_from_store = false;
  // The time limit for making a world: for resolving the name of rank 0's host, opening the store,
  // passing the secret through it, and waiting for all ranks, together.
  std::chrono::milliseconds assemble_deadline{std::chrono::minutes(5)};
  std::chrono::milliseconds shutdown_deadline{std::chrono::seconds(30)};  // for the shutdown, after the last handle is destroyed
  unsigned actor_threads = 0;                                             // 0: chosen automatically
  // The number of this rank among those of its machine, for World::local_rank(). If absent,
  // `from_environment` takes it from the launcher, and `world_from_mpi` takes it from MPI. In other
  // worlds, or if the launcher sets none, it is the rank. `in_process` and `single` ignore this
  // option.
  std::optional<int> local_rank;
  // The backends of the trainer's own process group, as PyTorch's init_process_group takes them:
  // "cpu:gloo,cuda:nccl", "gloo", or "nccl" (for "cuda" only). Cairn does not use these backends.
  // It only checks them: an asynchronous save needs one for "cpu". Empty: unknown, and nothing is
  // refused.
  std::string backends;
  ShowProgress show_progress = ShowProgress::kTerminal;
  std::shared_ptr<Observer> observer;  // gets every event, including each message; may be null
  // Objects that learn when calls begin, change phase, fail and end: see call_listener.hpp.
  // CAIRN_METRICS_DIR and CAIRN_METRICS_PORT add a listener: see metrics.hpp.
  std::vector<std::shared_ptr<CallListener>> listeners;
  // The directory in which each rank records every message, hook and change of state as it happens
  // (docs/tracing.md), for `cairn trace`. All ranks may share one. At most 256 MiB per rank; the
  // oldest events are dropped first. Empty: the value of CAIRN_TRACE; if that is empty too, nothing
  // is recorded.
  std::string trace_directory;
  // A signal, for example SIGUSR2, that makes every rank in the process write a trace of its latest
  // events to `trace_signal_directory` (created if necessary; empty: the working directory). Each
  // file replaces the previous one; `cairn trace` finds it. 0: taken from CAIRN_TRACE_SIGNAL,
  // "USR2" or "USR2:DIR"; if that is unset, no signal. If the program already handles or ignores
  // the signal, that does not change, and a warning is logged.
  int trace_signal = 0;
  std::string trace_signal_directory;
  // A save or load that fails leaves `failure-<save id>/` in this directory, with report.txt and
  // the last events of at most eight ranks. Empty: saves by Cairn's own writer leave it in the
  // directory that holds the checkpoint. The directory must exist. The newest 16 reports stay;
  // older ones are removed. Calls that were only cancelled leave no report, unless a deadline
  // passed.
  std::string failure_directory;
  bool failure_reports = true;
};

}  // namespace cairn
