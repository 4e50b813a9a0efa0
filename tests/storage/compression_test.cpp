// Compressed items: frames with a seek table, as Cairn writes them, and streams without one, as
// PyTorch does. Hostile ones are refused in bounded memory.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <cairn/tests/support/torch.hpp>

#include <cairn/state/checkpoint_writer.hpp>
#include <cairn/state/ready_plan.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/storage/engine/staging_ring.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/format/trailer.hpp>
#include <cairn/storage/format/zstd_item.hpp>
#include <cairn/storage/stores/memory_store.hpp>
#include <cairn/storage/stream_transform.hpp>
#include <cairn/storage/verify_checkpoint.hpp>
#include <cairn/tests/storage/store_tools.hpp>
#include <cairn/tests/support/emptied_memory.hpp>
#include <cairn/tests/support/local_protocol.hpp>
#include <cairn/tests/support/read_part.hpp>
#include <cairn/tests/support/sample_state.hpp>
#include <cairn/tests/support/thrown.hpp>
#include <cairn/tests/support/wrapped_store.hpp>

using namespace cairn;
using namespace cairn::testing;

namespace {

constexpr std::size_t kFrame = kZstdFrameBytes;
constexpr std::uint64_t kBytesMax = 32u << 20;
const std::string kUrl = "mem://compressed/x";

// Compresses neither well nor not at all.
Bytes sample(std::size_t bytes) {
  Bytes text(bytes, '\0');
  std::uint32_t state = 1;
  for (char& c : text) {
    state = state * 1664525 + 1013904223;
    c = static_cast<char>("abcdefgh"[state >> 29]);
  }
  return text;
}

Bytes frame_of(ByteSpan bytes) {
  Bytes frame(ZstdCompressor::frame_bytes_max(bytes.size()), '\0');
  frame.resize(ZstdCompressor(3).compress(bytes, {frame.data(), frame.size()}));
  return frame;
}

// Returns an item of frames of `frame_bytes`, with or without their seek table.
Bytes item_of(const Bytes& bytes, std::size_t frame_bytes, bool seek_table) {
  Bytes item;
  std::vector<ZstdFrame> frames;
  for (std::size_t at = 0; at < bytes.size() || at == 0; at += frame_bytes) {
    const std::size_t length = std::min(frame_bytes, bytes.size() - at);
    const Bytes frame = frame_of(ByteSpan(bytes).subspan(at, length));
    frames.push_back({static_cast<std::uint32_t>(frame.size()), static_cast<std::uint32_t>(length)});
    item += frame;
  }
  return seek_table ? item + encode_seek_table(frames) : item;
}

struct Opened {
  explicit Opened(Bytes stored, std::uint64_t bytes_max = kBytesMax)
      : bytes(std::move(stored)),
        item(zstd_item(
            bytes.size(),
            [this](std::uint64_t offset, MutableByteSpan to) {
              read_bytes += to.size();
              std::memcpy(to.data(), bytes.data() + offset, to.size());
            },
            bytes_max, "the item")) {}
  Bytes read(std::uint64_t offset, std::size_t length) {
    Bytes found(length, '\0');
    item.read_at(offset, {found.data(), length});
    return found;
  }
  Bytes bytes;
  std::size_t read_bytes = 0;
  PlainItem item;
};

Thrown opening(const Bytes& stored, std::uint64_t bytes_max = kBytesMax) {
  return thrown_by([&] {
    Opened opened(stored, bytes_max);
    opened.read(0, static_cast<std::size_t>(opened.item.size_bytes));
  });
}

void save(const std::vector<const StateDict*>& states, CheckpointWriterOptions options = {}, std::uint64_t counter = 1) {
  if (options.zstd_level == 0 && options.transforms.empty()) options.zstd_level = 3;
  LocalSave how{kUrl, local_save_id(counter)};
  save_locally(how, states, [&] { return std::make_unique<CheckpointWriter>(options); });
}

void load(const std::vector<StateDict*>& states, CheckpointReaderOptions options = {}, const std::string& url = kUrl) {
  load_locally(url, states, [&] { return std::make_unique<CheckpointReader>(options); });
}

// Loads the tensor `key` over `world` ranks, cut along `dim`, and `others` on each. Checks the
// parts of the tensor, and returns what each rank has then.
std::vector<StateDict> loaded_in_parts(int world, std::int64_t dim, const std::string& key, const torch::Tensor& whole,
                                       const std::function<StateDict()>& others, const CheckpointReaderOptions& options = {},
                                       const std::string& url = kUrl) {
  std::vector<StateDict> targets;
  for (int rank = 0; rank < world; ++rank) {
    targets.push_back(others());
    targets.back()[key] = ShardedTensor::zeros(over_all_ranks(world, dim), extents_of(whole.sizes()), rank, torch::TensorOptions());
  }
  std::vector<StateDict*> pointers;
  for (StateDict& target : targets) pointers.push_back(&target);
  load(pointers, options, url);
  for (int rank = 0; rank < world; ++rank) {
    const torch::Tensor wanted = ShardedTensor::distribute(whole, over_all_ranks(world, dim), rank).local_shards().at(0).tensor;
    CHECK(targets[static_cast<std::size_t>(rank)].at(key).sharded().local_shards().at(0).tensor.equal(wanted));
  }
  return targets;
}

StorageInfo place_of(const std::string& fqn) {
  return std::get<TensorStorageMetadata>(*read_metadata(*open_store(kUrl)).find(fqn)).storage.at(0);
}

}  // namespace

