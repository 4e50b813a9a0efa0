#include <cairn/tests/simulation/simulated_trace.hpp>

#include <fstream>
#include <utility>

namespace cairn::simulation {

SimulatedTrace::SimulatedTrace(Observer& rank, const Clock& clock, std::string directory, TraceHeader header)
    : rank_(rank), path_(directory.empty() ? "" : std::move(directory) + "/" + trace_file_name(header)) {
  header.host = "machine-" + std::to_string(header.rank);
  header.monotonic = clock.now();
  header.wall = clock.wall_now();
  if (!path_.empty()) encoder_.header(header, bytes_);
}

void SimulatedTrace::on_event(const ObservedEvent& event) noexcept {
  if (closed_) return;
  if (!path_.empty()) encoder_.event(event, bytes_);
  rank_.on_event(event);
}

void SimulatedTrace::close() {
  if (std::exchange(closed_, true) || path_.empty()) return;
  std::ofstream(path_, std::ios::binary) << bytes_;
  bytes_ = Bytes();
}

}  // namespace cairn::simulation
