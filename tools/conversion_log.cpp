#include <cairn/tools/conversion_log.hpp>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <cairn/base/error.hpp>
#include <cairn/tools/commands.hpp>

namespace cairn::tools {

ConversionLog::ConversionLog(std::string path, const Json& identity) : path_(std::move(path)) {
  file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (file_ < 0) throw system_error("create", path_, errno);
  if (::flock(file_, LOCK_EX | LOCK_NB) != 0) {
    const int why = errno;
    ::close(file_);
    if (why != EWOULDBLOCK) throw system_error("lock", path_, why);
    throw Error(ErrorCode::kPrecondition, fmt::format("another conversion writes there now ({} is locked)", printable(path_)));
  }
  std::ifstream in(path_);
  std::vector<Json> found;
  std::size_t good_bytes = 0;
  for (std::string line; std::getline(in, line) && !in.eof();) {
    Json entry = Json::parse(line, nullptr, false);
    if (entry.is_discarded()) break;
    good_bytes += line.size() + 1;
    found.push_back(std::move(entry));
  }
  const bool is_ours = !found.empty() && found.front() == identity;
  if (::ftruncate(file_, is_ours ? static_cast<off_t>(good_bytes) : 0) != 0) {
    const int why = errno;
    ::close(file_);
    throw system_error("cut", path_, why);
  }
  if (!found.empty()) found.erase(found.begin());  // the identity
  (is_ours ? entries_ : stale_) = std::move(found);
  if (is_ours) return;
  try {
    append(identity.dump() + "\n");
  } catch (...) {
    remove();
    ::close(file_);
    throw;
  }
}

ConversionLog::~ConversionLog() {
  if (file_ >= 0) ::close(file_);
}

void ConversionLog::append(const std::string& text) {
  const off_t end = ::lseek(file_, 0, SEEK_END);
  std::string_view rest = text;
  while (!rest.empty()) {
    const ssize_t written = ::write(file_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int why = errno;
      if (::ftruncate(file_, end) != 0) { /* the reader passes over half a line */
      }
      throw system_error("write to", path_, why);
    }
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
  if (::fdatasync(file_) != 0) throw system_error("sync", path_, errno);
}

void ConversionLog::add(Json entry) {
  append(entry.dump() + "\n");
  entries_.push_back(std::move(entry));
}

void ConversionLog::remove() noexcept { ::unlink(path_.c_str()); }

}  // namespace cairn::tools
