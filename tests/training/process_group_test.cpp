#include <cairn/tests/support/torch.hpp>

#include <atomic>
#include <functional>
#include <numeric>
#include <thread>

#include <cairn/tests/support/captured_log.hpp>
#include <cairn/tests/support/environment.hpp>
#include <cairn/tests/support/gate.hpp>
#include <cairn/tests/support/on_ranks.hpp>
#include <cairn/tests/support/thrown.hpp>
#include <cairn/training/group_from_environment.hpp>
#include <cairn/training/process_mesh.hpp>
#include <cairn/training/store_meeting.hpp>

using namespace cairn;
using namespace cairn::testing;
using training::ProcessGroup;
using training::ProcessMesh;

namespace {

// Counts all store calls except `check`, which only polls.
class CountingStore : public c10d::HashStore {
 public:
  void set(const std::string& key, const std::vector<std::uint8_t>& data) override {
    ++calls;
    c10d::HashStore::set(key, data);
  }
  std::vector<std::uint8_t> get(const std::string& key) override {
    ++calls;
    return c10d::HashStore::get(key);
  }
  std::int64_t add(const std::string& key, std::int64_t value) override {
    ++calls;
    return c10d::HashStore::add(key, value);
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    calls += static_cast<int>(keys.size());
    c10d::HashStore::wait(keys, timeout);
  }
  using c10d::HashStore::wait;

  std::atomic<int> calls{0};
};

// One rank's view of a store. Calls `before` with each key that is looked for.
class WatchedStore : public c10d::PrefixStore {
 public:
  WatchedStore(c10::intrusive_ptr<c10d::Store> store, std::function<void(const std::string&)> before)
      : PrefixStore("", std::move(store)), before_(std::move(before)) {}
  bool check(const std::vector<std::string>& keys) override {
    before_(keys.at(0));
    return PrefixStore::check(keys);
  }

 private:
  const std::function<void(const std::string&)> before_;
};

}  // namespace

// Doctest's assertions are thread-safe, but their order across ranks is not defined.

TEST_CASE("process group: bad input is refused before anything is sent") {
  on_ranks(2, [](const ProcessGroup& group) {
    const auto refused = [](const auto& call) { CHECK(thrown_by(call).code == ErrorCode::kInvalidArgument); };
    refused([&] { group.all_gather(torch::zeros({3}), torch::zeros({2})); });
    refused([&] { group.all_gather(torch::zeros({4}), torch::zeros({2}, torch::kDouble)); });
    refused([&] { group.reduce_scatter(torch::zeros({2}), torch::zeros({3})); });
    refused([&] { group.all_reduce(torch::zeros({2, 3}).t()); });
    refused([&] { group.all_reduce(torch::Tensor()); });
    refused([&] { group.broadcast(torch::zeros({1}), 2); });
    refused([&] { group.subgroup({1 - group.rank()}, "other"); });
    refused([&] { group.subgroup({0, 0, 1}, "twice"); });
    refused([&] { group.subgroup({0, 7}, "none"); });
    refused([&] { ProcessMesh(group, {3}); });
    refused([&] { ProcessMesh(group, {2, 2}); });
    CHECK(thrown_by([&] { group.all_reduce(torch::zeros({1}, torch::kBool)); }).code == ErrorCode::kUnsupported);
    group.barrier();  // the group still works
  });
  CHECK(thrown_by([] { ProcessGroup::from_store({}, 0, 1); }).code == ErrorCode::kInvalidArgument);
}

TEST_CASE("process group: the environment gives one rank, or a store where several meet") {
  const Environment alone({{"RANK", std::nullopt}, {"WORLD_SIZE", std::nullopt}, {"CAIRN_LAUNCHER", std::nullopt}});
  CHECK(training::process_group_from_environment().size() == 1);
  const Environment launched({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"MASTER_ADDR", std::nullopt}});
  CHECK(thrown_by([] { training::process_group_from_environment(); }).says("MASTER_ADDR"));
}

TEST_CASE("process group: a rank that misses the deadline is named, and the group is broken") {
  bool at_first = false;
  SUBCASE("at the first collective") { at_first = true; }
  SUBCASE("at a later one") { at_first = false; }
  on_ranks(
      4,  // with four ranks, rank 0 is no neighbour of the rank that stays away
      [&](const ProcessGroup& group) {
        const ProcessMesh mesh(group, {4, 1});
        const torch::Tensor tensor = here(torch::ones({4}));
        if (!at_first) group.all_reduce(tensor);
        if (group.rank() == 2) return;  // keeps its group until the body returns, but makes no call
        const Thrown thrown = thrown_by([&] {
          group.all_reduce(tensor);
          tensor.sum().item<float>();  // waits for the device, which reports no error before this
          group.barrier();
        });
        INFO(thrown.what);
        CHECK((thrown.code == ErrorCode::kDeadline || thrown.code == ErrorCode::kUnavailable));
        CHECK(thrown.says("all-reduce of 16 bytes"));
        CHECK(thrown.says("rank " + std::to_string(group.rank()) + " of 4"));
        CHECK(thrown.says("not heard of since: rank 2;"));
        CHECK(thrown_by([&] { mesh.axis(0).barrier(); }) == Saying{ErrorCode::kUnavailable, "all-reduce of 16 bytes"});
      },
      std::chrono::seconds(4));
}

