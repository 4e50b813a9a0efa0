#include <cairn/tracing/trace_writer.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <unordered_map>
#include <utility>

#include <cairn/messages/trace.pb.h>
#include <cairn/base/error.hpp>
#include <cairn/base/log.hpp>
#include <cairn/base/process_name.hpp>
#include <cairn/base/version.hpp>
#include <cairn/tracing/trace_format.hpp>

namespace cairn {
namespace {

constexpr std::uint64_t kParts = 4;  // number of parts kept of a stream
// A buffer that grew beyond this for one event is given back.
constexpr std::size_t kBufferKept = 1u << 20;

template <class Time>
std::int64_t nanoseconds(Time time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

// The kernel may take a part only, and a signal may interrupt.
void write_all(const Descriptor& file, const std::string& path, ByteSpan bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t written = ::write(file.get(), bytes.data() + done, bytes.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw system_error("write the trace", path, errno);
    done += static_cast<std::size_t>(written);
  }
}

Descriptor create(const std::string& path) {
  // Mode 0666 leaves the permissions to the user's umask.
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file.valid()) throw system_error("create the trace", path, errno);
  return file;
}

template <class Enum>
std::uint32_t number_of(Enum value) {
  return static_cast<std::uint32_t>(value);
}

struct SetWhat {
  v1::TraceEvent& message;
  void operator()(std::monostate) const { message.clear_what(); }
  void operator()(MessageKind kind) const { message.set_message_kind(number_of(kind)); }
  void operator()(LinkChange change) const { message.set_link_change(number_of(change)); }
  void operator()(RankState state) const { message.set_rank_state(number_of(state)); }
  void operator()(CoordinatorState state) const { message.set_coordinator_state(number_of(state)); }
  void operator()(SuccessionState state) const { message.set_succession_state(number_of(state)); }
  void operator()(CallTurn turn) const { message.set_call_turn(number_of(turn)); }
  void operator()(Timer timer) const { message.set_timer(number_of(timer)); }
  void operator()(Restarted restarted) const { message.set_restarted(number_of(restarted.actor)); }
  void operator()(Ignored ignored) const { message.set_ignored(number_of(ignored)); }
  void operator()(Operation operation) const { message.set_operation(number_of(operation)); }
  void operator()(FailureKind kind) const { message.set_failure_kind(number_of(kind)); }
  void operator()(Committed committed) const { message.set_committed(number_of(committed)); }
};

}  // namespace

TraceHeader trace_header(std::string incarnation, int rank, int world_size, TraceSource source) {
  TraceHeader header;
  header.incarnation = std::move(incarnation);
  header.rank = rank;
  header.world_size = world_size;
  header.cairn_version = kVersion;
  header.source = source;
  header.process = static_cast<std::uint64_t>(::getpid());
  header.host = host_name();
  header.monotonic = system_clock().now();
  header.wall = system_clock().wall_now();
  return header;
}

std::string trace_file_name(const TraceHeader& header) {
  char name[80];
  std::snprintf(name, sizeof name, "rank-%05d-%.8s-%03u.trace", header.rank, header.incarnation.c_str(),
                static_cast<unsigned>(header.part));
  return name;
}

// Messages and buffers are reused: encoding an event allocates nothing once they have grown.
struct TraceEncoder::Implementation {
  std::unordered_map<std::string_view, std::uint32_t> names;  // the texts are never freed
  v1::TraceRecord record;
  v1::TraceRecord name_record;

  static void append(const v1::TraceRecord& record, Bytes& bytes) {
    const std::size_t length = record.ByteSizeLong();
    check_invariant(length <= trace_format::kRecordBytesMax, "a trace record is larger than readers take");
    const std::size_t at = bytes.size();
    bytes.resize(at + trace_format::kFrameBytes + length);
    char* const frame = bytes.data() + at;
    trace_format::kMark.copy(frame, trace_format::kMark.size());
    trace_format::put_u32(static_cast<std::uint32_t>(length), frame + 4);
    record.SerializeWithCachedSizesToArray(reinterpret_cast<std::uint8_t*>(frame + trace_format::kFrameBytes));
    trace_format::put_u32(trace_format::checksum(frame, static_cast<std::uint32_t>(length)), frame + 8);
  }

