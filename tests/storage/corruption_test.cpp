// Corrupted checkpoints. A load of corrupted bytes throws an error that names the object, or
// returns the saved values.
#include <cairn/tests/support/torch.hpp>

#include <cairn/formats/torch_metadata.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/stores/store_decorator.hpp>
#include <cairn/tests/storage/damage.hpp>
#include <cairn/tests/support/stride.hpp>

using namespace cairn;
using namespace cairn::testing;

namespace {

// A checkpoint that Cairn wrote, of one or more ranks that each hold rows of "w".
class Written {
 public:
  explicit Written(int ranks, std::string memory = "written", double first = 100) : memory_(std::move(memory)) {
    forget_memory(memory_);
    std::vector<StateDict> states(static_cast<std::size_t>(ranks));
    std::vector<const StateDict*> pointers;
    ChunkShardingSpec spec;
    for (int rank = 0; rank < ranks; ++rank) spec.placements.push_back(rank);
    for (int rank = 0; rank < ranks; ++rank) {
      StateDict& state = states[static_cast<std::size_t>(rank)];
      state["w"] = ShardedTensor::distribute(torch::arange(first, first + 2 * ranks), spec, rank);
      state["name"] = "x" + std::to_string(first);
      pointers.push_back(&state);
    }
    LocalSave save{url(), local_save_id(1)};
    save_locally(save, pointers, [] { return std::make_unique<CheckpointWriter>(); });
  }
  ~Written() { forget_memory(memory_); }
  std::string url() const { return "mem://" + memory_ + "/run/step"; }

 private:
  std::string memory_;
};

// A store of which read number `damaged`, counted from 0, returns one byte that is not stored.
class DamagingStore : public StoreDecorator {
 public:
  DamagingStore(std::shared_ptr<Store> inner, std::size_t damaged, std::size_t& reads)
      : StoreDecorator(std::move(inner)), damaged_(damaged), reads_(reads) {}
  void read(const ObjectName& name, const std::vector<ReadRange>& ranges) override {
    StoreDecorator::read(name, ranges);
    if (reads_++ == damaged_ && !ranges.empty()) ranges.front().destination.data()[ranges.front().destination.size() / 2] ^= 1;
  }
  std::optional<ObjectEnd> read_end(const ObjectName& name, std::size_t bytes_max) override {
    auto end = StoreDecorator::read_end(name, bytes_max);
    if (end && reads_++ == damaged_) end->content[end->content.size() / 2] ^= 1;
    return end;
  }

 private:
  void around(const DecoratedOperation&, const std::function<void()>& act) override { act(); }
  const std::size_t damaged_;
  std::size_t& reads_;
};

std::string golden(const std::string& name) { return std::string(CAIRN_TEST_DATA) + "/pytorch-2.11/" + name; }

// Returns every way of damaging a whole region. `donor` holds the bytes of another file.
std::vector<std::pair<std::string, Bytes>> spoilt(const Bytes& whole, const FormatRegion& region, const Bytes& donor) {
  const std::size_t length = region.end - region.begin;
  const Bytes before = whole.substr(0, region.begin);
  const Bytes part = whole.substr(region.begin, length);
  const Bytes after = whole.substr(region.end);
  Bytes reversed(part.rbegin(), part.rend());
  std::vector<std::pair<std::string, Bytes>> ways{
      {"cut off from its begin", before},
      {"cut off from its end", before + part},
      {"cut off in its middle", before + part.substr(0, length / 2)},
      {"cut off before its last byte", before + part.substr(0, length - 1)},
      {"taken out", before + after},
      {"twice", before + part + part + after},
      {"one byte more before it", before + Bytes(1, '\0') + part + after},
      {"one byte more after it", before + part + Bytes(1, '\0') + after},
      {"one byte less", before + part.substr(1) + after},
      {"zeroed", before + Bytes(length, '\0') + after},
      {"all ones", before + Bytes(length, '\xff') + after},
      {"its second half zeroed", before + part.substr(0, length / 2) + Bytes(length - length / 2, '\0') + after},
      {"reversed", before + reversed + after},
  };
  if (donor.size() >= region.end) ways.emplace_back("that of another file", before + donor.substr(region.begin, length) + after);
  return ways;
}

}  // namespace

TEST_CASE("corruption: a load finds every flipped bit and names the file") {
  const Written written(1);
  DamagedCheckpoint checkpoint("damaged", written.url());
  for (const auto& [name, whole] : checkpoint.objects())
    for (std::size_t bit = 0; bit < 8 * whole.size(); bit += kStride) {
      const auto outcome = checkpoint.outcome_of(name, flipped(whole, bit));
      const auto& shown = name;
      INFO(shown, " byte ", bit / 8, " bit ", bit % 8, ": ", outcome.thrown.what);
      REQUIRE(is_refusal(outcome.thrown));
      REQUIRE(outcome.thrown.says(name));
    }
  CHECK(checkpoint.outcome().intact);
}

