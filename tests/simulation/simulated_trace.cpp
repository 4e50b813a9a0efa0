#include <cairn/tests/simulation/simulated_trace.hpp>

#include <fstream>
#include <utility>

namespace cairn::simulation {

// Collects all events of one rank and writes them when the rank has ended.
class SimulatedTrace::File final : public Observer {
 public:
  File(std::string directory, TraceHeader header) : path_(std::move(directory) + "/" + trace_file_name(header)) {
    encoder_.header(header, bytes_);
  }
  void on_event(const ObservedEvent& event) noexcept override {
    if (!closed_) encoder_.event(event, bytes_);
  }
  void close() {
    if (std::exchange(closed_, true)) return;
    std::ofstream(path_, std::ios::binary) << bytes_;
    bytes_ = Bytes();
  }

 private:
  const std::string path_;
  TraceEncoder encoder_;
  Bytes bytes_;
  bool closed_ = false;
};

namespace {

constexpr std::size_t kRingBytes = 4096;  // no test reads it

TraceHeader header_of(const Clock& clock, const std::string& incarnation, int rank, int world_size) {
  TraceHeader header = trace_header(incarnation, rank, world_size, TraceSource::kStream);
  header.host = "machine-" + std::to_string(rank);
  header.monotonic = clock.now();
  header.wall = clock.wall_now();
  return header;
}

}  // namespace

SimulatedTrace::SimulatedTrace(const VirtualTime& time, std::string directory, const std::string& incarnation, int rank,
                               int world_size)
    : clock_(time, rank),
      file_(directory.empty() ? nullptr
                              : std::make_shared<File>(std::move(directory), header_of(clock_, incarnation, rank, world_size))),
      tracer_(std::make_shared<Tracer>(rank, kRingBytes, file_, clock_)),
      supervisor_(tracer_, "supervisor"),
      coordinator_(tracer_, "coordinator") {}

void SimulatedTrace::close() {
  if (file_) file_->close();
}

std::uint64_t SimulatedTrace::record(std::string_view actor, ObservedEvent event, std::uint64_t cause) {
  if (!is_on()) return 0;
  event.cause = cause;
  return Tap(tracer_, actor).record(event);
}

}  // namespace cairn::simulation
