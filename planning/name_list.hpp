// A list of many names.
#pragma once

#include <cstddef>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <cairn/base/copy_on_write.hpp>
#include <cairn/base/error.hpp>

namespace cairn {

// Names in one text. A rank of a large world lists millions of them, and as many std::string would
// take far more time and memory. Copies share memory until one of them is changed. What
// `operator[]` and iterators return refers to the list: it is valid until a name is added, or the
// list is moved or destroyed.
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

  NameList() = default;
  // A list of `size` names, which `fill` adds when one of them is first used. That use throws what
  // `fill` throws. Several threads may use the list.
  NameList(std::size_t size, std::function<void(NameList& empty)> fill)
      : deferred_(std::make_shared<Deferred>(size, std::move(fill))) {}

  void add(std::string_view name) {
    Contents& contents = edit();
    contents.text += name;
    contents.ends.push_back(contents.text.size());
  }
  void reserve(std::size_t names, std::size_t bytes) {
    Contents& contents = edit();
    contents.ends.reserve(names);
    contents.text.reserve(bytes);
  }
  std::size_t size() const noexcept { return deferred_ ? deferred_->size : contents_->ends.size(); }
  bool empty() const noexcept { return size() == 0; }
  std::string_view operator[](std::size_t at) const {
    const Contents& contents = deferred_ ? deferred_->contents() : *contents_;
    const std::size_t begin = at == 0 ? 0 : contents.ends[at - 1];
    return std::string_view(contents.text).substr(begin, contents.ends[at] - begin);
  }
  Iterator begin() const { return {*this, 0}; }
  Iterator end() const { return {*this, size()}; }
  std::vector<std::string> to_vector() const { return {begin(), end()}; }

  friend bool operator==(const NameList& list, const std::vector<std::string>& names) { return list.to_vector() == names; }

 private:
  struct Contents {
    std::string text;
    std::vector<std::size_t> ends;  // by name, in `text`
  };
  struct Deferred {
    Deferred(std::size_t names, std::function<void(NameList& empty)> how) : size(names), fill(std::move(how)) {}
    const Contents& contents();

    const std::size_t size;
    std::function<void(NameList& empty)> fill;  // null once it has run
    std::once_flag once;
    CopyOnWrite<Contents> filled;
  };
  Contents& edit();

  CopyOnWrite<Contents> contents_;
  std::shared_ptr<Deferred> deferred_;  // if set, has the contents
};

inline const NameList::Contents& NameList::Deferred::contents() {
  std::call_once(once, [&] {
    NameList list;
    fill(list);
    check_invariant(list.size() == size, "a list is filled with all of its names");
    filled = std::move(list.contents_);
    fill = nullptr;
  });
  return *filled;
}

inline NameList::Contents& NameList::edit() {
  if (deferred_) {
    contents_ = (deferred_->contents(), deferred_->filled);
    deferred_.reset();
  }
  return contents_.edit();
}

}  // namespace cairn