TEST_CASE("process group: store requests per rank do not grow with the world") {
  const auto calls_per_rank = [](int size) {
    const auto store = c10::make_intrusive<CountingStore>();
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < size; ++rank) {
      ranks.emplace_back([&, rank] { CHECK(ProcessGroup::from_store(store, rank, size).size() == size); });
    }
    for (auto& rank : ranks) rank.join();
    return static_cast<double>(store->calls) / size;
  };
  const double of_few = calls_per_rank(16), of_many = calls_per_rank(64);
  CHECK(of_few > 0);
  CHECK(of_many <= 1.2 * of_few);
}

TEST_CASE("process group: when a rank does not come, one rank looks for it, and all name it") {
  constexpr int kRanks = 40;
  const auto store = c10::make_intrusive<CountingStore>();
  std::vector<int> world(kRanks);
  std::iota(world.begin(), world.end(), 0);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank)
    if (rank != 7)
      ranks.emplace_back([&, rank] {
        std::string what;
        try {
          training::meet_in_store(*store, "group", rank, world, std::chrono::milliseconds(500));
        } catch (const std::exception& error) {
          what = error.what();
        }
        CHECK((what == "rank 7 did not come" || what == "some ranks did not come"));
      });
  for (auto& rank : ranks) rank.join();
  CHECK(store->calls < 12 * kRanks);
}

TEST_CASE("process group: the rank whose process hosts the store leaves last") {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  Gate host_stays_or_is_gone;
  std::atomic<bool> is_gone{false};
  WatchedStore host(store, [&](const std::string& key) {
    if (key == "group/meeting/all left") host_stays_or_is_gone.open();
  });
  WatchedStore guest(store, [&](const std::string& key) {
    if (key != "group/meeting/all") return;
    host_stays_or_is_gone.pass();
    if (is_gone) throw std::runtime_error("Broken pipe");
  });
  const std::chrono::milliseconds deadline(60'000);
  std::thread first([&] {
    training::meet_in_store(host, "group", 0, {0, 1}, deadline);
    is_gone = true;
    host_stays_or_is_gone.open();
  });
  CHECK_NOTHROW(training::meet_in_store(guest, "group", 1, {0, 1}, deadline));
  first.join();
}

TEST_CASE("process group: ranks that disagree on the group's size all see both sizes") {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const std::vector<int> sizes = {2, 3, 3};
  std::vector<Thrown> thrown(sizes.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < sizes.size(); ++rank)
    threads.emplace_back(
        [&, rank] { thrown[rank] = thrown_by([&] { ProcessGroup::from_store(store, static_cast<int>(rank), sizes[rank]); }); });
  for (auto& thread : threads) thread.join();
  for (const Thrown& one : thrown) {
    CHECK_MESSAGE(one.code == ErrorCode::kMismatch, one.what);
    const bool says_both_sizes =
        (one.says(" 2 ranks, rank ") && one.says(" gives it 3:")) || (one.says(" 3 ranks, rank ") && one.says(" gives it 2:"));
    CHECK_MESSAGE(says_both_sizes, one.what);
  }
}

TEST_CASE("process group: a rank that comes twice is named on all ranks") {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const std::vector<int> ranks = {0, 1, 1};
  std::vector<Thrown> thrown(ranks.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < ranks.size(); ++i)
    threads.emplace_back([&, i] { thrown[i] = thrown_by([&] { ProcessGroup::from_store(store, ranks[i], 3); }); });
  for (auto& thread : threads) thread.join();
  for (const Thrown& one : thrown) {
    CHECK_MESSAGE(one.code == ErrorCode::kMismatch, one.what);
    CHECK_MESSAGE(one.says("rank 1 came twice to the group \"training\""), one.what);
  }
}

TEST_CASE("process group: the rank that came first says whom it waits for") {
  const CapturedLog log;
  c10d::HashStore store;
  try {
    training::meet_in_store(store, "group", 1, {4, 5, 6}, std::chrono::milliseconds(20), std::chrono::nanoseconds(0));
    FAIL("a group of which one rank has come is complete");
  } catch (const std::exception& error) {
    CHECK(std::string(error.what()) == "ranks 4, 6 did not come");
  }
  CHECK(log.text().find("warning rank 5: waiting for ranks 4, 6 to join the process group \"group\": 0 s of 0 s") == 0);
}

TEST_CASE("process group: collectives work over 1 to 4 ranks in every parameter type") {
  for (const int size : {1, 2, 3, 4}) {
    on_ranks(size, [&](const ProcessGroup& group) {
      for (const auto type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt, at::kLong}) {
        CAPTURE(c10::toString(type));
        const int rank = group.rank();
        const torch::Tensor own = here(torch::arange(3)).to(type) + rank * 10;
        torch::Tensor all = here(torch::empty({size, 3}, type));
        group.all_gather(all, own);
        for (int other = 0; other < size; ++other) CHECK(all[other].equal(here(torch::arange(3)).to(type) + other * 10));

        // Rank r receives the sums of rows [2r, 2r + 2).
        const torch::Tensor parts = (here(torch::arange(2 * size)).unsqueeze(1) + rank).to(type);
        torch::Tensor sum = here(torch::empty({2, 1}, type));
        group.reduce_scatter(sum, parts);
        const int ranks_sum = size * (size - 1) / 2;
        CHECK(sum.equal(((here(torch::arange(2)).unsqueeze(1) + 2 * rank) * size + ranks_sum).to(type)));

        torch::Tensor reduced = here(torch::full({5}, rank + 1, type));
        group.all_reduce(reduced);
        CHECK(reduced.equal(here(torch::full({5}, size * (size + 1) / 2, type))));

        torch::Tensor told = here(torch::full({2}, rank, type));
        group.broadcast(told, size - 1);
        CHECK(told.equal(here(torch::full({2}, size - 1, type))));
      }
      torch::Tensor flags = here(torch::zeros({size}, torch::kBool));
      group.all_gather(flags, here(torch::full({1}, group.rank() == 0, torch::kBool)));
      CHECK(flags.count_nonzero().item<int>() == 1);
      group.all_gather(here(torch::empty({0})), here(torch::empty({0})));
      group.reduce_scatter(here(torch::empty({0})), here(torch::empty({0})));
      group.barrier();
    });
  }
}

