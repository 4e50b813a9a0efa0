#include <cairn/tracing/trace_file.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <utility>

#include <google/protobuf/io/coded_stream.h>

#include <cairn/messages/trace.pb.h>
#include <cairn/base/descriptor.hpp>
#include <cairn/base/error.hpp>
#include <cairn/tracing/trace_format.hpp>
#include <cairn/tracing/trace_text.hpp>

namespace cairn {
namespace {

using namespace trace_format;

// Several records of the largest size, so that most records need no further read.
constexpr std::size_t kChunkBytes = std::size_t{256} * 1024;
constexpr int kRanksMax = 1 << 20;
// Times up to nine years and up to the year 2043, so that sums of a few of them do not overflow.
// Values beyond that are invalid.
constexpr std::int64_t kMonotonicMax = std::int64_t{1} << 58;
constexpr std::int64_t kWallMax = std::int64_t{1} << 61;

// A window into a file, which starts at `offset()`.
class Window {
 public:
  // O_NONBLOCK: opening a pipe would wait for a writer.
  explicit Window(const std::string& path) : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (!file_.valid()) throw system_error("open the trace", path, errno);
    struct stat status {};
    if (::fstat(file_.get(), &status) == 0 && !S_ISREG(status.st_mode)) {
      const char* const kind = S_ISDIR(status.st_mode) ? "a directory" : "a pipe or a device";
      throw Error(ErrorCode::kCorrupt, path + " is no trace: it is " + kind);
    }
  }

  // Returns whether at least `bytes` bytes are left.
  bool has(std::size_t bytes) {
    while (buffer_.size() - at_ < bytes && !ended_) read_more();
    return buffer_.size() - at_ >= bytes;
  }
  const char* data() const { return buffer_.data() + at_; }
  std::size_t size() const { return buffer_.size() - at_; }
  void drop(std::size_t bytes) { at_ += bytes; }
  std::uint64_t offset() const { return buffer_offset_ + at_; }
  void skip_to(std::uint64_t offset) {
    if (offset < this->offset()) return;
    if (offset - buffer_offset_ <= buffer_.size()) {
      at_ = static_cast<std::size_t>(offset - buffer_offset_);
      return;
    }
    if (::lseek(file_.get(), static_cast<off_t>(offset), SEEK_SET) < 0) throw system_error("read the trace", path_, errno);
    buffer_.clear();
    at_ = 0;
    buffer_offset_ = offset;
    ended_ = false;
  }

 private:
  void read_more() {
    // Keeps only the bytes not yet used, so that memory stays bounded for files of any length.
    buffer_.erase(0, at_);
    buffer_offset_ += std::exchange(at_, 0);
    const std::size_t before = buffer_.size();
    buffer_.resize(before + kChunkBytes);
    ssize_t count;
    do {
      count = ::read(file_.get(), buffer_.data() + before, kChunkBytes);
    } while (count < 0 && errno == EINTR);
    buffer_.resize(before + static_cast<std::size_t>(count > 0 ? count : 0));
    if (count < 0) throw system_error("read the trace", path_, errno);
    ended_ = count == 0;
  }

  const std::string path_;
  const Descriptor file_;
  Bytes buffer_;
  std::size_t at_ = 0;
  std::uint64_t buffer_offset_ = 0;  // position of buffer_ in the file
  bool ended_ = false;
};

// The checksum protects against damage, not against a program that wrote nonsense.
bool are_times(const v1::TraceEvent& message) {
  const auto within = [](std::int64_t time, std::int64_t most) { return time >= -most && time <= most; };
  return within(message.monotonic_ns(), kMonotonicMax) && within(message.wall_ns(), kWallMax) &&
         message.duration_ns() <= static_cast<std::uint64_t>(kMonotonicMax) &&
         message.queued_ns() <= static_cast<std::uint64_t>(kMonotonicMax);
}

// Returns nothing for a value of a later version.
template <class Enum>
std::optional<Enum> enum_of(std::uint32_t value) {
  if (value == 0 || value > static_cast<std::uint32_t>(kLastOf<Enum>)) return std::nullopt;
  return static_cast<Enum>(value);
}

What what_of(const v1::TraceEvent& message) {
  const auto known = [](auto value) { return value ? What(*value) : What(); };
  switch (message.what_case()) {
    case v1::TraceEvent::kMessageKind:
      return known(enum_of<MessageKind>(message.message_kind()));
    case v1::TraceEvent::kLinkChange:
      return known(enum_of<LinkChange>(message.link_change()));
    case v1::TraceEvent::kRankState:
      return known(enum_of<RankState>(message.rank_state()));
    case v1::TraceEvent::kCoordinatorState:
      return known(enum_of<CoordinatorState>(message.coordinator_state()));
    case v1::TraceEvent::kSuccessionState:
      return known(enum_of<SuccessionState>(message.succession_state()));
    case v1::TraceEvent::kCallTurn:
      return known(enum_of<CallTurn>(message.call_turn()));
    case v1::TraceEvent::kTimer:
      return known(enum_of<Timer>(message.timer()));
    case v1::TraceEvent::kRestarted:
      if (const auto actor = enum_of<Actor>(message.restarted())) return Restarted{*actor};
      return {};
    case v1::TraceEvent::kIgnored:
      return known(enum_of<Ignored>(message.ignored()));
    case v1::TraceEvent::kOperation:
      return known(enum_of<Operation>(message.operation()));
    case v1::TraceEvent::kFailureKind:
      return known(enum_of<FailureKind>(message.failure_kind()));
    case v1::TraceEvent::kCommitted:
      return known(enum_of<Committed>(message.committed()));
    case v1::TraceEvent::WHAT_NOT_SET:
      break;
  }
  return {};
}

MonotonicTime monotonic_of(std::int64_t nanoseconds) { return MonotonicTime(Duration(nanoseconds)); }
WallTime wall_of(std::int64_t nanoseconds) { return WallTime(Duration(nanoseconds)); }

}  // namespace

