// Saves and loads with `use_collectives` off. One thread makes the calls of all ranks, one by one,
// so a call that waited for another rank would never return.
#include <string>
#include <vector>

#include <cairn/runtime/cairn.hpp>
#include <cairn/tests/support/failure_maps.hpp>
#include <cairn/tests/support/laid_out_state.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tests/support/thrown.hpp>
#include <cairn/tests/support/torch.hpp>

using namespace cairn;
using namespace cairn::testing;

namespace {

SaveOptions own_save() {
  SaveOptions options;
  options.use_collectives = false;
  options.step = 1;
  return options;
}

LoadOptions own_load() {
  LoadOptions options;
  options.use_collectives = false;
  return options;
}

// Returns the failure of a call that this rank makes alone.
template <class Call>
Thrown failure_of(Call&& call) {
  return only_failure(failures_of(call), 0);
}

struct Ranks {
  explicit Ranks(int size) : worlds(World::in_process(size)) {
    for (const World& world : worlds) checkpointers.emplace_back(world);
  }
  std::vector<World> worlds;
  std::vector<Checkpointer> checkpointers;  // by rank
};

}  // namespace

TEST_CASE("each rank saves and loads its own part without the others, in every layout") {
  constexpr int kRanks = 3;
  Ranks ranks(kRanks);
  for (const std::string& layout : layout_names()) {
    const std::string id = "mem://own_part/" + layout;
    for (int rank = 0; rank < kRanks; ++rank) {
      StateDict state = state_in_layout(layout, rank, kRanks);
      state.insert("own", per_rank(rank));
      Checkpointer& checkpointer = ranks.checkpointers[static_cast<std::size_t>(rank)];
      if (rank == 1) {
        checkpointer.async_save(state, id, own_save());
        CHECK(checkpointer.wait_for_saves());
      } else {
        checkpointer.save(state, id, own_save());
      }
    }
    for (int rank = kRanks - 1; rank >= 0; --rank) {
      StateDict state = state_in_layout(layout, rank, kRanks, true);
      state.insert("own", per_rank(-1));
      ranks.checkpointers[static_cast<std::size_t>(rank)].load(state, id, own_load());
      CHECK(state.at("own").to_int() == rank);
      state.erase("own");
      CHECK_MESSAGE(holds_expected(state, layout, rank, kRanks), layout << " on rank " << rank);
    }
    // Values of other ranks are not mixed up in the names.
    CHECK(read_metadata(id + "/rank_2_of_3").find("own.rank_2") != nullptr);
  }
}

TEST_CASE("a rank without a part is told which ranks have one") {
  const TemporaryDirectory directory;
  Ranks ranks(4);
  for (const std::size_t rank : {0, 1, 3}) ranks.checkpointers[rank].save({{"a", 1}}, directory.path() + "/step_1", own_save());
  StateDict state{{"a", 0}};
  const Thrown thrown = failure_of([&] { ranks.checkpointers[2].load(state, directory.path() + "/step_1", own_load()); });
  CHECK(thrown.code == ErrorCode::kNotFound);
  CHECK_MESSAGE(thrown.says("rank 2 has no part of the checkpoint"), thrown.what);
  CHECK_MESSAGE(thrown.says("only ranks 0, 1, 3 finished a save there"), thrown.what);
}

TEST_CASE("a load of all ranks is told which ranks have no part") {
  const TemporaryDirectory directory;
  Ranks ranks(4);
  for (const std::size_t rank : {0, 3}) ranks.checkpointers[rank].save({{"a", 1}}, directory.path() + "/step_1", own_save());
  StateDict state{{"a", 0}};
  const Thrown thrown = thrown_by([&] { load(state, directory.path() + "/step_1"); });
  CHECK_MESSAGE(thrown.says("each rank has saved its part for itself there, but there is none of ranks 1, 2"), thrown.what);
}

