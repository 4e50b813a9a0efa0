#include <cairn/runtime/worlds/world.hpp>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include <unistd.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cairn/actors/call.hpp>
#include <cairn/actors/links/links.hpp>
#include <cairn/actors/links/plain_transform.hpp>
#include <cairn/actors/links/secret.hpp>
#include <cairn/actors/links/socket.hpp>
#include <cairn/actors/links/socket_transport.hpp>
#include <cairn/actors/links/tcp_links.hpp>
#include <cairn/actors/links/tls_transform.hpp>
#include <cairn/actors/rank_runtime.hpp>
#include <cairn/actors/read_streams.hpp>
#include <cairn/base/clock.hpp>
#include <cairn/base/digest.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/injection.hpp>
#include <cairn/base/log.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/base/process_name.hpp>
#include <cairn/base/random.hpp>
#include <cairn/base/rank_text.hpp>
#include <cairn/base/running_work.hpp>
#include <cairn/base/save_id.hpp>
#include <cairn/base/settings.hpp>
#include <cairn/base/wait.hpp>
#include <cairn/runtime/launch/own_address.hpp>
#include <cairn/runtime/launch/rendezvous.hpp>
#include <cairn/runtime/launch/tcp_store.hpp>
#include <cairn/runtime/observation/call_notifier.hpp>
#include <cairn/runtime/observation/metrics.hpp>
#include <cairn/runtime/observation/signal_watch.hpp>
#include <cairn/runtime/worlds/caller_executor.hpp>
#include <cairn/runtime/worlds/job_secret.hpp>
#include <cairn/state/checkpoint_writer.hpp>
#include <cairn/storage/store.hpp>
#include <cairn/storage/stores/url.hpp>

namespace cairn {
namespace {

void check_place(int rank, int world_size) {
  if (world_size < 1) throw Error(ErrorCode::kInvalidArgument, "a world has at least one rank, not " + std::to_string(world_size));
  if (rank < 0 || rank >= world_size)
    throw Error(ErrorCode::kInvalidArgument,
                "rank " + std::to_string(rank) + " is not in a world of " + std::to_string(world_size) + " ranks");
}

// Returns the position of `rank` in the list, after checking the list.
int check_survivors(const std::vector<int>& survivors, int rank, int world_size) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::kInvalidArgument, "rank " + std::to_string(rank) + " cannot rejoin: " + why);
  };
  const std::set<int> known(survivors.begin(), survivors.end());
  if (known.size() != survivors.size()) refuse("a rank is listed twice among the survivors");
  for (const int survivor : survivors)
    if (survivor < 0 || survivor >= world_size)
      refuse("rank " + std::to_string(survivor) + " is not in a world of " + std::to_string(world_size) + " ranks");
  if (known.count(rank) == 0)
    refuse("it is not among the survivors; who was lost or silent and is back after all starts anew, in a world of all ranks");
  return static_cast<int>(std::find(survivors.begin(), survivors.end(), rank) - survivors.begin());
}

std::string listed(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ",") + std::to_string(rank);
  return text;
}

// Returns the same incarnation on all ranks that pass the same texts.
std::string incarnation_from(const std::vector<std::string>& known) {
  DigestBuilder digest;
  for (const auto& text : known) digest.add(ByteSpan(text));
  return to_hex(digest.finish()).substr(0, 32);
}

// Returns a copy for the world to keep. The world keeps the secret only in a Secret, which wipes
// it.
WorldOptions without_secret(const WorldOptions& options) {
  WorldOptions copy = options;
  wipe(copy.secret.data(), copy.secret.size());
  copy.secret.clear();
  return copy;
}

// A world whose ranks share one process, and the worlds in which survivors rejoin.
class Process {
 public:
  // The incarnation is random, so that no two worlds give their saves the same ids.
  Process(std::shared_ptr<ActorSystem> actors, std::size_t world_size)
      : system(std::move(actors)),
        links(world_size == 1 ? nullptr : make_memory_links(static_cast<int>(world_size))),
        incarnation(random_hex(*system_random(), 128)) {}

