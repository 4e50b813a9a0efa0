#include <cairn/tests/simulation/planted/planted.hpp>

namespace cairn::planted {

int& active() {
  static int number = -1;
  return number;
}

void overwrite_in_place(FileSystem& files, const std::string& from, const std::string& to) {
  std::string content;
  const int source = files.open_for_reading(from);
  FileStatus status;
  if (source < 0 || files.status_of(source, status) < 0) return;
  content.resize(status.size_bytes);
  files.read_at(source, content.data(), content.size(), 0);
  files.close(source);
  files.remove_file(to);
  const int target = files.create_exclusively(to);
  if (target < 0) return;
  for (std::size_t done = 0; done < content.size();) {
    const ssize_t written = files.write_at(target, content.data() + done, content.size() - done, done);
    if (written <= 0) break;
    done += static_cast<std::size_t>(written);
  }
  files.sync_data(target);
  files.close(target);
}

}  // namespace cairn::planted
