// Numbering, clean-up and settling of saves.
#include <cairn/tests/support/memory_store.hpp>
#include <cairn/tests/support/plain.hpp>
// The suite uses doctest, which the line above brings.
#include <cairn/base/digest.hpp>
#include <cairn/base/save_id.hpp>
#include <cairn/formats/zip_format.hpp>
#include <cairn/storage/format/commit_footer.hpp>
#include <cairn/storage/format/commit_head.hpp>
#include <cairn/storage/format/commit_record.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/publication.hpp>
#include <cairn/storage/stores/file_store.hpp>
#include <cairn/tests/storage/store_conformance.hpp>
#include <cairn/tests/support/captured_log.hpp>
#include <cairn/tests/support/simulated_file_system.hpp>
#include <cairn/tests/support/temporary_directory.hpp>

using namespace cairn;
using namespace cairn::testing;

namespace {

constexpr std::uint64_t kCountedMax = 1'000'000'000'000;  // no run counts up to this

std::string id_of(std::uint64_t counter, char job = 'a') { return make_save_id(std::string(32, job), "model", counter); }

// Returns the metadata that a save of one rank with `files` data files publishes.
Metadata metadata_of(const std::string& save_id, int files = 2, std::uint64_t sequence = 1) {
  Metadata metadata;
  metadata.save_id = save_id;
  metadata.commit = CommitInfo{};
  metadata.commit->sequence = sequence;
  metadata.commit->world_size = 1;
  for (int i = 0; i < files; ++i) metadata.files.push_back({data_file_name(0, i, save_id), 4, 0, 0});
  return metadata;
}

void write_files(Store& store, const Metadata& metadata) {
  for (const FileInfo& file : metadata.files) put_object(store, file.name, "data");
}

Metadata save(Store& store, const std::string& save_id, std::uint64_t sequence = 1) {
  Metadata metadata = metadata_of(save_id, 2, sequence);
  metadata.commit->retired = retired_generations(store, generation_to_replace(store).generation, 1);
  store.begin_attempt(save_id);
  write_files(store, metadata);
  store.publish(save_id, encode_commit_record(metadata), Overwrite::kAllowed);
  return metadata;
}

std::vector<std::string> file_names(std::initializer_list<std::string> save_ids) {
  std::vector<std::string> names;
  for (const auto& id : save_ids)
    for (int i = 0; i < 2; ++i) names.push_back(data_file_name(0, i, id));
  std::sort(names.begin(), names.end());
  return names;
}

Metadata with_tensors(Metadata metadata, int tensors) {
  for (FileInfo& file : metadata.files) file.length = 100'000'000;
  for (int i = 0; i < tensors; ++i) {
    TensorStorageMetadata tensor;
    tensor.size = {4, 4};
    tensor.chunks.push_back({{0, 0}, {4, 4}});
    tensor.storage.push_back({static_cast<std::uint32_t>(i % 3), static_cast<std::uint64_t>(i) * 1000, 1000, 0, {}});
    metadata.state_dict_metadata.emplace_back("model.layers." + std::to_string(i) + ".weight", tensor);
  }
  return metadata;
}

struct CountingStore : MemoryStore {
  using MemoryStore::MemoryStore;
  std::uint64_t bytes = 0, reads = 0;
  void read(const ObjectName& name, const std::vector<ReadRange>& ranges) override {
    ++reads;
    for (const auto& range : ranges) bytes += range.destination.size();
    MemoryStore::read(name, ranges);
  }
};

std::vector<std::string> sorted(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  return names;
}

struct EmptyMemory {
  EmptyMemory() { forget_memory("publication"); }
  ~EmptyMemory() { forget_memory("publication"); }
  std::shared_ptr<Store> store = open_store("mem://publication/run/step");
};

// Runs `act` once, right before the named call, as a rival job would.
class InterruptedStore : public MemoryStore {
 public:
  using MemoryStore::MemoryStore;
  std::string before;
  std::function<void()> act;

  std::vector<ObjectInfo> list(const ObjectName& prefix) override { return step("list"), MemoryStore::list(prefix); }
  std::vector<std::string> open_attempts() override { return step("open_attempts"), MemoryStore::open_attempts(); }
  void fence(const std::string& id) override { step("fence"), MemoryStore::fence(id); }
  bool exists(const ObjectName& name) override { return step("exists"), MemoryStore::exists(name); }
  void read(const ObjectName& name, const std::vector<ReadRange>& ranges) override {
    step("read"), MemoryStore::read(name, ranges);
  }
  void remove(const ObjectName& name) override { step("remove"), MemoryStore::remove(name); }
  std::vector<std::string> fenced_attempts() override { return step("fenced_attempts"), MemoryStore::fenced_attempts(); }
  void clear_attempt(const std::string& id) override { step("clear_attempt"), MemoryStore::clear_attempt(id); }

