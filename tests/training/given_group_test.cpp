// Groups that the trainer has, passed to ProcessGroup::from_c10d. Ranks are threads.
#include <cairn/tests/support/torch.hpp>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <thread>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#ifdef USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

#include <cairn/runtime/launch/tcp_store.hpp>
#include <cairn/tests/support/thrown.hpp>
#include <cairn/tests/training/sharded_models.hpp>
#include <cairn/training/process_mesh.hpp>

using namespace cairn;
using namespace cairn::testing;
using training::ProcessGroup;
using training::ProcessMesh;

namespace {

using StorePointer = c10::intrusive_ptr<c10d::Store>;
using WorkPointer = c10::intrusive_ptr<c10d::Work>;

// Counts its collectives.
class TrainersGloo : public c10d::ProcessGroupGloo {
 public:
  using c10d::ProcessGroupGloo::ProcessGroupGloo;

  WorkPointer allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    ++calls;
    return ProcessGroupGloo::allreduce(tensors, options);
  }
  WorkPointer allgather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                        const c10d::AllgatherOptions& options) override {
    ++calls;
    return ProcessGroupGloo::allgather(outputs, inputs, options);
  }
  WorkPointer alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_counts,
                            std::vector<std::int64_t>& input_counts, const c10d::AllToAllOptions& options) override {
    ++calls;
    return ProcessGroupGloo::alltoall_base(output, input, output_counts, input_counts, options);
  }
  WorkPointer broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override {
    ++calls;
    return ProcessGroupGloo::broadcast(tensors, options);
  }

  std::atomic<int> calls{0};
};

// Returns when all ranks have called it.
c10::intrusive_ptr<TrainersGloo> trainers_group(const StorePointer& store, const std::string& name, int rank, int size) {
  auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(60));
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  return c10::make_intrusive<TrainersGloo>(c10::make_intrusive<c10d::PrefixStore>(name, store), rank, size, std::move(options));
}

ProcessGroup group_over(const c10::intrusive_ptr<TrainersGloo>& gloo, std::vector<int> world_ranks = {},
                        const training::ProcessGroupOptions& options = {}) {
  training::C10dGroups groups;
  groups.on_host = gloo;
  groups.world_ranks = std::move(world_ranks);
  return ProcessGroup::from_c10d(groups, options);
}

torch::Tensor sum_by(TrainersGloo& gloo, torch::Tensor tensor) {
  std::vector<torch::Tensor> tensors{std::move(tensor)};
  gloo.allreduce(tensors, c10d::AllreduceOptions())->wait();
  return tensors.front();
}

