// Copies of checkpoints: the same content under a save id of its own, and nothing half-copied after
// a fault, a crash or damage at either place.
#include <fstream>
#include <set>

#include <cairn/tests/support/torch.hpp>

#include <cairn/state/checkpoint_writer.hpp>
#include <cairn/storage/copy_checkpoint.hpp>
#include <cairn/storage/publication.hpp>
#include <cairn/storage/stores/memory_store.hpp>
#include <cairn/storage/verify_checkpoint.hpp>
#include <cairn/tests/storage/store_tools.hpp>
#include <cairn/tests/support/local_protocol.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tests/support/thrown.hpp>
#include <cairn/tests/support/wrapped_store.hpp>

using namespace cairn;
using namespace cairn::testing;

namespace {

// A checkpoint of two ranks in memory. One file is larger than a piece of a copy.
class Source {
 public:
  Source() {
    forget_memory("copies");
    const StateDict large{{"a", torch::arange(2'500'000)}, {"name", "x"}}, small{{"b", torch::arange(7)}};
    LocalSave save{"mem://copies/run/step", local_save_id(1)};
    save.step = 5;
    save.user_metadata = {{"note", "kept"}};
    save_locally(save, {&large, &small}, [] { return std::make_unique<CheckpointWriter>(); });
    store = open_store(save.checkpoint_id);
  }
  ~Source() { forget_memory("copies"); }
  std::shared_ptr<Store> store;
};

// Checks that the checkpoint at `place` is the source's, as save `save_id`, and that nothing else
// is there.
void check_copy_at(Store& place, Store& source, const std::string& save_id) {
  CHECK(verify_checkpoint(place).empty());
  const Metadata metadata = read_metadata(place), original = read_metadata(source);
  CHECK(metadata.save_id == save_id);
  CHECK(metadata.commit->step == 5);
  CHECK(metadata.commit->sequence == original.commit->sequence);
  CHECK(metadata.commit->user_metadata.at("note") == "kept");
  std::set<std::string> names{kCommitRecordName}, found;
  for (const FileInfo& file : metadata.files) names.insert(file.name);
  for (const ObjectInfo& object : place.list()) found.insert(object.name);
  CHECK(found == names);
  CHECK(place.open_attempts().empty());
  CHECK(place.fenced_attempts().empty());
  StateDict state{{"a", torch::zeros({2'500'000}, torch::kLong)}, {"b", torch::zeros({7}, torch::kLong)}};
  load_locally(place.url(), {&state}, [] { return std::make_unique<CheckpointReader>(); });
  CHECK(state["a"].tensor().equal(torch::arange(2'500'000)));
  CHECK(state["b"].tensor().equal(torch::arange(7)));
}

}  // namespace

TEST_CASE("a copy to a store that takes parts writes each part once") {
  const Source source;
  forget_memory("parts");
  const std::shared_ptr<Store> to = std::make_shared<AroundStore>(open_store("mem://parts/step"), nullptr, [](StoreTraits& traits) {
    traits.part_bytes_min = 5u << 20;
    traits.parts_max = 2;
  });
  copy_checkpoint(*source.store, *to, local_save_id(2), 4);
  check_copy_at(*to, *source.store, local_save_id(2));
  forget_memory("parts");
}

TEST_CASE("a copy that a fault or a crash stops leaves no checkpoint, and the next copy removes its remains") {
  const Source source;
  for (const bool crashes : {false, true}) {
    bool has_ended = false;
    std::size_t starts_over = 0;
    for (std::size_t fault = 0; !has_ended; ++fault) {
      TemporaryDirectory directory;
      const auto place = open_store(directory.path() + "/step");
      const auto control = std::make_shared<StoreControl>();
      // After a crash nothing works, so the copy cannot clean up.
      control->before = [&, control = control.get()](const std::string& operation) {
        if (crashes && control->operations() > fault) throw StoreFault(operation);
      };
      control->fail_at(fault);
      try {
        const std::shared_ptr<Store> to = std::make_shared<WrappedStore>(place, control);
        copy_checkpoint(*source.store, *to, local_save_id(2), 1);
        has_ended = true;
      } catch (const StoreFault&) {
      }
      INFO("operation ", fault, ", crashes ", crashes);
      if (place->exists(kCommitRecordName)) {  // the fault came after the publication
        check_copy_at(*place, *source.store, local_save_id(2));
        continue;
      }
      REQUIRE_FALSE(has_ended);
      if (!crashes && fault != 0) CHECK(place->list().empty());
      starts_over += copy_checkpoint(*source.store, *place, local_save_id(4), 1).starts_over;
      check_copy_at(*place, *source.store, local_save_id(4));
    }
    CHECK((starts_over > 0) == crashes);
  }
}

TEST_CASE("a copy of a damaged checkpoint fails with the place of the damage, and leaves nothing") {
  const Source source;
  const ObjectName file = read_metadata(*source.store).files.at(0).name;
  Bytes bytes = get_object(*source.store, file);
  bytes[9'000'000] = static_cast<char>(bytes[9'000'000] ^ 1);
  replace_object(*source.store, file, bytes);
  TemporaryDirectory directory;
  const auto to = open_store(directory.path() + "/step");
  CHECK(thrown_by([&] { copy_checkpoint(*source.store, *to, local_save_id(2), 2); }) ==
        Saying{ErrorCode::kCorrupt, "damaged at offset " + std::to_string(9'000'000 / kChecksumBlockBytes * kChecksumBlockBytes)});
  CHECK_FALSE(to->is_taken(kCommitRecordName));
  CHECK(to->list().empty());
  CHECK(to->open_attempts().empty());
}

TEST_CASE("a copy that does not read back as it was written is not published") {
  const Source source;
  TemporaryDirectory directory;
  const std::shared_ptr<Store> to = std::make_shared<AroundStore>(
      open_store(directory.path() + "/step"),
      [&](Store&, const DecoratedOperation& operation, const std::function<void()>& act) {
        if (std::string(operation.name) == "read" && operation.object.substr(0, 2) == "__") {
          std::fstream file(directory.path() + "/step/" + std::string(operation.object),
                            std::ios::in | std::ios::out | std::ios::binary);
          file.seekp(1000);
          file.put('?');
        }
        act();
      },
      nullptr);
  CHECK(thrown_by([&] { copy_checkpoint(*source.store, *to, local_save_id(2), 2); }) ==
        Saying{ErrorCode::kCorrupt, "does not read back"});
  CHECK(to->list().empty());
  CHECK_FALSE(to->is_taken(kCommitRecordName));
}