 private:
  void step(const std::string& name) {
    if (name != before || !act) return;
    const auto once = std::move(act);
    act = nullptr;
    once();
  }
};

}  // namespace

TEST_CASE("names that Cairn did not give are not taken for its data files") {
  const std::string id = id_of(7);
  for (const std::string& name :
       {std::string(), std::string("__0_0.distcp"), "__0_0_" + id, "_0_0_" + id + ".distcp", "__0_" + id + ".distcp",
        "__a_0_" + id + ".distcp", "__00_0_" + id + ".distcp", "__0_-1_" + id + ".distcp", "__0_0_" + id + ".distcp.tmp",
        "__0_0_" + id + "x.distcp", std::string("__0_0_cairn-1.distcp"), "__0_0_0_" + id + ".distcp", "sub/__0_0_" + id + ".distcp",
        "__12345678901_0_" + id + ".distcp", std::string("__.distcp"), std::string(".distcp"), std::string(".metadata")}) {
    INFO(name);
    CHECK_FALSE(save_id_of_file(name).has_value());
  }
  CHECK(data_file_name(12, 3, id) == "__12_3_" + id + ".distcp");
  CHECK(save_id_of_file(data_file_name(12, 3, id)) == id);
  CHECK(save_id_of_file(data_file_name(0, 0, id)) == id);
}

TEST_CASE_FIXTURE(EmptyMemory, "clean-up removes dead saves and old generations except the replaced one") {
  save(*store, id_of(1));
  const Metadata replaced = save(*store, id_of(2));
  store->begin_attempt(id_of(3));  // died while writing
  write_files(*store, metadata_of(id_of(3)));
  store->begin_attempt(id_of(4));  // ended by its own ranks
  write_files(*store, metadata_of(id_of(4)));
  store->fence(id_of(4));
  const Metadata current = save(*store, id_of(5));
  const auto removed = remove_leftovers(*store, current, replaced);
  CHECK(sorted(removed) == file_names({id_of(1), id_of(3), id_of(4)}));
  CHECK(visible_names(*store) == file_names({id_of(2), id_of(5)}));
  CHECK(store->open_attempts().empty());
  CHECK(store->fenced_attempts().empty());
  CHECK(code_of([&] { store->publish(id_of(3), ByteSpan("x", 1), Overwrite::kAllowed); }) == ErrorCode::kFenced);
  CHECK(published_metadata(*store)->save_id == id_of(5));
  CHECK(remove_leftovers(*store, current, replaced).empty());
}

TEST_CASE_FIXTURE(EmptyMemory, "a save over data whose record is gone keeps that data") {
  save(*store, id_of(1));
  store->remove(kCommitRecordName);
  const Metadata second = save(*store, id_of(2));
  CHECK(remove_leftovers(*store, second, std::nullopt).empty());
  const Metadata third = save(*store, id_of(3));
  CHECK(remove_leftovers(*store, third, second).empty());
  CHECK(visible_names(*store) == file_names({id_of(1), id_of(2), id_of(3)}));
}

TEST_CASE_FIXTURE(EmptyMemory, "PyTorch's files go with the save after the one that replaced them") {
  Metadata torch;  // as a record of PyTorch's describes it
  for (const char* name : {"__0_0.distcp", "__1_0.distcp", "notes.txt"}) {
    torch.files.push_back({name, {}, {}, {}});
    put_object(*store, name, "data");
  }
  Metadata first = metadata_of(id_of(1));
  first.commit->retired = retired_generations(*store, torch, 1);
  CHECK(first.commit->retired == Names{"__0_0.distcp", "__1_0.distcp"});
  CHECK(remove_leftovers(*store, first, torch).empty());
  Metadata second = metadata_of(id_of(2));
  for (int tries = 0; tries < 2; ++tries) {  // the first clean-up was cut off
    second.commit->retired = retired_generations(*store, first, 1);
    CHECK(second.commit->retired == Names{id_of(1), "__0_0.distcp", "__1_0.distcp"});
  }
  CHECK(remove_leftovers(*store, second, first, 2).empty());  // two generations are kept
  CHECK(sorted(remove_leftovers(*store, second, first)) == Names{"__0_0.distcp", "__1_0.distcp"});
  CHECK(retired_generations(*store, second, 1) == Names{id_of(2)});
  CHECK(store->exists("notes.txt"));
}

