// Creates a world from an MPI communicator. The library itself does not need MPI: this header is a
// bridge to World::from_store. Where there is no <mpi.h>, it declares nothing.
//
//   MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
//   cairn::World world = cairn::world_from_mpi(MPI_COMM_WORLD);
#pragma once

#if __has_include(<mpi.h>)

#include <mpi.h>

#include <cstdlib>
#include <exception>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <utility>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cairn/base/error.hpp>
#include <cairn/runtime/worlds/world.hpp>

namespace cairn {

// Defined in the library.
void refuse_world_of_one(const std::string& call, const std::string& remedy);
c10::intrusive_ptr<c10d::TCPStore> open_tcp_store(const std::string& host, c10d::TCPStoreOptions options);

namespace mpi_bridge {

// Returns the text of rank 0 on all ranks.
inline std::string broadcast(std::string text, MPI_Comm communicator) {
  unsigned long long length = text.size();
  MPI_Bcast(&length, 1, MPI_UNSIGNED_LONG_LONG, 0, communicator);
  text.resize(length);
  MPI_Bcast(text.data(), static_cast<int>(length), MPI_CHAR, 0, communicator);
  return text;
}

inline std::string random_digits(int count) {
  std::random_device device;
  std::string digits;
  for (int i = 0; i < count; ++i) digits += "0123456789abcdef"[device() % 16];
  return digits;
}

inline bool is_set(const char* variable) {
  const char* const value = std::getenv(variable);
  return value != nullptr && *value != '\0';
}

// Returns, on rank 0, the name at which the other ranks reach it.
inline std::string own_host(bool on_one_node) {
  if (on_one_node) return "127.0.0.1";
  if (is_set("MASTER_ADDR")) return std::getenv("MASTER_ADDR");
  char name[MPI_MAX_PROCESSOR_NAME];
  int length = 0;
  MPI_Get_processor_name(name, &length);
  return std::string(name, static_cast<std::size_t>(length));
}

constexpr const char* kInEnvironment = "-";  // sent by rank 0 instead of a secret, if its environment has one

}  // namespace mpi_bridge

// Creates a world of the ranks of `communicator`, with the same rank numbers. All of them must make
// this call, with the same options. Uses MPI within the call only, on the calling thread, so
// MPI_THREAD_FUNNELED is enough; afterwards the ranks use connections of their own.
//
// The ranks meet at a store that rank 0 hosts on a free port. On several machines, rank 0's
// MASTER_ADDR, or else its MPI processor name, must resolve to its machine; each rank listens at
// its WorldOptions::bind_address. If the options have no secret, and rank 0 has neither
// CAIRN_SECRET_FILE nor CAIRN_SECRET set, rank 0 draws one, and MPI carries it to the others. If
// rank 0 has one of these variables set, all ranks find their secret as with World::from_store.
// World::local_rank() is the number of this process among the processes of `communicator` on the
// same node, unless WorldOptions::local_rank is set.
//
// Throws kPrecondition if MPI is not running, or if it has only one process although a launcher
// started several (this means that the program was built with another MPI). Throws kUnavailable if
// rank 0 cannot host the store or another rank cannot join. Throws what World::from_store throws.
inline World world_from_mpi(MPI_Comm communicator, WorldOptions options = {}) {
  int has_begun = 0, has_ended = 0;
  MPI_Initialized(&has_begun);
  MPI_Finalized(&has_ended);
  if (has_begun == 0 || has_ended != 0)
    throw Error(ErrorCode::kPrecondition, "world_from_mpi: MPI is not running; call it between MPI_Init_thread and MPI_Finalize");
  int rank = 0, size = 0, processes = 0;
  MPI_Comm_rank(communicator, &rank);
  MPI_Comm_size(communicator, &size);
  MPI_Comm_size(MPI_COMM_WORLD, &processes);
  if (processes == 1)
    refuse_world_of_one("world_from_mpi", "start the program with the launcher of the MPI that it was built with");
  if (size == 1) return World::single(options);

  c10d::TCPStoreOptions store_options;
  store_options.waitWorkers = false;
  store_options.timeout = options.assemble_deadline;
  c10::intrusive_ptr<c10d::Store> store;
  std::string told;
  MPI_Comm on_node = MPI_COMM_NULL;
  MPI_Comm_split_type(communicator, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &on_node);
  int local_rank = 0, size_of_node = 0;
  MPI_Comm_rank(on_node, &local_rank);
  MPI_Comm_size(on_node, &size_of_node);
  MPI_Comm_free(&on_node);
  if (!options.local_rank) options.local_rank = local_rank;
  if (rank == 0) {
    const std::string own_host = mpi_bridge::own_host(size_of_node == size);
    const bool in_environment = mpi_bridge::is_set("CAIRN_SECRET_FILE") || mpi_bridge::is_set("CAIRN_SECRET");
    store_options.isServer = true;
    store_options.port = 0;
    try {
      const auto hosted = open_tcp_store(own_host, store_options);
      const std::string drawn = in_environment ? mpi_bridge::kInEnvironment : mpi_bridge::random_digits(64);
      told = std::to_string(hosted->getPort()) + ' ' + drawn + ' ' + own_host;
      store = hosted;
    } catch (const std::exception& error) {
      told = std::string("! ") + error.what();
    }
  }
  told = mpi_bridge::broadcast(std::move(told), communicator);
  if (told.front() == '!') throw Error(ErrorCode::kUnavailable, "world_from_mpi: rank 0 cannot host a store: " + told.substr(2));
  std::istringstream words(told);
  std::string secret, host;
  words >> store_options.port >> secret >> host;

  std::optional<World> world;
  std::exception_ptr failure;
  try {
    if (rank != 0) store = open_tcp_store(host, store_options);
    if (secret != mpi_bridge::kInEnvironment && options.secret.empty() && options.secret_file.empty()) options.secret = secret;
    world = World::from_store(store, rank, size, options);
  } catch (const Error&) {
    failure = std::current_exception();
  } catch (const std::exception& error) {
    failure = std::make_exception_ptr(Error(ErrorCode::kUnavailable, "world_from_mpi: rank " + std::to_string(rank) +
                                                                         " cannot reach the store of rank 0 at " + host + ':' +
                                                                         std::to_string(store_options.port) + ": " + error.what()));
  }
  // Rank 0 hosts the store until all ranks have met.
  const int failed = failure ? 1 : 0;
  int any_failed = 0;
  MPI_Allreduce(&failed, &any_failed, 1, MPI_INT, MPI_MAX, communicator);
  if (failure) std::rethrow_exception(failure);
  if (any_failed != 0)
    throw Error(ErrorCode::kUnavailable, "world_from_mpi: another rank of the communicator could not join; its error says why");
  return *world;
}

}  // namespace cairn

#endif