  // Each survivor calls this once. All of them get the same result.
  std::shared_ptr<Process> next(const std::vector<int>& survivors) {
    MutexLock lock(mutex_);
    auto& [made, missing] = next_[survivors];
    if (!made) {
      made = std::make_shared<Process>(system, survivors.size());
      missing = survivors.size();
    }
    const std::shared_ptr<Process> found = made;
    // Nobody asks for this entry again, and it would keep the links of the new world alive.
    if (--missing == 0) next_.erase(survivors);
    return found;
  }

  const std::shared_ptr<ActorSystem> system;
  const std::shared_ptr<LinksFactory> links;  // null in a world of one
  const std::string incarnation;

 private:
  Mutex mutex_;
  std::map<std::vector<int>, std::pair<std::shared_ptr<Process>, std::size_t>> next_
      CAIRN_GUARDED_BY(mutex_);  // with the number of survivors that have not taken it yet
};

void warn_of_ignored_injection(int rank) {
  if (environment_value("CAIRN_INJECT").empty() || injection_is_allowed()) return;
  // Once per process, which may make many worlds.
  static std::once_flag said;
  std::call_once(said, [rank] {
    write_log(LogLevel::kWarning, rank,
              "CAIRN_INJECT is set, but this program does not call cairn::allow_injection(): nothing is injected");
  });
}

// Returns the types of devices that a text of the form of PyTorch's init_process_group has a
// backend for: "cpu:gloo,cuda:nccl", or one name. "nccl" alone serves "cuda"; any other name serves
// "cpu" and "cuda". Throws kInvalidArgument for any other text.
std::set<std::string> devices_of_backends(const std::string& text) {
  // NCCL has no collectives in host memory.
  if (text == "nccl") return {"cuda"};
  std::set<std::string> devices;
  bool fits = !text.empty() && text.back() != ',';
  const bool is_one_name = text.find_first_of(":,") == std::string::npos;
  if (is_one_name) devices = {"cpu", "cuda"};
  std::istringstream pairs(is_one_name ? "" : text);
  for (std::string pair; std::getline(pairs, pair, ',');) {
    const std::size_t colon = pair.find(':');
    fits =
        fits && colon != std::string::npos && colon > 0 && colon + 1 < pair.size() && devices.insert(pair.substr(0, colon)).second;
  }
  if (fits) return devices;
  throw Error(
      ErrorCode::kInvalidArgument,
      "backends \"" + text + "\": give one name (\"gloo\", \"nccl\"), or one for each type of device (\"cpu:gloo,cuda:nccl\")");
}

RankConfig configure(int rank, int world_size, std::string incarnation, bool one_process, const WorldOptions& options) {
  warn_of_ignored_injection(rank);
  if (!options.backends.empty()) devices_of_backends(options.backends);  // throws if malformed
  RankConfig config;
  config.rank = rank;
  config.world_size = world_size;
  config.incarnation = std::move(incarnation);
  config.one_process = one_process;
  config.options = options.runtime;
  config.observer = options.observer;
  config.trace_directory = options.trace_directory;
  if (config.trace_directory.empty()) config.trace_directory = environment_value("CAIRN_TRACE");
  // Kept by the world: rules that are set later are for worlds made later.
  config.injector = active_injector();
  return config;
}

// Connects the listeners, if there are any. Failing to do so is only logged: monitoring must not
// end training.
std::shared_ptr<CallNotifier> notify(RankConfig& config, const WorldOptions& options) {
  std::vector<std::shared_ptr<CallListener>> listeners;
  for (const auto& listener : options.listeners)
    if (listener) listeners.push_back(listener);
  if (auto metrics = metrics_of_environment()) listeners.push_back(std::move(metrics));
  if (listeners.empty()) return nullptr;
  try {
    auto notifier = std::make_shared<CallNotifier>(config.rank, std::move(listeners), config.observer);
    // The notifier passes events on to the observer that it replaces here.
    config.observer = notifier;
    return notifier;
  } catch (const std::exception& error) {
    write_log(LogLevel::kWarning, config.rank, std::string("listeners will not be told of saves and loads: ") + error.what());
    return nullptr;
  }
}