void on_threads(int size, const std::function<void(int, const StorePointer&)>& body) {
  // As in on_ranks: a map in c10d of LibTorch 2.x expects one thread per process to use groups.
  static const int recorder_off = setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);
  (void)recorder_off;
  const StorePointer store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      try {
        body(rank, store);
      } catch (const std::exception& error) {
        FAIL_CHECK("rank " << rank << ": " << error.what());
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace

TEST_CASE("given group: collectives go through the trainer's group, and leave it usable") {
  for (const int size : {1, 2, 3}) {
    on_threads(size, [&](int rank, const StorePointer& store) {
      const auto gloo = trainers_group(store, "world", rank, size);
      {
        const ProcessGroup group = group_over(gloo);
        CHECK(group.rank() == rank);
        CHECK(group.size() == size);
        for (const auto type : {at::kFloat, at::kBFloat16, at::kInt}) {
          torch::Tensor all = torch::empty({size, 2}, type);
          group.all_gather(all, torch::full({2}, rank, type));
          for (int other = 0; other < size; ++other) CHECK(all[other].equal(torch::full({2}, other, type)));

          torch::Tensor part = torch::empty({1}, type);
          group.reduce_scatter(part, torch::arange(size).to(type));
          CHECK(part.equal(torch::full({1}, rank * size, type)));

          torch::Tensor reduced = torch::full({5}, rank + 1, type);
          group.all_reduce(reduced);
          CHECK(reduced.equal(torch::full({5}, size * (size + 1) / 2, type)));

          torch::Tensor told = torch::full({2}, rank, type);
          group.broadcast(told, size - 1);
          CHECK(told.equal(torch::full({2}, size - 1, type)));
        }
        group.barrier();
        CHECK(gloo->calls == (size == 1 ? 0 : 3 * 4 + 1));
      }
      CHECK(sum_by(*gloo, torch::ones({2})).equal(torch::full({2}, size, torch::kFloat)));
    });
  }
}

TEST_CASE("given group: a call that is late fails, and the trainer's group stays open") {
  std::promise<void> failed;
  const std::shared_future<void> has_failed = failed.get_future().share();
  on_threads(2, [&](int rank, const StorePointer& store) {
    const auto gloo = trainers_group(store, "world", rank, 2);
    const torch::Tensor tensor = torch::ones({4});
    if (rank == 0) {
      const std::shared_ptr<void> tell_at_end(nullptr, [&](void*) { failed.set_value(); });  // also after an exception
      training::ProcessGroupOptions options;
      options.timeout = std::chrono::milliseconds(100);
      const ProcessGroup group = group_over(gloo, {}, options);
      const Thrown late = thrown_by([&] { group.all_reduce(tensor); });
      const Thrown again = thrown_by([&] { group.barrier(); });
      CHECK(late == Saying{ErrorCode::kDeadline, "all-reduce of 16 bytes: rank 0 of 2 in group \"training\" waited 100 ms"});
      CHECK(again == Saying{ErrorCode::kUnavailable, "all-reduce of 16 bytes"});
    } else {
      has_failed.wait();
      // The collective of rank 0 is still in flight.
      CHECK(sum_by(*gloo, tensor).equal(torch::full({4}, 2, torch::kFloat)));
    }
    CHECK(sum_by(*gloo, torch::ones({1})).item<float>() == 2);
  });
}

#ifdef USE_C10D_NCCL
TEST_CASE("given group: a barrier on devices alone is late on the host, too" * doctest::skip(!ranks_use_cuda())) {
  on_ranks(2, [](const ProcessGroup& ranks) {
    const StorePointer store = open_store(place_in_environment(), std::chrono::minutes(1));
    training::C10dGroups groups;
    groups.on_device =
        c10::make_intrusive<c10d::ProcessGroupNCCL>(c10::make_intrusive<c10d::PrefixStore>("late_barrier", store), ranks.rank(), 2);
    training::ProcessGroupOptions options;
    options.timeout = std::chrono::seconds(4);
    const ProcessGroup group = ProcessGroup::from_c10d(groups, options);
    group.barrier();
    if (ranks.rank() == 0) {
      const Thrown late = thrown_by([&] { group.barrier(); });
      CHECK(late == Saying{ErrorCode::kDeadline, "barrier: rank 0 of 2"});
      CHECK(late.says("the device has not finished it"));
    }
    ranks.barrier();                         // rank 0 has waited in vain, and its kernel still runs
    if (ranks.rank() == 1) group.barrier();  // lets that kernel end
    ranks.barrier();
  });
}
#endif

TEST_CASE("given group: from_c10d refuses groups that do not fit") {
  on_threads(2, [](int rank, const StorePointer& store) {
    const auto gloo = trainers_group(store, "world", rank, 2);
    const auto refused = [](const training::C10dGroups& groups, const training::ProcessGroupOptions& options = {}) {
      CHECK(thrown_by([&] { ProcessGroup::from_c10d(groups, options); }).code == ErrorCode::kInvalidArgument);
    };
    training::C10dGroups groups;
    refused(groups);
    groups.store = store;
    refused(groups);
    groups.store = {};
    groups.on_host = gloo;
    groups.world_ranks = {0};
    refused(groups);
    groups.world_ranks = {};
    groups.on_device = trainers_group(store, "alone" + std::to_string(rank), 0, 1);
    refused(groups);
    groups.on_device = {};
    training::ProcessGroupOptions no_time;
    no_time.timeout = std::chrono::milliseconds(0);
    refused(groups, no_time);

    const ProcessGroup group = ProcessGroup::from_c10d(groups);
    CHECK(thrown_by([&] { group.subgroup({0, 1}, "pair"); }).code == ErrorCode::kPrecondition);
    CHECK(group.subgroup({rank}, "alone").size() == 1);

    groups.on_device.swap(groups.on_host);
    const ProcessGroup for_devices = ProcessGroup::from_c10d(groups);
    CHECK(thrown_by([&] { for_devices.all_reduce(torch::ones({1})); }) ==
          Saying{ErrorCode::kUnsupported, "tensors in host memory need a c10d group"});
    CHECK(gloo->calls == 0);
  });
}

TEST_CASE("given group: with a store, Cairn makes missing groups and subgroups") {
  on_threads(2, [](int rank, const StorePointer& store) {
    const auto for_devices = trainers_group(store, "world", rank, 2);
    training::C10dGroups groups;
    groups.on_device = for_devices;
    groups.store = store;
    const ProcessGroup group = ProcessGroup::from_c10d(groups);
    torch::Tensor sum = torch::ones({1});
    group.all_reduce(sum);
    group.subgroup({1, 0}, "reversed").all_reduce(sum);
    CHECK(sum.item<float>() == 4);
    group.barrier();
    CHECK(for_devices->calls == 0);
  });
}

TEST_CASE("given group: a mesh of the trainer's groups trains a sharded model") {
  on_threads(4, [](int rank, const StorePointer& store) {
    const int row = rank / 2, column = rank % 2;
    const auto world = trainers_group(store, "world", rank, 4);
    const auto of_column = trainers_group(store, "column" + std::to_string(column), row, 2);
    const auto of_row = trainers_group(store, "row" + std::to_string(row), column, 2);
    const ProcessGroup all = group_over(world);
    const ProcessGroup replicas = group_over(of_column, {column, column + 2});
    const ProcessGroup shards = group_over(of_row, {2 * row, 2 * row + 1});
    const ProcessMesh mesh = ProcessMesh::from_axes(all, {replicas, shards}, {"replicas", "shards"});
    CHECK((mesh.mesh() == DeviceMesh({2, 2}, {0, 1, 2, 3}, {"replicas", "shards"})));
    CHECK((mesh.along("shards").mesh() == DeviceMesh({2}, std::vector<int>{2 * row, 2 * row + 1}, {"shards"})));

    const auto refused = [&](const std::vector<ProcessGroup>& axes) {
      const Thrown thrown = thrown_by([&] { ProcessMesh::from_axes(all, axes); });
      CHECK(thrown.code == ErrorCode::kInvalidArgument);
      return thrown;
    };
    CHECK(refused({shards, replicas}).says("world_ranks"));
    refused({replicas});
    refused({});

    const auto make_model = [] {
      const std::lock_guard lock(generator_mutex());
      torch::manual_seed(0);
      return training::Hooked<Chain>(std::vector<std::int64_t>{4, 6, 2});
    };
    auto plain = make_model();
    auto sharded = make_model();
    training::fully_shard(sharded, mesh);
    const torch::Tensor input = torch::arange(12, torch::kFloat).view({3, 4});
    plain(input).pow(2).mean().backward();
    sharded(input).pow(2).mean().backward();
    std::vector<torch::Tensor> expected, found;
    for (const auto& parameter : plain->parameters()) expected.push_back(parameter.grad());
    for (const auto& parameter : sharded->parameters()) found.push_back(training::full_grad(parameter));
    CHECK(largest_difference(expected, found) < 1e-5);
    CHECK(world->calls > 0);
    CHECK(of_column->calls > 0);
    CHECK(of_row->calls > 0);
  });
}
