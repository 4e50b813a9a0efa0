// Parses the texts that name stores, by the rules in storage/store.hpp. Works on text only and
// never accesses the disk.
#pragma once

#include <string>

namespace cairn {

struct StoreUrl {
  std::string scheme;        // lower case; "" for a plain path
  std::string prefix;        // as written, up to the path: "mem://name", "file://", "file:", ""
  std::string authority;     // between "//" and the path, "" where there is none
  std::string path;          // after the prefix, as written; "" if absent
  bool has_slashes = false;  // "//" follows the colon
};

// Splits `url` into its parts. Throws kInvalidArgument for an empty text, a NUL byte or a drive
// letter.
StoreUrl split_url(const std::string& url);

// Returns the path of a URL as a place in a store that has no directories: without slashes at its
// ends. It may be empty. Throws kInvalidArgument if it is no name of an object.
std::string place_in(const StoreUrl& url);

// Returns whether `text` can be a scheme: a letter, then one or more letters, digits, '+', '-',
// '.'.
bool is_scheme_name(const std::string& text);
std::string lower_case(std::string text);

// Returns whether a factory is registered for `scheme`, given in lower case.
bool is_store_registered(const std::string& scheme);

}  // namespace cairn