// Throws unless the address is loopback. Rank 0 logs a warning about the missing secret once.
void check_unsecured(int rank, const Socket& listener) {
  check_loopback(local_endpoint(listener));
  static std::once_flag told;
  if (rank != 0) return;
  std::call_once(told, [] {
    write_log(
        LogLevel::kWarning, 0,
        "the ranks of this job have no secret: they talk in the clear, over loopback, and whoever can connect on this machine may "
        "join them; start them with cairn-launch, or set CAIRN_SECRET_FILE");
  });
}

// Returns the directory that contains a checkpoint, or "" if that is not a directory. The call
// itself reports invalid checkpoint ids.
std::string directory_beside(const std::string& checkpoint_id) {
  try {
    const std::string scheme = split_url(checkpoint_id).scheme;
    return scheme.empty() || scheme == "file" ? parent_url(open_store(checkpoint_id)->url()) : "";
  } catch (const std::exception&) {
    return "";
  }
}

// The port at which a rank listens. It stays reserved over successive worlds.
class Door {
  struct Presence {  // counts the ranks in this process
    Presence() { ++count; }
    ~Presence() { --count; }
    static inline std::atomic<int> count{0};
  };

 public:
  Door(int rank, int world_size, const std::string& host, Socket reserved, const Secret& secret)
      : host_(host), reserved_(std::move(reserved)) {
    if (world_size > 1 && secret.empty()) check_unsecured(rank, reserved_);
    provide_descriptors(rank, world_size, Presence::count);  // any rank may be coordinator, or take over from it
  }
  std::string address() const { return to_string(local_endpoint(reserved_)); }
  // A new listener each time: the links of a world own theirs, and close it with the world. Retries
  // while the network thread closes that of a world that was shut down.
  Socket open(std::chrono::milliseconds deadline = std::chrono::milliseconds(0)) const {
    return retry(deadline, std::chrono::milliseconds(1), [this] { return listen_on(host_, split_address(address()).port); });
  }

 private:
  const Presence presence_;
  const std::string host_;
  const Socket reserved_;
};

PortRange port_range_of(const WorldOptions& options) {
  if (!options.port_range.empty()) return parse_port_range(options.port_range, "WorldOptions::port_range");
  return parse_port_range(environment_value("CAIRN_PORT_RANGE"), "CAIRN_PORT_RANGE");
}

}  // namespace

struct World::Implementation {
  Implementation(std::shared_ptr<ActorSystem> system, RankConfig config, std::shared_ptr<LinksFactory> links, bool in_one_process,
                 bool is_secured, const WorldOptions& world_options)
      : rank(config.rank),
        size(config.world_size),
        local_rank(config.rank),
        incarnation(config.incarnation),
        one_process(in_one_process),
        secured(is_secured),
        options(without_secret(world_options)),
        notifier(notify(config, options)),
        runtime(std::move(system), std::move(config), std::move(links)) {
    prepare_stacks();
    trace_when_asked();  // last, because its thread uses the runtime
  }
  ~Implementation() {
    // First, because its thread uses the runtime.
    trace_on_signal.reset();
    try {
      runtime.shutdown(options.shutdown_deadline);
    } catch (...) {  // out of memory: the runtime's own destructor waits for nothing
    }
    // After the runtime, so that listeners learn of the calls that its shutdown has ended.
    if (notifier) notifier->close(options.shutdown_deadline);
  }

  void trace_when_asked() {
    int number = options.trace_signal;
    std::string directory = options.trace_signal_directory;
    // The variable is for programs that choose no signal themselves.
    if (const std::string text = environment_value("CAIRN_TRACE_SIGNAL"); !text.empty() && number == 0) {
      const auto colon = text.find(':');
      number = signal_named(text.substr(0, colon));
      if (colon != std::string::npos) directory = text.substr(colon + 1);
    }
    if (number == 0) return;
    trace_on_signal = std::make_unique<TraceOnSignal>(
        number, rank, [this, directory = directory.empty() ? "." : directory] { runtime.write_trace_in(directory); });
  }

  // Lets traces contain the stacks of hooks that hang. Of the process: its first world decides.
  void prepare_stacks() {
    const std::string text = environment_value("CAIRN_STACK_SIGNAL");
    if (text == "off") return;
    const std::string fault = install_stack_signal(text.empty() ? 0 : signal_named(text));
    if (!fault.empty())
      write_log(text.empty() ? LogLevel::kInfo : LogLevel::kWarning, rank, "traces will contain no stacks: " + fault);
  }

