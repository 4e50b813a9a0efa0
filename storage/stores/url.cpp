#include <cairn/storage/stores/url.hpp>

#include <algorithm>
#include <filesystem>
#include <optional>

#include <cairn/base/error.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {
namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

std::string without_trailing_slashes(std::string path) {
  while (!path.empty() && path.back() == '/') path.pop_back();
  return path;
}

// Returns the parent of `path`, judging by its text alone.
std::string parent_path(std::string path) {
  const bool absolute = !path.empty() && path.front() == '/';
  path = without_trailing_slashes(path);
  // "a/." is "a". The target of ".." is known only on disk, so another ".." is appended.
  while (path.size() >= 2 && path.compare(path.size() - 2, 2, "/.") == 0)
    path = without_trailing_slashes(path.substr(0, path.size() - 2));
  if (path.empty()) return absolute ? "/" : "";
  if (path == ".") return "..";
  const std::size_t slash = path.rfind('/');
  const std::string last = slash == std::string::npos ? path : path.substr(slash + 1);
  if (last == "..") return path + "/..";
  if (slash == std::string::npos) return ".";
  const std::string parent = without_trailing_slashes(path.substr(0, slash));
  return parent.empty() ? "/" : parent;
}

}  // namespace

std::string lower_case(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

bool is_scheme_name(const std::string& text) {
  if (text.size() < 2 || !is_letter(text.front())) return false;
  for (char c : text)
    if (!is_letter(c) && !(c >= '0' && c <= '9') && c != '+' && c != '-' && c != '.') return false;
  return true;
}

StoreUrl split_url(const std::string& url) {
  if (url.empty()) throw Error(ErrorCode::kInvalidArgument, "cannot open a store: its URL or path is empty");
  if (url.find('\0') != std::string::npos)
    throw Error(ErrorCode::kInvalidArgument, "cannot open a store: its URL or path holds a NUL byte");
  if (url == "~" || url.rfind("~/", 0) == 0)
    throw Error(ErrorCode::kInvalidArgument, "cannot open store \"" + url +
                                                 "\": only shells replace ~ by the home directory; write " +
                                                 "the directory itself, or \"./" + url + "\" for one that is named ~");
  StoreUrl parts;
  const std::size_t colon = url.find(':');
  // A letter and a colon are too short for a scheme, and on other systems a drive.
  if (colon == 1 && is_letter(url[0]) && url.size() > 2 && (url[2] == '/' || url[2] == '\\'))
    throw Error(ErrorCode::kInvalidArgument,
                "cannot open store \"" + url + "\": it looks like a path on a drive, which this system does not have; write \"./" +
                    url + "\" if a directory of that name is meant");
  if (colon != std::string::npos && is_scheme_name(url.substr(0, colon))) {
    const std::string scheme = lower_case(url.substr(0, colon));
    parts.has_slashes = url.compare(colon + 1, 2, "//") == 0;
    // "a:b" may be a file name. Without slashes, only a registered scheme counts as one.
    if (parts.has_slashes || is_store_registered(scheme)) {
      parts.scheme = scheme;
      std::size_t path = colon + 1;
      if (parts.has_slashes) {
        path = url.find('/', colon + 3);
        if (path == std::string::npos) path = url.size();
        parts.authority = url.substr(colon + 3, path - colon - 3);
      }
      parts.prefix = url.substr(0, path);
      parts.path = url.substr(path);
      return parts;
    }
  }
  parts.path = url;
  return parts;
}

std::string place_in(const StoreUrl& url) {
  std::string place = without_trailing_slashes(url.path);
  place.erase(0, std::min(place.find_first_not_of('/'), place.size()));
  if (!place.empty()) check_object_name(place);
  return place;
}

std::string parent_url(const std::string& url) {
  const StoreUrl parts = split_url(url);
  std::string parent = parent_path(parts.path);
  // An authority is its own root. Adding a bare "/" would give one place two names.
  if (!parts.authority.empty() && parent == "/") parent.clear();
  return parts.prefix + parent;
}

// The name is checked, so that it cannot lead out of the place.
std::string child_url(const std::string& url, const std::string& name) {
  check_object_name(name);
  const StoreUrl parts = split_url(url);
  std::string path = without_trailing_slashes(parts.path);
  const bool relative_start = parts.path.empty() && !parts.has_slashes;
  return parts.prefix + path + (relative_start ? "" : "/") + name;
}

std::optional<std::filesystem::path> local_path(const std::string& url) {
  const StoreUrl parts = split_url(url);
  if (!parts.scheme.empty() && parts.scheme != "file") return std::nullopt;
  return std::filesystem::path(parts.path);
}

}  // namespace cairn
