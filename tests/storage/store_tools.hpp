// Helpers for the conformance suite and other store tests: whole objects in one call, error codes
// as values, threads that start together.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <cairn/base/error.hpp>
#include <cairn/storage/store.hpp>

namespace cairn::testing {

// Starts threads at the same moment. `run` returns when all have ended, and rethrows an exception
// that a thread threw.
class TogetherThreads {
 public:
  template <class Work>
  static void run(int count, Work work) {
    std::mutex mutex;
    std::condition_variable changed;
    int waiting = 0;
    std::exception_ptr problem;
    std::vector<std::thread> threads;
    for (int i = 0; i < count; ++i) {
      threads.emplace_back([&, i] {
        {
          std::unique_lock lock(mutex);
          ++waiting;
          changed.notify_all();
          changed.wait(lock, [&] { return waiting == count; });
        }
        try {
          work(i);
        } catch (...) {
          std::lock_guard lock(mutex);
          problem = std::current_exception();
        }
      });
    }
    for (auto& thread : threads) thread.join();
    if (problem) std::rethrow_exception(problem);
  }
};

// Returns the code that `act` fails with, or nothing if it succeeds. Exceptions other than `Error`
// propagate.
template <class Act>
std::optional<ErrorCode> code_of(Act act) {
  try {
    act();
  } catch (const Error& error) {
    return error.code();
  }
  return std::nullopt;
}

inline void put_object(Store& store, const ObjectName& name, const std::string& content, CreateOptions options = {}) {
  const auto writer = store.create(name, options);
  writer->write_at(0, content);
  writer->sync(content.size());
}

// Replaces the content of an existing object.
inline void replace_object(Store& store, const ObjectName& name, const std::string& content) {
  store.remove(name);
  put_object(store, name, content);
}

inline std::string get_object(Store& store, const ObjectName& name) {
  std::string content(store.size_bytes(name), '\0');
  store.read(name, {{0, {content.data(), content.size()}}});
  return content;
}

inline std::vector<std::string> names_of(const std::vector<ObjectInfo>& objects) {
  std::vector<std::string> names;
  for (const auto& object : objects) names.push_back(object.name);
  return names;
}

// Returns the names without a leading '.'. A store may use names that begin with '.' for the
// bookkeeping of its attempts.
inline std::vector<std::string> visible_names(Store& store) {
  std::vector<std::string> names = names_of(store.list());
  names.erase(std::remove_if(names.begin(), names.end(), [](const std::string& name) { return name.front() == '.'; }), names.end());
  return names;
}

using Names = std::vector<std::string>;

}  // namespace cairn::testing