  // Creates a world over TCP. `links` is complete except for its transform.
  static World connect(TcpLinksConfig links, int rank, std::shared_ptr<Door> door, const std::string& key_context,
                       const Secret& secret, const WorldOptions& options) {
    const int world_size = static_cast<int>(links.addresses.size());
    const bool alone = world_size == 1;
    if (!secret.empty()) links.transform = tls_transform(secret, key_context, rank);
    RankConfig config = configure(rank, world_size, links.incarnation, false, options);
    // A copy, because the links take theirs, and `rejoin` needs those of the survivors.
    std::vector<std::string> addresses = links.addresses;
    World world(own(std::make_unique<Implementation>(ActorSystem::create(options.actor_threads), std::move(config),
                                                     alone ? nullptr : make_tcp_links(std::move(links)), alone,
                                                     alone || !secret.empty(), options)));
    if (options.local_rank) world.implementation_->local_rank = *options.local_rank;
    world.implementation_->addresses = std::move(addresses);
    world.implementation_->key_context = key_context;
    world.implementation_->secret = secret;
    world.implementation_->door = std::move(door);
    return world;
  }

  // Create a world of ranks that meet through `store`, or of ranks in this process.
  static World meet(const c10::intrusive_ptr<c10d::Store>& store, const std::string& store_name, int rank, int world_size,
                    const Deadline& deadline, const WorldOptions& options) {
    const bool shares_secret = world_size > 1 && is_secret_in_store(options);
    Secret secret = world_size == 1 ? Secret() : find_secret(options);
    const AddressRequest request{options.bind_address, host_of_store(*store), shares_secret || !secret.empty(), deadline.left()};
    // In a world of one rank, nobody connects: ignore the variables, which may be wrong.
    const OwnAddress own = own_address(request, world_size > 1 ? variables_of_process() : Variables());
    const PortRange ports = world_size > 1 ? port_range_of(options) : PortRange{};
    TcpLinksConfig links;
    std::shared_ptr<Door> door;
    Assembly assembly;
    try {
      if (shares_secret) secret = share_secret(store, rank, world_size, deadline);
      try {
        door = std::make_shared<Door>(rank, world_size, own.host, reserve_port_in(own.host, ports), secret);
      } catch (const Error& error) {
        // The user did not give this address. Without its origin the error would not say how to
        // change it.
        if (own.origin.empty()) throw;
        throw Error(error.code(), std::string(error.what()) + "; this address was chosen by " + own.origin);
      }
      write_log(LogLevel::kInfo, rank,
                "this rank is " + process_name() + ", and listens at " + door->address() +
                    (own.origin.empty() ? "" : ", chosen by " + own.origin));
      links.listener = door->open();
      assembly = assemble(store, rank, world_size, door->address(), deadline, secret);
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      // Exceptions of c10d name neither the rank nor the store.
      throw Error(ErrorCode::kUnavailable, "rank " + std::to_string(rank) + " cannot use " + store_name +
                                               " to find the other ranks: " + std::string(error.what()));
    }
    links.addresses = assembly.addresses;
    links.incarnation = assembly.incarnation;
    const auto arrival = std::make_shared<Arrival>();
    arrival->complete = true;  // ranks listen before they publish their addresses
    links.arrival = arrival;
    const std::string key_context = links.incarnation;
    return connect(std::move(links), rank, std::move(door), key_context, secret, options);
  }

  static World meet(std::shared_ptr<Process> made, int rank, int world_size, const WorldOptions& options) {
    World world(own(std::make_unique<Implementation>(made->system, configure(rank, world_size, made->incarnation, true, options),
                                                     made->links, true, true, options)));
    world.implementation_->process = std::move(made);
    return world;
  }

  // A forked child has copies of all handles, but not the threads that destructors wait for. So a
  // handle deletes nothing there.
  static std::shared_ptr<Implementation> own(std::unique_ptr<Implementation> made) {
    return {made.release(), [](Implementation* implementation) {
              if (::getpid() == implementation->pid) delete implementation;
            }};
  }

