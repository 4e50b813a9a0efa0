#include <cairn/tests/support/plain.hpp>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <cairn/base/error.hpp>
#include <cairn/tests/support/captured_log.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tests/support/thrown.hpp>
#include <cairn/tests/tracing/sample_events.hpp>
#include <cairn/tracing/trace_format.hpp>
#include <cairn/tracing/trace_text.hpp>

namespace cairn {
namespace {

namespace fs = std::filesystem;
using namespace cairn::testing;

struct Sample {
  explicit Sample(std::size_t count) {
    TraceEncoder encoder;
    encoder.header(header_of(2, 4), bytes);
    for (std::uint64_t id = 1; id <= count; ++id) {
      begins.push_back(bytes.size());
      encoder.event(full_event(id), bytes);
      ends.push_back(bytes.size());
    }
  }
  Bytes bytes;
  std::vector<std::size_t> begins;  // start of each event's records; its names come first
  std::vector<std::size_t> ends;
};

struct Read {
  std::vector<std::uint64_t> ids;
  std::vector<TraceDamage> damage;
  std::uint64_t cut = 0;
};

class Files {
 public:
  std::string put(const Bytes& bytes) const {
    std::ofstream(path(), std::ios::binary) << bytes;
    return path();
  }
  // Reads the file, and checks that the events are the ones that were written.
  Read read(const Bytes& bytes) const {
    TraceFileReader reader(put(bytes));
    Read read;
    ObservedEvent event;
    while (reader.next(event)) {
      read.ids.push_back(event.id);
      CHECK(event.rank == 2);
      CHECK(event.name != "");
    }
    read.damage = reader.damage();
    read.cut = reader.bytes_cut();
    return read;
  }
  ErrorCode refusal(const Bytes& bytes) const {
    return thrown_by([&] { TraceFileReader reader(put(bytes)); }).code;
  }
  std::string path() const { return directory.path() + "/rank.trace"; }
  TemporaryDirectory directory;
};

TEST_CASE("trace file: everything that was written comes back") {
  Files files;
  const Sample sample(40);
  TraceFileReader reader(files.put(sample.bytes));
  const TraceHeader header = header_of(2, 4);
  CHECK(reader.header().incarnation == header.incarnation);
  CHECK(reader.header().rank == 2);
  CHECK(reader.header().world_size == 4);
  CHECK(reader.header().process == header.process);
  CHECK(reader.header().host == header.host);
  CHECK(reader.header().cairn_version == header.cairn_version);
  CHECK(reader.header().source == TraceSource::kStream);
  ObservedEvent event;
  for (std::uint64_t id = 1; id <= 40; ++id) {
    REQUIRE(reader.next(event));
    CHECK(same(event, full_event(id)));
  }
  CHECK_FALSE(reader.next(event));
  CHECK(reader.damage().empty());
  CHECK(reader.bytes_cut() == 0);
}

TEST_CASE("trace file: one that was cut anywhere is read up to the cut") {
  Files files;
  const Sample sample(5);
  for (std::size_t length = 0; length < sample.bytes.size(); ++length) {
    const Bytes cut = sample.bytes.substr(0, length);
    if (length < sample.begins.front()) {
      CHECK(files.refusal(cut) == ErrorCode::kCorrupt);
      continue;
    }
    const Read read = files.read(cut);
    std::size_t whole = 0;
    while (whole < sample.ends.size() && sample.ends[whole] <= length) ++whole;
    CHECK(read.ids.size() == whole);
    CHECK(read.damage.empty());
    // Names are separate records, so a cut may fall between a name and its event.
    if (read.cut == 0) CHECK(length <= sample.begins[whole] + (sample.ends[whole] - sample.begins[whole]));
    CHECK(read.cut < sample.ends.back() - sample.begins.back() + 64);
  }
}

TEST_CASE("trace file: every flipped bit is noticed and costs at most the record around it") {
  Files files;
  const Sample sample(6);
  for (std::size_t at = sample.begins.front(); at < sample.bytes.size(); ++at)
    for (const int bit : {0, 3, 7}) {
      Bytes flipped = sample.bytes;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << bit));
      TraceFileReader reader(files.put(flipped));
      ObservedEvent event;
      std::size_t count = 0;
      while (reader.next(event)) ++count;
      CHECK(count >= 5);
      CHECK_MESSAGE(!(reader.damage().empty() && reader.bytes_cut() == 0), "bit ", bit, " of byte ", at);
    }
  for (std::size_t at = 0; at < sample.begins.front(); ++at) {
    Bytes flipped = sample.bytes;
    flipped[at] = static_cast<char>(flipped[at] ^ 4);
    CHECK(files.refusal(flipped) == ErrorCode::kCorrupt);
  }
}

