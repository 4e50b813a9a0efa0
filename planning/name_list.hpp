// A list of many names.
#pragma once

#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {

// Names in one text. A rank of a large world lists millions of them, and as many std::string would
// take far more time and memory. What `operator[]` and iterators return refers to the list: it is
// valid until a name is added, or the list is moved or destroyed.
class NameList {
 public:
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = std::string_view;
    using difference_type = std::ptrdiff_t;
    using pointer = const std::string_view*;
    using reference = std::string_view;

    Iterator(const NameList& list, std::size_t at) : list_(&list), at_(at) {}
    std::string_view operator*() const { return (*list_)[at_]; }
    Iterator& operator++() {
      ++at_;
      return *this;
    }
    Iterator operator++(int) { return std::exchange(*this, Iterator(*list_, at_ + 1)); }
    friend bool operator==(const Iterator& a, const Iterator& b) { return a.at_ == b.at_; }
    friend bool operator!=(const Iterator& a, const Iterator& b) { return a.at_ != b.at_; }

   private:
    const NameList* list_;
    std::size_t at_;
  };

  void add(std::string_view name) {
    text_ += name;
    ends_.push_back(text_.size());
  }
  void reserve(std::size_t names, std::size_t bytes) {
    ends_.reserve(names);
    text_.reserve(bytes);
  }
  std::size_t size() const noexcept { return ends_.size(); }
  bool empty() const noexcept { return ends_.empty(); }
  std::string_view operator[](std::size_t at) const {
    const std::size_t begin = at == 0 ? 0 : ends_[at - 1];
    return std::string_view(text_).substr(begin, ends_[at] - begin);
  }
  Iterator begin() const { return {*this, 0}; }
  Iterator end() const { return {*this, size()}; }
  std::vector<std::string> to_vector() const { return {begin(), end()}; }

  friend bool operator==(const NameList& list, const std::vector<std::string>& names) { return list.to_vector() == names; }

 private:
  std::string text_;
  std::vector<std::size_t> ends_;  // by name, in text_
};

}  // namespace cairn