  // Returns the transport of this rank for bulk bytes, made at the first call. Throws what
  // make_transport throws. `deadline`: for another rank to open a stream.
  std::shared_ptr<Transport> data_transport(std::chrono::milliseconds deadline) {
    const MutexLock lock(mutex);
    if (transport) return transport;
    TransportConfig config;
    config.rank = rank;
    config.incarnation = incarnation;
    config.secret = secret;
    config.silence = options.runtime.heartbeat_timeout;
    config.claim_deadline = deadline;
    if (!addresses.empty()) config.host = split_address(addresses[static_cast<std::size_t>(rank)]).host;
    Socket reserved;
    if (!one_process) {
      reserved = reserve_port_in(config.host, port_range_of(options));
      config.port = split_address(to_string(local_endpoint(reserved))).port;
    }
    return transport = make_transport(std::move(config));
  }

  const pid_t pid = ::getpid();
  const int rank;
  const int size;
  int local_rank;
  const std::string incarnation;
  const bool one_process;
  const bool secured;
  const WorldOptions options;
  std::unique_ptr<TraceOnSignal> trace_on_signal;  // null: no signal writes traces
  // These let survivors find each other, in this process or at their addresses.
  std::shared_ptr<Process> process;
  std::vector<std::string> addresses;  // by rank
  std::string key_context;     // input to the derivation of link keys: the first world's incarnation, or a hash of the job id
  Secret secret;               // of the job; empty: none, or a world in one process
  std::shared_ptr<Door> door;  // shared by successive worlds
  std::atomic<bool> rejoined{false};
  c10::intrusive_ptr<c10d::Store> store;  // from `from_environment`; this process may host it, and the trainer may use it
  Mutex mutex;
  std::set<std::string> checkpointers CAIRN_GUARDED_BY(mutex);
  std::shared_ptr<Transport> transport CAIRN_GUARDED_BY(mutex);  // null: not needed yet
  // Names that were ever claimed, by key: save ids contain the key.
  std::map<std::uint32_t, std::string> checkpointer_names CAIRN_GUARDED_BY(mutex);
  // Declared before the runtime, which reports to it until the runtime is destroyed.
  const std::shared_ptr<CallNotifier> notifier;  // null: there are no listeners
  RankRuntime runtime;
};

World World::from_environment(const WorldOptions& options) {
  const Place place = place_in_environment();
  if (place.world_size > 1) {
    check_own_address(options.bind_address, variables_of_process());
    port_range_of(options);
  }
  const Deadline deadline = options.assemble_deadline;
  auto store = open_store(place, deadline);
  const std::string name = "the store at " + join_address(place.master_host, place.master_port) +
                           " (MASTER_ADDR, MASTER_PORT; another program may listen there)";
  World world = Implementation::meet(store, name, place.rank, place.world_size, deadline, options);
  if (!options.local_rank) world.implementation_->local_rank = place.local_rank;
  // Rank 0 may host the store, which must live as long as the world: other ranks may still ask it.
  if (place.rank == 0) world.implementation_->store = std::move(store);
  return world;
}

World World::from_store(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size, const WorldOptions& options) {
  check_place(rank, world_size);
  if (!store) throw Error(ErrorCode::kInvalidArgument, "World::from_store was given no store");
  return Implementation::meet(store, "the store", rank, world_size, options.assemble_deadline, options);
}

World World::from_addresses(int rank, const std::vector<std::string>& addresses, const std::string& job_id,
                            const WorldOptions& options) {
  const int size = static_cast<int>(addresses.size());
  check_place(rank, size);
  if (job_id.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "World::from_addresses needs a job id that is never used again: what is saved is named by it");
  std::vector<std::string> names{job_id};
  names.insert(names.end(), addresses.begin(), addresses.end());
  if (size > 1 && is_secret_in_store(options))
    throw Error(ErrorCode::kInvalidArgument,
                "World::from_addresses has no store to take the secret from (secret_from_store, CAIRN_SECRET=store): give it in "
                "WorldOptions::secret_file or CAIRN_SECRET_FILE");
  const Secret secret = size == 1 ? Secret() : find_secret(options);
  const auto own = split_address(addresses[static_cast<std::size_t>(rank)]);
  TcpLinksConfig links;
  const std::string host = options.bind_address.empty() ? own.host : options.bind_address;
  auto door = std::make_shared<Door>(rank, size, host, reserve_port(host, own.port), secret);
  links.listener = door->open();
  links.addresses = addresses;
  links.incarnation = incarnation_from(names);
  links.is_given = true;
  // Without the addresses: ranks that were given different ones can then tell each other.
  const std::string key_context = incarnation_from({job_id});
  return Implementation::connect(std::move(links), rank, std::move(door), key_context, secret, options);
}