TEST_CASE("trace file: what is between sound records is passed over and placed") {
  Files files;
  const Sample sample(4);
  Bytes bytes = sample.bytes.substr(0, sample.ends[1]);
  const std::string noise = "CTrc CTrcCT noise" + std::string(3000, 'C');
  bytes += noise + sample.bytes.substr(sample.ends[1]);
  const Read read = files.read(bytes);
  CHECK(read.ids == std::vector<std::uint64_t>{1, 2, 3, 4});
  REQUIRE(read.damage.size() == 1);
  CHECK(read.damage[0].offset == sample.ends[1]);
  CHECK(read.damage[0].bytes == noise.size());
}

TEST_CASE("trace file: anything else is refused, and says why") {
  Files files;
  CHECK(files.refusal("") == ErrorCode::kCorrupt);
  CHECK(files.refusal("no trace") == ErrorCode::kCorrupt);
  CHECK(files.refusal(std::string(100'000, '\0')) == ErrorCode::kCorrupt);
  CHECK_THROWS_AS(TraceFileReader(files.directory.path()), Error);
  CHECK_THROWS_AS(TraceFileReader(files.directory.path() + "/nothing.trace"), Error);

  TraceHeader later = header_of(0, 1);
  later.version = kTraceVersion + 1;
  later.cairn_version = "9.9.9";
  Bytes bytes;
  TraceEncoder().header(later, bytes);
  CHECK(thrown_by([&] { TraceFileReader reader(files.put(bytes)); }) == Saying{ErrorCode::kUnsupported, "9.9.9"});
  later.version = kTraceVersion - 1;
  bytes.clear();
  TraceEncoder().header(later, bytes);
  CHECK(files.refusal(bytes) == ErrorCode::kUnsupported);
}

// The value after the last one has no name.
template <class Enum>
bool is_last(Enum last) {
  const std::string after = to_string(static_cast<Enum>(static_cast<int>(last) + 1));
  return after.rfind("unknown", 0) == 0 && to_string(last) != after;
}

TEST_CASE("trace file: the last value of each enumeration is known") {
  CHECK(is_last(kLastOf<CallTurn>));
  CHECK(is_last(kLastOf<CoordinatorState>));
  CHECK(is_last(kLastOf<ErrorCode>));
  CHECK(is_last(kLastOf<FailureKind>));
  CHECK(is_last(kLastOf<MessageKind>));
  CHECK(is_last(kLastOf<Operation>));
  CHECK(is_last(kLastOf<Phase>));
  CHECK(is_last(kLastOf<RankState>));
  CHECK(is_last(kLastOf<SuccessionState>));
  CHECK(is_last(kLastOf<Timer>));
}

TEST_CASE("trace stream: parts rotate, the oldest are removed, and each can be read alone") {
  TemporaryDirectory directory;
  const std::string traces = directory.path() + "/made/here";
  {
    TraceStream stream(traces, header_of(3, 4), 40'000);
    for (std::uint64_t id = 1; id <= 2000; ++id) stream.on_event(full_event(id));
  }
  std::vector<std::string> paths;
  std::uint64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(traces)) {
    paths.push_back(entry.path().string());
    bytes += entry.file_size();
  }
  std::sort(paths.begin(), paths.end());
  CHECK(paths.size() == 4);
  CHECK(bytes <= 41'000);
  std::uint64_t last = 0;
  for (const auto& path : paths) {
    TraceFileReader reader(path);
    ObservedEvent event;
    while (reader.next(event)) {
      if (last != 0) CHECK(event.id == last + 1);
      CHECK(same(event, full_event(event.id)));
      last = event.id;
    }
  }
  CHECK(last == 2000);
}

TEST_CASE("trace stream: an event is in the file before the next one is recorded") {
  TemporaryDirectory directory;
  TraceStream stream(directory.path(), header_of(0, 1));
  stream.on_event(full_event(1));
  const std::string path = fs::directory_iterator(directory.path())->path().string();
  TraceFileReader reader(path);
  ObservedEvent event;
  CHECK(reader.next(event));
}

TEST_CASE("trace stream: a disk that is full ends it, with one warning") {
  if (!fs::exists("/dev/full")) return;
  TemporaryDirectory directory;
  CapturedLog log;
  TraceHeader second = header_of(0, 1);
  second.part = 2;
  fs::create_symlink("/dev/full", directory.path() + "/" + trace_file_name(second));
  TraceStream stream(directory.path(), header_of(0, 1), 4000);
  for (std::uint64_t id = 1; id <= 100; ++id) stream.on_event(full_event(id));
  CHECK(log.text().find("the trace of this rank ends here") != std::string::npos);
  CHECK(log.text().find('\n') == log.text().size() - 1);
  CHECK(log.text().find("No space left") != std::string::npos);
}

TEST_CASE("trace stream: a place where nothing can be made is said at once") {
  TemporaryDirectory directory;
  std::ofstream(directory.path() + "/file") << "x";
  CHECK_THROWS_AS(TraceStream(directory.path() + "/file", header_of(0, 1)), Error);
  CHECK_THROWS_AS(write_trace_file(directory.path() + "/none/x.trace", header_of(0, 1), {}), Error);
}

}  // namespace
}  // namespace cairn