TEST_CASE("corruption: no flipped bit of what PyTorch wrote makes a load give other values") {
  DamagedCheckpoint checkpoint("damaged", golden("single"), 1);
  std::size_t tried = 0;
  std::size_t refused = 0;
  for (const auto& [name, whole] : checkpoint.objects())
    for (const FormatRegion& region : checkpoint.regions(name))
      // Flips one or two bits of every byte. The step 5 has no divisor in common with 8, so the bit
      // positions change.
      for (std::size_t bit = 8 * region.begin; bit < 8 * region.end; bit += 5 * kStride) {
        const auto outcome = checkpoint.outcome_of(name, flipped(whole, bit));
        const auto& shown = name;
        INFO(shown, ", ", region.name, ", byte ", bit / 8, " bit ", bit % 8, ": ", outcome.thrown.what);
        CHECK(outcome.is_sound(name));
        if (region.is_payload) CHECK(is_refusal(outcome.thrown));
        ++tried;
        refused += outcome.thrown.is_error;
      }
  MESSAGE(refused, " of ", tried, " flips are refused");
}

TEST_CASE("corruption: damaged regions of any kind are an error or change nothing") {
  const Written written(2);
  const Written other(2, "another", 200);  // its files have the same names and lengths
  std::size_t chosen = 0;
  std::size_t tried = 0;
  std::size_t refused = 0;
  for (const std::string& source : {written.url(), golden("single"), golden("nested")}) {
    DamagedCheckpoint checkpoint("damaged", source, 2);
    const bool ours = checkpoint.metadata().commit.has_value();
    for (const auto& [name, whole] : checkpoint.objects()) {
      const Bytes donor = ours ? get_object(*open_store(other.url()), name) : Bytes(whole.rbegin(), whole.rend());
      for (const FormatRegion& region : checkpoint.regions(name))
        for (const auto& [way, bytes] : spoilt(whole, region, donor)) {
          if (bytes == whole || chosen++ % kStride != 0) continue;
          checkpoint.spoil(name, bytes);
          const auto outcome = checkpoint.outcome();
          const bool is_found = !checkpoint.faults().empty();
          const auto& shown = name;
          const auto& also_shown = way;
          INFO(source, " ", shown, ", ", region.name, " ", also_shown, ": ", outcome.thrown.what);
          CHECK(outcome.is_sound(name));
          if (ours) CHECK(outcome.thrown.is_error);
          // verify finds all damage that stops a load. PyTorch's metadata may lack an entry that
          // the caller wants, which is not a fault of the checkpoint.
          if (ours || (outcome.thrown.is_error && name != kCommitRecordName)) CHECK(is_found);
          ++tried;
          refused += outcome.thrown.is_error;
        }
      checkpoint.restore(name);
    }
  }
  MESSAGE(refused, " of ", tried, " are refused");
}

TEST_CASE("corruption: files that took each other's place are not taken for one another") {
  const Written written(2);
  const Written other(2, "another", 200);
  DamagedCheckpoint checkpoint("damaged", written.url());
  const std::vector<ObjectName> files = checkpoint.data_files();
  REQUIRE(files.size() == 2);
  REQUIRE(checkpoint.objects().at(files[0]).size() != checkpoint.objects().at(files[1]).size());
  // The other checkpoint's files have the same names and lengths, and differ only in content.
  for (const auto& [name, whole] : checkpoint.objects()) {
    const Bytes theirs = get_object(*open_store(other.url()), name);
    REQUIRE(theirs.size() == whole.size());
    checkpoint.spoil(name, theirs);
    const auto outcome = checkpoint.outcome();
    const auto& shown = name;
    INFO(shown, ": ", outcome.thrown.what);
    CHECK(is_refusal(outcome.thrown));
    CHECK_FALSE(checkpoint.faults().empty());
    checkpoint.restore(name);
  }
}

TEST_CASE("corruption: a rank's file in the place of another's of the same length is found") {
  // Each rank has the same number of rows and no bytes object, so the files differ only in content.
  forget_memory("twins");
  std::vector<StateDict> states(2);
  ChunkShardingSpec spec;
  spec.placements = {0, 1};
  for (int rank = 0; rank < 2; ++rank)
    states[static_cast<std::size_t>(rank)]["w"] = ShardedTensor::distribute(torch::arange(8.0), spec, rank);
  LocalSave save{"mem://twins/run/step", local_save_id(1)};
  save_locally(save, {&states[0], &states[1]}, [] { return std::make_unique<CheckpointWriter>(); });
  DamagedCheckpoint checkpoint("damaged", save.checkpoint_id);
  forget_memory("twins");
  const ObjectName first = data_file_name(0, 0, save.save_id);
  const ObjectName second = data_file_name(1, 0, save.save_id);
  const Bytes first_bytes = checkpoint.objects().at(first);
  const Bytes second_bytes = checkpoint.objects().at(second);
  for (const bool both : {false, true}) {
    checkpoint.spoil(first, second_bytes);
    if (both) checkpoint.spoil(second, first_bytes);
    const auto outcome = checkpoint.outcome();
    INFO(outcome.thrown.what);
    CHECK(is_refusal(outcome.thrown));
    CHECK((outcome.thrown.says(first) || outcome.thrown.says(second)));
    CHECK_FALSE(checkpoint.faults().empty());
  }
}

