// How the texts that name stores are taken apart: the rule stands in storage/store.hpp. Pure text; nothing is looked up on disk.
#pragma once

#include <string>

namespace cairn {

struct StoreUrl {
  std::string scheme;        // lower case; "" for a plain path
  std::string prefix;        // as written, up to the path: "mem://name", "file://", "file:", ""
  std::string authority;     // between "//" and the path, "" where there is none
  std::string path;          // the rest
  bool has_slashes = false;  // "//" follows the colon
};

// kInvalidArgument for an empty text, a NUL byte, or a drive letter.
StoreUrl split_url(const std::string& url);

// Whether `text` can be a scheme: a letter, then one or more letters, digits, '+', '-', '.'.
bool is_scheme_name(const std::string& text);
std::string lower_case(std::string text);

// Whether the registry knows the scheme, in lower case.
bool is_store_registered(const std::string& scheme);

}  // namespace cairn
