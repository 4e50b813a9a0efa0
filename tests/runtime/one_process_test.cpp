// Saves and loads without a process group: the same code in a world of one.

#include <cairn/runtime/cairn.hpp>
#include <cairn/tests/support/failure_cases.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tests/support/torch.hpp>

using namespace cairn;
using namespace cairn::testing;

TEST_CASE("B1.7 without a process group every failure is on rank 0") {
  Checkpointer checkpointer(World::single());
  for (const bool warm : {false, true}) {
    CAPTURE(warm);
    for (const char* hook :
         {"set_up_storage_writer", "prepare_local_plan", "prepare_global_plan", "write_data", "write_data_async", "finish"})
      check_save(checkpointer, {{hook, {0}}});
    check_load(checkpointer, {});
    for (const char* hook :
         {"set_up_storage_reader", "read_metadata", "prepare_local_plan", "prepare_global_plan", "read_data", "read_data_async"})
      check_load(checkpointer, {{hook, {0}}});
    check_save(checkpointer, {});  // fills the cache for the second round
  }
}

TEST_CASE("B2.6 an empty state saves and loads without a process group") {
  const TemporaryDirectory directory;
  save({}, directory.path() + "/empty");
  StateDict state;
  load(state, directory.path() + "/empty");
  CHECK(state.empty());
  CHECK(read_metadata(directory.path() + "/empty").state_dict_metadata.empty());
}

TEST_CASE("B3.1 a module's state dict goes through a URL-selected store") {
  const TemporaryDirectory directory;
  for (const std::string& url : {std::string("mem://b3.1/module"), "file://" + directory.path() + "/module"}) {
    CAPTURE(url);
    const auto make = [](std::uint64_t seed) {
      torch::manual_seed(seed);
      return torch::nn::Sequential(torch::nn::Linear(8, 16), torch::nn::ReLU(), torch::nn::Linear(16, 4));
    };
    const auto saved = make(1);
    const auto loaded = make(2);
    SaveOptions save_options;
    save_options.no_dist = true;
    LoadOptions load_options;
    load_options.no_dist = true;
    for (const auto& entry : saved->named_parameters())
      CHECK_FALSE(torch::equal(entry.value(), loaded->named_parameters()[entry.key()]));
    save(module_state_dict(*saved), url, save_options);
    Dict state = module_state_dict(*loaded);
    load(state, url, load_options);
    for (const auto& entry : saved->named_parameters()) CHECK(torch::equal(entry.value(), loaded->named_parameters()[entry.key()]));
  }
}