TEST_CASE_FIXTURE(EmptyMemory, "clean-up keeps what Cairn did not make") {
  const Metadata current = save(*store, id_of(1));
  const std::vector<std::string> foreign{"__0_0.distcp",
                                         "__0_0_mine.distcp",
                                         "notes.txt",
                                         "__0_0_" + id_of(9) + ".distcp.bak",
                                         "sub/" + data_file_name(0, 0, id_of(9)),
                                         "__init__.py"};
  for (const auto& name : foreign) put_object(*store, name, "x");
  store->begin_attempt("of-another-program");
  store->fence("fenced-by-another-program");
  CHECK(remove_leftovers(*store, current, std::nullopt).empty());
  for (const auto& name : foreign) CHECK(store->exists(name));
  CHECK(store->open_attempts() == Names{"of-another-program"});
  CHECK(store->fenced_attempts() == Names{"fenced-by-another-program"});
}

TEST_CASE_FIXTURE(EmptyMemory, "clean-up keeps files of other saves that a kept generation names") {
  const Metadata base = save(*store, id_of(1));
  Metadata replaced = metadata_of(id_of(2));
  replaced.files.push_back(base.files[0]);
  Metadata current = save(*store, id_of(3));
  current.commit->retired = {id_of(2), id_of(1)};
  CHECK(remove_leftovers(*store, current, replaced) == std::vector<ObjectName>{base.files[1].name});
  CHECK(store->exists(base.files[0].name));
}

TEST_CASE_FIXTURE(EmptyMemory, "clean-up keeps the generations that the current and the published record retire") {
  for (std::uint64_t counter : {1, 2, 3, 4}) save(*store, id_of(counter));
  Metadata current = metadata_of(id_of(5));
  current.commit->retired = {id_of(4), id_of(2), id_of(3), id_of(1)};
  store->begin_attempt(id_of(5));
  write_files(*store, current);
  store->publish(id_of(5), encode_commit_record(current), Overwrite::kAllowed);
  CHECK(sorted(remove_leftovers(*store, current, metadata_of(id_of(4)), 2)) == file_names({id_of(1), id_of(3)}));

  // Another job has published since, and keeps one of our generations as retired.
  Metadata theirs = metadata_of(id_of(1, 'b'));
  theirs.commit->retired = {id_of(2)};
  store->begin_attempt(theirs.save_id);
  write_files(*store, theirs);
  store->publish(theirs.save_id, encode_commit_record(theirs), Overwrite::kAllowed);
  current.commit->retired = {id_of(4), id_of(2)};
  CHECK(sorted(remove_leftovers(*store, current, std::nullopt, 0)) == file_names({id_of(4)}));
  CHECK(visible_names(*store) == file_names({id_of(2), id_of(5), id_of(1, 'b')}));
}

TEST_CASE_FIXTURE(EmptyMemory, "a record retires the previous generations, and older ones with files left") {
  CHECK(retired_generations(*store, std::nullopt, 3).empty());
  Metadata replaced = metadata_of(id_of(9));
  replaced.commit->retired = {id_of(7), "no save id of Cairn's", id_of(3)};
  CHECK(retired_generations(*store, replaced, 1) == Names{id_of(9)});
  CHECK(retired_generations(*store, replaced, 2) == Names{id_of(9), id_of(7)});
  CHECK(retired_generations(*store, replaced, 9) == Names{id_of(9), id_of(7), id_of(3)});
  write_files(*store, metadata_of(id_of(3)));
  CHECK(retired_generations(*store, replaced, 1) == Names{id_of(9), id_of(3)});
  replaced.commit.reset();  // a record without commit information, as PyTorch writes it
  CHECK(retired_generations(*store, replaced, 9).empty());
}