std::vector<World> World::in_process(int world_size, const WorldOptions& options) {
  check_place(0, world_size);
  const auto made = std::make_shared<Process>(ActorSystem::create(options.actor_threads), world_size);
  std::vector<World> worlds;
  worlds.reserve(static_cast<std::size_t>(world_size));
  for (int rank = 0; rank < world_size; ++rank) worlds.push_back(Implementation::meet(made, rank, world_size, options));
  return worlds;
}

World World::single(const WorldOptions& options) { return in_process(1, options).front(); }

World World::alone() const {
  WorldOptions options = implementation_->options;
  options.failure_reports = false;
  if (rank() != 0) options.show_progress = ShowProgress::kOff;
  return single(options);
}

int World::rank() const { return implementation_->rank; }
int World::size() const { return implementation_->size; }
int World::local_rank() const { return implementation_->local_rank; }
const std::string& World::incarnation() const { return implementation_->incarnation; }
bool World::one_process() const { return implementation_->one_process; }
bool World::secured() const { return implementation_->secured; }

std::vector<int> World::survivors(const FailureMap& failures) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < size(); ++rank) {
    // A rank that raised an error still runs. Only one that was lost or silent is given up.
    const auto found = failures.find(rank);
    const bool gone =
        found != failures.end() && (found->second.kind == FailureKind::kLost || found->second.kind == FailureKind::kSilent);
    if (!gone) ranks.push_back(rank);
  }
  return ranks;
}

namespace {

// Waits until all ranks of the rejoined world are there.
void await_all(const World& world, std::chrono::milliseconds deadline) {
  // An agreement ends when all ranks have taken part, and its failures name those that have not.
  AgreeCall call;
  call.id = {"cairn/rejoin", 1};
  call.checkpoint_id = "who goes on";
  call.deadline = deadline;
  call.report_directory = world.report_directory("", "");
  call.decide = [](const auto&) { return std::string(); };
  const CallResult outcome = run_agreement(world.runtime(), std::move(call));
  if (outcome.ok()) return;
  const std::string all = "the world of " + std::to_string(world.size()) + " ranks did not assemble within " +
                          std::to_string(deadline.count()) + " ms: ";
  std::vector<int> missing;
  for (const auto& [rank, failure] : outcome.failures)
    if (failure.kind == FailureKind::kLost || failure.kind == FailureKind::kSilent) missing.push_back(rank);
  if (!missing.empty()) throw Error(ErrorCode::kDeadline, all + name_ranks(missing) + " did not come");
  throw Error(ErrorCode::kDeadline, all + describe(outcome.failures));
}

}  // namespace

World World::rejoin(const std::vector<int>& survivors) const {
  const auto& self = *implementation_;
  if (::getpid() != self.pid)
    throw Error(ErrorCode::kPrecondition, "rank " + std::to_string(self.rank) +
                                              " cannot rejoin in a forked child process: its parent, which has the world's threads "
                                              "and connections, can");
  const int new_rank = check_survivors(survivors, self.rank, self.size);
  if (self.rejoined)
    throw Error(ErrorCode::kPrecondition,
                "rank " + std::to_string(self.rank) +
                    " has rejoined others from this world already: go on from the world that it got then");
  // Before the new world is made, because the old one listens at the port that the new one needs.
  implementation_->runtime.shutdown(self.options.shutdown_deadline);
  if (self.process) {
    World world = Implementation::meet(self.process->next(survivors), new_rank, static_cast<int>(survivors.size()), self.options);
    implementation_->rejoined = true;
    return world;
  }
  const auto patience = bounded_wait(self.options.assemble_deadline);
  const auto arrival = std::make_shared<Arrival>();
  arrival->deadline = system_clock().now() + patience;
  TcpLinksConfig links;
  for (const int survivor : survivors) links.addresses.push_back(self.addresses[static_cast<std::size_t>(survivor)]);
  links.listener = self.door->open(patience);
  // Survivors compute the same one without a message. It differs from the old one, so that a rank
  // that was given up cannot connect when it comes back.
  links.incarnation = incarnation_from({self.incarnation + " rejoined by " + listed(survivors)});
  links.arrival = arrival;
  World world = Implementation::connect(std::move(links), new_rank, self.door, self.key_context, self.secret, self.options);
  world.implementation_->local_rank = self.local_rank;
  // This process may host the store, and the trainer may still use it.
  world.implementation_->store = self.store;
  await_all(world, patience);
  arrival->complete = true;
  // Only now: after a failure, survivors may try again from this world.
  implementation_->rejoined = true;
  return world;
}