TEST_CASE("a world of another size, or a load of all ranks, is told of cairn merge") {
  const TemporaryDirectory directory;
  Ranks(2).checkpointers[0].save({{"a", 1}}, directory.path() + "/step_1", own_save());
  StateDict state{{"a", 0}};
  const Thrown own = failure_of([&] { Ranks(3).checkpointers[0].load(state, directory.path() + "/step_1", own_load()); });
  CHECK(own.code == ErrorCode::kMismatch);
  CHECK_MESSAGE(own.says("2 ranks have saved a part each"), own.what);
  CHECK_MESSAGE(own.says("cairn merge"), own.what);
  const Thrown all = thrown_by([&] { load(state, directory.path() + "/step_1"); });
  CHECK_MESSAGE(all.says("cairn merge"), all.what);
}

TEST_CASE("a rank's own save does not replace a checkpoint of all ranks, nor a load read past it") {
  const TemporaryDirectory directory;
  const std::string id = directory.path() + "/step_1";
  Ranks ranks(1);
  ranks.checkpointers[0].save({{"a", 1}}, id, own_save());
  ranks.checkpointers[0].save({{"a", 2}}, id);
  CHECK(failure_of([&] { ranks.checkpointers[0].save({{"a", 3}}, id, own_save()); }).code == ErrorCode::kAlreadyExists);
  StateDict state{{"a", 0}};
  const Thrown thrown = failure_of([&] { ranks.checkpointers[0].load(state, id, own_load()); });
  CHECK(thrown.code == ErrorCode::kMismatch);
  CHECK_MESSAGE(thrown.says("use_collectives on"), thrown.what);
}

TEST_CASE("a rank's later save replaces its own part only") {
  const TemporaryDirectory directory;
  const std::string id = directory.path() + "/step_1";
  Ranks ranks(2);
  for (Checkpointer& checkpointer : ranks.checkpointers) checkpointer.save({{"a", 1}}, id, own_save());
  ranks.checkpointers[1].save({{"a", 2}}, id, own_save());
  for (const int rank : {0, 1}) {
    StateDict state{{"a", 0}};
    ranks.checkpointers[static_cast<std::size_t>(rank)].load(state, id, own_load());
    CHECK(state.at("a").to_int() == rank + 1);
  }
}

TEST_CASE("a rank's own save names its step") {
  Ranks ranks(1);
  SaveOptions saving = own_save();
  saving.step.reset();
  CHECK(failure_of([&] { ranks.checkpointers[0].save({}, "mem://own_part/no_step", saving); }).code == ErrorCode::kInvalidArgument);
}

TEST_CASE("an asynchronous own save that has ended holds no staged state") {
  Ranks ranks(1);
  std::vector<AsyncSaveResponse> held;
  for (int i = 0; i < 2; ++i) {
    held.push_back(ranks.checkpointers[0].async_save({{"a", torch::ones({1000})}}, "mem://own_part/held", own_save()));
    held.back().result();
  }
  CHECK(held.back().progress().staging_bytes == 0);
}

TEST_CASE("own saves and loads look at the store within the call") {
  const std::string id = "mem://own_part/within";
  Ranks ranks(1);
  ranks.checkpointers[0].save({{"a", 1}}, id);
  const AsyncSaveResponse saving = ranks.checkpointers[0].async_save({{"a", 2}}, id, own_save());
  CHECK(failure_of([&] { saving.result(); }).code == ErrorCode::kAlreadyExists);
  StateDict state{{"a", 0}};
  CHECK(failure_of([&] { ranks.checkpointers[0].load(state, id, own_load()); }).code == ErrorCode::kMismatch);
}

TEST_CASE("a rank's own save and load refuse planners and storage of the user's") {
  Ranks ranks(1);
  SaveOptions saving = own_save();
  saving.planner = std::make_shared<DefaultSavePlanner>();
  CHECK(thrown_by([&] { ranks.checkpointers[0].save({}, "mem://own_part/refused", saving); }).code == ErrorCode::kInvalidArgument);
  LoadOptions loading = own_load();
  loading.storage_reader = std::make_shared<CheckpointReader>();
  StateDict state;
  CHECK(thrown_by([&] { ranks.checkpointers[0].load(state, "mem://own_part/refused", loading); }).code ==
        ErrorCode::kInvalidArgument);
}
