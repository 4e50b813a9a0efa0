// Formats saved values and tensor elements, for people and programs.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include <cairn/formats/saved_value.hpp>
#include <cairn/planning/elements.hpp>
#include <cairn/tools/commands.hpp>

namespace cairn::tools {

// Builds the text of a value as Python writes it, up to a length.
struct PythonText {
  std::size_t length_max;
  bool is_exact = false;  // the texts of different values differ, except those of tensors
  std::string text{};

  bool is_full() const { return text.size() > length_max; }
  void put(const std::string& more) { text += more; }
  void put_bytes(std::size_t count, std::string_view bytes) { put_short("<" + human_bytes(count) + ">", bytes); }
  void put_short(const std::string& more, std::string_view exact) {
    put(more);
    if (is_exact) text += exact;
  }

  // Returns the text, cut off with "…" if it is too long.
  std::string take() {
    if (!is_full()) return std::move(text);
    std::size_t end = length_max;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // do not cut inside a character
    return text.substr(0, end) + "…";
  }
};

// Appends a value in a pickle: tensors by type and size, bytes by length, and opaque values as
// Python code that would make them.
void put_pickle(PythonText& out, const PickleValue& value);

// Returns the value as Python would write it: `[0.1, 'a', None]`. Shows tensors by shape and bytes
// by length. Cuts off after `length_max` bytes, with "…".
std::string value_text(const SavedValue& value, std::size_t length_max = 4000);
// Returns the kind of a value: "a tuple of 2", "an int".
std::string value_kind(const SavedValue& value);

// Returns the element of `dtype` at `bytes` as the shortest text that reads back as the same number
// of its dtype, or of float32 if float32 is wider.
std::string element_text(const char* bytes, DType dtype);
// Returns the same element as JSON: NaN and infinities as strings, complex numbers and both numbers
// of a float4 element as pairs.
Json element_json(const char* bytes, DType dtype);

}  // namespace cairn::tools