bool World::shutdown(std::chrono::milliseconds deadline) const {
  const Deadline both = deadline;
  const bool is_down = implementation_->runtime.shutdown(deadline);
  // One deadline for both: listeners get the time that the runtime has not used.
  const bool are_told = !implementation_->notifier || implementation_->notifier->flush(both.left());
  return is_down && are_told;
}

bool World::has_backend_for(const std::string& device_type) const {
  const std::string& backends = implementation_->options.backends;
  return backends.empty() || devices_of_backends(backends).count(device_type) != 0;
}

std::chrono::milliseconds World::shutdown_deadline() const { return implementation_->options.shutdown_deadline; }

ShowProgress World::show_progress() const { return implementation_->options.show_progress; }

std::string World::dump_trace() const { return implementation_->runtime.dump_trace(); }

void World::write_trace(const std::string& path) const { implementation_->runtime.write_trace(path); }

std::string World::report_directory(const std::string& wanted, const std::string& place) const {
  const WorldOptions& options = implementation_->options;
  if (!wanted.empty()) return wanted;
  if (!options.failure_reports) return "";
  if (!options.failure_directory.empty()) return options.failure_directory;
  return !place.empty() ? directory_beside(place) : "";
}

void World::share_reads(CheckpointReader& reader, ReadOnce wanted) const {
  Implementation& self = *implementation_;
  // Called if something cannot be shared. Ranks then read it themselves.
  const auto warn = [&self](const std::string& why) {
    write_log(LogLevel::kWarning, self.rank, "read_once: " + why);
    self.runtime.note("read_once: something was not shared, and the log says why");
  };
  // Shorter than the time in which a rank must stop after a failure.
  const auto deadline = std::min(2 * self.options.runtime.heartbeat_timeout, self.options.runtime.cancel_grace / 2);
  const auto address = [&self, warn, deadline]() -> std::string {
    try {
      return to_string(self.data_transport(deadline)->address());
    } catch (const std::exception& error) {
      warn(std::string("no rank shares what it reads, because this rank cannot: ") + error.what());
      return "";
    }
  };
  reader.share_reads(wanted, address, [&self, warn, deadline](std::shared_ptr<const SharedReads> shared) {
    return make_read_streams(self.data_transport(deadline), std::move(shared), deadline, warn);
  });
}

RankRuntime& World::runtime() const { return implementation_->runtime; }

void World::claim_checkpointer(const std::string& name) const {
  if (name.empty()) throw Error(ErrorCode::kInvalidArgument, "a checkpointer needs a name");
  MutexLock lock(implementation_->mutex);
  const std::string& first = implementation_->checkpointer_names.emplace(checkpointer_key(name), name).first->second;
  if (first != name)
    throw Error(ErrorCode::kAlreadyExists, "the checkpointer names \"" + name + "\" and \"" + first +
                                               "\" give the same save ids: choose another name, the same on all ranks");
  // Ranks match their calls by name and ordinal. Two checkpointers of one name would mix them up.
  if (!implementation_->checkpointers.insert(name).second)
    throw Error(ErrorCode::kAlreadyExists, "this world has a checkpointer named \"" + name +
                                               "\" already: keep that one, or choose " + "another name, the same on all ranks");
}

void World::release_checkpointer(const std::string& name) const noexcept {
  MutexLock lock(implementation_->mutex);
  implementation_->checkpointers.erase(name);
}

}  // namespace cairn
