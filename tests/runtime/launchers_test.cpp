// How the variables of each launcher are read, alone and together.
#include <cairn/tests/support/torch.hpp>
//
#include <optional>
#include <string>
#include <vector>

#include <cairn/base/error.hpp>
#include <cairn/runtime/cairn.hpp>
#include <cairn/runtime/launch/launchers.hpp>
#include <cairn/tests/support/environment.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tests/support/thrown.hpp>

namespace cairn::testing {
namespace {

// The variables of rank 1 of 4, as each program sets them: torchrun of PyTorch 1.13, mpirun of Open
// MPI 4.1, mpiexec of MPICH 4.0, srun of Slurm 22.05.
const Variables kTorchrun = {{"TORCHELASTIC_RUN_ID", "none"},
                             {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                             {"TORCHELASTIC_RESTART_COUNT", "3"},
                             {"GROUP_RANK", "0"},
                             {"GROUP_WORLD_SIZE", "2"},
                             {"RANK", "1"},
                             {"WORLD_SIZE", "4"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "2"},
                             {"MASTER_ADDR", "node7"},
                             {"MASTER_PORT", "29511"}};
const Variables kExplicit = {
    {"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "0"}, {"MASTER_ADDR", "worker-0"}, {"MASTER_PORT", "23456"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},       {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                            {"PMIX_NAMESPACE", "1139539969"},    {"PMIX_RANK", "1"}};
const Variables kMpich = {{"PMI_RANK", "1"},        {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "4"},
                          {"HYDI_CONTROL_FD", "7"}, {"PMI_FD", "8"},   {kPmiServer, "4711"}};
const Variables kSlurm = {{"SLURM_JOB_ID", "12"},        {"SLURM_STEP_ID", "0"},        {"SLURM_PROCID", "1"},
                          {"SLURM_LOCALID", "0"},        {"SLURM_NODEID", "1"},         {"SLURM_NTASKS", "4"},
                          {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_STEP_NUM_NODES", "4"}, {"SLURM_STEP_NODELIST", "n[08-11]"},
                          {"SLURMD_NODENAME", "n09"}};
const Variables kPmix = {{"PMIX_RANK", "1"}, {"PMIX_NAMESPACE", "prte.17"}};
const Variables kKubernetes = {{"JOB_COMPLETION_INDEX", "1"}, {"KUBERNETES_SERVICE_HOST", "10.0.0.1"}};

Variables together(Variables first, const Variables& second) {
  first.insert(second.begin(), second.end());
  return first;
}
Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}
Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

Place place_in(const Variables& variables) {
  const auto task = find_task(variables);
  REQUIRE(task.has_value());
  return place_of(*task, variables);
}
// Returns the text of the kInvalidArgument that looking for the place throws, or "".
std::string refused(const Variables& variables) {
  const auto thrown = thrown_by([&] {
    if (const auto task = find_task(variables)) place_of(*task, variables);
  });
  if (thrown.is_error) CHECK(thrown.code == ErrorCode::kInvalidArgument);
  return thrown.what;
}
bool names(const std::string& text, const std::string& name) { return text.find(name) != std::string::npos; }

void check_rank_1_of_4(const Variables& variables, const std::string& launcher) {
  const auto task = find_task(variables);
  REQUIRE(task.has_value());
  CHECK(task->launcher == launcher);
  CHECK(task->rank == 1);
  CHECK(task->size == 4);
}

}  // namespace

TEST_CASE("launchers: torchrun gives the rank, the agent's store and its restarts") {
  check_rank_1_of_4(kTorchrun, "torchrun");
  const Place place = place_in(kTorchrun);
  CHECK(place.local_rank == 1);
  CHECK(place.master_host == "node7");
  CHECK(place.master_port == 29511);
  CHECK(place.agent_hosts);
  CHECK(place.restarts == 3);
  CHECK(place.job.empty());
}

TEST_CASE("launchers: explicit variables are read as cairn-launch and PyTorchJob set them") {
  check_rank_1_of_4(kExplicit, "explicit");
  const Place place = place_in(kExplicit);
  CHECK(place.local_rank == 0);
  CHECK(place.master_host == "worker-0");
  CHECK(place.master_port == 23456);
  CHECK_FALSE(place.agent_hosts);
  CHECK(place_in(without(kExplicit, "LOCAL_RANK")).local_rank == 1);
}

TEST_CASE("launchers: an IPv6 address of rank 0 may be in brackets") {
  for (const char* const host : {"::1", "[::1]"}) CHECK(place_in(with(kExplicit, "MASTER_ADDR", host)).master_host == "::1");
  CHECK(place_in(with(kExplicit, "MASTER_ADDR", "[]")).master_host == "[]");
}

TEST_CASE("launchers: a Slurm step meets on its first node, at one port per restart") {
  check_rank_1_of_4(kSlurm, "slurm");
  const Place place = place_in(kSlurm);
  CHECK(place.local_rank == 0);
  CHECK(place.master_host == "n08");
  CHECK(place.job == "slurm 12.0.");
  CHECK(place_in(with(kSlurm, "SLURM_RESTART_COUNT", "1")).job == "slurm 12.0.1");
  CHECK(place_in(with(kSlurm, "SLURM_STEP_ID", "1")).master_port != place.master_port);
  CHECK(place_in(with(kSlurm, "SLURM_RESTART_COUNT", "1")).master_port != place.master_port);
  CHECK(place_in(with(kSlurm, "SLURM_STEP_NUM_NODES", "1")).master_host == "127.0.0.1");
  CHECK(place_in(with(kSlurm, "MASTER_ADDR", "gateway")).master_host == "gateway");
}

TEST_CASE("launchers: the first node of a compressed node list") {
  const auto first_of = [](const std::string& list) { return place_in(with(kSlurm, "SLURM_STEP_NODELIST", list)).master_host; };
  CHECK(first_of("n1") == "n1");
  CHECK(first_of("n1,n2") == "n1");
  CHECK(first_of("n[1-2]") == "n1");
  CHECK(first_of("n[7,9-12]") == "n7");
  CHECK(first_of("n[007-100]") == "n007");
  CHECK(first_of("rack[3-4]node[12,14],login") == "rack3node12");
  CHECK(first_of("n[1-3].cluster.local,m") == "n1.cluster.local");
  for (const char* malformed : {"", "n[1-2", ",n1"}) {
    CAPTURE(malformed);
    CHECK(names(refused(with(kSlurm, "SLURM_STEP_NODELIST", malformed)), "MASTER_ADDR"));
  }
}

TEST_CASE("launchers: rank 0 off the first Slurm node is an error that names both variables") {
  const auto text = refused(with(kSlurm, "SLURM_PROCID", "0"));  // node n09 of n[08-11]
  CHECK(names(text, "SLURMD_NODENAME"));
  CHECK(names(text, "SLURM_STEP_NODELIST"));
  CHECK(names(text, "MASTER_ADDR"));
  CHECK(refused(with(with(kSlurm, "SLURM_PROCID", "0"), "SLURMD_NODENAME", "n08")).empty());
  CHECK(refused(with(with(kSlurm, "SLURM_PROCID", "0"), "MASTER_ADDR", "n09")).empty());
}

TEST_CASE("launchers: PMI under srun takes the step's node and name") {
  const Variables pmi2 = {{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}, {"PMI_FD", "13"}, {"PMI_JOBID", "12.0"}};
  const Place place = place_in(together(kSlurm, pmi2));
  CHECK(place.master_host == "n08");
  CHECK(names(place.job, "12.0."));
}

TEST_CASE("launchers: PMIx and indexed Kubernetes Jobs say which variables they lack") {
  for (const Variables& rank_only : {kPmix, kKubernetes}) {
    const std::string rank = rank_only.begin()->first == "PMIX_NAMESPACE" ? "PMIX_RANK" : "JOB_COMPLETION_INDEX";
    CAPTURE(rank);
    CHECK(names(refused(rank_only), "WORLD_SIZE"));
    CHECK(names(refused(rank_only), rank));
    Variables more = with(rank_only, "WORLD_SIZE", "4");
    CHECK(names(refused(more), "MASTER_ADDR"));
    more["MASTER_ADDR"] = "trainer-0.trainer";
    CHECK(names(refused(more), "MASTER_PORT"));
    more["MASTER_PORT"] = "29500";
    const Place place = place_in(more);
    CHECK(place.rank == 1);
    CHECK(place.world_size == 4);
    CHECK(place.master_host == "trainer-0.trainer");
    CHECK(names(refused(with(more, "WORLD_SIZE", "1")), rank));
  }
}

TEST_CASE("launchers: a batch script of several Slurm tasks is none of them, and says so") {
  const Variables batch = {{"SLURM_JOB_ID", "12"}, {"SLURM_NTASKS", "2"}, {"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}};
  const auto text = refused(batch);
  CHECK(names(text, "SLURM_NTASKS"));
  CHECK(names(text, "SLURM_STEP_ID"));
  CHECK(names(text, "srun"));
  CHECK_FALSE(find_task(with(batch, "SLURM_NTASKS", "1")).has_value());
  CHECK_FALSE(find_task(with(batch, "CAIRN_LAUNCHER", "none")).has_value());
  check_rank_1_of_4(together(batch, kExplicit), "explicit");  // such as of cairn-launch in the script
}

TEST_CASE("launchers: an empty environment has no rank; a rank without size is an error") {
  CHECK_FALSE(find_task({}).has_value());
  CHECK_FALSE(find_task({{"RANK", ""}, {"WORLD_SIZE", ""}, {"SLURM_JOB_ID", "3"}}).has_value());
  const std::vector<std::string> needed = {"RANK",     "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                           "PMI_RANK", "PMI_SIZE",   "SLURM_PROCID",         "SLURM_STEP_NUM_TASKS"};
  for (const Variables& variables : {kExplicit, kOpenMpi, kMpich, kSlurm}) {
    for (const std::string& name : needed) {
      if (variables.count(name) == 0) continue;
      CAPTURE(name);
      Variables half = without(without(variables, name), "PMIX_RANK");
      CHECK(names(refused(half), name + " is not set"));
      CHECK(names(refused(with(half, name, "x")), name));
      CHECK(names(refused(with(half, name, "-1")), name));
      CHECK(names(refused(with(half, name, "99999999999999999999")), name));
    }
  }
  CHECK(names(refused(with(kOpenMpi, "OMPI_COMM_WORLD_RANK", "4")), "OMPI_COMM_WORLD_RANK"));
}

TEST_CASE("launchers: variables that agree complete each other") {
  // A batch script often exports WORLD_SIZE, MASTER_ADDR and MASTER_PORT for the tasks of srun.
  const Place place = place_in(together(kSlurm, {{"WORLD_SIZE", "4"}, {"MASTER_ADDR", "n08-ib"}, {"MASTER_PORT", "29500"}}));
  CHECK(place.rank == 1);
  CHECK(place.master_host == "n08-ib");
  CHECK(place.master_port == 29500);
  CHECK(place.job.empty());
  // `mpirun sh -c 'RANK=$OMPI_COMM_WORLD_RANK … trainer'` leaves the rest to Open MPI.
  const Place mapped = place_in(together(kOpenMpi, {{"RANK", "1"}, {"WORLD_SIZE", "4"}}));
  CHECK(mapped.master_host == "127.0.0.1");
  CHECK(mapped.local_rank == 1);
}

TEST_CASE("launchers: of two that contradict each other, both are named") {
  struct Named {
    const char* launcher;
    Variables variables;
    const char* rank;
    const char* size;  // null: it has no variable for the size
  };
  const std::vector<Named> all = {{"explicit", kExplicit, "RANK", "WORLD_SIZE"},
                                  {"openmpi", without(kOpenMpi, "PMIX_RANK"), "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                  {"pmi", kMpich, "PMI_RANK", "PMI_SIZE"},
                                  {"slurm", with(kSlurm, "SLURM_STEP_NUM_NODES", "2"), "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
                                  {"pmix", kPmix, "PMIX_RANK", nullptr},
                                  {"kubernetes", kKubernetes, "JOB_COMPLETION_INDEX", nullptr}};
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = i + 1; j < all.size(); ++j) {
      const Named &inner = all[i], &outer = all[j];
      CAPTURE(inner.launcher);
      CAPTURE(outer.launcher);
      Variables both = together(inner.variables, outer.variables);
      if (inner.size != nullptr) check_rank_1_of_4(both, inner.launcher);  // they agree
      both[outer.rank] = "2";
      const auto text = refused(both);
      CHECK(names(text, inner.rank));
      CHECK(names(text, outer.rank));
      CHECK(names(text, "CAIRN_LAUNCHER"));
      if (inner.size != nullptr) check_rank_1_of_4(with(both, "CAIRN_LAUNCHER", inner.launcher), inner.launcher);
      if (outer.size != nullptr) CHECK(find_task(with(both, "CAIRN_LAUNCHER", outer.launcher))->rank == 2);
      if (outer.size == nullptr || inner.size == nullptr) continue;
      both[outer.rank] = "1";
      both[outer.size] = "8";
      CHECK(names(refused(both), inner.size));
      CHECK(names(refused(both), outer.size));
    }
  }
}

TEST_CASE("launchers: a launcher inside the tasks of another one counts") {
  const Variables two_tasks =
      together({{"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_STEP_NUM_NODES", "2"}, {"SLURM_PROCID", "0"}}, kSlurm);
  SUBCASE("torchrun, with one agent in each task") {
    check_rank_1_of_4(together(kTorchrun, two_tasks), "torchrun");
    const Variables two_of_mpirun = together({{"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_RANK", "0"}}, kOpenMpi);
    check_rank_1_of_4(together(kTorchrun, two_of_mpirun), "torchrun");
    check_rank_1_of_4(together(kTorchrun, {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}), "torchrun");
    for (const Variables& of_unknown_size : {kPmix, kKubernetes})
      check_rank_1_of_4(together(kTorchrun, of_unknown_size), "torchrun");
  }
  SUBCASE("torchrun with another number of agents starts one job in each task") {
    const auto text = refused(together(with(kTorchrun, "GROUP_WORLD_SIZE", "1"), two_tasks));
    CHECK(names(text, "WORLD_SIZE"));
    CHECK(names(text, "SLURM_STEP_NUM_TASKS"));
    for (const Variables& same_rank : {kOpenMpi, kMpich, kSlurm})
      CHECK(names(refused(together(kTorchrun, same_rank)), "WORLD_SIZE"));
    CHECK(find_task(with(together(kTorchrun, kSlurm), "CAIRN_LAUNCHER", "torchrun"))->rank == 1);
  }
  SUBCASE("mpirun and mpiexec, whose daemons are tasks of a step, one per node") {
    check_rank_1_of_4(together(kOpenMpi, two_tasks), "openmpi");
    check_rank_1_of_4(together(kMpich, two_tasks), "pmi");
  }
  SUBCASE("mpirun in several tasks of one node starts one job in each task") {
    CHECK(names(refused(together(kOpenMpi, with(two_tasks, "SLURM_STEP_NUM_NODES", "1"))), "SLURM_STEP_NUM_TASKS"));
  }
  SUBCASE("any, in a step of one task") {
    const Variables one_task = with(two_tasks, "SLURM_STEP_NUM_TASKS", "1");
    for (const Variables& inner : {kTorchrun, kExplicit, kOpenMpi, kMpich}) CHECK(find_task(together(inner, one_task))->size == 4);
  }
  SUBCASE("a rank that is alone in each of several tasks is refused") {
    const Variables alone = {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}};
    CHECK(names(refused(together(alone, two_tasks)), "OMPI_COMM_WORLD_SIZE is 1"));
    CHECK(find_task(with(together(alone, two_tasks), "CAIRN_LAUNCHER", "openmpi"))->size == 1);
  }
}

TEST_CASE("launchers: CAIRN_LAUNCHER must name one that is there") {
  const auto unknown = refused(with(kSlurm, "CAIRN_LAUNCHER", "slrum"));
  CHECK(names(unknown, "slrum"));
  CHECK(names(unknown, "slurm"));
  CHECK(names(refused(with(kSlurm, "CAIRN_LAUNCHER", "openmpi")), "OMPI_COMM_WORLD_RANK is not set"));
  CHECK(names(refused(with(kExplicit, "CAIRN_LAUNCHER", "torchrun")), "TORCHELASTIC_RUN_ID is not set"));
  CHECK_FALSE(find_task(with(kSlurm, "CAIRN_LAUNCHER", "none")).has_value());
  CHECK(names(refused(with(kExplicit, "CAIRN_LAUNCHER", "none")), "WORLD_SIZE"));
  CHECK(find_task(with(together(kPmix, {{"WORLD_SIZE", "2"}, {"RANK", "0"}}), "CAIRN_LAUNCHER", "pmix"))->rank == 1);
}

TEST_CASE("launchers: no call makes a silent world of one of several ranks") {
  const Environment environment({{"RANK", std::nullopt},
                                 {"WORLD_SIZE", std::nullopt},
                                 {"OMPI_COMM_WORLD_RANK", "1"},
                                 {"OMPI_COMM_WORLD_SIZE", "2"},
                                 {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                                 {"MASTER_ADDR", std::nullopt}});
  const TemporaryDirectory directory;
  const std::string id = directory.path() + "/step_1";
  StateDict state{{"step", 1}, {"epoch", 1}};
  const auto refuses = [](const std::string& call, const Thrown& thrown) {
    CAPTURE(call);
    CHECK(thrown == Saying{ErrorCode::kPrecondition, call});
    CHECK(thrown.says("2 ranks"));
  };
  refuses("cairn::save", thrown_by([&] { cairn::save(state, id); }));
  refuses("cairn::async_save", thrown_by([&] { cairn::async_save(state, id); }));
  SaveOptions alone;
  alone.no_dist = true;
  cairn::save(state, id, alone);
  refuses("cairn::load", thrown_by([&] { cairn::load(state, id); }));
  refuses("cairn::load_by_keys", thrown_by([&] { cairn::load_by_keys(id); }));
  SaveOptions in_a_world;
  in_a_world.world = World::single();
  cairn::save(state, id + "_again", in_a_world);
  CHECK(thrown_by([] { World::from_environment(); }).says("MASTER_ADDR"));
}

TEST_CASE("launchers: a process that nobody launched is alone") {
  const Environment environment({{"RANK", std::nullopt}, {"WORLD_SIZE", std::nullopt}, {"CAIRN_LAUNCHER", std::nullopt}});
  CHECK(thrown_by([] { World::from_environment(); }).says("WORLD_SIZE"));
}

}  // namespace cairn::testing
