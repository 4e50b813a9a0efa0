// An MPI program that saves and loads a tensor of which each rank holds some rows. Cairn makes its
// world from an MPI communicator, and leaves MPI to the program afterwards.
//
// Built if the project is configured with -DWITH_MPI=ON.
//
//   mpirun -n 4 with_mpi DIRECTORY
#include <mpi.h>

#include <iostream>

#include <torch/torch.h>

#include <cairn/runtime/cairn.hpp>
#include <cairn/runtime/worlds/from_mpi.hpp>

int save_and_load(const std::string& checkpoint) {
  const cairn::World world = cairn::world_from_mpi(MPI_COMM_WORLD);
  const torch::Tensor whole = torch::arange(24, torch::kFloat32).view({8, 3});
  const std::vector<cairn::Placement> by_rows{cairn::Shard{0}};
  std::vector<int> ranks(static_cast<std::size_t>(world.size()));
  for (int rank = 0; rank < world.size(); ++rank) ranks[static_cast<std::size_t>(rank)] = rank;
  const cairn::DeviceMesh mesh({world.size()}, ranks);
  const auto rows_of = [&](const torch::Tensor& tensor) {
    return cairn::ShardedTensor::distribute(tensor, mesh, by_rows, world.rank());
  };

  cairn::Checkpointer checkpointer(world);
  checkpointer.save({{"weights", rows_of(whole)}, {"step", 7}}, checkpoint);

  cairn::StateDict restored{{"weights", rows_of(torch::zeros({8, 3}))}, {"step", 0}};
  checkpointer.load(restored, checkpoint);
  double sum = 0, total = 0;
  for (const auto& shard : restored["weights"].sharded().local_shards()) sum += shard.tensor.sum().item<double>();
  MPI_Allreduce(&sum, &total, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  if (world.rank() == 0)
    std::cout << "step " << restored["step"].to_int() << " of " << world.size() << " ranks, sum " << total << std::endl;
  return total == whole.sum().item<double>() ? 0 : 1;
}

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  if (argc != 2) {
    std::cerr << "usage: with_mpi DIRECTORY\n";
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  try {
    const int result = save_and_load(argv[1]);
    MPI_Finalize();
    return result;
  } catch (const std::exception& error) {
    std::cerr << "with_mpi: " << error.what() << '\n';
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
}
