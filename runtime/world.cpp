#include <cairn/runtime/world.hpp>

#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cairn/actors/links/links.hpp>
#include <cairn/actors/links/socket.hpp>
#include <cairn/actors/links/tcp_links.hpp>
#include <cairn/actors/links/tls_transform.hpp>
#include <cairn/actors/rank_runtime.hpp>
#include <cairn/base/digest.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/injection.hpp>
#include <cairn/base/random.hpp>
#include <cairn/runtime/injection_names.hpp>
#include <cairn/runtime/job_secret.hpp>
#include <cairn/runtime/log.hpp>
#include <cairn/runtime/rendezvous.hpp>

namespace cairn {
namespace {

void check_place(int rank, int world_size) {
  if (world_size < 1) throw Error(ErrorCode::kInvalidArgument, "a world has at least one rank, not " + std::to_string(world_size));
  if (rank < 0 || rank >= world_size)
    throw Error(ErrorCode::kInvalidArgument,
                "rank " + std::to_string(rank) + " is not in a world of " + std::to_string(world_size) + " ranks");
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
        shutdown_deadline(world_options.shutdown_deadline),
        runtime(std::move(system), std::move(config), std::move(links)) {}
  ~Implementation() { runtime.shutdown(shutdown_deadline); }

  const int rank;
  const int size;
  int local_rank;
  const std::string incarnation;
  const bool one_process;
  const bool secured;
  const std::chrono::milliseconds shutdown_deadline;
  c10::intrusive_ptr<c10d::Store> store;  // hosted by rank 0 for the others: kept as long as the world
  std::mutex mutex;
  std::set<std::string> checkpointers;
  RankRuntime runtime;
};

namespace {

RankConfig configure(int rank, int world_size, std::string incarnation, bool one_process, const WorldOptions& options) {
  warn_of_ignored_injection();
  RankConfig config;
  config.rank = rank;
  config.world_size = world_size;
  config.incarnation = std::move(incarnation);
  config.one_process = one_process;
  config.options = options.runtime;
  config.observer = options.observer;
  config.injector = active_injector();
  return config;
}

// Ranks without a secret may talk over loopback, and are told what that means.
void check_unsecured(int rank, const Socket& listener) {
  check_loopback(local_endpoint(listener));
  static std::once_flag told;
  if (rank != 0) return;
  std::call_once(told, [] {
    log_warning(
        "the ranks of this job have no secret: they talk in the clear, over loopback, and whoever can connect on this machine may "
        "join them; start them with cairn-launch, or set CAIRN_SECRET_FILE");
  });
}

TransformFactory make_transform(const Secret& secret, const std::string& incarnation, int rank) {
  return secret.empty() ? TransformFactory() : tls_transform(secret, incarnation, rank);
}

}  // namespace

World World::from_environment(const WorldOptions& options) {
  const Place place = place_in_environment();
  World world = from_store(open_store(place, options.assemble_deadline), place.rank, place.world_size, options);
  world.implementation_->local_rank = place.local_rank;
  return world;
}

World World::from_store(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size, const WorldOptions& options) {
  check_place(rank, world_size);
  if (!store) throw Error(ErrorCode::kInvalidArgument, "World::from_store was given no store");
  if (options.bind_address == "0.0.0.0" || options.bind_address == "::")
    throw Error(ErrorCode::kInvalidArgument, "bind_address " + options.bind_address +
                                                 " names no address that other ranks could connect to: give one of this machine's");
  TcpLinksConfig links;
  links.listener = listen_on(options.bind_address.empty() ? "127.0.0.1" : options.bind_address, 0);
  const Secret secret = world_size == 1 ? Secret() : find_secret(options);
  if (world_size > 1 && secret.empty()) check_unsecured(rank, links.listener);
  Assembly assembly;
  try {
    assembly = assemble(*store, rank, world_size, to_string(local_endpoint(links.listener)), options.assemble_deadline, secret);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(ErrorCode::kUnavailable,
                "rank " + std::to_string(rank) + " cannot use the store to find the other ranks: " + std::string(error.what()));
  }
  links.addresses = assembly.addresses;
  links.incarnation = assembly.incarnation;
  links.transform = make_transform(secret, assembly.incarnation, rank);
  auto implementation = std::make_shared<Implementation>(
      ActorSystem::create(options.actor_threads), configure(rank, world_size, assembly.incarnation, false, options),
      world_size == 1 ? nullptr : make_tcp_links(std::move(links)), world_size == 1, world_size == 1 || !secret.empty(), options);
  implementation->store = std::move(store);
  return World(std::move(implementation));
}

World World::from_addresses(int rank, const std::vector<std::string>& addresses, const std::string& job_id,
                            const WorldOptions& options) {
  check_place(rank, static_cast<int>(addresses.size()));
  if (job_id.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "World::from_addresses needs a job id that is never used again: what is saved is named by it");
  DigestBuilder digest;
  digest.add(ByteSpan(job_id));
  for (const auto& address : addresses) digest.add(ByteSpan(address));
  const std::string incarnation = to_hex(digest.finish()).substr(0, 32);

  const auto own = split_address(addresses[static_cast<std::size_t>(rank)]);
  TcpLinksConfig links;
  links.listener = listen_on(options.bind_address.empty() ? own.host : options.bind_address, own.port);
  links.addresses = addresses;
  links.incarnation = incarnation;
  const int size = static_cast<int>(addresses.size());
  const Secret secret = size == 1 ? Secret() : find_secret(options);
  if (size > 1 && secret.empty()) check_unsecured(rank, links.listener);
  links.transform = make_transform(secret, incarnation, rank);
  return World(std::make_shared<Implementation>(
      ActorSystem::create(options.actor_threads), configure(rank, size, incarnation, false, options),
      size == 1 ? nullptr : make_tcp_links(std::move(links)), size == 1, size == 1 || !secret.empty(), options));
}

std::vector<World> World::in_process(int world_size, const WorldOptions& options) {
  check_place(0, world_size);
  const auto system = ActorSystem::create(options.actor_threads);
  const auto links = world_size == 1 ? nullptr : make_memory_links(world_size);
  const std::string incarnation = random_hex(*system_random(), 128);
  std::vector<World> worlds;
  for (int rank = 0; rank < world_size; ++rank)
    worlds.push_back(World(std::make_shared<Implementation>(system, configure(rank, world_size, incarnation, true, options), links,
                                                            true, true, options)));
  return worlds;
}

World World::single(const WorldOptions& options) { return in_process(1, options).front(); }

int World::rank() const { return implementation_->rank; }
int World::size() const { return implementation_->size; }
int World::local_rank() const { return implementation_->local_rank; }
const std::string& World::incarnation() const { return implementation_->incarnation; }
bool World::one_process() const { return implementation_->one_process; }
bool World::secured() const { return implementation_->secured; }

bool World::shutdown(std::chrono::milliseconds deadline) const { return implementation_->runtime.shutdown(deadline); }

std::string World::dump_trace() const { return implementation_->runtime.dump_trace(); }

RankRuntime& World::runtime() const { return implementation_->runtime; }

void World::claim_checkpointer(const std::string& name) const {
  if (name.empty()) throw Error(ErrorCode::kInvalidArgument, "a checkpointer needs a name");
  std::lock_guard lock(implementation_->mutex);
  if (!implementation_->checkpointers.insert(name).second)
    throw Error(ErrorCode::kAlreadyExists, "this world has a checkpointer named \"" + name +
                                               "\" already: keep that one, or choose " + "another name, the same on all ranks");
}

void World::release_checkpointer(const std::string& name) const noexcept {
  std::lock_guard lock(implementation_->mutex);
  implementation_->checkpointers.erase(name);
}

}  // namespace cairn