TEST_CASE_FIXTURE(EmptyMemory, "what a save replaces: nothing, a generation, or a record that nobody can read") {
  const Replaced none = generation_to_replace(*store);
  CHECK(none.is_known);
  CHECK_FALSE(none.generation.has_value());
  CHECK(commit_sequence_after(none) == 1);

  save(*store, id_of(1), 41);
  const Replaced there = generation_to_replace(*store);
  CHECK(there.is_known);
  REQUIRE(there.generation.has_value());
  CHECK(there.generation->save_id == id_of(1));
  CHECK(commit_sequence_after(there) == 42);

  store->begin_attempt(id_of(2));
  store->publish(id_of(2), encode_commit_record(metadata_of(id_of(2))) + "x", Overwrite::kAllowed);
  const Replaced damaged = generation_to_replace(*store);
  CHECK_FALSE(damaged.is_known);
  CHECK_FALSE(damaged.generation.has_value());

  CHECK(commit_sequence_after(damaged) > kCountedMax);
  CHECK(commit_sequence_after({metadata_of(id_of(3), 1, ~std::uint64_t{0})}) > kCountedMax);  // damage that no checksum detects
}

TEST_CASE("a clean-up beside another job removes no file of a checkpoint that exists") {
  const std::string ours = id_of(5), rival_id = id_of(1, 'b');
  for (const char* moment :
       {"list", "open_attempts", "fence", "exists", "read", "remove", "fenced_attempts", "clear_attempt", "never"}) {
    for (const bool rival_has_begun : {true, false}) {
      for (const bool rival_publishes : {true, false}) {
        INFO("rival acts before ", moment, rival_has_begun ? ", had begun" : "", rival_publishes ? ", publishes" : "");
        forget_memory("publication");
        InterruptedStore store("publication", "run/step");
        MemoryStore rival("publication", "run/step");
        save(store, id_of(3));
        const Metadata replaced = save(store, id_of(4));
        store.begin_attempt(id_of(2));  // a dead save, so that every step has something to do
        write_files(store, metadata_of(id_of(2)));
        const Metadata current = save(store, ours);
        if (rival_has_begun) rival.begin_attempt(rival_id);
        bool published = false;
        store.before = moment;
        store.act = [&] {
          code_of([&] {
            if (!rival_has_begun) rival.begin_attempt(rival_id);
            write_files(rival, metadata_of(rival_id));
            if (!rival_publishes) return;
            rival.publish(rival_id, encode_commit_record(metadata_of(rival_id)), Overwrite::kAllowed);
            published = true;
          });
        };
        const bool acts = std::string(moment) != "never";
        remove_leftovers(store, current, replaced);
        REQUIRE((store.act == nullptr) == acts);

        // The published checkpoint is whole, whichever job wrote it. So are the generations that
        // readers may still use.
        const auto now = published_metadata(rival);
        REQUIRE(now.has_value());
        REQUIRE(now->save_id == (published ? rival_id : ours));
        for (const Metadata* kept : {&*now, &current, &replaced})
          for (const FileInfo& file : kept->files) REQUIRE(rival.exists(file.name));
        REQUIRE_FALSE(rival.exists(data_file_name(0, 0, id_of(3))));

        // A rival that has not published yet can still do so with all its files, or never can.
        const auto code = code_of([&] {
          if (published) return;
          if (rival.open_attempts() == Names{rival_id} && rival_publishes == false && acts)
            for (const FileInfo& file : metadata_of(rival_id).files) REQUIRE(rival.exists(file.name));
          rival.publish(rival_id, encode_commit_record(metadata_of(rival_id)), Overwrite::kAllowed);
        });
        if (code) REQUIRE(*code == ErrorCode::kFenced);
      }
    }
  }
  forget_memory("publication");
}

TEST_CASE("two jobs that keep saving to one place publish only whole checkpoints") {
  TemporaryDirectory directory;
  const std::string place = directory.path() + "/step";
  open_store(place)->create_root();
  std::atomic<int> published{0}, fenced{0};
  TogetherThreads::run(2, [&](int job) {
    const auto store = open_store(place);
    for (std::uint64_t round = 1; round <= 40; ++round) {
      const Metadata metadata = metadata_of(id_of(round, job == 0 ? 'a' : 'b'));
      const auto code = code_of([&] {
        const auto replaced = published_metadata(*store);
        store->begin_attempt(metadata.save_id);
        write_files(*store, metadata);
        store->publish(metadata.save_id, encode_commit_record(metadata), Overwrite::kAllowed);
        ++published;
        for (int tries = 0;; ++tries) {  // starts over if the record changes meanwhile, as a reader does
          const auto pinned = published_metadata(*store);
          const bool whole =
              std::all_of(pinned->files.begin(), pinned->files.end(), [&](const auto& file) { return store->exists(file.name); });
          if (whole) break;
          if (published_metadata(*store)->save_id == pinned->save_id) throw std::runtime_error("a published file is missing");
          if (tries == 100) throw std::runtime_error("the record changes all the time");
        }
        remove_leftovers(*store, metadata, replaced);
      });
      if (!code) continue;
      // kNotFound: the other job removed the files of a fenced save during the write.
      if (*code != ErrorCode::kFenced && *code != ErrorCode::kNotFound) throw std::runtime_error("unexpected error");
      ++fenced;
    }
  });
  CHECK(published > 0);
  MESSAGE(published.load(), " saves were published, ", fenced.load(), " ended by the other job");
  const auto store = open_store(place);
  const auto last = published_metadata(*store);
  REQUIRE(last.has_value());
  for (const FileInfo& file : last->files) CHECK(store->exists(file.name));
}

