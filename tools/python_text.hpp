// Builds the text of a value as Python writes it, up to a length. Does not include LibTorch.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <cairn/formats/pickle_value.hpp>
#include <cairn/tools/commands.hpp>

namespace cairn::tools {

// Appends ".0" to whole numbers, to mark them as floats as Python does.
inline std::string real_text(std::string digits) {
  return digits.find_first_not_of("-0123456789") == std::string::npos ? digits + ".0" : digits;
}

class PythonText {
 public:
  // `is_exact`: the texts of different values differ, except those of tensors.
  explicit PythonText(std::size_t length_max, bool is_exact = false) : length_max_(length_max), is_exact_(is_exact) {}

  bool is_full() const { return text_.size() > length_max_; }
  void put(const std::string& text) { text_ += text; }
  void put_bytes(std::size_t count, std::string_view bytes) { put_short("<" + human_bytes(count) + ">", bytes); }
  void put_short(const std::string& text, std::string_view exact) {
    put(text);
    if (is_exact_) text_ += exact;
  }

  // Returns the text, cut off with "…" if it is too long.
  std::string take() {
    if (!is_full()) return std::move(text_);
    std::size_t end = length_max_;
    while (end > 0 && (static_cast<unsigned char>(text_[end]) & 0xC0) == 0x80) --end;  // do not cut inside a character
    return text_.substr(0, end) + "…";
  }

 private:
  const std::size_t length_max_;
  const bool is_exact_;
  std::string text_;
};

// Appends a value in a pickle: tensors by type and size, bytes by length, and opaque values as
// Python code that would make them. Defined in pickle_text.cpp.
void put_pickle(PythonText& out, const PickleValue& value);

}  // namespace cairn::tools