TEST_CASE("corruption: files named as Cairn's need checksums also where the record is PyTorch's") {
  const Written written(1);
  DamagedCheckpoint checkpoint("damaged", written.url());
  const Metadata& metadata = checkpoint.metadata();
  checkpoint.spoil(kCommitRecordName, pickle_torch_metadata(metadata, ""));
  const auto whole = checkpoint.outcome();
  CHECK_MESSAGE((!whole.thrown.is_error && whole.intact), whole.thrown.what);
  const StorageInfo item = std::get<TensorStorageMetadata>(*metadata.find("w")).storage.at(0);
  const ObjectName file = metadata.files.at(item.file).name;
  Bytes bytes = checkpoint.objects().at(file);
  bytes.replace(item.offset, item.length, without_checksums(bytes.substr(item.offset, item.length)));
  const auto outcome = checkpoint.outcome_of(file, bytes);
  CHECK(outcome.thrown == Saying{ErrorCode::kCorrupt, "has no checksums"});
}

TEST_CASE("corruption: exchanged files of PyTorch's are refused if their shapes differ") {
  const std::vector<std::string> sources{golden("nested"), golden("hsdp_2x2"), golden("single")};
  std::size_t refused = 0;
  for (const std::string& source : sources) {
    DamagedCheckpoint checkpoint("damaged", source);
    for (const std::string& donor : sources) {
      const auto from = open_store(donor);
      for (const auto& [name, whole] : checkpoint.objects())
        for (const std::string& taken : names_of(from->list())) {
          if (taken.find(".distcp") == std::string::npos && taken != kCommitRecordName) continue;
          if (source == donor && taken == name) continue;
          const auto outcome = checkpoint.outcome_of(name, get_object(*from, taken));
          const auto& shown = name;
          INFO(source, " ", shown, " replaced by ", donor, " ", taken, ": ", outcome.thrown.what);
          CHECK(outcome.thrown.is_error);
          CHECK(outcome.is_sound(name));
          ++refused;
        }
    }
  }
  CHECK(refused > 100);
}

TEST_CASE("corruption: flipped bits in PyTorch's metadata do not mix up the ranks' items") {
  // Loads few items, so that no other item reveals a swap of two ranks' items at the same offset.
  for (const std::string folder : {"nested", "fsdp_even"}) {
    DamagedCheckpoint checkpoint("damaged", golden(folder), 2);
    const ObjectName name = kCommitRecordName;
    const Bytes& whole = checkpoint.objects().at(name);
    std::vector<std::size_t> bits;
    // Flips every bit of the file names and the bytes around them, and a sample of the other bits.
    for (std::size_t at = whole.find("__"); at != Bytes::npos; at = whole.find("__", at + 1))
      for (std::size_t bit = 8 * (at - 1); bit < 8 * (at + 13); bit += kStride) bits.push_back(bit);
    for (std::size_t bit = 3; bit < 8 * whole.size(); bit += kStride * 4 * (whole.size() / 32 + 1)) bits.push_back(bit);
    std::size_t refused = 0;
    for (const std::size_t bit : bits) {
      const auto outcome = checkpoint.outcome_of(name, flipped(whole, bit));
      INFO(folder, " byte ", bit / 8, " bit ", bit % 8, ": ", outcome.thrown.what);
      CHECK(outcome.is_sound(name));
      refused += outcome.thrown.is_error;
    }
    MESSAGE(folder, ": ", refused, " of ", bits.size(), " flips are refused");
  }
}

TEST_CASE("bytes that were damaged once on their way are read again") {
  const Written written(1);
  static std::size_t damaged = 0, reads = 0;
  register_store("damaging",
                 [&](const std::string&) { return std::make_shared<DamagingStore>(open_store(written.url()), damaged, reads); });
  for (damaged = 0; damaged == 0 || reads > damaged; ++damaged) {
    CAPTURE(damaged);
    reads = 0;
    StateDict state{{"w", torch::zeros({2})}, {"name", std::string()}};
    load_locally("damaging://here", {&state}, [] { return std::make_unique<CheckpointReader>(); });
    CHECK(torch::equal(state.at("w").tensor(), torch::arange(100, 102).to(torch::kFloat32)));
    CHECK(state.at("name").ivalue().toStringRef() == "x100.000000");
  }
  CHECK(damaged > 3);
}