TEST_CASE("process group: concurrent calls each get their own result") {
  on_ranks(3, [](const ProcessGroup& group) {
    std::vector<torch::Tensor> gathered, reduced, scattered;
    std::vector<training::Pending> pending;
    for (int i = 0; i < 8; ++i) {
      gathered.push_back(here(torch::empty({3, 2})));
      pending.push_back(group.all_gather_async(gathered.back(), here(torch::full({2}, 10 * i + group.rank(), torch::kFloat))));
      reduced.push_back(here(torch::full({2}, i, torch::kBFloat16)));
      pending.push_back(group.all_reduce_async(reduced.back()));
      scattered.push_back(here(torch::empty({2})));
      pending.push_back(group.reduce_scatter_async(scattered.back(), here(torch::arange(6, torch::kFloat)) + i));
    }
    for (auto it = pending.rbegin(); it != pending.rend(); ++it) it->wait();
    for (int i = 0; i < 8; ++i) {
      CHECK(gathered[static_cast<std::size_t>(i)][2][1].item<float>() == static_cast<float>(10 * i + 2));
      CHECK(reduced[static_cast<std::size_t>(i)].equal(here(torch::full({2}, 3 * i, torch::kBFloat16))));
      const torch::Tensor part = here(torch::arange(2, torch::kFloat)) + 2 * group.rank();
      CHECK(scattered[static_cast<std::size_t>(i)].equal((part + i) * 3));
    }
  });
}

TEST_CASE("process group: a mesh has a group for each row and each column") {
  on_ranks(4, [](const ProcessGroup& group) {
    const ProcessMesh mesh(group, {2, 2}, {"dp", "tp"});
    const int row = group.rank() / 2, column = group.rank() % 2;
    CHECK((mesh.axis(0).ranks() == std::vector<int>{column, column + 2}));
    CHECK((mesh.axis(1).ranks() == std::vector<int>{2 * row, 2 * row + 1}));
    CHECK(mesh.axis(0).rank() == row);
    CHECK(mesh.axis(1).rank() == column);
    for (const ProcessGroup& of_axis : {mesh.axis(0), mesh.axis(1), mesh.world()}) CHECK(of_axis.world_rank() == group.rank());
    torch::Tensor rows = here(torch::full({1}, 1 << group.rank(), torch::kFloat)), columns = rows.clone();
    mesh.axis(1).all_reduce(rows);
    mesh.axis(0).all_reduce(columns);
    CHECK(rows.item<float>() == static_cast<float>(3 << (2 * row)));
    CHECK(columns.item<float>() == static_cast<float>(5 << column));
    CHECK((mesh.along("tp").mesh() == DeviceMesh({2}, std::vector<int>{2 * row, 2 * row + 1}, {"tp"})));
    CHECK(thrown_by([&] { mesh.along("pp"); }).code == ErrorCode::kInvalidArgument);
    const ProcessMesh dp = mesh.along("dp"), tp = mesh.along("tp");
    CHECK(dp.axis_of_root() == 0);
    CHECK(tp.axis_of_root() == 1);
    CHECK((tp.root().mesh() == mesh.mesh()));
    CHECK((mesh.root().mesh() == mesh.mesh()));
    CHECK((dp.on_root({Shard{1}}) == std::vector<Placement>{Shard{1}, Replicate{}}));
    CHECK((tp.on_root({Shard{1}}) == std::vector<Placement>{Replicate{}, Shard{1}}));
    CHECK((mesh.on_root({Shard{1}, Shard{0}}) == std::vector<Placement>{Shard{1}, Shard{0}}));
  });
}