  // Returns 0 for an empty text, and if a file has more names than readers accept.
  std::uint32_t id_of(std::string_view text, Bytes& bytes) {
    if (text.empty()) return 0;
    const auto known = names.find(text);
    if (known != names.end()) return known->second;
    if (names.size() >= trace_format::kNamesMax) return 0;
    // Ids begin at 1: 0 stands for no text.
    const auto id = static_cast<std::uint32_t>(names.size() + 1);
    names.emplace(text, id);
    auto& name = *name_record.mutable_name();
    name.set_id(id);
    name.set_text(text.data(), std::min(text.size(), trace_format::kNameBytesMax));
    // The definition comes before the first record that uses it.
    append(name_record, bytes);
    return id;
  }
};

TraceEncoder::TraceEncoder() : implementation_(std::make_unique<Implementation>()) {}
TraceEncoder::~TraceEncoder() = default;

void TraceEncoder::header(const TraceHeader& header, Bytes& bytes) {
  auto& message = *implementation_->record.mutable_header();
  message.set_version(header.version);
  message.set_incarnation(header.incarnation);
  message.set_rank(static_cast<std::uint32_t>(header.rank));
  message.set_world_size(static_cast<std::uint32_t>(header.world_size));
  message.set_cairn_version(header.cairn_version);
  message.set_source(static_cast<v1::TraceSource>(header.source));
  message.set_part(header.part);
  message.set_process(header.process);
  message.set_host(header.host);
  message.set_monotonic_ns(nanoseconds(header.monotonic));
  message.set_wall_ns(nanoseconds(header.wall));
  Implementation::append(implementation_->record, bytes);
}

void TraceEncoder::event(const ObservedEvent& event, Bytes& bytes) {
  auto& self = *implementation_;
  auto& message = *self.record.mutable_event();
  message.set_kind(static_cast<v1::TraceEventKind>(event.kind));
  message.set_id(event.id);
  message.set_cause(event.cause);
  message.set_monotonic_ns(nanoseconds(event.time));
  message.set_wall_ns(nanoseconds(event.wall_time));
  message.set_call(event.call);
  message.set_attempt(event.attempt);
  message.set_checkpointer(event.checkpointer);
  message.set_peer(static_cast<std::uint32_t>(event.peer + 1));
  std::visit(SetWhat{message}, event.what);
  // `id_of` may append records. The event's own record is appended last, when its name is
  // defined.
  message.set_phase(event.phase ? number_of(*event.phase) : 0);
  message.set_actor(number_of(event.actor));
  message.set_code(event.code ? number_of(*event.code) : 0);
  message.set_name(self.id_of(event.name, bytes));
  message.set_text(event.text.data(), std::min(event.text.size(), kEventTextMax));
  message.set_number(event.number);
  message.set_bytes(event.bytes);
  message.set_duration_ns(static_cast<std::uint64_t>(event.duration.count()));
  message.set_queued_ns(static_cast<std::uint64_t>(event.queued.count()));
  message.set_failed(!event.ok);
  Implementation::append(self.record, bytes);
}

void write_trace_file(const std::string& path, const TraceHeader& header, const std::vector<ObservedEvent>& events) {
  Bytes bytes;
  TraceEncoder encoder;
  encoder.header(header, bytes);
  for (const auto& event : events) encoder.event(event, bytes);
  // Readers look for "*.trace" only, so that they never see half of a file.
  const std::string unfinished = path + ".unfinished-" + std::to_string(::getpid());
  const Descriptor file = create(unfinished);
  try {
    write_all(file, unfinished, bytes);
    if (::rename(unfinished.c_str(), path.c_str()) != 0) throw system_error("give its name to the trace", path, errno);
  } catch (...) {
    ::unlink(unfinished.c_str());
    throw;
  }
}

TraceStream::TraceStream(std::string directory, TraceHeader header, std::uint64_t bytes_max, std::shared_ptr<Observer> next)
    : directory_(std::move(directory)),
      part_bytes_max_(std::max<std::uint64_t>(bytes_max / kParts, 1)),
      next_(std::move(next)),
      header_(std::move(header)) {
  std::error_code failed;
  std::filesystem::create_directories(directory_, failed);
  if (failed) throw system_error("make the directory for traces", directory_, failed.value());
  header_.part = 0;
  open_part();
}

void TraceStream::open_part() {
  if (file_.valid()) {
    // First, because the stream has ended if creating the new part fails.
    file_.reset();
    earlier_.push_back(path_);
    // Together with the new part there are at most kParts.
    if (earlier_.size() >= kParts) {
      ::unlink(earlier_.front().c_str());
      earlier_.pop_front();
    }
  }
  ++header_.part;
  header_.monotonic = system_clock().now();
  header_.wall = system_clock().wall_now();
  path_ = directory_ + "/" + trace_file_name(header_);
  file_ = create(path_);
  part_bytes_ = 0;
  // A new encoder defines all names again, so that every part can be read alone.
  encoder_ = std::make_unique<TraceEncoder>();
  buffer_.clear();
  encoder_->header(header_, buffer_);
  write(buffer_);
}

void TraceStream::write(ByteSpan bytes) {
  write_all(file_, path_, bytes);
  part_bytes_ += bytes.size();
}

void TraceStream::write_event(const ObservedEvent& event) {
  // Before the event, so that a part never ends in the middle of one.
  if (part_bytes_ >= part_bytes_max_) open_part();
  buffer_.clear();
  encoder_->event(event, buffer_);
  write(buffer_);
  if (buffer_.capacity() > kBufferKept) buffer_ = Bytes();
}

// One lock: events of all threads of the rank go to one file, and the encoder defines names as it
// goes.
void TraceStream::on_event(const ObservedEvent& event) noexcept {
  if (next_) next_->on_event(event);
  const MutexLock lock(mutex_);
  if (!file_.valid()) return;
  try {
    write_event(event);
  } catch (const std::exception& error) {
    // The stream ends for good. A save does not fail because its trace cannot be written.
    file_.reset();
    write_log(LogLevel::kWarning, header_.rank, std::string("the trace of this rank ends here: ") + error.what());
  }
}

}  // namespace cairn