std::string_view TraceNames::intern(std::string_view text) {
  const auto known = texts_.find(text);
  return known != texts_.end() ? *known : *texts_.emplace(text).first;
}

struct TraceFileReader::Implementation {
  Implementation(const std::string& file_path, std::shared_ptr<TraceNames> shared_names)
      : path(file_path),
        names(shared_names ? std::move(shared_names) : std::make_shared<TraceNames>()),
        window(file_path) {
    read_header();
  }

  [[noreturn]] void refuse(ErrorCode code, const std::string& why) const { throw Error(code, path + " " + why); }

  void read_header() {
    const bool has_mark = window.has(kMark.size()) && std::string_view(window.data(), kMark.size()) == kMark;
    if (!window.has(1)) refuse(ErrorCode::kCorrupt, "is empty: whoever was to write it ended before it had begun");
    if (!has_mark) refuse(ErrorCode::kCorrupt, "is no trace: it does not begin with CTrc");
    if (!next_record() || is_event || record.kind_case() != v1::TraceRecord::kHeader || !damage.empty())
      refuse(ErrorCode::kCorrupt, "cannot be read: its header is damaged or cut off");
    const auto& message = record.header();
    header.version = message.version();
    if (header.version < kTraceVersion)
      refuse(ErrorCode::kUnsupported, "has version " + std::to_string(header.version) +
                                          " of the format, in which fields meant other things: use the cairn command of that time");
    if (header.version > kTraceVersion)
      refuse(ErrorCode::kUnsupported, "has version " + std::to_string(header.version) +
                                          " of the format, and this program reads up to " + std::to_string(kTraceVersion) +
                                          ": use the cairn command of Cairn " + message.cairn_version() + " or later");
    if (message.world_size() < 1 || message.world_size() > kRanksMax || message.rank() >= message.world_size())
      refuse(ErrorCode::kCorrupt, "cannot be read: its header names rank " + std::to_string(message.rank()) + " of " +
                                      std::to_string(message.world_size()));
    header.incarnation = message.incarnation();
    header.rank = static_cast<int>(message.rank());
    header.world_size = static_cast<int>(message.world_size());
    header.cairn_version = message.cairn_version();
    header.source = message.source() == v1::TRACE_SOURCE_RING ? TraceSource::kRing : TraceSource::kStream;
    header.part = message.part();
    header.process = message.process();
    header.host = message.host();
    header.monotonic = monotonic_of(message.monotonic_ns());
    header.wall = wall_of(message.wall_ns());
  }

  enum class Found : std::uint8_t { kRecord, kNone, kIncomplete };

  // Looks for a record at the start of the window. Parses it and sets `length` to its length.
  Found look(std::size_t& length) {
    if (!window.has(kFrameBytes)) {
      const std::size_t known = std::min(window.size(), kMark.size());
      return std::string_view(window.data(), known) == kMark.substr(0, known) ? Found::kIncomplete : Found::kNone;
    }
    if (std::string_view(window.data(), kMark.size()) != kMark) return Found::kNone;
    // The length is checked before it is used: the mark may be part of a damaged record.
    const std::uint32_t bytes = get_u32(window.data() + 4);
    if (bytes > kRecordBytesMax) return Found::kNone;
    length = kFrameBytes + bytes;
    if (!window.has(length)) return Found::kIncomplete;
    // Before parsing: Protobuf accepts many damaged messages.
    if (get_u32(window.data() + 8) != checksum(window.data(), bytes)) return Found::kNone;
    return parse(window.data() + kFrameBytes, bytes) ? Found::kRecord : Found::kNone;
  }

  // Nearly all records are events. Parses an event by itself, which reuses one message and its
  // memory: a record that contains it would allocate a new one each time.
  bool parse(const char* data, std::uint32_t bytes) {
    constexpr std::uint32_t kEventTag = (v1::TraceRecord::kEventFieldNumber << 3) | 2;  // of a length-delimited field
    google::protobuf::io::CodedInputStream input(reinterpret_cast<const std::uint8_t*>(data), static_cast<int>(bytes));
    std::uint32_t length = 0;
    is_event = input.ReadTag() == kEventTag && input.ReadVarint32(&length) &&
               length == bytes - static_cast<std::uint32_t>(input.CurrentPosition());
    return is_event ? event_message.ParseFromArray(data + input.CurrentPosition(), static_cast<int>(length))
                    : record.ParseFromArray(data, static_cast<int>(bytes));
  }