TEST_CASE("clean-up continues after a refused removal, and keeps the save's attempt fenced") {
  SimulatedFileSystem files;
  FileStore store("/step", files);
  store.create_root();
  store.begin_attempt(id_of(1));
  write_files(store, metadata_of(id_of(1)));
  const Metadata current = save(store, id_of(2));
  files.before_operation = [&](std::uint64_t index, const std::string& operation) {
    if (operation == "remove /step/" + data_file_name(0, 0, id_of(1))) files.fail_operation(index, EPERM);
  };
  CHECK(remove_leftovers(store, current, std::nullopt) == std::vector<ObjectName>{data_file_name(0, 1, id_of(1))});
  CHECK(store.fenced_attempts() == Names{id_of(1)});
  files.before_operation = nullptr;
  CHECK(remove_leftovers(store, current, std::nullopt) == std::vector<ObjectName>{data_file_name(0, 0, id_of(1))});
  CHECK(store.fenced_attempts().empty());
}

TEST_CASE_FIXTURE(EmptyMemory, "settling decides for ever") {
  CHECK_FALSE(settle_attempt(*store, id_of(1)));  // never begun
  CHECK(code_of([&] { store->begin_attempt(id_of(1)); }) == ErrorCode::kFenced);
  store->begin_attempt(id_of(2));
  CHECK_FALSE(settle_attempt(*store, id_of(2)));
  CHECK(code_of([&] { store->publish(id_of(2), ByteSpan("x", 1), Overwrite::kAllowed); }) == ErrorCode::kFenced);
  save(*store, id_of(3));
  CHECK(settle_attempt(*store, id_of(3)));
  CHECK(settle_attempt(*store, id_of(3)));
  CHECK_FALSE(settle_attempt(*store, id_of(2)));
  save(*store, id_of(4));
  CHECK_FALSE(settle_attempt(*store, id_of(3)));

  // A damaged record does not answer the question.
  store->begin_attempt(id_of(5));
  store->publish(id_of(5), encode_commit_record(metadata_of(id_of(5))) + "x", Overwrite::kAllowed);
  CHECK(code_of([&] { settle_attempt(*store, id_of(5)); }) == ErrorCode::kCorrupt);
}

TEST_CASE_FIXTURE(EmptyMemory, "a clean-up removes files that the mark of a removal names") {
  for (const std::uint64_t id : {1, 2}) put_object(*store, data_file_name(0, 0, id_of(id)), "x");
  put_object(*store, removal_mark_name(id_of(1)), "");
  save(*store, id_of(3));
  remove_leftovers(*store, metadata_of(id_of(3)), std::nullopt);
  CHECK_FALSE(store->exists(data_file_name(0, 0, id_of(1))));
  CHECK_FALSE(store->exists(removal_mark_name(id_of(1))));
  CHECK(store->exists(data_file_name(0, 0, id_of(2))));
}

