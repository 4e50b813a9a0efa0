// Checks one save or load that is expected to fail on given ranks, on the rank that calls it.
// Shared by one-process tests, by in-process worlds and by rank processes.
#pragma once

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <cairn/runtime/cairn.hpp>
#include <cairn/storage/tiers.hpp>
#include <cairn/tests/support/chosen_place.hpp>
#include <cairn/tests/support/failure_maps.hpp>
#include <cairn/tests/support/faulty_storage.hpp>
#include <cairn/tests/support/sample_state.hpp>
#include <cairn/tests/support/torch.hpp>

namespace cairn::testing {

inline bool called(const std::vector<std::string>& calls, const std::string& hook) {
  return std::find(calls.begin(), calls.end(), hook) != calls.end();
}

inline bool throws_number(const std::string& hook) {
  const std::string suffix = "_number";
  return hook.size() > suffix.size() && hook.compare(hook.size() - suffix.size(), suffix.size(), suffix) == 0;
}

// Checks that the map holds exactly the ranks of `fail_on`, each with the type and text of the
// exception that its hook threw. No rank is listed for two hooks.
inline void check_map(const FailureMap& failures, const FailOn& fail_on) {
  std::set<int> failing;
  for (const auto& [hook, ranks] : fail_on) {
    failing.insert(ranks.begin(), ranks.end());
    for (const auto& [rank, failure] : failures) {
      if (ranks.count(rank) == 0) continue;
      CHECK(failure.rank == rank);
      CHECK(failure.kind == FailureKind::kRaised);
      if (throws_number(hook)) {
        CHECK(failure.type == "int");
        CHECK(failure.what == "an exception that is not a std::exception and has no text");
      } else {
        CHECK(failure.type == "cairn::testing::PlannedFault");
        CHECK(failure.what == "planned fault in " + hook);
      }
    }
  }
  CHECK(ranks_of(failures) == failing);
}

// The way in which `check_save` saves.
using Save = void (*)(Checkpointer&, const StateDict&, const std::string& id, const SaveOptions&);
inline void save_in_call(Checkpointer& checkpointer, const StateDict& state, const std::string& id, const SaveOptions& options) {
  checkpointer.save(state, id, options);
}
inline void save_in_background(Checkpointer& checkpointer, const StateDict& state, const std::string& id,
                               const SaveOptions& options) {
  checkpointer.async_save(state, id, options).result();
}

// If there is a `chosen_place`, the writer is Cairn's own with the failures added, and saves there.
// Otherwise, and without `stores`, the writer does nothing.
inline void check_save(Checkpointer& checkpointer, const FailOn& fail_on, int coordinator = 0, Save save = save_in_call,
                       bool stores = true) {
  const int rank = checkpointer.world().rank();
  CAPTURE(rank);
  const int size = checkpointer.world().size();
  const bool has_inner = stores && !chosen_place().empty();
  const auto writer = std::make_shared<FaultyWriter>(fail_on, rank, has_inner ? std::make_shared<CheckpointWriter>() : nullptr);
  SaveOptions options;
  options.storage_writer = writer;
  options.coordinator_rank = coordinator;
  const StateDict state = common_state(rank, size);
  CHECK(is_here(state));
  FailureMap failures;
  try {
    save(checkpointer, state, chosen_place("nowhere"), options);
  } catch (const CheckpointException& exception) {
    failures = exception.failures();
    CHECK(exception.committed() != Committed::kYes);
    for (const auto& [hook, ranks] : fail_on) {
      if (ranks.count(rank) == 0) continue;
      if (throws_number(hook)) {
        CHECK_THROWS_AS(exception.rethrow_original(rank), int);
      } else {
        CHECK_THROWS_AS(exception.rethrow_original(rank), PlannedFault);
      }
    }
  }
  CHECK(failures.empty() == fail_on.empty());
  check_map(failures, fail_on);
  CHECK(same_values(state, common_state(rank, size)));

  // Set-up, the local plan and data run on every rank. Only the coordinator runs the global plan
  // and `finish`.
  const auto& calls = writer->faults.calls();
  if (fail_on.count("reset") == 0) CHECK(called(calls, "set_up_storage_writer"));
  if (fail_on.empty()) CHECK(called(calls, "prepare_local_plan"));
  if (fail_on.empty() || fail_on.count("write_data_async") || fail_on.count("finish")) CHECK(called(calls, "write_data"));
  if (rank != coordinator) {
    CHECK_FALSE(called(calls, "prepare_global_plan"));
    CHECK_FALSE(called(calls, "finish"));
  } else if (fail_on.empty()) {
    CHECK(called(calls, "prepare_global_plan"));
    CHECK(called(calls, "finish"));
    if (has_inner) CHECK(wait_for_copies(chosen_place()));
  }
}

// Likewise with a reader. At a chosen place there must be a checkpoint of the state.
inline void check_load(Checkpointer& checkpointer, const FailOn& fail_on, int coordinator = 0, bool stores = true) {
  const int rank = checkpointer.world().rank();
  CAPTURE(rank);
  const int size = checkpointer.world().size();
  StateDict state = common_state(rank, size);
  CHECK(is_here(state));
  Metadata metadata = create_default_metadata(state);
  const bool has_inner = stores && !chosen_place().empty();
  const auto reader =
      std::make_shared<FaultyReader>(metadata, fail_on, rank, has_inner ? std::make_shared<CheckpointReader>() : nullptr);
  LoadOptions options;
  options.storage_reader = reader;
  options.coordinator_rank = coordinator;
  FailureMap failures;
  try {
    checkpointer.load(state, chosen_place("nowhere"), options);
  } catch (const CheckpointException& exception) {
    failures = exception.failures();
  }
  CHECK(failures.empty() == fail_on.empty());
  check_map(failures, fail_on);
  CHECK(same_values(state, common_state(rank, size)));

  const auto& calls = reader->faults.calls();
  CHECK(called(calls, "read_metadata"));
  if (fail_on.empty()) {
    CHECK(called(calls, "set_up_storage_reader"));
    CHECK(called(calls, "prepare_local_plan"));
  }
  if (fail_on.empty() || fail_on.count("read_data_async")) CHECK(called(calls, "read_data"));
  if (rank != coordinator) CHECK_FALSE(called(calls, "prepare_global_plan"));
}

}  // namespace cairn::testing