TEST_CASE("compression: items of any size are read, with a seek table or as a stream") {
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, kFrame - 1, kFrame, kFrame + 1, 3 * kFrame, 5 * kFrame + 17}) {
    const Bytes bytes = sample(size);
    for (const auto& [frame, seek_table] : {std::pair(kFrame, true), {kFrame, false}, {std::size_t{7} << 20, false}}) {
      CAPTURE(size);
      const auto& shown = seek_table;
      CAPTURE(shown);
      Opened opened(item_of(bytes, frame, seek_table));
      REQUIRE(opened.item.size_bytes == size);
      CHECK(opened.read(0, size) == bytes);
      // Backwards, so that a stream starts anew.
      for (const std::size_t at : {size * 3 / 4, size / 2, size / 3, std::size_t{0}}) {
        const std::size_t length = std::min<std::size_t>(size - at, 100'000);
        CHECK(opened.read(at, length) == bytes.substr(at, length));
      }
      CHECK(thrown_by([&] { opened.read(size, 1); }).code == ErrorCode::kCorrupt);
    }
  }
}

TEST_CASE("compression: an item that expands beyond its limit is refused in bounded memory") {
  const Bytes zeros(std::size_t{48} << 20, '\0');
  for (const auto& [frame, seek_table] : {std::pair(zeros.size(), false), {kFrame, false}, {kFrame, true}}) {
    const Bytes bomb = item_of(zeros, frame, seek_table);
    CHECK(bomb.size() < 32'000);
    const Thrown thrown = opening(bomb, std::uint64_t{1} << 20);
    CHECK(thrown == Saying{ErrorCode::kCorrupt, "expands to more than 1048576 bytes"});
  }
  // A table that declares more, or less, than its frames have.
  const Bytes frame = frame_of(sample(1000));
  for (const std::uint32_t declared : {999u, 1001u, 4u << 20}) {
    const Bytes item = frame + encode_seek_table({{static_cast<std::uint32_t>(frame.size()), declared}});
    CHECK(opening(item).code == ErrorCode::kCorrupt);
  }
  // One that hides a frame.
  const Bytes zeros_frame = frame_of(Bytes(1000, '\0'));
  CHECK(Opened(zeros_frame + encode_seek_table({{static_cast<std::uint32_t>(zeros_frame.size()), 0}})).item.size_bytes == 1000);
  CHECK(opening(frame.substr(0, frame.size() - 1)) == Saying{ErrorCode::kCorrupt, "the item is damaged"});
  // One that does not describe all frames.
  CHECK(opening(frame + frame + encode_seek_table({{static_cast<std::uint32_t>(frame.size()), 1000}})).code == ErrorCode::kCorrupt);
  // A frame of a window of 128 MiB.
  const Bytes wide("\x28\xB5\x2F\xFD\x00\x88\x01\x00\x00", 9);
  CHECK(opening(wide).code == ErrorCode::kUnsupported);
}

TEST_CASE("compression: the transform that is not known is named") {
  CHECK(why_not_undone({}).empty());
  CHECK(why_not_undone({"stream.zstd/1.2"}).empty());
  CHECK(why_not_undone({"stream.zstd/1", "stream.zstd/1"}).empty());
  for (const std::string unknown : {"stream.zstd/2", "stream.zstd/11", "stream.rot13/1", "stream.zstd"})
    for (const auto& names : {std::vector<std::string>{unknown}, {unknown, "stream.zstd/1"}, {"stream.zstd/1", unknown}})
      CHECK(why_not_undone(names).find("the transform " + unknown + ",") != std::string::npos);
}

TEST_CASE("compression: two ranks save, one to three load other cuts") {
  const EmptiedMemory memory("compressed");
  const torch::Tensor whole = counting({3001, 401});  // 4.8 MB
  std::vector<StateDict> states(2);
  for (int rank = 0; rank < 2; ++rank) {
    states[static_cast<std::size_t>(rank)]["w"] = ShardedTensor::distribute(whole, over_all_ranks(2), rank);
    states[static_cast<std::size_t>(rank)]["step"] = 7;
  }
  CheckpointWriterOptions small;
  small.bytes_in_flight_max = 2 * kChecksumBlockBytes;  // the least: a block for the file and one for a frame
  save({&states[0], &states[1]}, small);
  CHECK(verify_checkpoint(*open_store(kUrl)).empty());
  for (int world = 1; world <= 3; ++world)
    for (const std::int64_t dim : {0, 1}) {
      CheckpointReaderOptions reading;
      reading.verify_first = world == 2;
      for (const StateDict& target : loaded_in_parts(
               world, dim, "w", whole,
               [] {
                 return StateDict{{"step", 0}};
               },
               reading))
        CHECK(target.at("step").to_int() == 7);
    }
}

TEST_CASE("compression: numbers of little entropy shrink, and random ones hardly grow") {
  const EmptiedMemory memory("compressed");
  StateDict state{{"small", torch::randint(0, 4, {4 << 20}, torch::kUInt8)},
                  {"random", torch::randint(0, 256, {4 << 20}, torch::kUInt8)}};
  save({&state});
  CHECK(place_of("small").length < (4u << 20) / 3);
  CHECK(place_of("random").length < (4u << 20) + (4u << 20) / 500);
  CHECK(place_of("small").transforms == std::vector<std::string>{"stream.zstd/1"});
}

TEST_CASE("compression: a part of a tensor is loaded from a part of its file") {
  const EmptiedMemory memory("compressed");
  StateDict state{{"w", torch::randint(0, 256, {64, 256 << 10}, torch::kUInt8)}};
  save({&state});
  std::atomic<std::uint64_t> bytes_read{0};
  register_around("countedparts", "mem", [&](Store&, const DecoratedOperation& operation, const std::function<void()>& act) {
    if (std::string(operation.name) == "read" && operation.object != kCommitRecordName) bytes_read += operation.bytes;
    act();
  });
  // Rank 5 of 16 loads rows 20 to 23, a megabyte of sixteen.
  std::vector<StateDict> targets(16);
  targets[5]["w"] = ShardedTensor::zeros(over_all_ranks(16), {64, 256 << 10}, 5, torch::TensorOptions(torch::kUInt8));
  std::vector<StateDict*> pointers;
  for (StateDict& target : targets) pointers.push_back(&target);
  load(pointers, {}, "countedparts://compressed/x");
  CHECK(targets[5]["w"].sharded().local_shards().at(0).tensor.equal(state["w"].tensor().narrow(0, 20, 4)));
  CHECK(bytes_read.load() < (3u << 20));
}

namespace {

// Opens kUrl as `<scheme>://compressed/x`. Operations are counted by what `control` is then.
std::string wrapped_url(const std::string& scheme, const std::shared_ptr<StoreControl>& control) {
  static std::shared_ptr<StoreControl> now;
  now = control;
  static std::set<std::string> known;
  if (known.insert(scheme).second)
    register_store(scheme, [](const std::string&) { return std::make_shared<WrappedStore>(open_store(kUrl), now); });
  return scheme + "://compressed/x";
}

}  // namespace

TEST_CASE("compression: several threads load one large tensor") {
  const EmptiedMemory memory("compressed");
  StateDict state{{"w", torch::randint(0, 4, {48 << 20}, torch::kUInt8)}};
  CheckpointWriterOptions options;
  options.zstd_level = 1;
  save({&state}, options);
  const auto control = std::make_shared<StoreControl>();
  std::mutex mutex;
  std::condition_variable changed;
  int reads = 0;
  int inside = 0;
  bool met = false;
  control->before = [&](const std::string& operation) {
    if (operation != "read " + data_file_name(0, 0, local_save_id(1))) return;
    std::unique_lock lock(mutex);
    if (++reads == 1) return;  // of the trailer
    met = met || ++inside == 2;
    changed.notify_all();
    // The first read waits for another one, in vain if there is one thread only.
    if (reads == 2) changed.wait_for(lock, std::chrono::seconds(20), [&] { return met; });
    --inside;
  };
  StateDict target{{"w", torch::zeros({48 << 20}, torch::kUInt8)}};
  load({&target}, {}, wrapped_url("meetingreads", control));
  CHECK(met);
  CHECK(target["w"].tensor().equal(state["w"].tensor()));
  // A part whose ends are within shares.
  OpenReader<CheckpointReader> opened(kUrl);
  CHECK(read_part(opened.reader, "w", opened.stored("w"), {{5'000'000}, {30'000'000}})
            .equal(state["w"].tensor().narrow(0, 5'000'000, 30'000'000)));
}

TEST_CASE("compression: parts of an item that PyTorch compressed are read from one pass") {
  const std::string from = std::string(CAIRN_TEST_DATA) + "/pytorch-2.14/zstd";
  const EmptiedMemory memory("compressed");
  const auto store = open_store(kUrl);
  for (const std::string& name : {std::string(kCommitRecordName), std::string("__0_0.distcp")})
    put_object(*store, name, get_object(*open_store(from), name));
  const auto control = std::make_shared<StoreControl>();
  std::atomic<int> reads{0};
  control->before = [&](const std::string& operation) { reads += operation == "read __0_0.distcp"; };
  CheckpointReaderOptions options;
  options.verify = false;
  OpenReader<CheckpointReader> opened(wrapped_url("slicedreads", control), options);
  const torch::Tensor weight = torch::arange(1'200'000, torch::kFloat32).remainder(251).reshape({1200, 1000});
  for (std::int64_t row = 0; row < 1200; row += 50)
    CHECK(read_part(opened.reader, "weight", opened.stored("weight"), {{row, 0}, {50, 1000}}).equal(weight.narrow(0, row, 50)));
  CHECK(reads <= 3);
}

TEST_CASE("compression: a damaged block is named by load") {
  const EmptiedMemory memory("compressed");
  StateDict state{{"b", torch::randn({1000, 1000})}};
  save({&state});
  const auto store = open_store(kUrl);
  const ObjectName file = data_file_name(0, 0, local_save_id(1));
  const StorageInfo b = place_of("b");
  Bytes bytes = get_object(*store, file);
  const std::uint64_t at = b.offset + b.length / 2;
  bytes[at] = static_cast<char>(bytes[at] ^ 4);
  replace_object(*store, file, bytes);
  const Thrown thrown = thrown_by([&] { load({&state}); });
  CHECK(thrown == Saying{ErrorCode::kCorrupt, "\"b\""});
  CHECK(thrown.says("offsets " + std::to_string(at / kChecksumBlockBytes * kChecksumBlockBytes)));
}

namespace {

constexpr const char* kSalt = "some salt";

// Puts a salt in front of each item and a byte behind it.
StreamTransform salted() {
  return {[](ByteSink output) -> ByteSink {
            return [output, begun = false](ByteSpan bytes) mutable {
              if (!begun) output(std::string(kSalt));
              begun = true;
              output(bytes.empty() ? ByteSpan(".") : bytes);
              if (bytes.empty()) output({});
            };
          },
          [](ByteSource input) -> ByteSource {
            return [input, rest = Bytes(), begun = false](MutableByteSpan to) mutable {
              Bytes salt(std::strlen(kSalt), '\0');
              if (!begun && (input({salt.data(), salt.size()}) != salt.size() || salt != kSalt))
                throw Error(ErrorCode::kCorrupt, "it has another salt");
              begun = true;
              // Holds the last byte back.
              Bytes more(to.size() + 1 - rest.size(), '\0');
              more.resize(input({more.data(), more.size()}));
              rest += more;
              const std::size_t length = rest.size() - 1;
              std::memcpy(to.data(), rest.data(), length);
              rest.erase(0, length);
              return length;
            };
          }};
}

// Hides each byte by its position.
StreamTransform masked() {
  const auto mask = [](char c, std::size_t at) { return static_cast<char>(c ^ static_cast<char>(at % 251 + 1)); };
  return {[mask](ByteSink output) -> ByteSink {
            return [mask, output, at = std::size_t{0}](ByteSpan bytes) mutable {
              Bytes hidden(bytes.view());
              for (char& c : hidden) c = mask(c, at++);
              output(hidden);
            };
          },
          [mask](ByteSource input) -> ByteSource {
            return [mask, input, at = std::size_t{0}](MutableByteSpan to) mutable {
              const std::size_t length = input(to);
              for (std::size_t i = 0; i < length; ++i) to.data()[i] = mask(to.data()[i], at++);
              return length;
            };
          }};
}

void register_both() {
  static const bool done = [] {
    register_stream_transform("stream.salted/1", salted());
    register_stream_transform("stream.masked/1", masked());
    return true;
  }();
  CHECK(done);
}

}  // namespace

TEST_CASE("compression: a save through transforms loads on one to three ranks") {
  register_both();
  const torch::Tensor whole = counting({3001, 401});  // 4.8 MB
  for (const int level : {0, 3}) {
    const EmptiedMemory memory("compressed");
    StateDict state{{"w", whole}, {"empty", torch::zeros({0, 3})}, {"step", 7}, {"name", "some text in the open"}};
    CheckpointWriterOptions options;
    options.zstd_level = level;
    options.transforms = {"stream.salted/1", "stream.masked/1"};
    options.bytes_in_flight_max = 2 * kChecksumBlockBytes;  // the least: a block for the file and one for a frame
    save({&state}, options);
    CHECK(verify_checkpoint(*open_store(kUrl)).empty());
    std::vector<std::string> recorded = options.transforms;
    if (level > 0) recorded.emplace_back(kZstdTransform);
    const StorageInfo w = place_of("w");
    CHECK(w.transforms == recorded);
    const Bytes file = get_object(*open_store(kUrl), data_file_name(0, 0, local_save_id(1)));
    CHECK(file.find("some text in the open") == Bytes::npos);
    // They are recorded in the order in which they are undone.
    CHECK(file.compare(w.offset, std::strlen(kSalt), kSalt) == 0);
    Bytes magic = file.substr(w.offset + std::strlen(kSalt), 4);
    for (std::size_t i = 0; i < magic.size(); ++i) magic[i] = static_cast<char>(magic[i] ^ static_cast<char>(i + 1));
    CHECK((magic == "\x28\xB5\x2F\xFD") == (level > 0));
    const auto others = [] { return StateDict{{"empty", torch::zeros({0, 3})}, {"step", 0}, {"name", ""}}; };
    for (int world = 1; world <= 3; ++world) {
      CheckpointReaderOptions reading;
      reading.verify_first = world == 2;
      for (const StateDict& target : loaded_in_parts(world, world % 2, "w", whole, others, reading)) {
        CHECK(target.at("step").to_int() == 7);
        CHECK(target.at("name").to_text() == "some text in the open");
      }
    }
  }
}

TEST_CASE("compression: a transform that keeps the end of an item to itself fails the save") {
  StreamTransform silent = masked();
  silent.transform_to = [](ByteSink output) -> ByteSink {
    return [output](ByteSpan bytes) {
      if (!bytes.empty()) output(bytes);
    };
  };
  register_stream_transform("stream.silent/1", silent);
  const EmptiedMemory memory("compressed");
  StateDict state{{"w", torch::zeros({100})}};
  CheckpointWriterOptions options;
  options.transforms = {"stream.silent/1"};
  CHECK(thrown_by([&] { save({&state}, options); }).says("did not pass on the end"));
}

TEST_CASE("compression: a version that is registered itself is not taken for another") {
  StreamTransform other = masked();
  other.transform_from = [](ByteSource) -> ByteSource { throw Error(ErrorCode::kCorrupt, "the wrong version"); };
  register_stream_transform("stream.versioned/1", other);
  register_stream_transform("stream.versioned/1.2", masked());
  CHECK(thrown_by([] { register_stream_transform("stream.zstd/1.5", masked()); }).code == ErrorCode::kAlreadyExists);
  const EmptiedMemory memory("compressed");
  const StateDict state{{"w", torch::ones({100})}};
  CheckpointWriterOptions options;
  options.transforms = {"stream.versioned/1.2"};
  save({&state}, options);
  StateDict target{{"w", torch::zeros({100})}};
  load({&target});
  CHECK(target.at("w").tensor().equal(state.at("w").tensor()));
}

TEST_CASE("compression: descriptors that are taken, malformed or not registered are refused") {
  register_both();
  const auto refusal = [](const std::string& descriptor, StreamTransform transform) {
    return thrown_by([&] { register_stream_transform(descriptor, std::move(transform)); }).code;
  };
  CHECK(refusal("stream.salted/1", salted()) == ErrorCode::kAlreadyExists);
  CHECK(refusal("stream.zstd/1", salted()) == ErrorCode::kAlreadyExists);
  for (const std::string& bad : {std::string(), std::string("stream"), std::string("stream/"), std::string("/1"),
                                 std::string("a/1/2"), std::string(256, 'a') + "/1"})
    CHECK(refusal(bad, salted()) == ErrorCode::kInvalidArgument);
  CHECK(refusal("stream.half/1", {salted().transform_to, {}}) == ErrorCode::kInvalidArgument);
  for (const char* const unknown : {"stream.rot13/1", kZstdTransform}) {
    CheckpointWriterOptions options;
    options.transforms = {unknown};
    CHECK(thrown_by([&] { CheckpointWriter{options}; }).code == ErrorCode::kInvalidArgument);
  }
}

TEST_CASE("compression: a store whose alignment no staging block has is refused") {
  struct Aligned : ObjectWriter {
    Aligned(std::unique_ptr<ObjectWriter> own, std::size_t bytes) : inner(std::move(own)), alignment(bytes) {}
    void write_at(std::uint64_t offset, ByteSpan bytes) override { inner->write_at(offset, bytes); }
    std::size_t alignment_bytes() const override { return alignment; }
    void finish(std::uint64_t length, bool is_durable) override { inner->finish(length, is_durable); }
    void discard() noexcept override { inner->discard(); }
    std::unique_ptr<ObjectWriter> inner;
    std::size_t alignment;
  };
  struct AligningStore : WrappedStore {
    AligningStore(std::shared_ptr<Store> own, std::size_t bytes)
        : WrappedStore(std::move(own), std::make_shared<StoreControl>()), alignment(bytes) {}
    std::unique_ptr<ObjectWriter> create(const ObjectName& name, const CreateOptions& options) override {
      return std::make_unique<Aligned>(WrappedStore::create(name, options), alignment);
    }
    std::size_t alignment;
  };
  static std::size_t alignment;
  register_store("alignedparts", [](const std::string&) { return std::make_shared<AligningStore>(open_store(kUrl), alignment); });
  StateDict state{{"w", torch::zeros({100})}};
  for (const std::size_t bytes : {std::size_t{0}, 2 * StagingRing::kAlignmentBytes}) {
    const EmptiedMemory memory("compressed");
    alignment = bytes;
    CheckpointWriterOptions options;
    options.zstd_level = 1;
    LocalSave how{"alignedparts://compressed/x", local_save_id(1)};
    const Thrown thrown =
        thrown_by([&] { save_locally(how, {&state}, [&] { return std::make_unique<CheckpointWriter>(options); }); });
    CHECK(thrown == Saying{ErrorCode::kUnsupported, "aligned to " + std::to_string(bytes) + " bytes"});
    CHECK(open_store(kUrl)->list("").empty());
  }
}

TEST_CASE("compression: what PyTorch compressed loads on one to four ranks") {
  const std::string url = std::string(CAIRN_TEST_DATA) + "/pytorch-2.14/zstd";
  CHECK(verify_checkpoint(*open_store(url)).empty());
  // Larger than what a stream keeps of both its ends.
  const torch::Tensor weight = torch::arange(1'200'000, torch::kFloat32).remainder(251).reshape({1200, 1000});
  const auto others = [] {
    return StateDict{{"bias", torch::zeros({33}, torch::kBFloat16)},
                     {"scalar", torch::zeros({}, torch::kFloat64)},
                     {"empty", torch::zeros({0, 4})},
                     {"transposed", torch::zeros({6, 4}, torch::kInt64)},
                     {"step", 0},
                     {"name", ""}};
  };
  for (int world = 1; world <= 4; ++world)
    for (const bool verify : {true, false}) {
      CheckpointReaderOptions options;
      options.verify = verify;
      options.verify_first = world == 2;
      options.bytes_in_flight_max = kChecksumBlockBytes;
      for (const StateDict& target : loaded_in_parts(world, world % 2, "weight", weight, others, options, url)) {
        CHECK(target.at("bias").tensor().equal(counting({33}, 0, torch::kBFloat16)));
        CHECK(target.at("scalar").tensor().item<double>() == 2.5);
        CHECK(target.at("transposed").tensor().equal(counting({4, 6}, 0, torch::kInt64).t()));
        CHECK(target.at("step").to_int() == 7);
        CHECK(target.at("name").to_text() == std::string(300, 'x'));
      }
    }
}

TEST_CASE("compression: damage to what PyTorch compressed never gives wrong values") {
  const std::string from = std::string(CAIRN_TEST_DATA) + "/pytorch-2.14/zstd";
  const EmptiedMemory memory("compressed");
  const auto store = open_store(kUrl);
  put_object(*store, kCommitRecordName, get_object(*open_store(from), kCommitRecordName));
  const Bytes whole = get_object(*open_store(from), "__0_0.distcp");
  put_object(*store, "__0_0.distcp", whole);
  CHECK(verify_checkpoint(*store).empty());
  const StorageInfo weight = place_of("weight");
  StateDict right{{"weight", torch::zeros({1200, 1000})}};
  load({&right});
  int refused = 0;
  for (std::uint64_t at = weight.offset; at < weight.offset + weight.length; at += weight.length / 50) {
    Bytes damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    replace_object(*store, "__0_0.distcp", damaged);
    StateDict target{{"weight", torch::zeros({1200, 1000})}};
    CAPTURE(at - weight.offset);
    const Thrown thrown = thrown_by([&] { load({&target}); });
    refused += is_refusal(thrown);
    // Some bytes of an archive mean nothing.
    CHECK((is_refusal(thrown) || target["weight"].tensor().equal(right["weight"].tensor())));
  }
  CHECK(refused > 40);
}

namespace {

// Reads one bytes object into as many places as a plan asks for.
class ObjectPlanner : public ReadyPlan {
 public:
  void load_bytes(const LoadPlan&, const ReadItem&, Bytes bytes) override {
    std::lock_guard lock(mutex_);  // several threads of the reader call it
    read.push_back(std::move(bytes));
  }

  std::vector<Bytes> read;

 private:
  std::mutex mutex_;
};

}  // namespace