TEST_CASE("the commit sequence is an error if a place in the run cannot be read for now") {
  struct BusyStore : MemoryStore {
    using MemoryStore::MemoryStore;
    std::uint64_t size_bytes(const ObjectName& name) override {
      if (name == "step_2/.metadata") throw Error(ErrorCode::kDeadline, "the server did not answer");
      if (name == "other/.metadata") throw Error(ErrorCode::kPermission, "not for this user");
      return MemoryStore::size_bytes(name);
    }
  };
  forget_memory("publication");
  save(*open_store("mem://publication/run/step_1"), id_of(1), 1);
  save(*open_store("mem://publication/run/other"), id_of(3), 9);
  const auto run = std::make_shared<BusyStore>("publication", "run");
  const CapturedLog log;
  CommitSequence sequence(std::nullopt);
  for (int times = 0; times < 2; ++times) CHECK(sequence.next(run) == 2);
  const std::size_t warning = log.text().find("not for this user");
  CHECK(warning != std::string::npos);
  CHECK(log.text().find("not for this user", warning + 1) == std::string::npos);
  save(*open_store("mem://publication/run/step_2"), id_of(2), 2);
  CHECK(code_of([&] { CommitSequence(std::nullopt).next(run); }) == ErrorCode::kDeadline);
  forget_memory("publication");
}

TEST_CASE("the commit sequence follows the largest in the run, beside any other files") {
  forget_memory("publication");
  const auto run = open_store("mem://publication/run");
  CHECK(CommitSequence(std::nullopt).next(run) == 1);
  CHECK(CommitSequence(std::nullopt).next(open_store("/this/does/not/exist")) == 1);
  const auto at = [](const std::string& name) { return open_store("mem://publication/run/" + name); };
  save(*at("step_9"), id_of(1), 3);
  save(*at("step_10"), id_of(2), 41);
  save(*at("step_2"), id_of(3), 7);
  CHECK(CommitSequence(std::nullopt).next(run) == 42);

  // None of these counts, and none causes an error.
  save(*at("below/step"), id_of(4), 1000);
  save(*open_store("mem://publication/other/step"), id_of(5), 1000);
  put_object(*run, "torch/.metadata", "a record of PyTorch's ends with its pickle: ub.");
  put_object(*run, "no_record/file", "x");
  put_object(*run, "a_file", "x");
  CHECK(CommitSequence(std::nullopt).next(run) == 42);

  // If the run is itself a checkpoint, its sequence counts.
  save(*run, id_of(8), 50);
  CHECK(CommitSequence(std::nullopt).next(run) == 51);
  forget_memory("publication");
}

TEST_CASE_FIXTURE(EmptyMemory, "the commit sequence exceeds that of a record that cannot be read") {
  const auto run = open_store("mem://publication/run");
  save(*open_store("mem://publication/run/step_1"), id_of(1), 41);
  const std::string record = encode_commit_record(metadata_of(id_of(6), 2, 1000));
  std::string other_magic = record;
  other_magic[record.size() - 8] = 'X';
  std::vector<std::string> contents{"",           "not a record at all, but longer than a footer would be",
                                    other_magic,  encode_commit_record(metadata_of(id_of(7), 2, ~std::uint64_t{0})),
                                    record + "x", record + "ub."};
  for (std::size_t length = 1; length < record.size(); length += 7) contents.push_back(record.substr(0, length));
  std::uint64_t counter = 10;
  for (const char* place : {"step_2", "named by a user"}) {
    for (const std::string& content : contents) {
      CAPTURE(content.size());
      const std::string name = std::string(place) + "/.metadata";
      put_object(*run, name, content);
      const std::uint64_t next = CommitSequence(std::nullopt).next(run);
      CHECK(next > kCountedMax);
      // Nor does it come back once such a sequence is in use.
      save(*open_store("mem://publication/run/step_3"), id_of(++counter), next);
      CHECK(CommitSequence(std::nullopt).next(run) > next);
      open_store("mem://publication/run/step_3")->remove(kCommitRecordName);
      run->remove(name);
    }
  }
}

