// Traces: the files of ranks, and the analysis of them.
#include <fstream>

#include <cairn/tests/fuzz/targets.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tests/tracing/scripted_traces.hpp>
#include <cairn/tracing/trace_chain.hpp>
#include <cairn/tracing/trace_diagnosis.hpp>
#include <cairn/tracing/trace_format.hpp>
#include <cairn/tracing/trace_messages.hpp>

namespace cairn::testing {
namespace {

// Returns the files of two ranks, concatenated. Each file begins with a header.
Bytes sample_files(bool goes_well) {
  ScriptedTraces script(2);
  script_good_save(script, {5, 40});
  if (!goes_well) {
    script.set_attempt(2);
    for (int rank = 0; rank < 2; ++rank) {
      script.call(rank, 100, 2);
      script.state(rank, 101, RankState::kPreparing);
      const auto began = script.began(rank, 102, "write_data", Phase::kWrite);
      if (rank == 0) script.ended(0, 103, "write_data", Phase::kWrite, began, 1, "thrown");
      script.failure(rank, 104, 0, FailureKind::kRaised, Phase::kWrite, "thrown", began + 1);
      if (rank == 0) script.outcome(0, 105, false);
    }
  }
  script.write();
  Bytes bytes;
  for (int rank = 0; rank < 2; ++rank) {
    std::ifstream file(script.path_of(rank), std::ios::binary);
    bytes.append(std::istreambuf_iterator<char>(file), {});
  }
  return bytes;
}

std::vector<Bytes> trace_files() { return {sample_files(true), sample_files(false)}; }

// Corrects the checksum of every record that can be found, so that the input reaches the code
// behind the checksums.
Bytes with_checksums(ByteSpan input) {
  namespace format = trace_format;
  Bytes bytes(input.view());
  for (std::size_t at = bytes.find(format::kMark); at != Bytes::npos; at = bytes.find(format::kMark, at + 1)) {
    if (bytes.size() - at < format::kFrameBytes) break;
    const std::uint32_t length = format::get_u32(bytes.data() + at + 4);
    if (length > format::kRecordBytesMax || length > bytes.size() - at - format::kFrameBytes) continue;
    format::put_u32(format::checksum(bytes.data() + at, length), bytes.data() + at + 8);
  }
  return bytes;
}

// Splits the bytes where the second header begins, if there is one.
std::vector<Bytes> split(const Bytes& bytes) {
  const std::size_t first = bytes.find(std::string(8, 'a'));
  const std::size_t second = first == Bytes::npos ? first : bytes.find(std::string(8, 'a'), first + 64);
  const std::size_t begin = second == Bytes::npos ? second : bytes.rfind(trace_format::kMark, second);
  if (begin == Bytes::npos || begin == 0) return {bytes};
  return {bytes.substr(0, begin), bytes.substr(begin)};
}

void conclude(const TraceDirectory& directory, const TracedAttempt& attempt) {
  const Trace trace = directory.read(attempt, 10'000);
  const auto messages = match_messages(trace);
  const TraceClocks clocks(trace, messages);
  diagnose(trace, messages, clocks);
  if (const auto* const outcome = last_outcome(trace, clocks)) critical_path(trace, clocks, *outcome);
}

bool run_trace_files(ByteSpan input) {
  static const TemporaryDirectory directory;
  const auto files = split(with_checksums(input));
  for (std::size_t i = 0; i < 2; ++i) {
    const std::string path = directory.path() + "/rank-" + std::to_string(i) + ".trace";
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    if (i < files.size()) file << files[i];
  }
  const TraceDirectory traces(directory.path());
  for (const auto& attempt : traces.attempts()) conclude(traces, attempt);
  return !traces.attempts().empty();
}

}  // namespace

std::vector<FuzzTarget> trace_targets() {
  return {{"trace_files", run_trace_files, trace_files}};
}

}  // namespace cairn::testing
