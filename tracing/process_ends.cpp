#include <cairn/tracing/process_ends.hpp>

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>

#include <cairn/base/settings.hpp>

namespace cairn {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kEndsBytesMax = 4u << 20;  // per file; 4,096 ranks need a tenth

std::optional<WallTime> to_wall_time(const std::string& milliseconds) {
  // At most the year 2065, so that differences of times do not overflow.
  const auto number = parse_number<std::uint64_t>(milliseconds);
  if (!number || *number >= 3'000'000'000'000) return std::nullopt;
  return WallTime(std::chrono::milliseconds(*number));
}

}  // namespace

std::string TracedProcess::describe() const {
  if (!signal.empty()) return "was killed by " + signal;
  return "exited with code " + std::to_string(code);
}

std::vector<ProcessEnd> read_ends(const fs::path& directory) {
  std::vector<ProcessEnd> ends;
  std::error_code failed;
  if (!fs::is_directory(directory, failed)) return ends;
  for (fs::directory_iterator entry(directory, failed), last; !failed && entry != last; entry.increment(failed)) {
    std::error_code gone;
    if (entry->path().extension() != ".ends" || !entry->is_regular_file(gone)) continue;  // opening a pipe would wait for a writer
    std::ifstream file(entry->path(), std::ios::binary);
    // Reads at most this much: a directory of traces may hold any file.
    std::string text(kEndsBytesMax, '\0');
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<std::size_t>(std::max<std::streamsize>(0, file.gcount())));
    std::istringstream lines(text);
    ProcessEnd launch;
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string word, time, how, value, told;
      words >> word;
      if (word == "launched" && words >> time >> launch.host) {
        // A time that cannot be read matches no trace: no trace began after it.
        launch.launched = to_wall_time(time).value_or(WallTime::max());
        continue;
      }
      ProcessEnd it = launch;
      if (word != "rank" || !(words >> it.rank >> it.process >> time >> how >> value)) continue;
      const auto ended = to_wall_time(time);
      if (!ended) continue;
      it.end.ended = *ended;
      it.end.told = words >> told && told == "told";
      const auto code = parse_number<std::uint16_t>(value);
      if (how == "signal")
        it.end.signal = value;
      else if (how == "code" && code && *code <= 999)
        it.end.code = *code;
      else
        continue;
      ends.push_back(std::move(it));
    }
  }
  return ends;
}

const ProcessEnd* end_of_writer(const std::vector<ProcessEnd>& ends, const TraceHeader& header) {
  const ProcessEnd* by_rank = nullptr;
  for (const auto& it : ends) {
    // Process ids repeat, so host and time must fit as well.
    if (it.host != header.host || it.end.ended < header.wall || it.launched > header.wall) continue;
    if (it.process == header.process) return &it;
    if (it.rank == header.rank) by_rank = &it;
  }
  return by_rank;
}

}  // namespace cairn