TEST_CASE("the head of a record is found without reading the record") {
  forget_memory("publication");
  CountingStore store("publication", "head");
  Metadata metadata = with_tensors(metadata_of(id_of(1), 3, 77), 100'000);
  metadata.checkpoint_id.assign(100000, 'p');
  metadata.commit->user_metadata["note"] = std::string(1000, 'n');
  const std::string record = encode_commit_record(metadata);
  put_object(store, kCommitRecordName, record);
  const auto head = read_commit_head(store);
  REQUIRE(head.has_value());
  CHECK(head->save_id == id_of(1));
  CHECK(head->sequence == 77);
  CHECK(head->user_metadata == metadata.commit->user_metadata);
  CHECK(store.bytes < record.size() / 10);
  CHECK(store.reads <= 2);
  CHECK_FALSE(read_commit_head(store, "absent").has_value());

  // User metadata of a megabyte are one read, as those of a few bytes.
  metadata.commit->user_metadata["note"].assign(1 << 20, 'n');
  put_object(store, "noted", encode_commit_record(metadata));
  const std::uint64_t before = store.reads;
  const auto noted = read_commit_head(store, "noted");
  REQUIRE(noted.has_value());
  CHECK(noted->user_metadata == metadata.commit->user_metadata);
  CHECK(store.reads - before < 16);

  // A record that is cut anywhere yields an error or no head, never a wrong head.
  const std::string small = encode_commit_record(metadata_of(id_of(3), 2, 79));
  for (std::size_t length = 0; length < small.size(); ++length) {
    put_object(store, "cut", small.substr(small.size() - length));
    std::optional<CommitHead> found;
    const auto code = code_of([&] { found = read_commit_head(store, "cut"); });
    CHECK_FALSE(found.has_value());
    if (code) CHECK(*code == ErrorCode::kCorrupt);
    store.remove("cut");
  }
  forget_memory("publication");
}

TEST_CASE("a load reads only Cairn's section of a record, if that is sound") {
  forget_memory("publication");
  CountingStore store("publication", "section");
  const Metadata metadata = with_tensors(metadata_of(id_of(1), 3, 77), 10'000);
  NeededNames needed;
  needed.names.intern("model.layers.700.weight");
  // Returns how many bytes a load reads of the record.
  const auto read = [&](const std::string& record) {
    replace_object(store, kCommitRecordName, record);
    const std::uint64_t bytes = store.bytes, reads = store.reads;
    const auto found = published_metadata(store, kCommitRecordName, &needed);
    REQUIRE(found.has_value());
    REQUIRE(found->state_dict_metadata.size() == 1);
    const auto& tensor = std::get<TensorStorageMetadata>(found->state_dict_metadata.at(0).second);
    CHECK(tensor.storage.at(0).offset == 700'000);
    CHECK(found->commit->sequence == 77);
    CHECK(store.reads - reads <= 3);
    return store.bytes - bytes;
  };
  const std::string record = encode_commit_record(metadata);
  const CommitFooter footer = *parse_commit_footer(record);
  CHECK(read(record) < 2 * (record.size() - footer.section_offset));
  CHECK(read(record) < record.size() / 4);
  CHECK(read(record + make_fence_mark(std::string(16, 'n'))) < record.size() / 4);

  const auto flipped = [&](std::size_t at) {
    std::string damaged = record;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    return damaged;
  };
  // PyTorch would read the pickle, and `verify` does.
  CHECK(read(flipped(footer.section_offset - 1)) < record.size() / 4);
  for (std::size_t at = footer.section_offset; at < record.size(); at += at + 100 < record.size() ? 997 : 1) {
    CAPTURE(at);
    replace_object(store, kCommitRecordName, flipped(at));
    const auto code = code_of([&] { published_metadata(store, kCommitRecordName, &needed); });
    // The CRC-32 at the end is that of the whole record, which only readers of all of it check.
    CHECK(code == (at + 4 < record.size() ? std::optional(ErrorCode::kCorrupt) : std::nullopt));
  }

  // Before the section had a checksum, all of the record was read.
  std::string without = record;
  without.erase(record.size() - kCommitFooterBytes - encode_checksum({}, {}).size(), encode_checksum({}, {}).size());
  without.resize(without.size() - 4);
  zip::put_u32(without, crc32(0, without));
  CHECK(read(without) >= without.size());
  forget_memory("publication");
}

TEST_CASE_FIXTURE(EmptyMemory, "a record that is damaged says so; one that is not there is nothing") {
  CHECK_FALSE(published_metadata(*store).has_value());
  std::string record = encode_commit_record(metadata_of(id_of(1)));
  record[record.size() / 2] = static_cast<char>(record[record.size() / 2] ^ 1);
  store->begin_attempt(id_of(1));
  store->publish(id_of(1), record, Overwrite::kAllowed);
  CHECK(code_of([&] { published_metadata(*store); }) == ErrorCode::kCorrupt);
  // A clean-up that cannot read the published record removes nothing.
  save(*store, id_of(9));
  store->begin_attempt(id_of(9));
  store->begin_attempt(id_of(2));
  store->publish(id_of(2), record, Overwrite::kAllowed);
  CHECK(code_of([&] { remove_leftovers(*store, metadata_of(id_of(3)), std::nullopt); }) == ErrorCode::kCorrupt);
  CHECK(visible_names(*store) == file_names({id_of(9)}));
}
