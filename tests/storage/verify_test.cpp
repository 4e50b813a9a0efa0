// verify_checkpoint finds one flipped bit anywhere, names every fault, and reports none for a sound
// checkpoint.
#include <filesystem>
#include <map>
#include <set>

#include <cairn/tests/support/torch.hpp>

#include <cairn/base/digest.hpp>
#include <cairn/base/error.hpp>
#include <cairn/formats/torch_metadata.hpp>
#include <cairn/formats/zip_format.hpp>
#include <cairn/state/checkpoint_writer.hpp>
#include <cairn/storage/format/commit_record.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/format/trailer.hpp>
#include <cairn/storage/stores/memory_store.hpp>
#include <cairn/tests/storage/damage.hpp>
#include <cairn/tests/storage/store_tools.hpp>
#include <cairn/tests/support/local_protocol.hpp>
#include <cairn/tests/support/stride.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tests/support/wrapped_store.hpp>

using namespace cairn;
using namespace cairn::testing;

namespace {

// A checkpoint of one rank in memory.
struct Saved {
  explicit Saved(const StateDict& state, bool single_file = true) {
    forget_memory("verify");
    LocalSave save{"mem://verify/run/step", local_save_id(1)};
    CheckpointWriterOptions options;
    options.single_file_per_rank = single_file;
    save_locally(save, {&state}, [&] { return std::make_unique<CheckpointWriter>(options); });
    store = open_store(save.checkpoint_id);
  }
  ~Saved() { forget_memory("verify"); }
  std::shared_ptr<Store> store;
  ObjectName file = data_file_name(0, 0, local_save_id(1));
};

// A copy of a checkpoint that PyTorch wrote.
std::shared_ptr<Store> copied_golden(const TemporaryDirectory& directory) {
  for (const auto& entry : std::filesystem::directory_iterator(std::string(CAIRN_TEST_DATA) + "/pytorch-2.11/nested"))
    std::filesystem::copy(entry.path(), directory.path() + "/" + entry.path().filename().string());
  return open_store(directory.path());
}

StateDict small_state() {
  StateDict state{{"w", torch::arange(5)}, {"name", "x"}};
  return state;
}

StateDict large_state() {
  StateDict state;
  torch::manual_seed(1);
  state["a"] = torch::randn({300, 1000});
  state["b"] = torch::randn({7});
  state["c"] = torch::randn({300, 1000});
  state["d"] = Blob{Bytes(300'000, 'd')};
  return state;
}

}  // namespace

TEST_CASE("verify: every flipped bit of a small checkpoint is found, and placed in its file") {
  const Saved saved(small_state());
  REQUIRE(verify_checkpoint(*saved.store).empty());
  for (const ObjectInfo& object : saved.store->list()) {
    const Bytes whole = get_object(*saved.store, object.name);
    for (std::size_t bit = 0; bit < 8 * whole.size(); bit += kStride) {
      Bytes flipped = whole;
      flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
      replace_object(*saved.store, object.name, flipped);
      const auto faults = verify_checkpoint(*saved.store, 1);
      INFO(object.name, " byte ", bit / 8, " bit ", bit % 8);
      REQUIRE_FALSE(faults.empty());
      REQUIRE(faults.front().object == object.name);
      REQUIRE(faults.front().offset <= bit / 8);
      REQUIRE_FALSE(faults.front().what.empty());
    }
    replace_object(*saved.store, object.name, whole);
  }
  CHECK(verify_checkpoint(*saved.store).empty());
}

TEST_CASE("verify: all faults are named, each with file, offset and tensor") {
  const Saved saved(large_state());
  const Metadata metadata = read_metadata(*saved.store);
  const auto a = std::get<TensorStorageMetadata>(*metadata.find("a")).storage.at(0);
  const auto c = std::get<TensorStorageMetadata>(*metadata.find("c")).storage.at(0);
  Bytes bytes = get_object(*saved.store, saved.file);
  for (const std::uint64_t at : {a.payload_offset + 400'000, c.payload_offset + 700'000})
    bytes[at] = static_cast<char>(bytes[at] ^ 4);
  replace_object(*saved.store, saved.file, bytes);
  const auto faults = verify_checkpoint(*saved.store, 3);
  REQUIRE(faults.size() == 2);
  CHECK(faults[0].fqn == "a");
  CHECK(faults[0].offset == (a.payload_offset + 400'000) / kChecksumBlockBytes * kChecksumBlockBytes);
  CHECK(faults[0].object == saved.file);
  CHECK(faults[1].fqn == "c");
}

TEST_CASE("verify: damage in the last block of the content is placed there") {
  const Saved saved(large_state());
  Bytes bytes = get_object(*saved.store, saved.file);
  const std::size_t last = bytes.size() - *read_metadata(*saved.store).files.at(0).trailer_length - 1;
  bytes[last] = static_cast<char>(bytes[last] ^ 4);
  replace_object(*saved.store, saved.file, bytes);
  const auto faults = verify_checkpoint(*saved.store);
  REQUIRE(faults.size() == 1);
  CHECK(faults[0].offset == last / kChecksumBlockBytes * kChecksumBlockBytes);
  CHECK_FALSE(faults[0].fqn.empty());
}

TEST_CASE("verify: the items of the record fill each file, one after another") {
  const Saved saved(large_state());
  const Metadata sound = read_metadata(*saved.store);
  for (const auto& [first, last] : {std::pair(1, 0), std::pair(0, 1)}) {
    Metadata metadata = sound;
    for (auto& [fqn, entry] : metadata.state_dict_metadata) {
      if (fqn != "b") continue;
      StorageInfo& b = std::get<TensorStorageMetadata>(entry).storage.at(0);
      b.offset += static_cast<std::uint64_t>(first);
      b.length -= static_cast<std::uint64_t>(first + last);
    }
    replace_object(*saved.store, kCommitRecordName, encode_commit_record(metadata));
    const auto faults = verify_checkpoint(*saved.store, 1);
    REQUIRE(faults.size() == 1);
    CHECK(faults[0].what == "the commit record does not place it after the item before it");
  }
}

TEST_CASE("verify: a wholly damaged file has one fault for each item, not for each block") {
  const Saved saved(large_state());
  Bytes bytes = get_object(*saved.store, saved.file);
  const std::uint64_t content_bytes = bytes.size() - *read_metadata(*saved.store).files.at(0).trailer_length;
  REQUIRE(content_bytes > 16 * kChecksumBlockBytes);
  for (std::uint64_t at = 0; at < content_bytes; ++at) bytes[at] = static_cast<char>(~bytes[at]);
  replace_object(*saved.store, saved.file, bytes);
  const auto faults = verify_checkpoint(*saved.store, 2);
  CHECK(faults.size() <= 5);
  std::set<std::string> names;
  for (const VerifyFault& fault : faults) names.insert(fault.fqn);
  CHECK(names.count("a") == 1);
  CHECK(names.count("c") == 1);
  CHECK(names.count("d") == 1);
}

TEST_CASE("verify: missing, short and exchanged files") {
  const Saved saved(large_state(), false);
  const auto files = read_metadata(*saved.store).files;
  REQUIRE(files.size() == 4);
  const Bytes first = get_object(*saved.store, files[0].name);
  const Bytes third = get_object(*saved.store, files[2].name);
  REQUIRE(first.size() == third.size());
  saved.store->remove(files[1].name);
  replace_object(*saved.store, files[0].name, third);
  replace_object(*saved.store, files[2].name, first.substr(0, first.size() - 10));
  const auto faults = verify_checkpoint(*saved.store);
  std::map<std::string, int> by_file;
  for (const VerifyFault& fault : faults) ++by_file[fault.object];
  CHECK(by_file.size() == 3);
  CHECK(by_file.count(files[3].name) == 0);
}

TEST_CASE("verify: an unreadable file is one fault, and the other files are still checked") {
  const TemporaryDirectory directory;
  LocalSave save{directory.path() + "/step", local_save_id(1)};
  CheckpointWriterOptions options;
  options.single_file_per_rank = false;
  const StateDict state = large_state();
  save_locally(save, {&state}, [&] { return std::make_unique<CheckpointWriter>(options); });
  const auto path_of = [&](int index) { return save.checkpoint_id + "/" + data_file_name(0, index, save.save_id); };
  std::filesystem::remove(path_of(1));
  std::filesystem::create_symlink(path_of(1), path_of(1));
  std::filesystem::remove(path_of(2));
  std::filesystem::create_directory(path_of(2));
  std::filesystem::resize_file(path_of(3), 10);
  std::map<std::string, std::string> by_file;
  for (const VerifyFault& fault : verify_checkpoint(*open_store(save.checkpoint_id))) by_file[fault.object] = fault.what;
  REQUIRE(by_file.size() == 3);
  CHECK(by_file[data_file_name(0, 1, save.save_id)].find("symbolic links") != std::string::npos);
  CHECK(by_file[data_file_name(0, 2, save.save_id)].find("no file") != std::string::npos);
  CHECK(by_file[data_file_name(0, 3, save.save_id)].find("10 bytes") != std::string::npos);
}

TEST_CASE("verify: whichever read fails, the checkpoint is not called fine") {
  const Saved saved(large_state());
  int failed = 0;
  for (int failing = 0; failing <= failed; ++failing) {
    const auto control = std::make_shared<StoreControl>();
    int reads = 0;
    control->before = [&](const std::string& operation) {
      if (operation.rfind("read ", 0) == 0 && reads++ == failing) {
        ++failed;
        throw Error(ErrorCode::kUnavailable, "planned: the disk does not answer");
      }
    };
    WrappedStore store(saved.store, control);
    try {
      const auto faults = verify_checkpoint(store, 1);
      CHECK(faults.empty() == (failing == failed));
      if (!faults.empty()) CHECK(faults.front().what.find("planned") != std::string::npos);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kUnavailable);  // the commit record is unreadable, so nothing can be checked
    }
  }
  CHECK(failed >= 3);  // the record, a trailer, and the items that it describes
}

TEST_CASE("verify: no checkpoint is an error, not a fault") {
  forget_memory("verify");
  CHECK_THROWS_AS(verify_checkpoint(*open_store("mem://verify/nothing")), Error);
}

TEST_CASE("verify: progress goes from nothing to everything, items that cannot be checked included") {
  const Saved saved(large_state());
  const TemporaryDirectory directory;
  const auto cut_short = copied_golden(directory);
  const ObjectName file = read_metadata(*cut_short).files.at(0).name;
  replace_object(*cut_short, file, get_object(*cut_short, file).substr(0, 100));
  for (const auto& store : {saved.store, cut_short}) {
    std::uint64_t last = 0, total = 0;
    bool ascends = true;
    const auto faults = verify_checkpoint(*store, 2, [&](std::uint64_t done, std::uint64_t all) {
      ascends = ascends && done >= last && done <= all;
      last = done;
      total = all;
    });
    CHECK(faults.empty() == (store == saved.store));
    CHECK(ascends);
    CHECK(last == total);
    CHECK((store == saved.store ? total == store->size_bytes(saved.file) : total > 100));
  }
}

TEST_CASE("verify: an item that cannot be checked is no fault, and hides none") {
  const TemporaryDirectory directory;
  const auto store = copied_golden(directory);
  Metadata metadata = read_metadata(*store);
  std::vector<TensorStorageMetadata*> tensors;
  std::vector<std::string> names;
  for (auto& [fqn, entry] : metadata.state_dict_metadata)
    if (auto* tensor = std::get_if<TensorStorageMetadata>(&entry); tensor && !tensor->storage.empty()) {
      tensors.push_back(tensor);
      names.push_back(fqn);
    }
  REQUIRE(tensors.size() > 2);
  tensors[0]->storage.front().transforms = {"zstd"};  // as PyTorch records it
  replace_object(*store, kCommitRecordName, pickle_torch_metadata(metadata, metadata.save_id));
  auto found = verify_checkpoint(*store);
  REQUIRE(found.size() == 1);
  CHECK(found[0].unchecked);
  CHECK(found[0].fqn == names[0]);
  CHECK(found[0].what.find("zstd") != std::string::npos);

  const StorageInfo& damaged = tensors[1]->storage.front();
  const ObjectName file = metadata.files.at(damaged.file).name;
  Bytes bytes = get_object(*store, file);
  bytes[damaged.offset] = static_cast<char>(bytes[damaged.offset] ^ 1);
  replace_object(*store, file, bytes);
  found = verify_checkpoint(*store);
  REQUIRE(found.size() == 2);
  CHECK(found[0].fqn == names[1]);
  CHECK_FALSE(found[0].unchecked);
  CHECK(found[1].unchecked);
}

TEST_CASE("verify: a newer format cannot be checked, and a newer trailer hides no damage") {
  const Saved saved(small_state());
  const Bytes record = get_object(*saved.store, kCommitRecordName);
  Bytes newer = record.substr(0, record.size() - 4);
  newer[newer.size() - 12] = 3;  // the version in the footer
  zip::put_u32(newer, crc32(0, newer));
  replace_object(*saved.store, kCommitRecordName, newer);
  auto found = verify_checkpoint(*saved.store);
  REQUIRE(found.size() == 1);
  CHECK(found[0].unchecked);
  CHECK(found[0].object == kCommitRecordName);
  replace_object(*saved.store, kCommitRecordName, record);

  Bytes file = get_object(*saved.store, saved.file);
  const std::size_t begin = file.size() - kTrailerFooterBytes;
  Bytes footer = file.substr(begin, kTrailerFooterBytes - 4);
  footer[8] = 2;  // the version, behind the magic number
  zip::put_u32(footer, crc32(0, footer));
  file.replace(begin, footer.size(), footer);
  replace_object(*saved.store, saved.file, file);
  found = verify_checkpoint(*saved.store);
  REQUIRE(found.size() == 1);
  CHECK(found[0].unchecked);
  file[100] = static_cast<char>(file[100] ^ 1);
  replace_object(*saved.store, saved.file, file);
  found = verify_checkpoint(*saved.store);
  REQUIRE(found.size() == 2);
  CHECK_FALSE(found[0].unchecked);  // the record has the checksum of the whole file
  CHECK(found[1].unchecked);
}

TEST_CASE("verify: PyTorch's archives may lack checksums, Cairn's may not") {
  const TemporaryDirectory directory;
  const auto theirs = copied_golden(directory);
  const Saved saved(small_state());
  for (const auto& store : {theirs, saved.store}) {
    const Metadata metadata = read_metadata(*store);
    for (const auto& [fqn, entry] : metadata.state_dict_metadata) {
      const auto* tensor = std::get_if<TensorStorageMetadata>(&entry);
      const StorageInfo& item = tensor ? tensor->storage.at(0) : *std::get<BytesStorageMetadata>(entry).storage;
      if (tensor && tensor->chunks.at(0).empty()) continue;
      const auto& shown = fqn;
      CAPTURE(shown);
      const ObjectName file = metadata.files.at(item.file).name;
      const Bytes whole = get_object(*store, file);
      for (const char* const only : {"", "data.pkl"}) {
        Bytes changed = whole;
        changed.replace(item.offset, item.length, without_checksums(whole.substr(item.offset, item.length), only));
        replace_object(*store, file, changed);
        const auto found = verify_checkpoint(*store, 1);
        REQUIRE_FALSE(found.empty());
        // A single zero among other checksums is damage everywhere.
        CHECK(found[0].unchecked == (store == theirs && *only == '\0'));
        if (store == theirs) CHECK(found[0].fqn == fqn);  // Cairn's blocks hold several items
      }
      replace_object(*store, file, whole);
    }
  }
  // Without Cairn's record, the names of the files still tell that they are Cairn's.
  const Metadata metadata = read_metadata(*saved.store);
  const StorageInfo item = std::get<TensorStorageMetadata>(*metadata.find("w")).storage.at(0);
  Bytes bytes = get_object(*saved.store, saved.file);
  bytes.replace(item.offset, item.length, without_checksums(bytes.substr(item.offset, item.length)));
  replace_object(*saved.store, saved.file, bytes);
  replace_object(*saved.store, kCommitRecordName, pickle_torch_metadata(metadata, metadata.save_id));
  CHECK_FALSE(verify_checkpoint(*saved.store).at(0).unchecked);
}