  // Reads the next valid record. Bytes before it are damage; an incomplete record at the end of the
  // file counts as cut off.
  bool next_record() {
    const std::uint64_t begin = window.offset();
    std::optional<std::uint64_t> incomplete;
    while (window.has(1)) {
      std::size_t length = 0;
      const Found found = look(length);
      if (found == Found::kRecord) {
        add_damage(begin, window.offset());
        window.drop(length);
        return true;
      }
      // Goes on searching: the length of a damaged record may reach beyond the end of a file that
      // has good records after it.
      if (found == Found::kIncomplete && !incomplete) incomplete = window.offset();
      // Skip to the next byte where a record could begin.
      const std::string_view rest(window.data() + 1, window.size() - 1);
      const auto next = rest.find(kMark[0]);
      window.drop(1 + (next == std::string_view::npos ? rest.size() : next));
    }
    add_damage(begin, incomplete.value_or(window.offset()));
    if (incomplete) cut = window.offset() - *incomplete;
    return false;
  }

  void add_damage(std::uint64_t begin, std::uint64_t end) {
    if (begin < end) damage.push_back({begin, end - begin});
  }

  std::string_view name(std::uint32_t id) const {
    if (id == 0) return {};
    const bool known = id <= texts.size() && texts[id - 1].data() != nullptr;
    return known ? texts[id - 1] : std::string_view("?");  // its definition was in a damaged part
  }

  // A name that is out of bounds is left out: its events then show "?".
  void take_name(const v1::TraceName& message) {
    if (message.id() == 0 || message.id() > kNamesMax || message.text().size() > kNameBytesMax) return;
    // Ids are dense unless a definition was damaged. kNamesMax bounds the growth.
    if (message.id() > texts.size()) texts.resize(message.id());
    texts[message.id() - 1] = names->intern(message.text());
    ++names_defined;
  }

  bool take_event(const v1::TraceEvent& message, ObservedEvent& event) const {
    if (!v1::TraceEventKind_IsValid(message.kind()) || message.kind() == v1::TRACE_EVENT_KIND_UNSPECIFIED)
      return false;  // a kind from a later version
    if (!are_times(message)) return false;
    event.kind = static_cast<EventKind>(message.kind());
    event.id = message.id();
    event.cause = message.cause();
    event.time = monotonic_of(message.monotonic_ns());
    event.wall_time = wall_of(message.wall_ns());
    event.what = what_of(message);
    event.call = message.call();
    event.attempt = message.attempt();
    event.checkpointer = message.checkpointer();
    event.rank = header.rank;
    // Stored plus one, so that no peer is 0, which Protobuf does not encode. The limit keeps the
    // cast defined.
    event.peer = static_cast<int>(std::min<std::uint32_t>(message.peer(), kRanksMax)) - 1;
    event.phase = enum_of<Phase>(message.phase());
    event.actor = enum_of<Actor>(message.actor()).value_or(Actor::kRuntime);
    event.code = enum_of<ErrorCode>(message.code());
    event.name = name(message.name());
    event.text = message.text();
    event.number = message.number();
    event.bytes = message.bytes();
    event.duration = Duration(message.duration_ns());
    event.queued = Duration(message.queued_ns());
    event.ok = !message.failed();
    return true;
  }

  const std::string path;
  const std::shared_ptr<TraceNames> names;
  Window window;
  TraceHeader header;
  v1::TraceRecord record;        // the last one, if it is no event
  v1::TraceEvent event_message;  // the last one, if `is_event`
  bool is_event = false;
  std::vector<std::string_view> texts;  // indexed by id - 1
  std::size_t names_defined = 0;
  std::vector<TraceDamage> damage;
  std::uint64_t cut = 0;
};

TraceFileReader::TraceFileReader(const std::string& path, std::shared_ptr<TraceNames> names)
    : implementation_(std::make_unique<Implementation>(path, std::move(names))) {}
TraceFileReader::~TraceFileReader() = default;

const TraceHeader& TraceFileReader::header() const { return implementation_->header; }

bool TraceFileReader::next(ObservedEvent& event) {
  auto& self = *implementation_;
  while (self.next_record()) {
    const v1::TraceEvent* message = self.is_event ? &self.event_message : nullptr;
    if (message == nullptr && self.record.has_name()) self.take_name(self.record.name());
    if (message == nullptr && self.record.has_event()) message = &self.record.event();
    if (message != nullptr && self.take_event(*message, event)) return true;
  }
  return false;
}

void TraceFileReader::skip_to(std::uint64_t offset) { implementation_->window.skip_to(offset); }
std::size_t TraceFileReader::names_defined() const { return implementation_->names_defined; }

const std::vector<TraceDamage>& TraceFileReader::damage() const { return implementation_->damage; }
std::uint64_t TraceFileReader::bytes_cut() const { return implementation_->cut; }
std::uint64_t TraceFileReader::bytes() const { return implementation_->window.offset(); }

}  // namespace cairn
