// Cairn's own writer: the saves it refuses, the state after a failure, the metadata it records, and
// the bytes it writes.
#include <set>

#include <cairn/tests/support/torch.hpp>

#include <cairn/messages/metadata.pb.h>
#include <cairn/base/digest.hpp>
#include <cairn/base/error.hpp>
#include <cairn/state/checkpoint_writer.hpp>
#include <cairn/storage/format/commit_footer.hpp>
#include <cairn/storage/format/commit_record.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/format/zstd_item.hpp>
#include <cairn/storage/stores/memory_store.hpp>
#include <cairn/storage/verify_checkpoint.hpp>
#include <cairn/tests/support/emptied_memory.hpp>
#include <cairn/tests/support/local_protocol.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tests/support/thrown.hpp>
#include <cairn/tests/support/wrapped_store.hpp>

using namespace cairn;
using namespace cairn::testing;

namespace {

std::unique_ptr<StorageWriter> make_writer(CheckpointWriterOptions options = {}) {
  return std::make_unique<CheckpointWriter>(options);
}

LocalSave save_to(const std::string& url, std::uint64_t counter) {
  LocalSave save{url, local_save_id(counter)};
  return save;
}

StateDict state_of(double value) {
  StateDict state{{"weight", torch::full({64, 33}, value)}, {"step", static_cast<std::int64_t>(value)}};
  return state;
}

// Returns the value of `state_of` that the checkpoint holds.
double written_value(const std::string& url) {
  StateDict state = state_of(-1);
  load_locally(url, {&state}, [] { return std::make_unique<CheckpointReader>(); });
  const double value = state["weight"].tensor()[0][0].item<double>();
  CHECK(state["weight"].tensor().eq(value).all().item<bool>());
  CHECK(state["step"].to_int() == static_cast<std::int64_t>(value));
  return value;
}

void save(const std::string& url, std::uint64_t counter, const StateDict& state, const CheckpointWriterOptions& options = {}) {
  save_locally(save_to(url, counter), {&state}, [&] { return make_writer(options); });
}

std::set<std::string> data_files(const std::string& url) {
  std::set<std::string> names;
  for (const ObjectInfo& object : open_store(url)->list()) names.insert(object.name);
  names.erase(kCommitRecordName);
  return names;
}

// Returns the number of files whose items have positions in the record.
std::ptrdiff_t explicit_files(Store& store) {
  Bytes record(store.size_bytes(kCommitRecordName), '\0');
  store.read(kCommitRecordName, {{0, {record.data(), record.size()}}});
  v1::Metadata section;
  const auto footer = parse_commit_footer(record);
  REQUIRE(footer);
  record.resize(record.size() - kCommitFooterBytes);
  REQUIRE(section.ParseFromString(record.substr(footer->section_offset)));
  const auto& files = section.files();
  return std::count_if(files.begin(), files.end(), [](const v1::File& file) { return file.explicit_positions(); });
}

// Each rank holds its share of the rows, and replicated values of different types.
StateDict rank_state(int rank, int world) {
  torch::manual_seed(7);
  StateDict state;
  const torch::Tensor whole = torch::randn({3 * world + 1, 40'000});
  ChunkShardingSpec spec;
  for (int r = 0; r < world; ++r) spec.placements.push_back(r);
  state["sharded"] = ShardedTensor::distribute(whole, spec, rank);
  state["replicated"] = torch::arange(10);
  state["name"] = "text";
  state["blob"] = Blob{Bytes(300'000, 'b')};
  return state;
}

// A planner that calls a function of the test after the save has been planned.
class Meanwhile : public DefaultSavePlanner {
 public:
  std::function<void()> act;
  SavePlan finish_plan(SavePlan plan) override {
    act();
    return plan;
  }
};

}  // namespace

TEST_CASE("checkpoint writer: options that cannot work are refused") {
  CheckpointWriterOptions no_memory, none_kept, many_threads, low, high;
  low.zstd_level = -1;
  high.zstd_level = 20;
  no_memory.bytes_in_flight_max = 1;
  none_kept.retired_keep = 0;
  many_threads.threads = static_cast<unsigned>(-1);
  for (const auto& [options, names] :
       {std::pair(no_memory, "bytes_in_flight_max"), {none_kept, "retired_keep"}, {many_threads, "threads"},
        {low, "zstd_level"}, {high, "zstd_level"}})
    CHECK(thrown_by([&, given = options] { make_writer(given); }) == Saying{ErrorCode::kInvalidArgument, names});
}

TEST_CASE("checkpoint writer: a run that cannot be opened fails the save before it writes") {
  const EmptiedMemory memory("writer");
  CheckpointWriterOptions options;
  options.run_url = "nosuch://run";
  CHECK(thrown_by([&] { save("mem://writer/x", 1, state_of(1), options); }).code == ErrorCode::kInvalidArgument);
  CHECK(data_files("mem://writer/x").empty());
  CHECK(open_store("mem://writer/x")->open_attempts().empty());
}

TEST_CASE("checkpoint writer: names that Python cannot read fail the save before it writes") {
  const EmptiedMemory memory("writer");
  StateDict state = state_of(1);
  state["caf\xe9"] = 1;
  CHECK(thrown_by([&] { save("mem://writer/x", 1, state); }) == Saying{ErrorCode::kInvalidArgument, "caf?"});
  CHECK(thrown_by([&] { save("mem://writer/caf\xe9", 1, state_of(1)); }).code == ErrorCode::kInvalidArgument);
  CHECK(open_store("mem://writer")->list().empty());
}

TEST_CASE("checkpoint writer: what Python can read and strict UTF-8 cannot comes back") {
  const EmptiedMemory memory("writer");
  const std::string lone_surrogate = "w\xed\xa0\x80";  // "w\\ud800"
  StateDict state{{lone_surrogate, torch::full({3}, 7.0)}};
  save("mem://writer/x", 1, state);
  CHECK(verify_checkpoint(*open_store("mem://writer/x")).empty());
  StateDict target{{lone_surrogate, torch::zeros({3})}};
  load_locally("mem://writer/x", {&target}, [] { return std::make_unique<CheckpointReader>(); });
  CHECK(target[lone_surrogate].tensor().eq(7.0).all().item<bool>());
}

TEST_CASE("checkpoint writer: places that it cannot write to are refused") {
  CheckpointWriter writer;
  StorageContext context;
  context.save_id = local_save_id(1);
  context.world_size = 2;
  for (const auto& [place, refusal] : std::vector<std::pair<std::string, std::optional<ErrorCode>>>{
           {"mem://writer/checkpoint", ErrorCode::kPrecondition},
           {"nosuch://x/y", ErrorCode::kInvalidArgument},
           {"/dev/null/x", {}}}) {
    context.checkpoint_id = place;
    const Thrown thrown = thrown_by([&] { writer.set_up_storage_writer(context); });
    CHECK(thrown.is_error);
    if (refusal) CHECK(thrown.code == *refusal);
    if (refusal == ErrorCode::kPrecondition) CHECK(thrown.says(place));
  }
  context.checkpoint_id = "/tmp/x";
  context.save_id = "step 1/../..";
  CHECK(thrown_by([&] { writer.set_up_storage_writer(context); }).code == ErrorCode::kInvalidArgument);
  writer.abandon();
}

TEST_CASE("checkpoint writer: a rank that does not see the attempt writes nothing") {
  // Rank 1 of two processes. Its machine has a directory of its own at the checkpoint's path.
  class WriterElsewhere : public CheckpointWriter {
   public:
    explicit WriterElsewhere(std::string url) : url_(std::move(url)) {}
    void set_up_storage_writer(const StorageContext& context) override {
      StorageContext seen = context;
      seen.checkpoint_id = url_;
      CheckpointWriter::set_up_storage_writer(seen);
    }

   private:
    const std::string url_;
  };
  const TemporaryDirectory directory;
  const std::string url = directory.path() + "/run/step";
  const auto save_with_rank_1_at = [&](const std::string& seen_by_rank_1, std::uint64_t counter) {
    const std::vector<StateDict> states{rank_state(0, 2), rank_state(1, 2)};
    DefaultSavePlanner planners[2];
    WriterElsewhere zero(url);
    WriterElsewhere one(seen_by_rank_1);
    LocalSave save = save_to(url, counter);
    save.one_process = false;
    save_locally(save, {{&states[0], &planners[0], &zero}, {&states[1], &planners[1], &one}});
  };
  save_with_rank_1_at(url, 1);
  CHECK(verify_checkpoint(*open_store(url)).empty());

  const auto elsewhere = open_store(directory.path() + "/of_rank_1/step");
  SUBCASE("one that exists") { elsewhere->create_root(); }
  SUBCASE("one that holds an older checkpoint") {
    save(elsewhere->url(), 2, state_of(1));
  }
  SUBCASE("one that does not exist") {}
  const auto files = data_files(elsewhere->url());
  const Thrown thrown = thrown_by([&] { save_with_rank_1_at(elsewhere->url(), 3); });
  CHECK(thrown == Saying{ErrorCode::kNotFound, elsewhere->url()});
  CHECK(thrown.says("not the same on all machines"));
  CHECK(data_files(elsewhere->url()) == files);
  CHECK(read_metadata(*open_store(url)).save_id == local_save_id(1));
  CHECK(verify_checkpoint(*open_store(url)).empty());
}

TEST_CASE("checkpoint writer: of two concurrent saves without overwriting, one is published") {
  const EmptiedMemory memory("writer");
  const std::string url = "mem://writer/run/step";
  CheckpointWriterOptions keep;
  keep.overwrite = false;
  const StateDict ours = state_of(1);
  // The other save runs from beginning to end after this one has been set up and planned.
  Meanwhile planner;
  planner.act = [&] { save(url, 2, state_of(2), keep); };
  const auto writer = make_writer(keep);
  const Thrown lost = thrown_by([&] { save_locally(save_to(url, 1), {{&ours, &planner, writer.get()}}); });
  CHECK((lost.code == ErrorCode::kAlreadyExists || lost.code == ErrorCode::kFenced));
  CHECK(written_value(url) == 2);
}

TEST_CASE("checkpoint writer: a planner that changes its items in finish_plan fails the save before it writes") {
  const EmptiedMemory memory("writer");
  class Changing : public DefaultSavePlanner {
   public:
    std::function<void(SavePlan&)> change;
    SavePlan finish_plan(SavePlan plan) override {
      change(plan);
      return plan;
    }
  } planner;
  const StateDict state = state_of(1);
  const std::vector<std::function<void(SavePlan&)>> changes{
      [](SavePlan& plan) { plan.items.pop_back(); },
      [](SavePlan& plan) { std::reverse(plan.items.begin(), plan.items.end()); },
      [](SavePlan& plan) { plan.storage_data.clear(); }};
  for (const auto& change : changes) {
    planner.change = change;
    const auto writer = make_writer();
    CHECK(thrown_by([&] { save_locally(save_to("mem://writer/x", 1), {{&state, &planner, writer.get()}}); }) ==
          Saying{ErrorCode::kMismatch, "the planner of rank 0 has changed more of its plan"});
    CHECK(data_files("mem://writer/x").empty());
    CHECK(open_store("mem://writer/x")->open_attempts().empty());
  }
}

TEST_CASE("checkpoint writer: a chunk that two ranks have written fails the save") {
  const EmptiedMemory memory("writer");
  class Repeating : public DefaultSavePlanner {
   public:
    GlobalSavePlan create_global_plan(std::vector<SavePlan> plans) override {
      GlobalSavePlan global = DefaultSavePlanner::create_global_plan(plans);
      global.plans = std::move(plans);  // each with the chunk
      return global;
    }
  } first, second;
  const StateDict state{{"weight", torch::ones({4})}};
  const auto writers = {make_writer(), make_writer()};
  CHECK(thrown_by([&] {
          save_locally(save_to("mem://writer/x", 1),
                       {{&state, &first, writers.begin()->get()}, {&state, &second, std::next(writers.begin())->get()}});
        }) == Saying{ErrorCode::kMismatch, "of \"weight\" was written more than once"});
}

TEST_CASE("checkpoint writer: planners transform data when saving, and back when loading") {
  const EmptiedMemory memory("writer");
  const std::string url = "mem://writer/x";
  class Encoding : public DefaultSavePlanner {
   public:
    ResolvedData transform_object(const SavePlan&, const WriteItem&, ResolvedData object) override {
      if (const auto* tensor = std::get_if<torch::Tensor>(&object)) return tensor->neg();
      return std::get<Bytes>(object) + "more";
    }
  } encoding;
  class Decoding : public DefaultLoadPlanner {
   public:
    torch::Tensor transform_tensor(const LoadPlan&, const ReadItem&, torch::Tensor tensor) override {
      return torch::empty_like(tensor);
    }
    void commit_tensor(const LoadPlan& plan, const ReadItem& item, torch::Tensor tensor) override {
      DefaultLoadPlanner::commit_tensor(plan, item, tensor.neg());
    }
    void load_bytes(const LoadPlan& plan, const ReadItem& item, Bytes bytes) override {
      bytes.resize(bytes.size() - std::string("more").size());
      DefaultLoadPlanner::load_bytes(plan, item, bytes);
    }
  } decoding;
  // The planner is asked for tensors before it transforms them.
  class Elsewhere : public DefaultSavePlanner {
   public:
    ResolvedData lookup_object(const SavePlan& plan, const WriteItem& item) override {
      if (plan.names[item.name] == "weight") return torch::full({64, 33}, 3.0);
      return DefaultSavePlanner::lookup_object(plan, item);
    }
  } elsewhere;
  class Redirecting : public DefaultLoadPlanner {
   public:
    torch::Tensor other = torch::zeros({64, 33});
    torch::Tensor lookup_tensor(const LoadPlan&, const ReadItem&) override { return other; }
    void commit_tensor(const LoadPlan&, const ReadItem&, torch::Tensor) override {}
  } redirecting;
  const StateDict state = state_of(1);
  const auto writer = make_writer();
  StateDict untouched = state_of(5);
  CheckpointReader other_reader;
  save_locally(save_to(url, 2), {{&state, &elsewhere, writer.get()}});
  load_locally(url, {{&untouched, &redirecting, &other_reader}});
  CHECK(redirecting.other.eq(3).all().item<bool>());
  CHECK(untouched["weight"].tensor().eq(5).all().item<bool>());

  save_locally(save_to(url, 1), {{&state, &encoding, writer.get()}});
  CHECK(state.at("weight").tensor().equal(torch::ones({64, 33})));
  CHECK(verify_checkpoint(*open_store(url)).empty());

  StateDict as_stored{{"weight", torch::zeros({64, 33})}};
  DefaultLoadPlanner planner;
  CheckpointReader reader;
  load_locally(url, {{&as_stored, &planner, &reader}});
  CHECK(as_stored["weight"].tensor().equal(torch::full({64, 33}, -1.0)));

  StateDict target = state_of(5);
  load_locally(url, {{&target, &decoding, &reader}});
  CHECK(target["weight"].tensor().equal(torch::ones({64, 33})));
  CHECK(target["step"].to_int() == 1);
}

TEST_CASE("checkpoint writer: finishing without having planned is refused") {
  const EmptiedMemory memory("writer");
  CheckpointWriter writer;
  CHECK(thrown_by([&] { writer.finish({}, {}); }).code == ErrorCode::kPrecondition);
  StorageContext context;
  context.checkpoint_id = "mem://writer/x";
  context.save_id = local_save_id(1);
  writer.reset(context.checkpoint_id);
  writer.set_up_storage_writer(context);
  CHECK(thrown_by([&] { writer.finish({}, {{}}); }).code == ErrorCode::kPrecondition);
  writer.abandon();
  writer.discard(true);
  CHECK(data_files("mem://writer/x").empty());
  CHECK(open_store("mem://writer/x")->open_attempts().empty());
}

TEST_CASE("checkpoint writer: ranks write one file or one per item, or none without items") {
  const TemporaryDirectory directory;
  for (const bool single_file : {true, false}) {
    const std::string url = directory.path() + (single_file ? "/run/single" : "/run/items");
    CheckpointWriterOptions options;
    options.single_file_per_rank = single_file;
    std::vector<StateDict> states;
    for (int rank = 0; rank < 3; ++rank) states.push_back(rank_state(rank, 3));
    states.emplace_back();
    LocalSave save = save_to(url, 1);
    save.coordinator = 2;
    save.step = 12;
    save.user_metadata = {{"note", "a"}};
    save_locally(save, {&states[0], &states[1], &states[2], &states[3]}, [&] { return make_writer(options); });

    const auto store = open_store(url);
    const Metadata metadata = read_metadata(*store);
    CHECK(metadata.save_id == save.save_id);
    REQUIRE(metadata.commit);
    CHECK(metadata.commit->sequence == (single_file ? 1 : 2));
    CHECK(metadata.commit->step == 12);
    CHECK(metadata.commit->world_size == 4);
    CHECK(metadata.commit->plan_digest.size() == 64);
    CHECK(metadata.commit->user_metadata == save.user_metadata);
    CHECK(metadata.files.size() == (single_file ? 3 : 6));
    CHECK(data_files(url).size() == metadata.files.size());
    CHECK(explicit_files(*store) == 0);
    CHECK_FALSE(data_files(url).count(data_file_name(3, 0, save.save_id)));
    CHECK(verify_checkpoint(*store).empty());
    CHECK(store->open_attempts().empty());
    CHECK(store->fenced_attempts().empty());
  }
}

TEST_CASE("checkpoint writer: ranks write several files where writes to one are serial") {
  ObjectWrites writes = ObjectWrites::kParallel;
  register_around("serial", "mem", nullptr, [&](StoreTraits& traits) {
    traits = {};
    traits.writes = writes;
  });
  struct Row {
    ObjectWrites writes;
    bool direct;
    int zstd_level;
    std::uint32_t files_max;
    std::size_t files;  // of a rank with 80 MiB in five tensors; the other one has 16 MiB and writes one
  };
  std::vector<Row> rows = {{ObjectWrites::kSerial, true, 0, 4096, 3},         {ObjectWrites::kSerial, true, 0, 4, 2},
                           {ObjectWrites::kSerial, true, 0, 1, 1},            {ObjectWrites::kSerialIfCached, true, 0, 4096, 1},
                           {ObjectWrites::kSerialIfCached, false, 0, 4096, 3}, {ObjectWrites::kParallel, false, 0, 4096, 1}};
  if (why_not_undone({kZstdTransform}).empty()) rows.push_back({ObjectWrites::kSerialIfCached, true, 1, 4096, 3});
  std::vector<StateDict> states(2), targets(2);
  for (int i = 0; i < 6; ++i) {
    const std::string key = "tensor" + std::to_string(i);
    states[i == 0][key] = torch::full({2048, 2048}, i, torch::kInt32);
    targets[0][key] = torch::zeros({2048, 2048}, torch::kInt32);
  }
  states[0]["blob"] = targets[0]["blob"] = Blob{Bytes(1000, 'b')};
  for (const Row& row : rows) {
    CAPTURE(row.files_max);
    const EmptiedMemory memory("serial");
    writes = row.writes;
    CheckpointWriterOptions options;
    options.threads = 3;
    options.direct_io = row.direct;
    options.zstd_level = row.zstd_level;
    options.files_max = row.files_max;
    save_locally(save_to("serial://serial/at", 1), {&states[0], &states[1]}, [&] { return make_writer(options); });
    const auto store = open_store("mem://serial/at");
    CHECK(read_metadata(*store).files.size() == row.files + 1);
    CHECK(explicit_files(*store) == 0);
    CHECK(verify_checkpoint(*store).empty());
    load_locally("mem://serial/at", {&targets[0], &targets[1]}, [] { return std::make_unique<CheckpointReader>(); });
    for (int i = 0; i < 6; ++i) CHECK(targets[0]["tensor" + std::to_string(i)].tensor().eq(i).all().item<bool>());
    if (row.files == 1) continue;
    for (const ObjectInfo& object : store->list("__0_")) CHECK(object.size_bytes > (row.zstd_level ? 100 : 16'000'000));
  }
}

TEST_CASE("checkpoint writer: as many replaced generations stay as asked for, whoever saves") {
  const EmptiedMemory memory("writer");
  const std::string url = "mem://writer/run/step";
  CheckpointWriterOptions options;
  options.retired_keep = 3;
  const auto save_generation = [&](std::uint64_t generation) {
    save(url, generation, state_of(static_cast<double>(generation)), options);
  };
  const auto generations = [](std::initializer_list<std::uint64_t> counters) {
    std::set<std::string> names;
    for (const std::uint64_t counter : counters) names.insert(data_file_name(0, 0, local_save_id(counter)));
    return names;
  };
  for (std::uint64_t generation = 1; generation <= 6; ++generation) save_generation(generation);
  CHECK(data_files(url) == generations({3, 4, 5, 6}));
  CHECK(written_value(url) == 6);
  options.retired_keep = 1;
  save_generation(7);
  CHECK(data_files(url) == generations({6, 7}));
}

TEST_CASE("checkpoint writer: the commit sequence of a place only grows, in any run") {
  const EmptiedMemory memory("writer");
  const std::string url = "mem://writer/run/step";
  const StateDict state = state_of(1);
  const auto sequence = [&] { return read_metadata(*open_store(url)).commit->sequence; };
  for (const std::uint64_t counter : {1, 2, 3}) save("mem://writer/run/other_" + std::to_string(counter), counter, state);
  save(url, 4, state);
  CHECK(sequence() == 4);
  CheckpointWriterOptions options;
  options.run_url = "mem://writer/another_run";
  save(url, 5, state, options);
  CHECK(sequence() == 5);

  // Another job publishes here after this save has planned its data.
  Meanwhile planner;
  const auto writer = make_writer(options);
  planner.act = [&] {
    // The other job has not cleaned up yet, so this save's attempt stays open.
    const auto store = open_store(url);
    Metadata theirs = read_metadata(*store);
    theirs.save_id = local_save_id(7);
    theirs.commit->sequence = 6;
    store->begin_attempt(theirs.save_id);
    store->publish(theirs.save_id, encode_commit_record(theirs), Overwrite::kAllowed);
  };
  save_locally(save_to(url, 6), {{&state, &planner, writer.get()}});
  CHECK(sequence() == 7);
  CHECK(read_metadata(*open_store(url)).commit->retired.front() == local_save_id(7));
  CHECK(written_value(url) == 1);
}

TEST_CASE("checkpoint writer: values without elements or dimensions need no positions in the record") {
  const EmptiedMemory memory("writer");
  StateDict state{{"text", "x"},
                  {"empty", torch::empty({0, 3})},
                  {"scalar", torch::tensor(5, torch::kInt64)},
                  {"flags", torch::tensor({true, false})},
                  {"complex", torch::zeros({2, 3, 4}, torch::kComplexDouble)},
                  {"blob", Blob{""}}};
  for (const bool single_file : {true, false})
    for (const int zstd_level : {0, 1}) {
      if (zstd_level > 0 && !why_not_undone({kZstdTransform}).empty()) continue;
      CheckpointWriterOptions options;
      options.single_file_per_rank = single_file;
      options.zstd_level = zstd_level;
      save("mem://writer/run/odd", 1 + 2 * zstd_level + single_file, state, options);
      const auto store = open_store("mem://writer/run/odd");
      CHECK(explicit_files(*store) == 0);
      CHECK(verify_checkpoint(*store).empty());
      StateDict target = state;
      target["scalar"] = torch::tensor(0, torch::kInt64);
      load_locally("mem://writer/run/odd", {&target}, [] { return std::make_unique<CheckpointReader>(); });
      CHECK(target["scalar"].tensor().item<std::int64_t>() == 5);
    }
}

TEST_CASE("checkpoint writer: a save that repeats a plan has the record of one that does not") {
  const EmptiedMemory memory("writer");
  for (const int zstd_level : {0, 1}) {
    if (zstd_level > 0 && !why_not_undone({kZstdTransform}).empty()) continue;
    CheckpointWriterOptions options;
    options.zstd_level = zstd_level;
    std::vector<DefaultSavePlanner> planners(2);
    std::vector<std::unique_ptr<StorageWriter>> writers;
    for (int rank = 0; rank < 2; ++rank) writers.push_back(make_writer(options));
    std::vector<std::shared_ptr<const SavePlan>> plans;
    const auto plain_record = [&](const std::string& url) {
      Metadata metadata = read_metadata(*open_store(url));
      metadata.checkpoint_id.clear();
      metadata.commit->sequence = 0;
      return encode_metadata(metadata);
    };
    const auto save_both = [&](const std::string& name, std::uint64_t counter, int changes, bool fails = false) {
      std::vector<StateDict> states;
      for (int rank = 0; rank < 2; ++rank) {
        states.push_back(rank_state(rank, 2));
        states.back()["replicated"] = torch::arange(10) + changes;
        states.back()["name"] = std::string(static_cast<std::size_t>(1 + changes / 4), 'n');
        states.back()["own " + std::to_string(rank)] = changes;
      }
      const std::string url = "mem://writer/run/" + name + std::to_string(zstd_level);
      LocalSave save = save_to(url, counter);
      save.step = changes;
      save.last_plans = &plans;
      std::vector<LocalSaver> ranks;
      Meanwhile failing;
      failing.act = [] { throw std::runtime_error("on purpose"); };
      for (std::size_t rank = 0; rank < 2; ++rank) {
        SavePlanner& planner = fails && rank == 1 ? static_cast<SavePlanner&>(failing) : planners[rank];
        ranks.push_back({&states[rank], &planner, writers[rank].get()});
      }
      if (fails) {
        CHECK_THROWS(save_locally(save, ranks));
        return;
      }
      const auto before = plans;
      save_locally(save, ranks);
      // Whether the global plans are those of before.
      CHECK((plans == before) == (changes > 0 && name != "after a failure"));
      save.checkpoint_id += " anew";
      save.last_plans = nullptr;
      save_locally(save, {&states[0], &states[1]}, [&] { return make_writer(options); });
      CHECK(plain_record(url) == plain_record(url + " anew"));
      const auto store = open_store(url);
      CHECK(verify_checkpoint(*store).empty());
      StateDict loaded{{"replicated", torch::zeros(10, torch::kInt64)}, {"name", ""}, {"own 1", -1}};
      load_locally(url, {&loaded}, [] { return std::make_unique<CheckpointReader>(); });
      CHECK(loaded["replicated"].tensor().equal(torch::arange(10) + changes));
      CHECK(loaded["own 1"].to_int() == changes);
    };
    save_both("first", 1, 0);
    save_both("second, in a place with a longer name", 2, 1);
    save_both("third", 3, 2);
    save_both("longer values", 4, 9);
    save_both("as long again", 5, 10);
    save_both("fails", 6, 11, true);
    save_both("after a failure", 7, 12);
    save_both("and another", 8, 13);
  }
}

TEST_CASE("checkpoint writer: its bytes are pinned") {
  const EmptiedMemory memory("writer");
  const std::string url = "mem://writer/run/golden";
  StateDict state{{"weight", torch::arange(6, torch::kFloat32).view({2, 3})},
                  {"steps", torch::tensor(5, torch::kInt64)},
                  {"large", torch::arange(20'000, torch::kInt32)},
                  {"epoch", 3},
                  {"nested", Dict{{"mask", torch::tensor({true, false})}, {"name", "x"}}}};
  LocalSave save = save_to(url, 1);
  save.step = 100;
  save_locally(save, {&state}, [] { return make_writer(); });
  const auto store = open_store(url);
  const auto digest_of = [&](const ObjectName& name) {
    Bytes bytes(store->size_bytes(name), '\0');
    store->read(name, {{0, {bytes.data(), bytes.size()}}});
    return std::to_string(bytes.size()) + " " + to_hex(sha256(bytes));
  };
  // A change of these digests is a change of the format: old checkpoints must still load, and
  // FORMAT.md must say so.
  CHECK(digest_of(data_file_name(0, 0, save.save_id)) == "86291 d319bba16ea68150da9d26e782ce1191c14708811ea35d7737871a9fb668a6da");
  CHECK(digest_of(kCommitRecordName) == "1825 3607c9fa3e564ff05e1edeb5563d33525091e80278f506ba33ac00781937388d");
}
